"""Decode record batches of partitions, one range after another, to Arrow batches.

The caller calls `start_range` for a range, `decode_batches` with its batches in ascending order,
`skip` for unavailable offsets, and `end_range`. Arrow batches are returned when they are full, the
last one by `flush`. Importing this imports numba: import it in the task, not in the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkawire.codec.batches import TRANSACTIONAL
from kafkawire.codec.control import Aborted
from kafkawire.codec.types import Buffer
from kafkawire.reading.decode import walk
from kafkawire.reading.decode.gather import WANT_HEADERS, WANT_KEY, WANT_SIZE, WANT_VALUE, gather
from kafkawire.reading.decode.listing import NO_LIMIT, Listing, Unreadable
from kafkawire.reading.decode.output import Output
from kafkawire.reading.decode.port import AbortedSource
from kafkawire.reading.model.columns import HEADERS, KEY, VALUE, VALUE_SIZE, Selection
from kafkawire.reading.model.source import (
    ABORTED,
    COMPACTED,
    CONTROL,
    GAPS_LISTED,
    Account,
    DamagedData,
)

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS, BATCH_BYTES = 32768, 4 << 20
"""Size of an Arrow batch. Decoding speed is the same for a quarter or four times as much; this size
keeps both a task's memory and the consumer's cost per batch small."""

_BLOCK_ROWS = 2048  # their notes stay in the processor's L2 cache
_GAPS = 4 * GAPS_LISTED  # `note` returns when half of them are used
_REASONS = (CONTROL, ABORTED, COMPACTED)  # in the order of the walk.GAP_ constants
_NONE = np.empty((0, 3), np.int64)
_HEAD_WRONG = {
    walk.CUT: "a batch is cut off",
    walk.LENGTH: "a batch has a length that no batch can have",
    walk.MAGIC: "there is no batch of format 2 where one should begin",
    walk.ORDER: "the offsets of its batches do not rise",
    walk.BEYOND: "a batch goes beyond where these offsets should end",
}
_RECORD_WRONG = {
    walk.RECORD: "record {} of a batch does not fit its bytes",
    walk.DELTAS: "the offset of record {} of a batch does not rise or is not in the batch",
    walk.LEFT: "bytes are left after the {} records of a batch",
}


class Decoder:
    """A RangeDecoder of `selection`, for Arrow batches of at most `batch_rows` rows with
    `batch_bytes` of records.

    An Arrow batch may hold rows of several ranges. One record larger than `batch_bytes` gives an
    Arrow batch of its own. Timestamps outside the years 1 to 9999, which Spark does not support,
    are clamped. Not thread-safe.
    """

    def __init__(
        self,
        selection: Selection,
        *,
        read_committed: bool = True,
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._selection, self._schema = selection, selection.arrow_schema()
        self._read_committed = read_committed
        self._batch_rows, self._batch_bytes = batch_rows, batch_bytes
        bits = {KEY: WANT_KEY, VALUE: WANT_VALUE, HEADERS: WANT_HEADERS, VALUE_SIZE: WANT_SIZE}
        self._wanted = sum(bits.get(kind, 0) for kind in selection.kinds())
        self._account: Account | None = None
        self._aborted: Any = None
        self._ask_aborted: Callable[[], Sequence[Aborted]] = tuple
        self._output: Output | None = None
        self._listing = Listing()
        self._notes = np.empty((_BLOCK_ROWS, walk.NOTE_FIELDS), np.int64)
        self._gaps = np.empty((_GAPS, 3), np.int64)
        self._state = np.zeros(walk.STATE_FIELDS, np.int64)
        self._state[walk.GAPS_ROOM] = _GAPS
        addresses = [array.ctypes.data for array in (self._notes, self._gaps, self._state)]
        self._memory = (addresses[0], _BLOCK_ROWS, *addresses[1:])
        self.broken = (0, 0)

    def start_range(self, account: Account, aborted: AbortedSource = ()) -> None:
        self._account, self._aborted = account, None
        self._ask_aborted = aborted if callable(aborted) else lambda: aborted

    @property
    def cursor(self) -> int:
        account = self._require_account()
        return account.range.end - account.missing

    def decode_batches(
        self, data: Buffer, *, check_crc: bool, upto: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        listing, end = self._listing, self._require_account().range.end
        listing.open(data, NO_LIMIT if upto is None else upto)
        self._state[walk.INDEX] = self._state[walk.NOTED] = 0
        while listing.position < listing.size_bytes and self.cursor < end:
            why = listing.list_batches(end)
            if listing.flags & TRANSACTIONAL and self._aborted is None:
                self._aborted = self._sorted_aborted()
            try:
                for source, first, stop in listing.groups(check_crc, self.cursor):
                    yield from self._read(source, first, stop)
            except Unreadable as wrong:
                self.broken = listing.span(wrong.row)
                after = max(min(listing.end_offset(wrong.row), end), self.cursor + 1)
                raise self._damage_error(str(wrong), self.cursor, after) from None
            if why == walk.OVER or self.cursor >= end:
                return
            if why != walk.ALL:
                self.broken = (listing.position, listing.size_bytes)
                after = end if upto is None else max(min(upto, end), self.cursor + 1)
                raise self._damage_error(_HEAD_WRONG[why], self.cursor, after)

    def skip(self, upto: int, reason: str) -> None:
        account = self._require_account()
        account.add_gap(self.cursor, min(upto, account.range.end), reason)

    def end_range(self) -> None:
        self.skip(self._require_account().range.end, COMPACTED)
        self._account = None

    def flush(self) -> Iterator[pa.RecordBatch]:
        output, self._output = self._output, None
        if output is not None and output.runs:
            yield output.batch()

    def _require_account(self) -> Account:
        assert self._account is not None, "no range was begun"
        return self._account

    def _sorted_aborted(self) -> Any:
        known = sorted(self._ask_aborted()) if self._read_committed else []
        return np.array(known, np.int64).reshape(-1, 3)

    def _damage_error(self, text: str, base: int, end: int) -> DamagedData:
        topic, partition = self._require_account().range[:2]
        where = f"offsets [{base}, {end}) of partition {partition} of topic {topic!r}"
        return DamagedData(f"{where} cannot be read: {text}", topic, partition, base, end)

    def _read(self, source: int, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Decode rows of the listed batches [first, stop), whose records are at the address
        `source`."""
        state, why = self._state, walk.PART
        state[walk.BATCH] = first
        while why != walk.DONE:
            output = self._prepare()
            aborted = _NONE if self._aborted is None else self._aborted
            why = walk.note(
                source, self._listing.address, stop, aborted.ctypes.data, len(aborted),
                *self._memory, self._batch_rows,
            )  # fmt: skip
            noted = int(state[walk.NOTED])
            if noted:
                self._take(output, source, noted)
            self._account_gaps()
            if why == walk.FULL:
                yield from self.flush()
            elif why >= walk.RECORD:
                text = _RECORD_WRONG[why].format(int(state[walk.NEED]))
                raise Unreadable(int(state[walk.BATCH]), text)

    def _take(self, output: Output, source: int, noted: int) -> None:
        account = self._require_account()
        gather(
            source, self._memory[0], noted, output.rows, self._wanted, output.fixed, output.texts
        )
        output.add_run(account.range.topic, account.range.partition, noted)
        account.rows += noted
        self._state[walk.ROWS], self._state[walk.NOTED] = output.rows, 0

    def _prepare(self) -> Output:
        """Set the arguments of `note`: the range and the available space."""
        state, account = self._state, self._require_account()
        if self._output is None:
            size = max(self._batch_bytes, int(state[walk.NEED]))
            self._output = Output(self._selection, self._schema, self._batch_rows, size)
            state[walk.ROWS], state[walk.ROOM], state[walk.NEED] = 0, size, 0
        state[walk.CURSOR], state[walk.END] = self.cursor, account.range.end
        # Gaps beyond the list, which cannot be merged with the last one, are only counted.
        full = len(account.gaps) >= GAPS_LISTED and account.gaps[-1].end < self.cursor
        state[walk.LISTING], state[walk.LISTED] = not full, 0
        state[walk.COUNTED : walk.COUNTED + walk.REASONS] = 0
        return self._output

    def _account_gaps(self) -> None:
        state, account = self._state, self._require_account()
        for base, end, reason in self._gaps[: state[walk.LISTED]].tolist():
            account.add_gap(base, end, _REASONS[reason])
        for reason, name in enumerate(_REASONS):
            more = int(state[walk.COUNTED + reason])
            if more:
                account.counts[name] = account.counts.get(name, 0) + more
