"""Loading: a snapshot and the log after it, an old or damaged one, none at all, a damaged log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafkawire.codec.batches import CRC_AT, HEAD_BYTES, build
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination import coordinator as coordinator_module
from kafkawire.coordination import snapshot
from kafkawire.transactions import coordinator_log as loading
from kafkawire.transactions.machine.records import TransactionRecord, batches_of
from kafkawire.transactions.machine.transaction import (
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
    Transaction,
)
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch
from tests.kit.log.recovery import flip_bit
from tests.kit.transactions.bench import TransactionBench
from tests.kit.transactions.desk import T0, T1, TransactionSettings, some

PATH = "/transactions/transactions-0.snapshot"
TOPIC = "__transaction_state"


def known(bench: TransactionBench) -> dict[str, Transaction]:
    return dict(bench.coordinator.shard.transactions)


def files(bench: TransactionBench) -> dict[str, bytearray]:
    fs: Any = bench.env.fs
    found: dict[str, bytearray] = fs.files
    return found


async def busy() -> TransactionBench:
    """A coordinator that has worked: ids in all states at rest, one with a transaction."""
    bench = TransactionBench().begin()
    for number in range(40):
        await bench.init(f"id-{number % 7}")
    await bench.now_ended()
    at = await bench.init()
    assert (await bench.add(at, T1)).code == 0
    await bench.settle()
    return bench


async def test_the_log_alone_is_enough() -> None:
    bench = await busy()
    before = known(bench)
    await bench.reload()
    assert known(bench) == before
    assert not files(bench)


async def test_a_snapshot_and_the_log_after_it() -> None:
    bench = await busy()
    await bench.coordinator._store(0)
    assert PATH in files(bench)
    await bench.init("after")
    before = known(bench)
    for each in bench.partition.batches[:-1]:
        each[CRC_AT] ^= 1  # they are not read
        each[16] = 0
    await bench.reload()
    assert known(bench) == before


@pytest.mark.parametrize("damage", ["bytes", "length", "magic", "version", "topic"])
async def test_a_snapshot_that_cannot_be_used_only_costs_time(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await busy()
    await bench.coordinator._store(0)
    before = known(bench)
    data = files(bench)[PATH]
    match damage:
        case "bytes":
            data[60] ^= 1
        case "length":
            del data[-9:]
        case "magic":
            data[:8] = b"KWGROUPS"
        case "version":
            data[9] = 2
        case "topic":
            bench.partition.topic_id = b"u" * 16
    await bench.reload()
    assert known(bench) == before
    assert f"ignoring snapshot {PATH}" in caplog.text


async def test_a_snapshot_ahead_of_the_log_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    bench = await busy()
    await bench.coordinator._store(0)
    bench.partition.batches.pop()
    bench.partition.high_watermark -= 1
    await bench.reload()
    assert PATH not in files(bench)
    assert "it is ahead of the log" in caplog.text


async def test_snapshots_are_written_when_enough_log_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_module, "SNAPSHOT_LOG_BYTES", 3000)
    bench = TransactionBench().begin()
    for number in range(60):
        await bench.init(f"id-{number % 3}")
        await bench.settle()
    assert PATH in files(bench)
    assert bench.coordinator.appender.log_bytes < 3500
    before = known(bench)
    await bench.reload()
    assert known(bench) == before


async def test_closing_leaves_a_snapshot_if_it_is_worth_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for least, kept in [(1 << 20, False), (1000, True)]:
        monkeypatch.setattr(coordinator_module, "SNAPSHOT_LOG_BYTES", least)
        bench = TransactionBench().begin()
        bench.log.by_itself = True
        for number in range(5):
            await bench.init(f"id-{number}")
        await bench.coordinator.close()
        assert (PATH in files(bench)) == kept


async def test_a_full_disk_leaves_no_snapshot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await busy()

    def full(*_: object) -> int:
        raise OSError("no space")

    monkeypatch.setattr(snapshot, "write", full)
    await bench.coordinator._store(0)
    assert "cannot write snapshot" in caplog.text
    monkeypatch.undo()
    await bench.coordinator._store(0)
    assert PATH in files(bench)


async def test_a_decided_transaction_is_resumed_after_loading() -> None:
    """Crash point 10: answered, no marker; with the epoch of the new coordinator."""
    bench = TransactionBench().begin()
    bench.cluster.failing = KafkaError(ErrorCode.NETWORK_EXCEPTION)
    at = await bench.open(T0, T1)
    assert (await bench.now_end(at)).code == 0
    await bench.settle()
    assert bench.state is PREPARE_COMMIT
    bench.cluster.failing = None
    bench.cluster.sent.clear()
    await bench.reload()
    assert bench.state is PREPARE_COMMIT
    await bench.until(lambda: bench.state is COMPLETE_COMMIT)
    (sent,) = bench.cluster.sent
    assert sent[1].coordinator_epoch == 8
    assert sent[1].partitions == {T0, T1}


async def test_records_that_do_not_parse_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    bench = await busy()
    before = known(bench)
    for pair in [(b"\0\1\0\1x", b""), (b"\0\0\0\1x", b"\0\7"), (None, b""), (b"\0", None)]:
        bench.partition.append(memoryview(build([pair], timestamp_ms=1)), 1)
    bench.log.commit()
    await bench.reload()
    assert known(bench) == before
    assert caplog.text.count("skipping a record of __transaction_state") == 3


async def test_a_log_that_cannot_be_read_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator_module, "RETRY_MS", 0)
    bench = await busy()
    before = known(bench)
    plan = bench.partition.plan
    failures = [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "gone"), OSError("gone")]

    def broken(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return plan(*args)

    bench.partition.plan = broken  # type: ignore[method-assign, assignment]
    await bench.reload()
    assert known(bench) == before
    assert caplog.text.count("it is retried every second") == 1


async def test_thousands_of_open_transactions_load() -> None:
    bench = TransactionBench().begin()
    items = [TransactionRecord(f"id-{n}", some(ONGOING)) for n in range(3000)]
    for made in batches_of(items, 1 << 18, 2, 0):
        bench.partition.append(memoryview(made), 0)
    bench.log.commit()
    await bench.reload()
    assert len(known(bench)) == 3000
    assert {at.state for at in known(bench).values()} == {ONGOING}


# -- a damaged log --------------------------------------------------------------------------


class DamagedLog:
    """A log of states, one frame for each call of `store`, to be damaged and loaded."""

    def __init__(self) -> None:
        self.world = World(log_flush_offset_checkpoint_interval_ms=1 << 40)

    async def begin(self) -> DamagedLog:
        await self.world.start()
        (self.other,) = await self.world.topic("t")
        (self.partition,) = await self.world.topic(TOPIC, cleanup_policy="compact")
        return self

    async def store(self, **states: Transaction) -> int:
        """Append one batch; return its log position."""
        items = [TransactionRecord(name, at) for name, at in states.items()]
        (made,) = batches_of(items, 1 << 20, 2, EPOCH_MS)
        self.partition.append(memoryview(made), EPOCH_MS)
        await self.world.log.commit_log.wait_until_committed()
        return int(self.partition.rows.log_position[-1])

    async def load_damaged(self, *positions: int) -> loading.TransactionLoader:
        """Flip a bit at each position and load after a crash."""
        world = self.world
        self.other.append(batch(b"x"), EPOCH_MS)
        await world.log.commit_log.wait_until_committed()
        for position in positions:
            flip_bit(world, position)
        await world.crash()
        partition = world.find(TOPIC)
        loaded = loading.TransactionLoader(
            world.env,
            TransactionSettings(),
            partition,
            world.log.commit_log,
            loading.snapshot_place("/transactions", partition),
        )
        await loaded.load()
        assert loaded.next_offset == partition.next_offset
        return loaded


def states(loaded: loading.TransactionLoader) -> dict[str, Any]:
    return {name: at.state for name, at in loaded.shard.transactions.items()}


async def test_ids_with_damaged_records_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    """Its outcome may have been decided there: an older state must not decide it again."""
    log = await DamagedLog().begin()
    await log.store(a=some(ONGOING), b=some(ONGOING), c=some(EMPTY))
    position = await log.store(a=some(PREPARE_COMMIT), d=some(EMPTY))
    await log.store(d=some(ONGOING))
    loaded = await log.load_damaged(position + CRC_AT)
    (line,) = damage_lines(caplog)
    assert line.levelno == logging.CRITICAL
    assert "1 transactional ids whose newest records were there are forgotten" in line.message
    assert line.message.endswith(": a")
    assert states(loaded) == {"b": ONGOING, "c": EMPTY, "d": ONGOING}
    assert not loaded.shard.pending


async def test_damage_that_affects_no_id_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = await DamagedLog().begin()
    await log.store(b=some(EMPTY))
    position = await log.store(a=some(ONGOING))
    await log.store(a=some(EMPTY))
    loaded = await log.load_damaged(position + CRC_AT)
    (line,) = damage_lines(caplog)
    assert line.levelno == logging.WARNING
    assert "offsets 1-1 are damaged" in line.message
    assert "no state is lost" in line.message
    assert states(loaded) == {"a": EMPTY, "b": EMPTY}


async def test_damage_without_readable_ids_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    log = await DamagedLog().begin()
    await log.store(a=some(ONGOING))
    position = await log.store(a=some(PREPARE_COMMIT))
    await log.store(b=some(EMPTY))
    loaded = await log.load_damaged(*(position + at for at in range(8, HEAD_BYTES + 12)))
    (line,) = damage_lines(caplog)
    assert line.levelno == logging.CRITICAL
    assert "not all transactional ids" in line.message
    assert states(loaded) == {"a": ONGOING, "b": EMPTY}


def damage_lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The lines of the loader about damage."""
    return [line for line in caplog.records if line.name == loading.__name__]


def test_ids_are_read_up_to_the_damage() -> None:
    items = [TransactionRecord(name, some(EMPTY)) for name in ("one", "two", "three")]
    (made,) = batches_of(items, 1 << 20, 2, 0)
    assert loading.stored_ids(made) == {"one", "two", "three"}
    made[made.index(b"two") - 5] = 0x7F  # a length within the second record's key
    assert "one" in loading.stored_ids(made)
    assert loading.stored_ids(bytes(100)) == set()
    assert loading.stored_ids(b"\xff" * 100) == set()
