"""Ownership of a bucket: claims that are lost, repeated, contested, refused."""

from __future__ import annotations

import json

import pytest

from kafkawire.log.recovery.identity import IdentityError
from kafkawire.manifest.keys import OWNER
from kafkawire.manifest.sealed_json import seal
from kafkawire.metadata.store import BrokerSuperseded
from kafkawire.objectstore.errors import Refused, StoreError
from kafkawire.offsets.catalog.port import TierRow
from kafkawire.offsets.storage.memory import MemoryRows, MemoryStorage
from kafkawire.tiering.publishing.compatibility import check_tier
from kafkawire.tiering.publishing.owner import (
    MAX_CLAIMS,
    DamagedOwner,
    OwnedByOther,
    Owner,
    OwnerRecord,
)
from tests.kit.env import memory_env
from tests.kit.tier.fake_bucket import FakeBucket, StoreFaults
from tests.kit.tier.fake_store import FakeStore

ENV = memory_env()
URL = "s3://bucket/p"


def owner(bucket: FakeBucket, cluster_id: str = "c", node_id: int = 1) -> Owner:
    return Owner(ENV, FakeStore(bucket), cluster_id, node_id)


def stored(bucket: FakeBucket) -> OwnerRecord:
    return OwnerRecord.unpack(bucket.objects[OWNER])


async def test_each_start_has_a_later_epoch() -> None:
    bucket = FakeBucket()
    for epoch in (1, 2, 3):
        one = owner(bucket, "c", epoch)
        assert await one.claim() == epoch
        assert await one.claim() == epoch, "asking again changes nothing"
        assert (stored(bucket).epoch, stored(bucket).node_id) == (epoch, epoch)
    assert bucket.requests["put"] == 3


async def test_broker_does_not_reclaim_lost_bucket() -> None:
    bucket = FakeBucket()
    one, two = owner(bucket), owner(bucket, "c", 2)
    await one.claim()
    await one.verify()
    await two.claim()
    for ask in (one.claim, one.verify):
        with pytest.raises(OwnedByOther, match="claimed by node 2 in epoch 2, after this broker"):
            await ask()
    await two.verify()
    assert stored(bucket).epoch == 2
    with pytest.raises(Refused):
        await one.verify()


async def test_claim_with_lost_response_is_recognised() -> None:
    bucket = FakeBucket()
    for epoch in (1, 2):
        one = owner(bucket)
        bucket.faults = StoreFaults(lost_rate=0.0)

        def lose(moment: str, kind: str, key: str) -> None:
            if (moment, kind) == ("done", "put"):
                bucket.faults.lost_rate = 1.0

        bucket.hook = lose
        with pytest.raises(StoreError, match="ReadTimeoutError"):
            await one.claim()
        bucket.faults, bucket.hook = StoreFaults(), lambda moment, kind, key: None
        assert await one.claim() == epoch
        assert stored(bucket).epoch == epoch


async def test_bucket_of_other_cluster_is_unchanged() -> None:
    bucket = FakeBucket()
    await owner(bucket, "theirs", 7).claim()
    before = bucket.objects
    with pytest.raises(OwnedByOther, match="belongs to the cluster theirs, this is ours"):
        await owner(bucket, "ours").claim()
    assert bucket.objects == before


async def test_deleted_owner_file_is_written_again() -> None:
    bucket = FakeBucket()
    one = owner(bucket)
    await one.claim()
    bucket.forget(OWNER)
    await one.verify()
    assert one.epoch == stored(bucket).epoch == 2


async def test_concurrent_claims() -> None:
    bucket = FakeBucket()
    count = 0

    def hook(moment: str, kind: str, key: str) -> None:
        nonlocal count
        if (moment, kind) == ("call", "put") and count < rivals:
            count += 1
            bucket.store(OWNER, OwnerRecord("c", 9, count, f"n{count}", 0).pack())

    bucket.hook, rivals = hook, 3
    assert await owner(bucket).claim() == 4
    count, rivals = 0, 1000
    with pytest.raises(StoreError, match="another broker claims"):
        await owner(bucket).claim()
    assert count == MAX_CLAIMS


async def test_process_with_a_successor_claims_nothing() -> None:
    bucket = FakeBucket()
    current, successor = 1, OwnerRecord("c", 1, 2, "successor", 0).pack()

    async def check_current() -> None:
        if current != 1:
            raise BrokerSuperseded(1, current)

    def hook(moment: str, kind: str, key: str) -> None:
        # The successor starts and claims between the check of the earlier process and its PUT.
        nonlocal current
        if (moment, kind) == ("call", "put"):
            current = 2
            bucket.store(OWNER, successor)

    bucket.hook = hook
    earlier = Owner(ENV, FakeStore(bucket), "c", 1, check_current)
    with pytest.raises(OwnedByOther, match="another process was started as broker 1, in epoch 2"):
        await earlier.claim()
    assert bucket.objects == {OWNER: successor}


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"[]", "not what kafkawire writes"), (b"{}", "not what"),
     (b'{"format": 1, "epoch": "x"}', "not what"), (b"\xff", "not what"),
     (b"not ours", "not what"), (b'{"forms": ', "not what"),
     (b"[" * 100_000, "not what"), (b'{"format": 3}', "format 3, this kafkawire reads up to 2")],
)  # fmt: skip
async def test_unknown_owner_format_is_not_overwritten(data: bytes, says: str) -> None:
    bucket = FakeBucket()
    bucket.store(OWNER, data)
    with pytest.raises(OwnedByOther, match=says):
        await owner(bucket).claim()
    assert bucket.objects == {OWNER: data}


async def test_owner_of_format_1_is_taken_over() -> None:
    bucket = FakeBucket()
    old = {"cluster_id": "c", "node_id": 1, "epoch": 8, "nonce": "n", "claimed_ms": 5}
    bucket.store(OWNER, json.dumps({"format": 1, **old}).encode())
    assert await owner(bucket).claim() == 9


async def test_torn_owner_is_written_again() -> None:
    """Cut anywhere, or a block of zeros, as a disk leaves a file of a folder tier."""
    bucket = FakeBucket()
    await owner(bucket).claim()
    sound = bucket.objects[OWNER]
    for data in (*(sound[:end] for end in range(len(sound) - 2)), bytes(len(sound))):
        bucket.store(OWNER, data)
        assert await owner(bucket).claim() > 1_000_000


async def test_damaged_owner_is_written_again(caplog: pytest.LogCaptureFixture) -> None:
    """Without a checksum the broker would refuse all writes after a bit of the cluster's id."""
    bucket = FakeBucket()
    await owner(bucket).claim()
    sound = bucket.objects[OWNER]
    for bit in range(0, 8 * len(sound), 3):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        bucket.store(OWNER, bytes(data))
        caplog.clear()
        later = owner(bucket)
        assert await later.claim() > 1_000_000, "above every epoch that was lost"
        assert stored(bucket).epoch == later.epoch
        assert "writing it again" in caplog.text


async def test_owner_that_is_damaged_while_the_broker_runs() -> None:
    bucket = FakeBucket()
    one = owner(bucket)
    await one.claim()
    bucket.store(OWNER, bucket.objects[OWNER].replace(b'"epoch": 1', b'"epoch": 3'))
    await one.verify()
    assert stored(bucket).epoch == one.epoch > 1
    await owner(bucket).claim()  # another copy of the broker
    bucket.store(OWNER, bucket.objects[OWNER].replace(b'"node_id": 1', b'"node_id": 3'))
    before = dict(bucket.objects)
    with pytest.raises(DamagedOwner, match="its checksum is wrong"):
        await one.verify()
    assert bucket.objects == before


async def test_unknown_fields_of_owner_are_accepted() -> None:
    bucket = FakeBucket()
    await owner(bucket).claim()
    says = json.loads(bucket.objects[OWNER]) | {"new": [1]}
    del says["crc"]
    bucket.store(OWNER, seal(json.dumps(says)))
    assert await owner(bucket).claim() == 2


async def test_new_tier_of_another_broker_is_refused() -> None:
    """A renamed bucket, or two brokers whose objects are in storages of their own (RocksDB)."""
    bucket = FakeBucket()
    await owner(bucket).claim()
    storage = MemoryStorage(MemoryRows(), 2, lambda: 0)

    async def check(node_id: int) -> None:
        await check_tier(FakeStore(bucket), URL, storage, node_id, "c", "/data")

    with pytest.raises(IdentityError, match="is written by node 1 of this cluster"):
        await check(2)
    await check(1)
    await storage.save_tier(TierRow(0, URL))
    await check(2)  # known: after a restore
