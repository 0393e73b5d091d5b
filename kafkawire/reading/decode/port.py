"""The interface of decoders that readers of ranges use. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from kafkawire.codec.control import Aborted
from kafkawire.codec.types import Buffer
from kafkawire.reading.model.source import Account

if TYPE_CHECKING:
    import pyarrow as pa

AbortedSource = Sequence[Aborted] | Callable[[], Sequence[Aborted]]
"""Aborted transactions, or what returns them: called at the first transactional batch."""


class RangeDecoder(Protocol):
    """Arrow batches of ranges, one after another: `start_range`, `decode_batches` and `skip` in the
    order of offsets, `end_range`; after the last range `flush`."""

    broken: tuple[int, int]
    """After DamagedData: the unreadable range of the last fed bytes. Feeding may continue after
    it."""

    def start_range(self, account: Account, aborted: AbortedSource = ()) -> None:
        """Start a new range, or the rest of one; the cursor is at its first unexplained offset."""

    @property
    def cursor(self) -> int:
        """End of the range's offsets that are accounted for."""

    def decode_batches(
        self, data: Buffer, *, check_crc: bool, upto: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Decode whole, ascending batches of the range's partition. `upto`: end of the offsets in
        `data`, if known.

        Rows outside the range, or below the cursor, are left out. Holes are counted as COMPACTED,
        control batches as CONTROL, data of aborted transactions as ABORTED. Raises DamagedData for
        a batch that cannot be read, after returning or buffering everything before it. `broken` is
        then its range of bytes; `skip` its offsets and feed the bytes after it.
        """

    def skip(self, upto: int, reason: str) -> None:
        """Record that offsets from the cursor to `upto` have no row."""

    def end_range(self) -> None:
        """End the range: its remaining offsets are COMPACTED."""

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Return the buffered rows."""
