"""Replaying a table to a target in memory: each row once and in order after any interruption, and
no write where another producer writes.

Covers: kafkawire_spark.replay.target.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.progress import Progress
from kafkawire.reading.files.open import open_place
from kafkawire_spark.cli import replay as pipeline_replay
from kafkawire_spark.replay import job, record
from kafkawire_spark.replay.lane import (
    ComparedRow,
    Encoded,
    TableRows,
    Unanswered,
    row_of,
    write_lane,
)
from kafkawire_spark.replay.record import (
    Replay,
    ReplayError,
    ReplayLane,
    parse_bound,
    parse_partitions,
)
from kafkawire_spark.replay.rows import RowFile, groups, merge
from tests.kit.spark.pipeline_tables import ROW, MadeTable, rows_table

LANE = ReplayLane(0, 0, 100, 0, 5)
REPLAY = Replay("r", "t", "out", "", "c", 7, 0, (LANE,))


class Killed(Exception):
    """The process was ended here."""


@dataclass
class FakeTarget:
    """One partition that tracks producers like brokers do. `fails`: what happens at the nth call of
    `append`: "before" it is stored, or "after", the response or the process is lost."""

    rows: list[ComparedRow] = field(default_factory=list)
    last: tuple[int, int, int] | None = None  # sequence, records, base of the newest batch
    fails: dict[int, tuple[str, type[Exception]]] = field(default_factory=dict)
    calls: int = 0
    begin: int = 5

    def log_end_offset(self, partition: int) -> int:
        return self.begin + len(self.rows)

    def start(self, partition: int) -> int:
        return 0

    def row(self, partition: int, offset: int) -> ComparedRow | None:
        at = offset - self.begin
        return self.rows[at] if 0 <= at < len(self.rows) else None

    def append(self, partition: int, data: Any) -> int:
        self.calls += 1
        when, error = self.fails.pop(self.calls, ("", Killed))
        if when == "before":
            raise error("lost")
        sequence, rows = data
        if self.last is None or self.last[:2] != (sequence, len(rows)):
            expected = self.last[0] + self.last[1] if self.last else sequence
            assert sequence == expected, "the broker would answer OUT_OF_ORDER_SEQUENCE_NUMBER"
            self.last = (sequence, len(rows), self.log_end_offset(0))
            self.rows += rows
        if when == "after":
            raise error("lost")
        return self.last[2]

    def reconnect(self) -> None:
        pass


def encode(batch: pa.RecordBatch, sequence: int) -> Iterator[Encoded]:
    """Batches of three records."""
    for at in range(0, batch.num_rows, 3):
        part = batch.slice(at, 3)
        rows = [row_of(part.slice(i, 1)) for i in range(part.num_rows)]
        yield Encoded((sequence, rows), len(rows))
        sequence += len(rows)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    made = MadeTable(tmp_path_factory.mktemp("replay") / "table")
    made.run({0: [ROW] * 4 + ["compacted"] * 2 + [ROW] * 9, 1: [ROW] * 3}, files=2)
    made.run({0: [ROW] * 6})
    return made


def source(table: MadeTable, replay: Replay = REPLAY, lane: ReplayLane = LANE) -> TableRows:
    files = [RowFile(f.path, f.base, f.end) for f in table.files if f.partition == lane.partition]
    return TableRows(table.state.place, files, replay, lane)


def expected(offsets: Iterator[int] | range | list[int], partition: int = 0) -> list[ComparedRow]:
    batches = rows_table("t", partition, offsets).to_batches()
    return [row_of(batch.slice(i, 1)) for batch in batches for i in range(batch.num_rows)]


OFFSETS = [*range(4), *range(6, 21)]


def run(target: FakeTarget, rows: TableRows, lane: ReplayLane = LANE) -> int:
    return write_lane(target, lane, rows, encode, lambda there: None)


def test_rows_are_written_once_and_in_order(table: MadeTable) -> None:
    target, heard = FakeTarget(), list[int]()
    assert write_lane(target, LANE, source(table), encode, heard.append) == 19
    assert target.rows == expected(OFFSETS)
    assert heard[0] == 0
    assert heard == sorted(heard)
    assert heard[-1] == 19
    assert run(target, source(table)) == 0  # no row is left to write
    assert len(target.rows) == 19


@given(st.data())
def test_replay_continues_after_kill_at_any_step(table: MadeTable, data: st.DataObject) -> None:
    when = st.tuples(st.sampled_from(["before", "after"]), st.sampled_from([Killed, Unanswered]))
    target = FakeTarget(fails=data.draw(st.dictionaries(st.integers(1, 9), when)))
    for _ in range(20):
        try:
            run(target, source(table))
            break
        except ReplayError:
            continue  # a batch without a response too often: run it again
        except Killed:
            # The killed producer may be unknown to the broker by now; its sequences are of this
            # replay.
            target.last = None if data.draw(st.booleans()) else target.last
    assert target.rows == expected(OFFSETS)


def test_unresponsive_broker_ends_replay(table: MadeTable) -> None:
    target = FakeTarget(fails={call: ("before", Unanswered) for call in range(1, 50)})
    with pytest.raises(ReplayError, match="run it again to go on"):
        run(target, source(table))


def test_records_of_other_producers_are_detected(table: MadeTable) -> None:
    foreign = ComparedRow(1, None, b"x", ())
    target = FakeTarget(fails={3: ("before", Killed)})
    with pytest.raises(Killed):
        run(target, source(table))
    assert len(target.rows) == 4 + 2  # of the first file, of which four rows are before the gap
    target.rows.append(foreign)
    with pytest.raises(ReplayError, match="another record at offset 11"):
        run(target, source(table))
    target.rows += [foreign] * 100
    with pytest.raises(ReplayError, match="another producer wrote"):
        run(target, source(table))
    target.rows.clear()
    target.begin = 3
    with pytest.raises(ReplayError, match="it ends at 3"):
        run(target, source(table))


def test_interleaved_records_of_other_producers_are_detected(table: MadeTable) -> None:
    class Shared(FakeTarget):
        def append(self, partition: int, data: Any) -> int:
            if self.calls == 2:
                self.rows.append(ComparedRow(1, None, b"x", ()))
            return super().append(partition, data)

    with pytest.raises(ReplayError, match="another producer writes to it"):
        run(Shared(), source(table))


def test_rows_are_selected_by_offset_and_time(table: MadeTable) -> None:
    lane = replace(LANE, base=3, end=18)
    target = FakeTarget()
    run(target, source(table, lane=lane), lane)
    assert target.rows == expected([3, *range(6, 18)])
    since = 1_700_000_000_000
    replay = replace(REPLAY, since_ms=since + 8, until_ms=since + 16)
    target = FakeTarget(fails={2: ("after", Killed)})
    with pytest.raises(Killed):
        run(target, source(table, replay))
    run(target, source(table, replay))
    assert target.rows == expected(range(8, 16))


def test_table_with_unordered_offsets_is_refused(tmp_path: Path) -> None:
    made = MadeTable(tmp_path / "table")
    made.run({0: [ROW] * 10})
    made.change(made.files[0], [0, 1, 1, 2])
    with pytest.raises(ReplayError, match="offset 1 comes again"):
        run(FakeTarget(), source(made))
    (made.folder / made.files[0].path).unlink()
    with pytest.raises(ReplayError, match="cannot be read"):
        run(FakeTarget(), source(made))


class Targets:
    """The partitions of a target topic, in memory, in place of WireTarget. `appending` is called
    before a batch is stored."""

    def __init__(self) -> None:
        self.lanes = {0: FakeTarget(), 1: FakeTarget()}

    def appending(self) -> None:
        """Do nothing; tests override it."""

    def __call__(self, bootstrap: str, topic: str) -> Targets:
        return self

    def append(self, partition: int, data: Any) -> int:
        self.appending()
        return self.lanes[partition].append(partition, data)

    def log_end_offset(self, partition: int) -> int:
        return self.lanes[partition].log_end_offset(partition)

    def start(self, partition: int) -> int:
        return 0

    def row(self, partition: int, offset: int) -> ComparedRow | None:
        return self.lanes[partition].row(partition, offset)

    def close(self) -> None:
        """Do nothing: there is no connection."""


Heard = list[tuple[str, int, int]]


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> Targets:
    made = Targets()
    monkeypatch.setattr(job, "WireTarget", made)
    monkeypatch.setattr(job, "_encoder", lambda fixed: encode)
    return made


def write_all(table: MadeTable, heard: Heard) -> list[int]:
    """Run all of a replay's lanes; return the rows that each has written."""
    fixed = replace(REPLAY, lanes=(LANE, ReplayLane(1, 0, 5, 1, 5)))
    opened = job.Opened(table.state.place, "t", table.files, [])
    wish = job.ReplayRequest(str(table.folder), "out", "")
    done = job._write(wish, opened, fixed, lambda *call: heard.append(call))
    return [lane.written for lane in done]


def test_progress_counts_rows_then_written_rows(table: MadeTable, targets: Targets) -> None:
    heard: Heard = []
    assert write_all(table, heard) == [19, 3]
    for what in ("rows of t counted", "t -> out: rows"):
        calls = [(done, of) for which, done, of in heard if which == what]
        assert all(done <= of <= 105 for done, of in calls)
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)
        assert calls[-1] == (22, 22)


def test_ctrl_c_ends_after_current_batches_and_replay_continues(
    table: MadeTable, targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopped = threading.Event(), threading.Event()
    stop = job._LaneProgress.stop

    in_time: list[bool] = []

    def waits() -> None:
        begun.set()
        in_time.append(stopped.wait(60))

    def stops(progress: job._LaneProgress) -> None:
        stop(progress)
        stopped.set()

    def interrupted(futures: object) -> None:
        assert begun.wait(60)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job._LaneProgress, "stop", stops)
        patch.setattr(job, "wait", interrupted)
        patch.setattr(targets, "appending", waits)
        with pytest.raises(KeyboardInterrupt):
            write_all(table, [])
    assert all(in_time)
    assert all(lane.calls <= 1 for lane in targets.lanes.values())
    there = sum(len(lane.rows) for lane in targets.lanes.values())
    assert 0 < there <= 6
    assert sum(write_all(table, [])) == 22 - there
    assert targets.lanes[0].rows == expected(OFFSETS)
    assert targets.lanes[1].rows == expected(range(3), 1)


def test_interrupted_command_prints_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(wish: job.ReplayRequest, opened: object, progress: Progress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "open_table", lambda wish: None)
    monkeypatch.setattr(job, "replay", interrupted)
    with pytest.raises(SystemExit, match="130"):
        pipeline_replay.replay("/table", "out")
    assert "run the same command again to continue" in capsys.readouterr().err


@given(st.lists(st.sets(st.integers(0, 30)), max_size=4), st.integers(1, 4))
def test_overlapping_files_are_merged(sets: list[set[int]], portion: int) -> None:
    taken: set[int] = set()
    streams = []
    for some in sets:
        own = sorted(some - taken)
        taken |= some
        rows = rows_table("t", 0, own)
        batches = rows.to_batches(max_chunksize=portion)
        streams.append(iter([batch for batch in batches if batch.num_rows]))
    merged = [
        offset for batch in merge(streams, "_offset") for offset in batch["_offset"].to_pylist()
    ]
    assert merged == sorted(taken)


def test_disjoint_files_are_read_one_after_the_other() -> None:
    files = [RowFile("a", 0, 5), RowFile("c", 5, 9), RowFile("b", 0, 5), RowFile("d", 20, 30)]
    assert [[file.path for file in group] for group in groups(files)] == [["a", "b"], ["c"], ["d"]]


def test_last_record_is_read_back_and_compared() -> None:
    key = record.key_of("my-replay")
    assert record.load(record.dump(REPLAY), key) == REPLAY
    record.same(replace(REPLAY, producer_id=9, lanes=(replace(LANE, end=200, begin=0),)), REPLAY)
    for other in (
        replace(REPLAY, topic="other"),
        replace(REPLAY, since_ms=1),
        replace(REPLAY, lanes=(replace(LANE, base=1),)),
        replace(REPLAY, lanes=(replace(LANE, to_partition=1),)),
        replace(REPLAY, lanes=()),
    ):
        with pytest.raises(ReplayError, match="another --name"):
            record.same(other, REPLAY)
    for data in (b"", b"[]", b"{}", b'{"version": 1}', b'{"version": 2}'):
        with pytest.raises(ReplayError):
            record.load(data, key)
    with pytest.raises(ReplayError, match="--name="):
        record.key_of("../x")
    assert open_place("/tmp").where(key).endswith("/_kafkawire/replays/my-replay.json")


def test_bounds_and_partitions_are_parsed() -> None:
    assert parse_bound("--from", "").offset_in_partition(3, 7) == 7
    assert parse_bound("--from", " 12 ").offset_in_partition(3, 7) == 12
    assert parse_bound("--from", "3:12, 4:1").offset_in_partition(3, 7) == 12
    assert parse_bound("--from", "3:12").offset_in_partition(0, 7) == 7
    assert parse_bound("--from", "1970-01-01T00:00:01").time_ms == 1000
    assert parse_bound("--from", "1970-01-01T01:00:01.5+01:00").time_ms == 1500
    assert parse_partitions("same") is None
    assert parse_partitions("0:3,1:0") == {0: 3, 1: 0}
    for text in ("x", "-1", "3:", "3:1,3:2", "1969-01-01"):
        with pytest.raises(ReplayError, match="--from="):
            parse_bound("--from", text)
    for text in ("", "3", "0:1,1:1", "0:1,0:2", "a:b"):
        with pytest.raises(ReplayError, match="--partition-map="):
            parse_partitions(text)
