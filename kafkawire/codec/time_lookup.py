"""The first record of a partition at or after a time, as ListOffsets and all readers look it up.

A caller narrows a partition down to pieces by what it knows of their newest times, and searches
them in the order of offsets. A piece finds its first batches by its index; batch heads lead to the
batch, and only its records are decoded. Pure: a piece reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from kafkawire.codec.batches import CONTROL, BatchHead, iter_batches, payload, records_in
from kafkawire.codec.types import Buffer
from kafkawire.codec.walk import has_exact_time

T = TypeVar("T")


class TimedOffset(NamedTuple):
    """A record that was found by its time."""

    offset: int
    timestamp: int


class TimedPiece(ABC):
    """A range of a partition's offsets in one file or in memory, for one search: an index of times,
    and bytes. The methods that
    are not abstract are those of pieces that a thread reads. `pause`: awaited after each record, to
    let others run."""

    pause: Callable[[], Awaitable[None]] | None = None

    @abstractmethod
    def bounds(self) -> tuple[int, int]:
        """Return the offsets [base, end) that count; what is read may begin before and end after
        them."""

    @property
    def trusts_heads(self) -> bool:
        """Whether the newest timestamp in each batch head is that of its records."""
        return True

    @abstractmethod
    async def read_next(self) -> Sequence[Buffer]:
        """Return the next whole batches, first those that the index leads to; none at the end."""

    def counts(self, head: BatchHead) -> bool:
        """Return whether the records of a batch are for readers."""
        return not head.attributes & CONTROL

    async def unpack(self, buffer: Buffer, position: int, head: BatchHead) -> bytes:
        """Return the decompressed records of a batch. KafkaError as for `payload`."""
        return bytes(payload(buffer, position, head))


async def find_first_since(piece: TimedPiece, ms: int) -> TimedOffset | None:
    """Return the first record of a piece whose timestamp is `ms` or later; None if there is none.
    Raises KafkaError(CORRUPT_MESSAGE) for bytes that are no batches, and what the piece raises."""
    while buffers := await piece.read_next():
        for buffer in buffers:
            for position, head in iter_batches(buffer):
                base, end = piece.bounds()
                if head.base_offset >= end:
                    return None
                if head.last_offset < base or not piece.counts(head):
                    continue
                # What the head of a large batch says is what its producer said.
                if head.max_timestamp >= ms or not (piece.trusts_heads or has_exact_time(head)):
                    found = await _find_in_batch(piece, buffer, position, head, ms)
                    if found is not None:
                        return found
    return None


async def _find_in_batch(
    piece: TimedPiece, buffer: Buffer, position: int, head: BatchHead, ms: int
) -> TimedOffset | None:
    base, end = piece.bounds()
    for record in records_in(await piece.unpack(buffer, position, head), head):
        if record.timestamp >= ms and base <= record.offset < end:
            return TimedOffset(record.offset, record.timestamp)
        if piece.pause is not None:
            await piece.pause()
    return None


def run_in_thread(search: Coroutine[Any, Any, T]) -> T:
    """Run a search of pieces that block instead of waiting for an event loop."""
    try:
        search.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("a piece that is read by a thread has waited for an event loop")
