"""What goes wrong with a bucket, one thing at a time, in virtual time: unreachable for an hour,
slow, throttling, erring, refusing, gone; objects deleted, cut and changed behind our back; clocks
that jump; a full disk meanwhile.

Each time: nothing acknowledged is lost, nothing is served wrong, the broker goes on, what it says
of itself is true, its log is no flood, and afterwards everything due is in the bucket.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.manifest.keys import SEGMENTS
from tests.kit.fakestore import StoreFaults, no_hook
from tests.kit.tierlife import LAG_MS, SETTLE_S, Life, expect
from tests.kit.tiermodel import rows_in
from tests.kit.tierworld import TierWorld, read_partition

SEEDS = int(os.environ.get("SIM_SEEDS", "60"))
HOUR_S = 3600.0 if SEEDS >= 50 else 900.0
WARNINGS_PER_HOUR = 300
"""Each part that waits for the bucket tries once in `tier.retry.max.ms`, and says why it failed."""
CALM = {
    "tier_retry_max_ms": 60_000,
    "cut_interval_ms": 2000,
    "log_retention_check_interval_ms": 60_000,
    "log_cleaner_backoff_ms": 15_000,
}
"""Settings nearer to the defaults than those of the simulation, for what takes an hour."""


class Lines(logging.Handler):
    """What was logged at WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def count(self, level: int) -> int:
        """How many lines of one level there are."""
        return sum(record.levelno == level for record in self.records)

    def texts(self, level: int) -> list[str]:
        """The lines of one level."""
        return [record.getMessage() for record in self.records if record.levelno == level]


@contextmanager
def listening() -> Iterator[Lines]:
    """Hear what is logged meanwhile."""
    lines, root = Lines(), logging.getLogger()
    root.addHandler(lines)
    try:
        yield lines
    finally:
        root.removeHandler(lines)


def live(
    act: Callable[[Life], Awaitable[None]], faults: StoreFaults | None = None, **values: int
) -> Lines:
    """One broker in which `act` happens; then the bucket is well, and all must settle. `faults`
    are those of its start."""
    world = TierWorld(1, **{**CALM, **values})
    world.bucket.faults = faults or StoreFaults()
    life = Life(world)

    async def main() -> None:
        await life.start()
        await act(life)
        world.bucket.faults = StoreFaults()
        await life.env.sleep(SETTLE_S)
        await life.settle()
        await life.close()

    with listening() as lines:
        life.run(main)
    assert not life.loop.failures
    return lines


async def trickle(life: Life, name: str, seconds: float, every_s: float = 30.0) -> None:
    """Records come in now and then."""
    end = life.loop.now + seconds
    while life.loop.now < end:
        for row in life.catalog.by_name[name].partitions:
            life.append(await life.partition(row.number), 1)
        await life.env.sleep(every_s)


async def uploaded(life: Life, name: str) -> bool:
    """Whether all of a topic is in the bucket."""
    rows = [await life.partition(row.number) for row in life.catalog.by_name[name].partitions]
    return all(partition.commit_offset == partition.high_watermark for partition in rows)


async def says_error(life: Life, code: str) -> None:
    """`tier why` names the error and when it is tried again, but for a moment of trying."""
    told: dict[str, dict[str, Any]] = {}
    for _ in range(60):
        told = {line["reason"]: line for line in await life.why()}
        assert told.keys() <= {"error", "active", "uploaded", "queued", "uploading"}
        if "error" in told:
            break
        await life.env.sleep(1)
    assert code in told["error"]["detail"], told
    until_s = told["error"]["until_s"]
    assert until_s is None or until_s <= life.world.config.tier_retry_max_ms / 1000


OUTAGES = {
    "EndpointConnectionError": StoreFaults(down=True),
    "InvalidAccessKeyId": StoreFaults(refused="InvalidAccessKeyId"),
    "SlowDown": StoreFaults(slow_down_rate=1.0),
    "InternalError": StoreFaults(error_rate=1.0),
    "ReadTimeoutError": StoreFaults(lost_rate=1.0, delay_s=(1.0, 30.0)),
    "NoSuchBucket": StoreFaults(refused="NoSuchBucket"),
}


@pytest.mark.parametrize("attached", [True, False], ids=["later", "from the start"])
@pytest.mark.parametrize("code", list(OUTAGES) if SEEDS >= 50 else list(OUTAGES)[:2])
def test_an_hour_without_the_bucket(code: str, attached: bool) -> None:
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


def test_a_slow_bucket_gets_everything_all_the_same() -> None:
    async def act(life: Life) -> None:
        await life.topic("t", 2, tiering_max_lag_ms="60000")
        life.world.bucket.faults = StoreFaults(delay_s=(0.5, 1.5), bytes_per_second=2000)
        await trickle(life, "t", 300, 10.0)
        await life.env.sleep(90)
        assert await uploaded(life, "t")

    lines = live(act)
    assert not lines.texts(logging.ERROR)


def test_some_errors_are_made_good_within_the_promise() -> None:
    """A few failures are a few lines at WARNING, and nobody's promise is missed."""

    async def act(life: Life) -> None:
        await life.topic("t", 2, tiering_max_lag_ms="60000")
        rates = StoreFaults(error_rate=0.1, slow_down_rate=0.1, lost_rate=0.1, partial_rate=0.1)
        life.world.bucket.faults = rates
        await trickle(life, "t", 600, 10.0)
        await life.env.sleep(90)
        assert await uploaded(life, "t")

    lines = live(act)
    assert not lines.texts(logging.ERROR)
    assert 1 <= lines.count(logging.WARNING) <= 100


def test_every_record_is_in_the_bucket_in_time() -> None:
    """The promise itself, record by record: acknowledged at t, in the bucket by t + lag."""

    async def act(life: Life) -> None:
        await life.topic("t", 2, tiering_max_lag_ms="20000", tiering_min_object_bytes="100000000")
        partition = await life.partition(life.catalog.by_name["t"].partitions[0].number)
        due: list[tuple[float, int]] = []
        for _ in range(600):
            life.append(partition, 1)
            await life.log.commit_log.committed()
            due.append((life.loop.now + 20, partition.high_watermark))
            await life.env.sleep(1)
            while due and due[0][0] <= life.loop.now:
                _, offset = due.pop(0)
                assert partition.commit_offset >= offset, f"{offset} is late at {life.loop.now}"

    assert not live(act, journal_roll_ms=3_600_000, cut_interval_ms=1000).texts(logging.ERROR)


def test_an_idle_broker_asks_for_nothing() -> None:
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
    """Some bits of the batches are others."""
    data = bytearray(life.world.bucket.held[key].data)
    for at in range(200, len(data) // 2, 97):
        data[at] ^= 0x55
    life.world.bucket.store(key, bytes(data))
    life.world.bucket.harmed.add(key)


@pytest.mark.parametrize("harm", HARM)
def test_an_object_harmed_behind_our_back(harm: str) -> None:
    """Readers of it get an error, all others what they ask for; nobody gets anything wrong."""

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
                expect(failure, ErrorCode.KAFKA_STORAGE_ERROR)
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
def test_the_clock_jumps(jump_ms: int) -> None:
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


def test_the_disk_fills_while_the_bucket_is_away() -> None:
    """Produces are refused, reads go on; with the bucket back all is uploaded."""

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
        for partition in await life.partitions():  # what is uploaded may have left the disk
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


def test_cold_reads_fail_while_the_bucket_is_away_and_come_back() -> None:
    async def act(life: Life) -> None:
        await life.topic("t", 1, local_retention_ms="1")
        await life.produce("t", 3)
        await life.env.sleep(SETTLE_S)
        partition = await life.partition(life.catalog.by_name["t"].partitions[0].number)
        life.world.bucket.faults = StoreFaults(down=True, timeout_s=1.0)
        with pytest.raises(KafkaError) as caught:
            await read_partition(partition, 0)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        life.append(partition, 2)  # and what is hot goes on
        await life.log.commit_log.committed()
        assert len(await read_partition(partition, partition.cut_offset)) == 2
        life.world.bucket.faults = StoreFaults()
        await life.env.sleep(10)
        assert len(await read_partition(partition, 0)) == partition.high_watermark

    live(act)


def test_another_broker_takes_the_bucket_and_is_left_alone() -> None:
    """Two brokers of one cluster id (a restored one, say): the later claim holds. The earlier one
    serves what it has, says whose the bucket is, and changes nothing there any more."""
    old, new = TierWorld(1, **CALM), TierWorld(2, **CALM)
    new.bucket = old.bucket
    first, second = Life(old), Life(new)
    old.bucket.hook = no_hook
    for life in first, second:  # what is there is not what one of them alone expects
        life.committed = lambda method: None  # type: ignore[method-assign]

    async def begin() -> None:
        await first.start()
        await first.topic("t", 2)
        await first.produce("t", 2)
        await first.env.sleep(SETTLE_S)
        assert await uploaded(first, "t")

    async def take_over() -> None:
        await second.metadata.open()
        assert new.database.catalog is not None
        new.database.catalog.cluster_id = first.catalog.cluster_id
        new.database.next_partition = 100
        await second.start()
        await second.topic("u")
        await second.produce("u", 2)
        await second.env.sleep(SETTLE_S)
        assert await uploaded(second, "u")

    async def go_on() -> None:
        await first.produce("t", 1)
        await first.delete_records("t", 2)
        await first.env.sleep(SETTLE_S)
        assert {line["reason"] for line in await first.why()} >= {"owned by another broker"}
        before = manifest_keys(first)
        await trickle(first, "t", HOUR_S)
        assert manifest_keys(first) == before
        await first.check()

    with listening() as lines:
        first.loop.run_until_complete(begin())
        second.loop.run_until_complete(take_over())
        manifest = [key for key in manifest_keys(second) if "delta" in key]
        first.loop.run_until_complete(go_on())
        assert [key for key in manifest_keys(first) if "delta" in key] == manifest
        second.run(second.close)
        first.run(first.close)
    assert 1 <= lines.count(logging.ERROR) <= 3, lines.texts(logging.ERROR)


def manifest_keys(life: Life) -> list[str]:
    """What is in the bucket but segments."""
    return [key for key in life.world.bucket.objects if not key.startswith(SEGMENTS)]


def test_the_bucket_of_another_cluster_is_not_touched() -> None:
    old, new = TierWorld(1, **CALM), TierWorld(2, **CALM)
    first = Life(old)

    async def begin() -> None:
        await first.start()
        await first.topic("t")
        await first.produce("t", 1)
        await first.env.sleep(SETTLE_S)
        await first.close()

    first.run(begin)
    new.bucket = old.bucket
    other = Life(new)
    old.bucket.hook = no_hook
    other.committed = lambda method: None  # type: ignore[method-assign]
    before = old.bucket.objects

    async def come() -> None:
        await other.start()
        await other.topic("u")
        await other.produce("u", 1)
        await trickle(other, "u", HOUR_S)
        assert old.bucket.objects == before
        reasons = {line["reason"] for line in await other.why()}
        assert "owned by another broker" in reasons
        assert reasons <= {"owned by another broker", "active"}
        await other.check()
        await other.close()

    with listening() as lines:
        other.run(come)
    assert lines.count(logging.ERROR) <= 2, lines.texts(logging.ERROR)
    assert lines.count(logging.WARNING) <= WARNINGS_PER_HOUR
