"""Write one partition of a replay, from its current state to the end of its rows.

Progress is derived from the target alone. So an interruption at any point, or a lost response,
needs only one check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkawire_spark.replay.record import SEQUENCES, Replay, ReplayError, ReplayLane, progress
from kafkawire_spark.replay.rows import RowFile, WantedRows, read

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.reading.files.locations import Place

TRIES = 5
"""Attempts for a batch without a response, or whose broker is not the leader, with delays in
between."""


class Unanswered(Exception):
    """The batch may or may not have been stored, or could not be sent; the text is the reason."""


class ComparedRow(NamedTuple):
    """The fields of a record that are compared. `timestamp_ms`: -1 for none."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Encoded(NamedTuple):
    """One record batch and its number of records."""

    data: Any
    records: int


class Target(Protocol):
    """One connection to the target topic. Raises ReplayError with one sentence."""

    def log_end_offset(self, partition: int) -> int:
        """Return its log end offset."""

    def start(self, partition: int) -> int:
        """Return its log start offset."""

    def row(self, partition: int, offset: int) -> ComparedRow | None:
        """Return the record at an offset, None if there is none."""

    def append(self, partition: int, data: Any) -> int:
        """Append a batch; return its base offset. A batch that is stored already, by producer id
        and sequence, is not stored again and has its previous base offset. Raises Unanswered."""

    def reconnect(self) -> None:
        """Reconnect after Unanswered, with a short delay."""


Encode = Callable[["pa.RecordBatch", int], Iterator[Encoded]]
"""Encodes rows, given the sequence number of the first, as record batches of the replay's
producer."""


def unheard(rows: int) -> None:
    """Ignore progress."""


class TableRows:
    """The rows of one lane in the table. `counted` is called with further rows that were counted or
    skipped, and may raise to stop."""

    def __init__(
        self,
        place: Place,
        files: list[RowFile],
        replay: Replay,
        lane: ReplayLane,
        counted: Callable[[int], None] = unheard,
    ) -> None:
        self._place, self._files, self._counted = place, files, counted
        self._wanted = WantedRows(
            lane.partition, lane.base, lane.end, replay.since_ms, replay.until_ms
        )  # fmt: skip

    def offset_of(self, number: int) -> int | None:
        """Return the table's offset of row `number`, from 0; None if there are fewer rows."""
        for batch in read(self._place, self._files, self._wanted, ("_offset",)):
            self._counted(0)
            if number < batch.num_rows:
                return int(batch["_offset"][number].as_py())
            number -= batch.num_rows
        return None

    def count(self) -> int:
        total = 0
        for batch in read(self._place, self._files, self._wanted, ("_offset",)):
            total += batch.num_rows
            self._counted(batch.num_rows)
        return total

    def since(self, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield rows from an offset on, with the fields of records."""
        wanted = self._wanted.since(offset)
        yield from read(self._place, self._files, wanted, RECORD_COLUMNS)


RECORD_COLUMNS = ("_offset", "_timestamp", "_key", "_value", "_headers")


class RowSource(Protocol):
    """Interface of TableRows."""

    def offset_of(self, number: int) -> int | None: ...
    def count(self) -> int: ...
    def since(self, offset: int) -> Iterator[pa.RecordBatch]: ...


def write_lane(
    target: Target,
    lane: ReplayLane,
    rows: RowSource,
    encode: Encode,
    report: Callable[[int], None],
) -> int:
    """Write the rest of the lane; return how many rows were written now. `report` is called with
    the total when it changes. Raises ReplayError."""
    total = rows.count()
    # The end offset of the target gives the number of written rows. The last of them is read back
    # and compared with the expected row, and each batch must get the next offset.
    there = progress(lane, target.log_end_offset(lane.to_partition), total)
    report(there)
    if there == total:
        if there:
            _compare(target, lane, rows, there)
        return 0
    first = there
    for batch in _rest(target, lane, rows, there):
        # A row's number is its sequence number: a batch that arrives twice, also from an
        # interrupted process, is stored once (KIP-98).
        for encoded in encode(batch, there % SEQUENCES):
            _append(target, lane, encoded, there)
            there += encoded.records
            report(there)
    if there != total:
        raise ReplayError(f"partition {lane.partition} had {total} rows, and then {there}")
    return there - first


def _rest(
    target: Target, lane: ReplayLane, rows: RowSource, there: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are not written yet, after comparing the last written one."""
    if not there:
        yield from rows.since(lane.base)
        return
    offset = _compare(target, lane, rows, there)
    yield from rows.since(offset + 1)


def _compare(target: Target, lane: ReplayLane, rows: RowSource, there: int) -> int:
    """Return the table's offset of the last written row. Raises ReplayError if the target has
    another one."""
    offset = rows.offset_of(there - 1)
    if offset is None:
        raise ReplayError(f"partition {lane.partition} has fewer rows than before")
    wanted = row_of(next(rows.since(offset)).slice(0, 1))
    at = lane.begin + there - 1
    if at < target.start(lane.to_partition):
        return offset  # already deleted by retention
    if target.row(lane.to_partition, at) != wanted:
        raise ReplayError(
            f"partition {lane.to_partition} of the target has another record at offset {at} than "
            f"the row {offset} of partition {lane.partition}: another producer wrote to it"
        )
    return offset


def row_of(batch: pa.RecordBatch) -> ComparedRow:
    """Return the only row of a batch."""
    plain = batch.to_pylist()[0]
    headers = tuple((each["key"], each["value"]) for each in plain.get("_headers") or ())
    return ComparedRow(
        timestamp_ms(batch), raw(plain.get("_key")), raw(plain.get("_value")), headers
    )


def raw(value: str | bytes | None) -> bytes | None:
    """Return the bytes of a text column."""
    return value.encode() if isinstance(value, str) else value


def timestamp_ms(batch: pa.RecordBatch) -> int:
    """Return the timestamp of the first row; -1 for none, as in Kafka."""
    import pyarrow as pa

    if "_timestamp" not in batch.schema.names or batch["_timestamp"][0].as_py() is None:
        return -1
    column = batch["_timestamp"].cast(pa.timestamp("ms", tz="UTC"), safe=False)
    return int(column.cast(pa.int64())[0].as_py())


def _append(target: Target, lane: ReplayLane, encoded: Encoded, there: int) -> None:
    """Append a batch, with retries, exactly once."""
    for tries in range(1, TRIES + 1):
        try:
            base = target.append(lane.to_partition, encoded.data)
            break
        except Unanswered as error:
            if tries == TRIES:
                raise ReplayError(
                    f"partition {lane.to_partition} of the target: {error}; run it again to go on"
                ) from None
            target.reconnect()
    if base != lane.begin + there:
        raise ReplayError(
            f"partition {lane.to_partition} of the target gave the offset {base} where "
            f"{lane.begin + there} should follow: another producer writes to it"
        )
