"""Log objects in a restore from a bucket: which ones are read, and that nothing acknowledged is
lost with machine and metadata.

Covers: kafkawire.restore.bucket.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.codec.format_errors import NewerFormatError
from kafkawire.log.journal.format import Naming
from kafkawire.log.objects.format import read_header, write_fence
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.manifest.keys import log_object_key
from kafkawire.offsets.catalog.object_logs import ObjectLog
from kafkawire.progress import silent
from kafkawire.restore.bucket import SeveralBrokers, gather_from_bucket
from kafkawire.restore.evidence import EPOCH_MARGIN, BucketEvidence, LogSeen
from kafkawire.restore.log_objects import copy_others, find_needed, log_rows
from kafkawire.restore.plan import plan_restore
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.env import memory_env
from tests.kit.log.log_objects import NONCE, frame_of, object_of
from tests.kit.produce_fetch import fetch, make, produce, values
from tests.kit.server import port_of, running
from tests.kit.tier.buckets import Bucket, Share, Topic
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore
from tests.kit.waiting import until

ORDERS = Topic("orders", [3, 4], {"retention.ms": "5", "durability": "s3"})
LATE_ID = b"l" * 16
SOON = {"tiering_max_lag_ms": "5000", "tiering_min_object_bytes": "1"}
NEVER = {"tiering_max_lag_ms": "3600000"}
CUTS = {"journal_roll_ms": "100", "cut_interval_ms": "50"}


# Which objects of a log are needed


@pytest.mark.parametrize(
    ("there", "fence", "first", "end"),
    [
        ([0, 1, 2], None, 0, 3),
        ([7], None, 7, 8),
        ([5, 6, 7, 9], None, 5, 8),  # 8 was being stored when the broker died
        ([5, 8], None, 5, 6),
        ([3, 5, 6, 7, 8, 9], None, 5, 10),  # 4 was deleted
        ([1, 3, 4, 5, 6, 7, 9], None, 3, 8),
        ([2, 3, 4], 4, 2, 4),
        ([2, 3, 4, 6], 4, 2, 4),  # 6 was being stored when the fence was put
        ([1, 3, 4], 4, 1, 4),  # a start names the missing one
        ([4], 4, 4, 4),
        ([4, 6], 4, 4, 4),
    ],
)
def test_needed_objects(there: list[int], fence: int | None, first: int, end: int) -> None:
    assert find_needed(there, fence) == range(first, end)


# Evidence


def naming(topic_id: bytes, name: str, index: int, epoch: int = 6, log_start: int = 0) -> Naming:
    return Naming(topic_id, name, index, epoch, 10, log_start)


def put(
    bucket: FakeBucket, node: int, epoch: int, sequences: Sequence[int], fence: int | None = None
) -> None:
    """Store log objects of orders-0 and of a topic that the manifest does not have."""
    names = {
        3: naming(ORDERS.id, "orders", 0, log_start=2),
        8: naming(LATE_ID, "late", 1),
        9: naming(b"g" * 16, "__consumer_offsets", 0),
    }
    for at in sequences:
        frames = [frame_of(number, 1 << 32 | 64, [batch(b"x")]) for number in names]
        data = object_of(frames, names, epoch=epoch, sequence=at, node_id=node)
        bucket.store(f"nodes/{node}/{log_object_key(epoch, at)}", data)
    if fence is not None:
        data = write_fence(node, epoch, fence, NONCE, epoch + 1, 0)
        bucket.store(f"nodes/{node}/{log_object_key(epoch, fence)}", data)


def sample() -> Bucket:
    bucket = Bucket(ORDERS)
    bucket.put(1, Share(3, 0, 5))
    bucket.manifest({3: (0, 5)})
    return bucket


async def scan(bucket: FakeBucket) -> BucketEvidence:
    return await gather_from_bucket(memory_env(), FakeStore(bucket), silent)


async def test_logs_and_topics_of_objects_are_evidence() -> None:
    bucket = sample()
    put(bucket, 1, 4, [3, 4], fence=5)
    put(bucket, 1, 6, [0, 1])
    seen = await scan(bucket)
    small = sum(len(data) for key, data in bucket.objects.items() if "0004/" in key) - 96
    assert [(log.node_id, log.broker_epoch) for log in seen.logs] == [(1, 4), (1, 6)]
    assert seen.logs[0] == LogSeen(1, 4, 3, 5, True, small)
    restored = plan_restore(seen)
    topics = {topic.name: topic for topic in restored.topics}
    assert set(topics) == {"orders", "late", "__consumer_offsets"}
    assert topics["late"].id == LATE_ID
    assert topics["late"].partitions[1].number == 8
    assert topics["late"].partitions[1].leader_epoch == 6 + EPOCH_MARGIN
    assert topics["late"].configs == {"durability": "s3"}
    assert topics["orders"].configs == ORDERS.configs
    groups = topics["__consumer_offsets"]
    assert (groups.internal, groups.configs["cleanup.policy"]) == (True, "compact")
    ends = {each.number: (each.log_start, each.next_offset) for each in restored.checkpoints}
    assert (ends[3], ends[8]) == ((2, 5), (0, 0))
    assert restored.next_partition > 9
    url = "s3://bucket/prefix/nodes/1"
    assert log_rows(restored.logs, 1, "s3://bucket/prefix", 7) == [
        ObjectLog(1, 4, url, 3, 5, 7),
        ObjectLog(1, 6, url, 0, None, 7),
    ]


async def test_folder_with_log_objects_alone_is_of_no_other_broker() -> None:
    bucket = sample()
    put(bucket, 1, 6, [0])
    seen = await gather_from_bucket(memory_env(), FakeStore(bucket), silent, of_one=True)
    assert len(seen.logs) == 1
    bucket.store("nodes/1/owner", b"{}")
    with pytest.raises(SeveralBrokers):
        await gather_from_bucket(memory_env(), FakeStore(bucket), silent, of_one=True)


async def test_damaged_objects_and_left_out_ones_are_doubts() -> None:
    bucket = sample()
    put(bucket, 1, 4, [1, 3, 4, 5, 6, 7, 9])
    bucket.store(f"nodes/1/{log_object_key(4, 5)}", b"no log object")
    bucket.store("nodes/1/log/strange", b"")
    seen = await scan(bucket)
    texts = [doubt.text for doubt in seen.doubts]
    assert [text for text in texts if "cannot be read" in text and f"{5:020}" in text]
    assert [text for text in texts if text.startswith("1 log object of nodes/1/log/") and
            "before a missing one" in text]  # fmt: skip
    assert [text for text in texts if "after the end of the log" in text]
    assert [text for text in texts if text == "topic late is in log objects only"]


async def test_object_of_newer_program_is_refused() -> None:
    bucket = sample()
    put(bucket, 1, 4, [0])
    key = f"nodes/1/{log_object_key(4, 0)}"
    data = bytearray(bucket.data(key))
    data[11] = 9
    bucket.store(key, bytes(data))
    with pytest.raises(NewerFormatError, match="format version 9"):
        await scan(bucket)


async def test_logs_of_other_brokers_are_copied() -> None:
    bucket = sample()
    put(bucket, 1, 4, [3])
    put(bucket, 2, 4, [5, 7], fence=8)
    put(bucket, 2, 9, [0])
    put(bucket, 3, 2, [], fence=1)
    seen = await scan(bucket)
    env, store = memory_env(), FakeStore(bucket)
    for _ in range(2):
        logs = await copy_others(env, store, seen.logs, 1, silent)
        assert [(log.node_id, log.broker_epoch, log.released, log.end) for log in logs] == [
            (1, 4, 3, 4), (1, 10, 0, 2), (1, 11, 0, 1),
        ]  # fmt: skip
    for epoch, sequence, source in ((10, 0, (4, 5)), (10, 1, (4, 7)), (11, 0, (9, 0))):
        key = log_object_key(epoch, sequence)
        data = bucket.data(f"nodes/1/{key}")
        head = read_header(data, key)
        assert (head.node_id, head.broker_epoch, head.sequence) == (1, epoch, sequence)
        assert data[96:] == bucket.data(f"nodes/2/{log_object_key(*source)}")[96:]


# Round trips


class Topics:
    """A client of a broker."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def create(self, name: str, **configs: str) -> None:
        client = await Client.connect(port_of(self.server))
        await make(client, name, 1, durability="s3", **configs)
        await client.close()

    async def append(self, name: str, value: bytes) -> None:
        client = await Client.connect(port_of(self.server))
        answer = await client.call(produce(name, batch(value)), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        await client.close()

    async def read(self, name: str) -> list[bytes]:
        client = await Client.connect(port_of(self.server))
        found: list[bytes] = []
        while True:
            answer = await client.call(fetch(name, len(found), wait_ms=0), 11)
            row = answer.responses[0].partitions[0]
            assert row.error_code == 0
            found += values(row)
            if len(found) >= row.high_watermark:
                await client.close()
                return found

    def end_of_uploads(self, name: str) -> int:
        """The end of the uploaded offsets, once the partition is in memory."""
        broker = self.server.broker
        (row,) = broker.catalog.by_name[name].partitions
        partition = broker.log.partitions.get(row.number)
        return -1 if partition is None else partition.commit_offset


async def restored(tier: Path, data: Path, *options: str) -> str:
    words = ["restore", str(tier), "--data", str(data), "--yes", *options]
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
async def test_no_acknowledged_record_is_lost_with_machine_and_metadata(tmp_path: Path) -> None:
    tier, lost = tmp_path / "tier", tmp_path / "lost"
    async with running(tmp_path / "data", tier_url=f"file://{tier}", **CUTS) as server:
        topics = Topics(server)
        await topics.create("orders", **SOON)
        await topics.append("orders", b"uploaded")
        await until(lambda: topics.end_of_uploads("orders") == 1)
        await topics.create("late", **NEVER)
        await topics.append("orders", b"not uploaded")
        for each in (b"one", b"two"):
            await topics.append("late", each)
        shutil.copytree(tier, lost)  # the machine is lost here
    new = tmp_path / "new"
    document = json.loads(await restored(lost, new, "--json"))
    assert document["log_objects"] >= 3
    for _ in range(2):
        async with running(new, tier_url=f"file://{lost}", **CUTS) as server:
            topics = Topics(server)
            assert await topics.read("orders") == [b"uploaded", b"not uploaded"]
            late = await topics.read("late")
            assert late[:2] == [b"one", b"two"]
            await topics.append("late", b"three")
            await until(lambda topics=topics: topics.end_of_uploads("orders") == 2)  # type: ignore[misc]
    shown = await restored(lost, tmp_path / "again")
    assert "whose records the broker appends when it starts" in shown


@pytest.mark.slow
async def test_metadata_rebuilt_from_the_journals_have_the_logs(tmp_path: Path) -> None:
    """Metadata and journals are lost, and then the metadata alone."""
    data, url = tmp_path / "data", f"file://{tmp_path}/tier"
    async with running(data, tier_url=url, **CUTS) as server:
        topics = Topics(server)
        await topics.create("orders", **SOON)
        await topics.append("orders", b"uploaded")
        await until(lambda: topics.end_of_uploads("orders") == 1)
        await topics.append("orders", b"not uploaded")
    for lost in ("journals", "segments"):
        shutil.rmtree(data / "brokers" / "1" / lost)
    words = ["restore", "--from-log", "--data", str(data), "--tier", url]
    for expected in (2, 3):
        (data / "metadata.db").unlink()
        result = await asyncio.to_thread(CliRunner().invoke, app, words)
        assert result.exit_code == 0, result.output
        async with running(data, tier_url=url, **CUTS) as server:
            topics = Topics(server)
            await topics.append("orders", b"after")
            found = await topics.read("orders")
            assert found == [b"uploaded", b"not uploaded", *[b"after"] * (expected - 1)]


@pytest.mark.slow
async def test_metadata_that_are_older_than_log_objects_are_refused(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    url = f"file://{tier}"
    async with running(tmp_path / "data", tier_url=url, durability="s3") as server:
        await Topics(server).create("t", **NEVER)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    async with running(tmp_path / "data", tier_url=url, durability="s3") as server:
        await Topics(server).append("t", b"one")
    shutil.rmtree(tmp_path / "copy" / "brokers")
    with pytest.raises(IdentityError, match="a log object of a later life of broker 1"):
        async with running(tmp_path / "copy", tier_url=url, durability="s3"):
            pass
