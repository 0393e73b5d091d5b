"""Read the parts of a task from segments and the broker as Arrow batches.

Every offset of a part is accounted for by a row, or by a gap with its reason. Blocks are verified
by the checksums of the sparse index, other data by the batches' CRCs. A missing file was replaced
or deleted since the plan was made: the manifest is read again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from kafkawire.codec.control import Aborted
from kafkawire.codec.types import Buffer
from kafkawire.reading.files.broker_queries import pause
from kafkawire.reading.files.checked_entries import BatchRun, CheckedEntry
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.lost import lost_ranges
from kafkawire.reading.files.read_ahead import Load, loads
from kafkawire.reading.model.columns import Selection
from kafkawire.reading.model.source import (
    COMPACTED,
    DAMAGED,
    LOST,
    READ_COMMITTED,
    Account,
    DamagedData,
    DataLoss,
    PartitionRange,
    Piece,
    Source,
    SourceError,
    Task,
    TaskPart,
)
from kafkawire.reading.tail import LiveTail

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.reading.catalog import SourceCatalog
    from kafkawire.reading.decode.port import RangeDecoder

OnDamage = Callable[[DamagedData, bytes], None]
"""Called for unreadable data: its offsets and the reason, and its bytes."""

MAX_RESOLVED = 5
"""How often a task may read the manifest again. Replaced files are kept for at least an hour."""

LONG_LOAD_S = 4.0
"""The decoder is loaded in less time, unless it is compiled first."""

logger = logging.getLogger(__name__)


def read_task(
    source: Source,
    places: Sequence[Place],
    task: Task,
    selection: Selection,
    *,
    on_damage: OnDamage | None = None,
    accounts: list[Account] | None = None,
    batch_rows: int = 65536,
    batch_bytes: int = 8 << 20,
    quick_start: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the order of its parts, as Arrow batches of `selection`.

    `accounts` gets one for each part, in order; at the end each has `missing` 0. `on_damage` is
    called with unreadable data, which is then left out and counted as DAMAGED; without it
    DamagedData is raised. `quick_start`: decode the first rows, in smaller batches, before the
    compiled decoder is loaded, for a process that has not loaded it.

    Raises DamagedData, DataLoss (if `source.fail_on_data_loss`), SourceError for other failures.
    """
    reader = _Reader(source, places, on_damage, [] if accounts is None else accounts)
    return reader.read(task, selection, batch_rows, batch_bytes, quick_start)


class _Reader:
    """One read of one task."""

    def __init__(
        self,
        source: Source,
        places: Sequence[Place],
        on_damage: OnDamage | None,
        accounts: list[Account],
    ) -> None:
        self._source = source
        self._places = places
        self._on_damage = on_damage
        self._accounts = accounts
        self._tail = LiveTail(source)
        self._catalog: SourceCatalog | None = None
        self._account: Account | None = None
        self._resolved = 0

    def read(
        self,
        task: Task,
        selection: Selection,
        batch_rows: int,
        batch_bytes: int,
        quick_start: bool,
    ) -> Iterator[pa.RecordBatch]:
        def load_compiled() -> RangeDecoder:
            with long_load_logged():
                from kafkawire.reading.decode.decoder import Decoder  # imports numba

            return Decoder(
                selection,
                read_committed=self._source.isolation == READ_COMMITTED,
                batch_rows=batch_rows,
                batch_bytes=batch_bytes,
            )

        self._decoder = (
            load_compiled() if not quick_start else _first_rows(selection, load_compiled)
        )
        left = list(task.parts)
        try:
            while left:
                pieces = [piece for part in left for piece in part.pieces]
                found = loads(self._places, pieces, self._source.requests_at_once)
                try:
                    yield from self._parts(left, found)
                finally:
                    found.close()
            yield from self._decoder.flush()
        finally:
            self._tail.close()
            if self._catalog is not None:
                self._catalog.close()

    def _parts(self, left: list[TaskPart], found: Iterator[Load]) -> Iterator[pa.RecordBatch]:
        """Read parts, and remove them from `left`. Ends early if a file is missing: `left` is then
        what remains to be read."""
        by_piece = groupby(found, attrgetter("at"))
        while left:
            part = left[0]
            self._begin(part)
            for number, piece in enumerate(part.pieces):
                _, loaded = next(by_piece)
                yield from self._hole(part, piece.base)
                if not (yield from self._piece(part, piece, loaded)):
                    self._find_again(left, number)
                    return
            yield from self._hole(part, part.range.end)
            self._decoder.end_range()
            self._explain(part)
            self._account = None
            left.pop(0)

    def _explain(self, part: TaskPart) -> None:
        """Mark which of the offsets without a batch were lost, according to the files."""
        account = self._account
        assert account is not None
        for piece in part.pieces:
            if not account.counts.get(COMPACTED):
                return
            for base, end in lost_ranges(self._places[piece.place], piece):
                account.explain_lost(base, end)

    def _begin(self, part: TaskPart) -> None:
        """Start a part, or continue one."""
        if self._account is None:
            self._account = Account(part.range)
            self._accounts.append(self._account)
        self._decoder.start_range(self._account, lambda: self._list_aborted(part))

    def _list_aborted(self, part: TaskPart) -> list[Aborted]:
        from kafkawire.reading.transactions import aborted_transactions

        return aborted_transactions(self._opened_catalog(), part.range)

    def _hole(self, part: TaskPart, upto: int) -> Iterator[pa.RecordBatch]:
        """Read offsets without a piece from the broker."""
        if self._decoder.cursor >= upto:
            return
        if not self._source.bootstrap:
            self._record_lost(upto, f"no segment in {self._source.url} has them")
            return
        assert self._account is not None
        yield from self._tail.read(
            self._decoder, self._account, upto, self._record_lost, self._harmed_tail
        )
        self._begin(part)

    def _piece(
        self, part: TaskPart, piece: Piece, loaded: Iterator[Load]
    ) -> Generator[pa.RecordBatch, None, bool]:
        """Read a piece from the cursor on. False: its file is missing."""
        entry = CheckedEntry(self._places[piece.place], piece, part.range)
        try:
            for load in loaded:
                if load.gone:
                    return False
                if load.blocks is None and load.length:
                    where = self._places[piece.place].where(piece.key)
                    logger.warning("%s has a damaged index: it is read by its batches", where)
                if self._decoder.cursor < entry.stop:
                    runs = entry.plain(load) if load.blocks is None else entry.blocks(load)
                    for run in runs:
                        yield from self._run(entry, run)
        except FileNotFoundError:
            return False
        self._decoder.skip(entry.stop, COMPACTED)
        return True

    def _run(self, entry: CheckedEntry, run: BatchRun) -> Iterator[pa.RecordBatch]:
        if run.damaged:
            self._decoder.skip(run.base, COMPACTED)
            self._report_damage(entry.damage(self._decoder.cursor, run), run.data)
            return
        view = memoryview(run.data)
        while len(view):
            try:
                yield from self._decoder.decode_batches(
                    view, check_crc=run.check_crc, upto=run.upto
                )
                return
            except DamagedData as error:
                start, stop = self._decoder.broken
                self._report_damage(entry.name_damage(error), view[start:stop])
                view = view[stop:]

    def _report_damage(self, error: DamagedData, data: Buffer) -> None:
        """Handle unreadable bytes: report them and continue after them, or fail."""
        if error.base >= error.end:
            return
        if self._on_damage is None:
            raise error
        self._on_damage(error, bytes(data))
        self._decoder.skip(error.end, DAMAGED)

    def _harmed_tail(self, error: DamagedData, data: Buffer) -> None:
        where = f"the broker at {self._source.bootstrap}"
        self._report_damage(
            DamagedData(f"{where}: {error}", error.topic, error.partition, error.base, error.end),
            data,
        )

    def _record_lost(self, upto: int, why: str) -> None:
        """Record offsets from the cursor to `upto` as lost."""
        assert self._account is not None
        topic, partition = self._account.range[:2]
        base = self._decoder.cursor
        if self._source.fail_on_data_loss:
            raise DataLoss(
                f"offsets [{base}, {upto}) of partition {partition} of topic {topic!r} are lost: "
                f"{why} (failOnDataLoss=false continues after them)"
            )
        self._decoder.skip(upto, LOST)

    def _find_again(self, left: list[TaskPart], number: int) -> None:
        """Find the records of piece `number` of the first part again, because its file is
        missing."""
        piece = left[0].pieces[number]
        where = self._places[piece.place].where(piece.key)
        self._resolved += 1
        if self._resolved > MAX_RESOLVED:
            logger.warning("%s is gone, and nothing has taken its place", where)
            left[0] = replace(left[0], pieces=left[0].pieces[number + 1 :])
            return
        logger.info("%s is gone: reading the manifest again", where)
        if self._resolved > 1:
            pause(self._resolved)
        if self._catalog is not None:
            self._catalog.close()
        self._catalog = None
        cursor = self._decoder.cursor
        catalog = self._opened_catalog()
        self._places = catalog.places
        for at, part in enumerate(left):
            base = cursor if at == 0 else part.range.base
            left[at] = replace(part, pieces=self._pieces(catalog, part.range._replace(base=base)))

    def _pieces(self, catalog: SourceCatalog, wanted: PartitionRange) -> tuple[Piece, ...]:
        try:
            return catalog.part(wanted).pieces
        except SourceError as failure:
            if self._source.fail_on_data_loss:
                raise DataLoss(str(failure)) from None
            return ()

    def _opened_catalog(self) -> SourceCatalog:
        if self._catalog is None:
            from kafkawire.reading.catalog import open_catalog  # imported only if needed

            self._catalog = open_catalog(self._source)
        return self._catalog


@contextmanager
def long_load_logged() -> Iterator[None]:
    """Log why the block takes long, once it does."""
    line = "loading the decoder of records: its first use compiles it, for up to half a minute"
    timer = threading.Timer(LONG_LOAD_S, logger.warning, (line,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _first_rows(selection: Selection, compiled: Callable[[], RangeDecoder]) -> RangeDecoder:
    from kafkawire.reading.decode.first_rows import FirstRowsDecoder

    return FirstRowsDecoder(selection, compiled)
