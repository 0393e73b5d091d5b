"""Outcomes of transactions, as far as the batches of one segment show them.

For a segment whose state cannot be read, which says what was aborted. A batch of a transaction
counts as committed or aborted if the next marker of its producer is in the segment and nothing
between the two is damaged. Otherwise its outcome is unknown: it must not be served. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead, iter_batches
from kafkawire.codec.control import ABORT, COMMIT, Aborted, read_marker
from kafkawire.codec.damage import BadBatches


class Outcomes:
    """Outcomes of one partition; `add` takes its batches in order. `aborted`: transactions that
    were aborted, in the order of their markers; `unknown`: base offsets of batches whose outcome is
    unknown, complete after `finish`."""

    def __init__(self) -> None:
        self.aborted: list[Aborted] = []
        self.unknown: set[int] = set()
        self._open: dict[int, list[int]] = {}

    def add(self, data: memoryview, bad: Sequence[BadBatches]) -> None:
        """Take bytes of the partition with their damaged ranges."""
        for run, (start, stop) in _intact(data, bad):
            for position, head in iter_batches(data[start:stop]):
                self._add(data, start + position, head)
            if run is not None:
                self.finish()  # a marker may have been in the damaged range

    def _add(self, data: memoryview, position: int, head: BatchHead) -> None:
        if head.attributes & CONTROL:
            kind = read_marker(data, position, head).kind
            if kind in (ABORT, COMMIT):
                batches = self._open.pop(head.producer_id, [])
                if batches and kind == ABORT:
                    self.aborted.append((head.producer_id, batches[0], head.base_offset))
        elif head.attributes & TRANSACTIONAL:
            self._open.setdefault(head.producer_id, []).append(head.base_offset)

    def finish(self) -> None:
        """Note that no marker can follow for what is open."""
        for batches in self._open.values():
            self.unknown.update(batches)
        self._open.clear()

    def with_unknown(self, data: memoryview, bad: Sequence[BadBatches]) -> list[BadBatches]:
        """Return the damaged ranges of `data`, and those of batches whose outcome is unknown."""
        found: list[BadBatches] = []
        for run, (start, stop) in _intact(data, bad):
            for position, head in iter_batches(data[start:stop]):
                if head.base_offset in self.unknown and head.attributes & TRANSACTIONAL:
                    at = start + position
                    end = head.last_offset + 1
                    found.append(BadBatches(at, at + head.size_bytes, head.base_offset, end))
            if run is not None:
                found.append(run)
        return found


def _intact(
    data: memoryview, bad: Sequence[BadBatches]
) -> Iterator[tuple[BadBatches | None, tuple[int, int]]]:
    """Yield the intact ranges of `data`, each with the damaged one that follows it, if any."""
    at = 0
    for run in bad:
        yield run, (at, max(at, run.start))
        at = run.stop
    yield None, (at, len(data))
