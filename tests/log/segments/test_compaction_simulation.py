"""Compaction in a seeded simulation: several lives of a broker whose topics are compacted.

The world is that of tests/kit/log/life.py: crashes, torn writes, a full disk, failing SQL. Here
writers update a few keys, with tombstones, some of them idempotent; journals are cut and segments
cleaned all the time, with tiny buffers, pieces and segments. After each start:

- an acknowledged record is there, unless a later one of its key was stored (or its tombstone's
  time is over); so the last value of each key is never lost;
- the record at an offset never changes, and there is no record that no producer wrote;
- an idempotent producer that retries until it is answered is never refused.

`SIM_SEEDS=500 pytest tests/log/segments/test_compaction_simulation.py` runs more.
"""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from kafkawire.codec.batches import Record, iter_batches, pack, records
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.partition import Partition
from tests.kit.env import EPOCH_MS
from tests.kit.log.life import Life, expect
from tests.kit.log.model import Model, Producer
from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.kit.simloop import run

SEEDS = int(os.environ.get("SIM_SEEDS", "10"))
LIVES = 3
PARTITIONS = 3
Row = tuple[bytes, bytes | None]


class Updates(Model):
    """The guarantees for keyed records. `rows`: (partition, offset) -> key and value as read or
    answered; `acked`: those that must be there; `updates`: every (key, value) ever sent; `cleaned`:
    how many records were removed from segments at the last check."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng, config = self.rng, self.config
        config.flush = "commit"
        config.cut_interval_ms = rng.choice((5, 20))
        config.journal_roll_ms = rng.choice((5, 50))
        config.log_cleaner_backoff_ms = rng.choice((3, 30))
        config.log_cleaner_dedupe_buffer_size = rng.choice((8 * 16, 64 * 16, 1 << 20))
        self.configs = {
            "cleanup.policy": rng.choice(("compact", "compact,delete")),
            "min.cleanable.dirty.ratio": rng.choice(("0", "0.3")),
            "delete.retention.ms": rng.choice(("0", "50", "100000000")),
            "min.compaction.lag.ms": rng.choice(("0", "0", "30")),
            "segment.bytes": "1048576",
            "retention.ms": "-1",
        }
        self.rows: dict[tuple[int, int], Row] = {}
        self.acked: set[tuple[int, int]] = set()
        self.updates: set[Row] = set()
        self.producers = [Updater(self, number) for number in range(2)]
        self.cleaned = 0

    def fresh(self) -> Row:
        """An update that no producer sent before, unless it is a tombstone."""
        key = b"k%d" % self.rng.randrange(12)
        self.counter += 1
        value = b"%d:" % self.counter + bytes(self.rng.choice((0, 10, 300)))
        row = key, None if self.rng.random() < 0.15 else value
        self.updates.add(row)
        return row

    def see(self, partition: Partition, offset: int, row: Row) -> None:
        """Record that this offset holds this update from now on, or nothing."""
        known = self.rows.setdefault((partition.number, offset), row)
        assert known == row, f"offset {offset} has two records"


class Updater(Producer):
    """An idempotent producer of updates."""

    model: Updates

    def rows(self) -> list[Row]:
        """The updates without a response, or the next ones."""
        if not self.unanswered:
            self.pending = [self.model.fresh() for _ in range(self.model.rng.randrange(1, 4))]
            self.unanswered = [key for key, _ in self.pending]
        return self.pending


def batch_of(rows: list[Row], now_ms: int, codec: int, **more: int) -> memoryview:
    items = [Record(n, now_ms, key, value) for n, (key, value) in enumerate(rows)]
    return memoryview(pack(items, codec=codec, **more))


async def read_rows(partition: Partition, start: int) -> list[tuple[int, Row]]:
    """Every record from an offset on, as a consumer reads batch by batch."""
    found: list[tuple[int, Row]] = []
    offset = start
    while offset < partition.high_watermark:
        plan = partition.plan(offset, 2000, partition.high_watermark, True)
        before = offset
        for buffer in await partition.log.read(plan):
            data = bytes(buffer)
            for position, head in iter_batches(data):
                for record in records(data, position):
                    if record.offset >= offset:
                        assert record.key is not None
                        found.append((record.offset, (bytes(record.key), record.value)))
                offset = max(offset, head.last_offset + 1)
        assert offset > before, f"nothing at {before}, before {partition.high_watermark}"
    return found


class CleaningLife(Life):
    """One process."""

    model: Updates

    async def start(self) -> None:
        catalog = await self.metadata.open()
        await self.metadata.register_broker(1, {}, None)
        storage = self.metadata.storage(self.env.clock.now_ms)
        await self.open_log(catalog, storage, self.model.configs)

    async def check(self) -> None:
        """Check that every guarantee given so far holds."""
        model = self.model
        model.cleaned = 0
        for partition in self.partitions:
            start = partition.log_start
            assert start >= model.log_starts.get(partition.number, 0)
            mappings = list(partition.segments.mappings(partition.number))
            assert all(a.end_offset == b.base_offset for a, b in pairwise(mappings))
            found = await read_rows(partition, start)
            offsets = [offset for offset, _ in found]
            assert offsets == sorted(set(offsets))
            for offset, row in found:
                assert row in model.updates, "a record is there that no producer sent"
                model.see(partition, offset, row)
            there = set(offsets)
            newest: dict[bytes, int] = {}
            for (number, offset), (key, _) in model.rows.items():
                if number == partition.number:
                    newest[key] = max(newest.get(key, -1), offset)
            for number, offset in model.acked:
                if number != partition.number or offset < start or offset in there:
                    continue
                key, value = model.rows[number, offset]
                latest = newest[key]
                if latest == offset:
                    assert value is None, f"the last value of {key!r}, at {offset}, is lost"
                else:
                    self.check_replaced(partition, latest, there, key)
            model.cleaned += partition.cut_offset - sum(mapping.records for mapping in mappings)

    def check_replaced(
        self, partition: Partition, latest: int, there: set[int], key: bytes
    ) -> None:
        """Check a missing record: the one that replaced it is there, or was a tombstone."""
        value = self.model.rows[partition.number, latest][1]
        assert latest in there or value is None, f"{key!r}: neither {latest} nor those before"

    def append(self, partition: Partition) -> None:
        if self.log.commit_log.full or partition.removed:
            return
        rows = [self.model.fresh() for _ in range(self.rng.randrange(1, 5))]
        batch = batch_of(rows, self.env.clock.now_ms(), self.rng.choice((0, 0, 4)))
        try:
            done = partition.append(batch, self.env.clock.now_ms())
        except KafkaError:
            assert self.log.commit_log.failed is not None
            return

        def acknowledged(failure: BaseException | None) -> None:
            if failure is None and not self.over:
                self.record_stored(partition, done[0], rows)

        self.log.commit_log.after_commit(acknowledged)

    def record_stored(self, partition: Partition, base: int, rows: list[Row]) -> None:
        for at, row in enumerate(rows):
            self.model.see(partition, base + at, row)
            self.model.acked.add((partition.number, base + at))

    async def idempotent_writer(self, producer: Producer) -> None:
        assert isinstance(producer, Updater)
        while True:
            await self.env.sleep(self.rng.random() * 0.05)
            partition = self.partitions[producer.id % PARTITIONS]
            if partition.removed:
                continue
            rows = producer.rows()
            more = {"producer_id": producer.id, "producer_epoch": 0}
            now_ms = self.env.clock.now_ms()
            batch = batch_of(rows, EPOCH_MS, 0, base_sequence=producer.sequence, **more)
            try:
                done = partition.append(batch, now_ms)
                await self.log.commit_log.wait_until_committed()
            except KafkaError as failure:
                expect(failure, ErrorCode.KAFKA_STORAGE_ERROR)
                continue
            if self.over:
                return
            producer.answered()
            self.record_stored(partition, done[0], rows)

    async def reader(self) -> None:
        while True:
            await self.env.sleep(self.rng.random() * 0.1)
            partition = self.rng.choice(self.partitions)
            start = self.rng.randrange(partition.log_start, partition.high_watermark + 1)
            try:
                found = await read_rows(partition, start)
            except KafkaError as failure:
                expect(failure, ErrorCode.OFFSET_OUT_OF_RANGE)
                continue
            if not self.over:
                for offset, row in found:
                    self.model.see(partition, offset, row)


class LastLife(CleaningLife):
    """A life without writers: everything is cut and cleaned, and checked."""

    async def main(self) -> None:
        await self.start()
        await self.check()
        for _ in range(3):
            await self.env.sleep(0.2)
            await self.log.segments.tend()
        await self.check()
        self.model.trace.append([partition.size_bytes for partition in self.partitions])
        self.over = True
        await self.log.close()


def simulate(seed: int) -> Updates:
    model = Updates(seed)
    for kind in [CleaningLife] * LIVES + [LastLife]:
        model.fs.faults.__init__()  # type: ignore[misc]
        life = kind(model)
        run(life.loop, life.main())
    return model


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all buffers and segments hold a few batches only."""
    monkeypatch.setattr("kafkawire.log.segments.compact.offset_map._SLOTS_MIN", 8)
    monkeypatch.setattr("kafkawire.log.segments.compact.job.PIECE_BYTES", 1500)
    monkeypatch.setattr("kafkawire.log.segments.compact.plan.LARGE_BYTES", 3000)
    monkeypatch.setattr("kafkawire.log.segments.compact.request.SHARED_BYTES", 2000)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_last_values_survive_any_end(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.slow
def test_same_seed_gives_same_run_with_cleanings() -> None:
    with quiet():
        first, again = simulate(7), simulate(7)
    assert first.trace == again.trace
    assert first.cleaned > len(first.rows) // 2
