"""The live records of a partition of `__consumer_offsets`, as a snapshot stores them.

Keys and values stay encoded, so that records of unknown types are kept. Records of a transaction
become live with its commit marker, unless a later record of their key is live already. Pure.
"""

from __future__ import annotations

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead, records
from kafkawire.codec.control import ABORT, COMMIT, read_marker
from kafkawire.codec.types import Buffer
from kafkawire.coordination.snapshot import Contents, PendingPair

At = tuple[int, bytes]
"""Offset and value of a record."""


class LiveRecords:
    """The last value of each key that has one, and the values of open transactions by producer."""

    __slots__ = ("_live", "_pending")

    def __init__(self) -> None:
        self._live: dict[bytes, At] = {}
        self._pending: dict[int, dict[bytes, At]] = {}

    def add(self, buffer: Buffer, position: int, head: BatchHead, first: int, end: int) -> None:
        """Apply the records of a batch with offsets from `first` on, below `end`. Raises KafkaError
        for invalid bytes."""
        if head.attributes & CONTROL:
            kind = read_marker(buffer, position, head).kind
            if first <= head.base_offset < end and kind in (ABORT, COMMIT):
                self._end(head.producer_id, commit=kind == COMMIT)
            return
        into = self._live
        if head.attributes & TRANSACTIONAL:
            into = self._pending.setdefault(head.producer_id, {})
        for record in records(buffer, position):
            if not first <= record.offset < end or record.key is None:
                continue
            if record.value is not None:
                into[record.key] = record.offset, record.value
                continue
            for values in (self._live, *self._pending.values()):
                values.pop(record.key, None)

    def _end(self, producer_id: int, *, commit: bool) -> None:
        for key, found in self._pending.pop(producer_id, {}).items():
            if commit and found[0] > self._live.get(key, (-1, b""))[0]:
                self._live[key] = found

    def contents(self, next_offset: int) -> Contents:
        """Return them as the contents of a snapshot of the records below `next_offset`."""
        found = sorted(
            (offset, PendingPair(producer_id, self._is_later(key, offset), key, value))
            for producer_id, values in self._pending.items()
            for key, (offset, value) in values.items()
        )
        live = [(key, value) for key, (_, value) in self._live.items()]
        return Contents(next_offset, live, [pair for _, pair in found])

    def _is_later(self, key: bytes, offset: int) -> bool:
        return self._live.get(key, (-1, b""))[0] > offset
