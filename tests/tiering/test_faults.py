"""Faults of a bucket, one at a time, in virtual time: unreachable for an hour, slow, throttling,
failing, refusing, deleted; objects deleted, truncated and changed without the broker; clocks that
jump; a full disk meanwhile.

Each time: nothing acknowledged is lost, nothing wrong is served, the broker continues, its reports
are true, its log is not flooded, and afterwards everything due is in the bucket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.manifest.keys import SEGMENTS
from kafkawire.objectstore.port import Listed, Stored
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.fake_store import FakeStore
from tests.kit.tier.faults import HOUR_S, SEEDS, WARNINGS_PER_HOUR, live, trickle, uploaded
from tests.kit.tier.life import LAG_MS, SETTLE_S, Life, expect
from tests.kit.tier.model import rows_in
from tests.kit.tier.world import read_partition


async def says_error(life: Life, code: str) -> None:
    """Whether `tier why` names the error and the time of the next try, except during a try."""
    reported: dict[str, dict[str, Any]] = {}
    for _ in range(60):
        reported = {line["reason"]: line for line in await life.why()}
        assert reported.keys() <= {"error", "active", "uploaded", "queued", "uploading"}
        if "error" in reported:
            break
        await life.env.sleep(1)
    assert code in reported["error"]["detail"], reported
    until_s = reported["error"]["until_s"]
    assert until_s is None or until_s <= life.world.config.tier_retry_max_ms / 1000


OUTAGES = {
    "EndpointConnectionError": StoreFaults(down=True),
    "InvalidAccessKeyId": StoreFaults(refused="InvalidAccessKeyId"),
    "SlowDown": StoreFaults(slow_down_rate=1.0),
    "InternalError": StoreFaults(error_rate=1.0),
    "ReadTimeoutError": StoreFaults(lost_rate=1.0, delay_s=(1.0, 30.0)),
    "NoSuchBucket": StoreFaults(refused="NoSuchBucket"),
}


@pytest.mark.slow
@pytest.mark.parametrize("attached", [True, False], ids=["later", "from the start"])
@pytest.mark.parametrize("code", list(OUTAGES) if SEEDS >= 50 else list(OUTAGES)[:2])
def test_bucket_unreachable_for_an_hour(code: str, attached: bool) -> None:
    faults = OUTAGES[code]

    async def act(life: Life) -> None:
        bucket = life.world.bucket
        await life.topic("t", 2)
        await life.produce("t", 1)
        await life.env.sleep(SETTLE_S)
        assert await uploaded(life, "t") == attached
        bucket.faults = faults
        before = sum(bucket.requests.values())
        await trickle(life, "t", HOUR_S)
        assert not await uploaded(life, "t")
        await says_error(life, code)
        await life.check()
        spent = sum(bucket.requests.values()) - before
        most = 5 * HOUR_S * 1000 / life.world.config.tier_retry_max_ms
        assert 5 < spent < most, f"{spent} requests in an hour of {code}"

    lines = live(act, None if attached else faults)
    assert lines.count(logging.WARNING) <= WARNINGS_PER_HOUR, lines.texts(logging.WARNING)[:20]
    assert any(code in text for text in lines.texts(logging.WARNING) + lines.texts(logging.ERROR))
    errors = lines.texts(logging.ERROR)
    assert 1 <= len(errors) <= 4, errors[:10]


@pytest.mark.slow
def test_slow_bucket_gets_everything() -> None:
    async def act(life: Life) -> None:
        await life.topic("t", 2, tiering_max_lag_ms="60000")
        life.world.bucket.faults = StoreFaults(delay_s=(0.5, 1.5), bytes_per_second=2000)
        await trickle(life, "t", 300, 10.0)
        await life.env.sleep(90)
        assert await uploaded(life, "t")

    lines = live(act)
    assert not lines.texts(logging.ERROR)


@pytest.mark.slow
def test_transient_errors_do_not_exceed_lag_limit() -> None:
    """A few failures are a few lines at WARNING, and no lag limit is exceeded."""

    async def act(life: Life) -> None:
        await life.topic("t", 2, tiering_max_lag_ms="60000")
        # One in five requests fails: with two in five, eight in a row are to be expected, and the
        # pauses between them add up to the lag limit.
        rates = StoreFaults(error_rate=0.05, slow_down_rate=0.05, lost_rate=0.05, partial_rate=0.05)
        life.world.bucket.faults = rates
        await trickle(life, "t", 600, 10.0)
        await life.env.sleep(90)
        assert await uploaded(life, "t")

    lines = live(act)
    assert not lines.texts(logging.ERROR)
    assert 1 <= lines.count(logging.WARNING) <= 100


@pytest.mark.slow
def test_every_record_is_in_bucket_within_lag() -> None:
    """The lag limit, record by record: acknowledged at t, in the bucket by t + lag."""

    async def act(life: Life) -> None:
        await life.topic("t", 2, tiering_max_lag_ms="20000", tiering_min_object_bytes="100000000")
        partition = await life.partition(life.catalog.by_name["t"].partitions[0].number)
        due: list[tuple[float, int]] = []
        for _ in range(600):
            life.append(partition, 1)
            await life.log.commit_log.wait_until_committed()
            due.append((life.loop.now + 20, partition.high_watermark))
            await life.env.sleep(1)
            while due and due[0][0] <= life.loop.now:
                _, offset = due.pop(0)
                assert partition.commit_offset >= offset, f"{offset} is late at {life.loop.now}"

    assert not live(act, journal_roll_ms=3_600_000, cut_interval_ms=1000).texts(logging.ERROR)


def test_idle_broker_makes_no_requests() -> None:
    async def act(life: Life) -> None:
        await life.topic("t", 2)
        await life.produce("t", 1)
        await life.env.sleep(SETTLE_S)
        before = sum(life.world.bucket.requests.values())
        await life.env.sleep(HOUR_S)
        assert sum(life.world.bucket.requests.values()) == before

    live(act)


HARM: dict[str, Callable[[Life, str], None]] = {
    "deleted": lambda life, key: life.world.bucket.forget(key),
    "cut": lambda life, key: life.world.bucket.truncate(key, 300),
    "emptied": lambda life, key: life.world.bucket.truncate(key, 0),
    "changed": lambda life, key: change(life, key),
}


def change(life: Life, key: str) -> None:
    """The same batches with some bits changed."""
    data = bytearray(life.world.bucket.held[key].data)
    for at in range(200, len(data) // 2, 97):
        data[at] ^= 0x55
    life.world.bucket.store(key, bytes(data))
    life.world.bucket.harmed.add(key)


@pytest.mark.parametrize("harm", HARM)
def test_damaged_object_is_error_for_its_readers_only(harm: str) -> None:
    """Its readers get an error, all others their records; no reader gets wrong data."""

    async def act(life: Life) -> None:
        await life.topic("t", 1, local_retention_ms="1", segment_bytes="1048576")
        await life.produce("t", 4)
        await life.env.sleep(SETTLE_S)
        number = life.catalog.by_name["t"].partitions[0].number
        partition = await life.partition(number)
        world, promises = life.world, life.world.promises
        keys = [key for key in world.bucket.held if key.startswith(SEGMENTS)]
        assert len(keys) >= 2
        HARM[harm](life, keys[0])
        served = failed = 0
        for start in range(partition.log_start, partition.high_watermark):
            try:
                plan = partition.plan(start, 500, partition.high_watermark, True)
                buffers = await partition.log.read(plan)
            except KafkaError as failure:
                expect(failure, ErrorCode.CORRUPT_MESSAGE)
                failed += 1
                continue
            for offset, row in rows_in(buffers, start):
                promises.partitions[number].see(offset, row)
                served += 1
        assert served
        assert failed
        await life.produce("t", 1)
        await life.env.sleep(SETTLE_S)
        assert await uploaded(life, "t")
        await life.delete("t")

    lines = live(act)
    assert 1 <= len(lines.records) <= 100


@pytest.mark.parametrize("jump_ms", [86_400_000, -86_400_000, 3_600_000, -3_600_000])
def test_wall_clock_jumps(jump_ms: int) -> None:
    async def act(life: Life) -> None:
        await life.topic("t", 2, local_retention_ms="1")
        await life.produce("t", 2)
        life.world.clock_ms += jump_ms
        await life.produce("t", 2)
        await life.delete_records("t", 8)
        await life.env.sleep(LAG_MS / 1000 + 10)
        assert await uploaded(life, "t")
        life.world.clock_ms -= jump_ms
        await life.produce("t", 2)
        await life.env.sleep(LAG_MS / 1000 + 10)
        assert await uploaded(life, "t")
        life.world.clock_ms += abs(jump_ms)  # graces end

    live(act)


@pytest.mark.slow
def test_full_disk_while_bucket_is_unreachable() -> None:
    """Produces are refused, reads continue; once the bucket is reachable everything is uploaded."""

    async def act(life: Life) -> None:
        world = life.world
        await life.topic("t", 2)
        await life.produce("t", 2)
        await life.env.sleep(SETTLE_S / 3)
        world.bucket.faults = StoreFaults(down=True)
        await trickle(life, "t", 60, 10.0)
        refused = 0
        world.fs.faults.room_bytes = 4000
        for _ in range(100):
            for row in life.catalog.by_name["t"].partitions:
                try:
                    life.append(await life.partition(row.number), 3)
                except KafkaError as failure:
                    expect(failure, ErrorCode.KAFKA_STORAGE_ERROR)
                    refused += 1
            await life.env.sleep(1)
        for partition in await life.partitions():  # uploaded files may have been deleted
            start = max(partition.log_start, partition.commit_offset)
            found = await read_partition(partition, start)
            world.promises.check(partition.number, start, partition.high_watermark, found)
            assert found
        world.fs.faults.room_bytes = None
        await life.env.sleep(30)
        await trickle(life, "t", 60, 10.0)
        world.bucket.faults = StoreFaults()
        await life.env.sleep(SETTLE_S)
        assert await uploaded(life, "t")

    live(act)


def test_cold_reads_fail_only_while_bucket_is_unreachable() -> None:
    async def act(life: Life) -> None:
        await life.topic("t", 1, local_retention_ms="1")
        await life.produce("t", 3)
        await life.env.sleep(SETTLE_S)
        partition = await life.partition(life.catalog.by_name["t"].partitions[0].number)
        life.world.bucket.faults = StoreFaults(down=True, timeout_s=1.0)
        with pytest.raises(KafkaError) as caught:
            await read_partition(partition, 0)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        life.append(partition, 2)  # and hot reads continue
        await life.log.commit_log.wait_until_committed()
        assert len(await read_partition(partition, partition.cut_offset)) == 2
        life.world.bucket.faults = StoreFaults()
        await life.env.sleep(10)
        assert len(await read_partition(partition, 0)) == partition.high_watermark

    live(act)


@pytest.mark.parametrize("lacks", ["conditions", "order"])
def test_storage_without_what_is_relied_on_is_refused(
    lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without topics with durability=s3: two brokers must not own one tier, and a restore
    reads listings by key."""
    put, listed = FakeStore.put, FakeStore.list

    async def put_always(store: FakeStore, key: str, data: bytes, **_: object) -> Stored:
        return await put(store, key, data)

    async def list_from_the_start(
        store: FakeStore, prefix: str, after: str = "", limit: int = 1000
    ) -> list[Listed]:
        return await listed(store, prefix, "", limit)

    if lacks == "conditions":
        monkeypatch.setattr(FakeStore, "put", put_always)
    else:
        monkeypatch.setattr(FakeStore, "list", list_from_the_start)

    async def act(life: Life) -> None:
        await life.topic("t")
        await life.produce("t", 1)
        await life.env.sleep(SETTLE_S)
        assert life.tiering.state == "refused"
        word = {"conditions": "If-None-Match", "order": "lists objects by key"}[lacks]
        assert word in str(life.tiering.error)
        assert not [key for key in life.world.bucket.objects if key.startswith(SEGMENTS)]
        monkeypatch.undo()
        await life.env.sleep(life.world.config.tier_retry_max_ms / 1000)

    live(act)
