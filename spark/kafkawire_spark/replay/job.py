"""A replay from its request to the last row: first the plan, then one thread per partition."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kafkawire.progress import Progress
from kafkawire_spark.pipeline.jobs.state import TableState
from kafkawire_spark.pipeline.tables.port import open_table_at
from kafkawire_spark.replay import record
from kafkawire_spark.replay.lane import Encode, Encoded, TableRows, write_lane
from kafkawire_spark.replay.record import Bound, Replay, ReplayError, ReplayLane
from kafkawire_spark.replay.rows import RowFile
from kafkawire_spark.replay.target import TopicState, WireTarget

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.reading.files.locations import Place
    from kafkawire_spark.pipeline.jobs.state import FileFacts

THREADS_PER_CORE = 2
"""Threads per core: one waits for the broker's fsync while another encodes."""
BATCH_BYTES = 900 << 10
"""Size of a batch, unless one record is larger: within Kafka's default max.message.bytes."""
EVERYTHING = 1 << 62
RAW = ("bytes", "text")
"""Formats of keys and values that keep their bytes."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Request of a replay. `name`: of the replay, "" for the target's name; `topic`: of the table,
    "" for its only one; `partitions`: of the table to those of the target, None for the same."""

    table: str
    to: str
    bootstrap: str
    name: str = ""
    topic: str = ""
    since: Bound = field(default_factory=Bound)
    until: Bound = field(default_factory=Bound)
    partitions: Mapping[int, int] | None = None
    create: bool = False


@dataclass(frozen=True, slots=True)
class LaneReport:
    """Result for one partition: rows `written` now, `rows` in all, at [begin, end) of the
    target."""

    partition: int
    to_partition: int
    written: int
    rows: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A table that can be replayed: the files of one topic."""

    place: Place
    topic: str
    files: list[FileFacts]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished replay. `notes`: parts of the records that the table does not have."""

    replay: Replay
    lanes: list[LaneReport]
    notes: list[str]


def open_table(wish: ReplayRequest) -> Opened:
    """Return the table of a request. Raises SourceError if the request cannot be carried out,
    whatever the target."""
    record.key_of(wish.name or wish.to)
    return open_rows(wish.table, wish.topic)


def replay(wish: ReplayRequest, opened: Opened, progress: Progress) -> Summary:
    """Start or continue a replay of the table that `open_table` returned. Raises SourceError."""
    key = record.key_of(wish.name or wish.to)
    target = WireTarget(wish.bootstrap, wish.to)
    try:
        fixed = _fix_plan(wish, opened, target, key)
    finally:
        target.close()
    return Summary(fixed, _write(wish, opened, fixed, progress), opened.notes)


def open_rows(url: str, topic: str) -> Opened:
    """Return the files of a table's topic. Raises ReplayError if its rows are not the original
    records."""
    table = open_table_at(url)
    state = TableState(table.place)
    known = state.table() or {}
    columns = known.get("columns", {})
    letters = 0
    for done in state.read_records():
        run = state.run(done.run)
        if run is not None and (run.value.format not in RAW or run.key.format not in RAW):
            raise ReplayError(
                f"{url}: run {run.number} converted keys or values ({run.key.format}, "
                f"{run.value.format}); only a table of the bytes, or text, can be replayed"
            )
        letters += sum(share.dead for share in done.shares)
    if "_value" not in columns:
        raise ReplayError(f"{url} has no column _value, of which records could be made again")
    files = [file for file in table.files() if file.rows]
    topics = sorted({file.topic for file in files if file.topic})
    if not topic and len(topics) > 1:
        raise ReplayError(f"{url} has rows of {len(topics)} topics: --topic must be one of "
                          f"{', '.join(topics)}")  # fmt: skip
    topic = topic or (topics[0] if topics else "")
    if topic not in topics:
        raise ReplayError(f"{url} has no rows of a topic {topic!r}; it has {', '.join(topics)}")
    notes = [f"{letters} dead letters are not rows of the table, and not replayed"] * bool(letters)
    if known.get("adopted"):
        notes.append("rows of other programs in the adopted table have no offset: not replayed")
    if "_headers" not in columns:
        notes.append("the table has no headers, so records have none")
    return Opened(table.place, topic, [f for f in files if f.topic in (topic, "")], notes)


def _fix_plan(wish: ReplayRequest, opened: Opened, target: WireTarget, key: str) -> Replay:
    """Return the plan of the replay: the stored one of this name, or a new one."""
    there = target.check_topic()
    if there is None:
        there = _create_target(wish, opened, target)
    if target.setting("message.timestamp.type") == "LogAppendTime":
        raise ReplayError(
            f"the topic {wish.to} has message.timestamp.type=LogAppendTime, which would replace "
            "the timestamps of the rows"
        )
    asked = _begin(wish, opened, there)
    try:
        kept = record.load(opened.place.get(key), key)
    except FileNotFoundError:
        producer_id, epoch = target.producer()
        asked = replace(asked, producer_id=producer_id, producer_epoch=epoch)
        try:
            opened.place.put(key, record.dump(asked), if_absent=True)
        except FileExistsError:
            raise ReplayError(f"another process begins the replay {asked.name}") from None
        return asked
    record.same(asked, kept)
    return kept


def _create_target(wish: ReplayRequest, opened: Opened, target: WireTarget) -> TopicState:
    if not wish.create:
        raise ReplayError(f"there is no topic {wish.to}; --create makes it")
    partitions = _partitions(opened) if wish.partitions is None else wish.partitions.values()
    target.create(max(partitions) + 1)
    there = target.check_topic()
    if there is None:
        raise ReplayError(f"the topic {wish.to} was created, and is not there")
    return there


def _partitions(opened: Opened) -> list[int]:
    return sorted({file.partition for file in opened.files if file.partition >= 0})


def _begin(wish: ReplayRequest, opened: Opened, there: TopicState) -> Replay:
    """Plan a new replay."""
    to = (
        {part: part for part in _partitions(opened)} if wish.partitions is None else wish.partitions
    )
    lanes = []
    for partition in sorted(to):
        if partition not in _partitions(opened):
            raise ReplayError(f"the table has no rows of {opened.topic}-{partition}")
        if to[partition] not in there.ends:
            raise ReplayError(
                f"the topic {wish.to} has {len(there.ends)} partitions and no partition "
                f"{to[partition]}"
            )
        ends = [file.end for file in opened.files if file.partition == partition]
        base = wish.since.offset_in_partition(partition, 0)
        end = max(base, min(wish.until.offset_in_partition(partition, EVERYTHING), max(ends)))
        lanes.append(ReplayLane(partition, base, end, to[partition], there.ends[to[partition]]))
    return Replay(
        wish.name or wish.to,
        opened.topic,
        wish.to,
        there.id,
        there.cluster,
        -1,
        -1,
        tuple(lanes),
        wish.since.time_ms,
        wish.until.time_ms,
    )


def _write(
    wish: ReplayRequest, opened: Opened, fixed: Replay, progress: Progress
) -> list[LaneReport]:
    lanes = _LaneProgress(fixed, progress)
    workers = min(len(fixed.lanes), THREADS_PER_CORE * (os.cpu_count() or 1))

    def one(lane: ReplayLane) -> LaneReport:
        target = WireTarget(wish.bootstrap, wish.to)
        files = _files(opened.files, lane.partition)
        rows = TableRows(opened.place, files, fixed, lane, lanes.make_count_callback(lane))
        try:
            written = write_lane(
                target, lane, rows, _encoder(fixed), lanes.make_write_callback(lane)
            )
        except BaseException:
            lanes.stop()
            raise
        finally:
            target.close()
        total = lanes.there[lane.partition]
        end = lane.begin + total
        return LaneReport(lane.partition, lane.to_partition, written, total, lane.begin, end)

    # Threads suffice: Parquet, encoding, checksums and sockets release the interpreter lock.
    with ThreadPoolExecutor(max(1, workers), "replay") as pool:
        futures = [pool.submit(one, lane) for lane in fixed.lanes]
        try:
            wait(futures)
        except BaseException:  # Ctrl-C: each lane ends after its current batch
            lanes.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        errors = [error for each in futures if (error := each.exception()) is not None]
    first = next((error for error in errors if not isinstance(error, _Stopped)), None)
    if first is not None:
        raise first
    return [each.result() for each in futures]


def _encoder(fixed: Replay) -> Encode:
    """Return the encoder for batches of the replay's producer."""

    def encode(batch: pa.RecordBatch, sequence: int) -> Iterator[Encoded]:
        from kafkawire_spark.encode import encode_batches  # imports numba

        producer = (fixed.producer_id, fixed.producer_epoch, sequence)
        for data, rows in encode_batches(batch, batch_bytes=BATCH_BYTES, producer=producer):
            yield Encoded(data, rows)

    return encode


def _files(files: Sequence[FileFacts], partition: int) -> list[RowFile]:
    """Return the files with rows of a partition; files of other writers may have any."""
    own = [RowFile(f.path, f.base, f.end) for f in files if f.partition == partition]
    return own + [RowFile(f.path, 0, EVERYTHING) for f in files if f.partition < 0]


class _Stopped(Exception):
    """Another partition failed, or the replay was interrupted."""


class _LaneProgress:
    """Progress of all lanes together; also stops them."""

    def __init__(self, fixed: Replay, progress: Progress) -> None:
        self.there: dict[int, int] = {lane.partition: 0 for lane in fixed.lanes}
        self._counted = dict(self.there)
        self._rows = {lane.partition: lane.end - lane.base for lane in fixed.lanes}
        self._counts = f"rows of {fixed.source_topic} counted"
        self._what = f"{fixed.source_topic} -> {fixed.topic}: rows"
        self._callback = progress
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def make_count_callback(self, lane: ReplayLane) -> Callable[[int], None]:
        """Return a callback for the number of further rows counted in a lane."""

        def count_more(rows: int) -> None:
            with self._going_on():
                self._counted[lane.partition] += rows
                self._notify(self._counts, self._counted)

        return count_more

    def make_write_callback(self, lane: ReplayLane) -> Callable[[int], None]:
        """Return a callback for the number of rows written in a lane, once all are counted."""

        def count_written(there: int) -> None:
            with self._going_on():
                rows = self._counted[lane.partition]
                if self._rows[lane.partition] != rows:  # number of offsets
                    self._rows[lane.partition] = rows
                    self._notify(self._counts, self._counted)
                self.there[lane.partition] = there
                self._notify(self._what, self.there)

        return count_written

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        if self._stopped:
            raise _Stopped
        with self._lock:
            yield

    def _notify(self, what: str, by_lane: Mapping[int, int]) -> None:
        done = sum(by_lane.values())
        self._callback(what, done, max(done, sum(self._rows.values())))


def plain(done: Summary) -> list[dict[str, Any]]:
    """For tables and JSON."""
    return [
        {
            "topic": done.replay.source_topic,
            "partition": lane.partition,
            "target": done.replay.topic,
            "to_partition": lane.to_partition,
            "written": lane.written,
            "rows": lane.rows,
            "from": lane.begin,
            "to": lane.end,
        }
        for lane in done.lanes
    ]
