"""Transaction state of the cleaner while it reads the batches of a partition.

`Fates` reads ahead: which transactions were aborted, and which are still open where it stopped.
`Cleaned` follows the cleaning and decides for each batch whether it may be removed (Kafka:
CleanedTransactionMetadata): data of an aborted transaction at once, a marker when no data of its
transaction was found any more. Pure.
"""

from __future__ import annotations

from heapq import heapify, heappop

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead
from kafkawire.codec.control import ABORT, COMMIT, EMPTY, Aborted, read_marker
from kafkawire.codec.types import Buffer


class Fates:
    """The ends of transactions, read ahead of the batches. `aborted`: those that ended; `opened`:
    first offset of those that did not, by producer id."""

    __slots__ = ("aborted", "opened")

    def __init__(self) -> None:
        self.aborted: list[Aborted] = []
        self.opened: dict[int, int] = {}

    def scan(self, data: Buffer, at: int, head: BatchHead) -> None:
        """Add the next batch."""
        if head.attributes & CONTROL:
            kind = read_marker(data, at, head).kind
            if kind >= 0:
                first = self.opened.pop(head.producer_id, None)
                if first is not None and kind == ABORT:
                    self.aborted.append((head.producer_id, first, head.last_offset))
        elif head.attributes & TRANSACTIONAL and head.count:
            self.opened.setdefault(head.producer_id, head.base_offset)


class Cleaned:
    """Transaction state of the batches already cleaned. `kept`: the aborted transactions that
    readers must still know."""

    __slots__ = ("_aborted", "_committed", "_met", "_waiting", "kept")

    def __init__(self, aborted: list[Aborted]) -> None:
        self._waiting = [(first, last, producer_id) for producer_id, first, last in aborted]
        heapify(self._waiting)
        self._aborted: dict[int, Aborted] = {}
        self._met: set[int] = set()
        self._committed: set[int] = set()
        self.kept: list[Aborted] = []

    def _reach(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            first, last, producer_id = heappop(self._waiting)
            self._aborted.setdefault(producer_id, (producer_id, first, last))

    def data(self, head: BatchHead) -> bool:
        """Return whether a batch of records belongs to an aborted transaction."""
        if not head.attributes & TRANSACTIONAL:
            return False
        self._reach(head.last_offset)
        if head.producer_id in self._aborted:
            self._met.add(head.producer_id)
            return True
        self._committed.add(head.producer_id)
        return False

    def control(self, data: Buffer, at: int, head: BatchHead) -> bool:
        """Return whether no data of a control batch's transaction is left before it."""
        self._reach(head.last_offset)
        kind = read_marker(data, at, head).kind
        producer_id = head.producer_id
        if kind == ABORT:
            aborted = self._aborted.pop(producer_id, None)
            met = producer_id in self._met
            self._met.discard(producer_id)
            if aborted is not None and met:
                self.kept.append(aborted)
                return False
            return True
        if kind == COMMIT:
            left = producer_id in self._committed
            self._committed.discard(producer_id)
            return not left
        return kind == EMPTY
