"""Location of damaged batches by each batch's own checksum.

A segment's index has one checksum for each block of batches. If one does not match, the batches of
the block are checked one by one, so that the valid ones can still be read. Bytes that are not a
batch end where the next valid batch begins. Pure; called by readers of segments, by scrub and by
repair.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from kafkawire.codec.batches import CRC_FROM, HEAD_BYTES, MAGIC, MAGIC_AT, PREFIX_BYTES
from kafkawire.codec.types import Buffer
from kafkawire.crc32c import crc32c

MAX_SEARCH_BYTES = 4 << 20
"""Maximum distance to search for the next valid batch if a length is damaged: four times the
default largest batch. The rest of the range then counts as damaged."""

_BATCH = Struct(">qi4xbI2xi30xi")
"""Base offset, length, magic, CRC, last offset delta, record count."""
assert _BATCH.size == HEAD_BYTES
_MAGIC = bytes((MAGIC,))


class BadBatches(NamedTuple):
    """Damaged bytes [start, stop) of a block, and the largest range of offsets [first, end) that
    they may have held: those between the valid batches around them. Where compaction has left gaps,
    the batch after the damage may be among them."""

    start: int
    stop: int
    first: int
    end: int


def bad_batches(data: Buffer, first: int, end: int) -> list[BadBatches]:
    """Return the damaged runs of `data`, batches with offsets [first, end) whose block checksum
    does not match. All of it is damaged if each batch's checksum matches or they are not in order:
    base offset, length and leader epoch are covered by the block's checksum alone, so it is not
    known which of them is wrong.
    """
    runs, in_order = search(data, first, end)
    if runs and in_order:
        return runs
    return [BadBatches(0, len(data), first, end)]


def search(data: Buffer, first: int, end: int) -> tuple[list[BadBatches], bool]:
    """Return the runs of `data` that are not valid batches, and whether the valid ones are in order
    within [first, end)."""
    view = memoryview(data)
    runs: list[BadBatches] = []
    at, size, following = 0, len(view), first
    while at < size:
        found = _sound(view, at)
        if found is not None and not following <= found[1] <= found[2] <= end:
            return runs, False
        if found is not None:
            at, _, following = found
            continue
        stop, base = _next_sound(view, at, following, end)
        runs.append(BadBatches(at, stop, following, base))
        at = stop
    return runs, True


def sound_run(data: Buffer, first: int, end: int, offset: int) -> tuple[int, int] | BadBatches:
    """Return for a reader at `offset` (start, stop) of the valid batches of a damaged block after
    the last damage before the offset; or the damage that contains the offset or follows it
    directly. `first`, `end`: as in `bad_batches`."""
    start = 0
    for run in bad_batches(data, first, end):
        if offset < run.first and start < run.start:
            return start, run.start
        if offset < run.end:  # or in a gap before it: the reader comes to the damage next
            return run
        start = run.stop
    return start, len(data)


def _sound(view: memoryview, at: int) -> tuple[int, int, int] | None:
    """Return (end position, base offset, next offset) of the batch at `at` if its checksum
    matches."""
    if len(view) - at < HEAD_BYTES:
        return None
    base, length, magic, crc, delta, count = _BATCH.unpack_from(view, at)
    stop = at + length + PREFIX_BYTES
    if magic != MAGIC or stop < at + HEAD_BYTES or stop > len(view) or delta | count < 0:
        return None
    if crc32c(view[at + CRC_FROM : stop]) != crc:
        return None
    return stop, base, base + delta + 1


def _next_sound(view: memoryview, at: int, following: int, end: int) -> tuple[int, int]:
    """Return (position, base offset) of the next valid batch after the damaged one at `at`; (size,
    `end`) if there is none. The end according to the damaged one's length is tried first."""
    if len(view) - at >= HEAD_BYTES:
        claimed = at + _BATCH.unpack_from(view, at)[1] + PREFIX_BYTES
        if claimed == len(view):
            return claimed, end
        if claimed > at:
            found = _sound(view, claimed)
            if found is not None and _follows(view, found, following, end):
                return claimed, found[1]
    data = bytes(view[at : at + MAX_SEARCH_BYTES])
    hit = data.find(_MAGIC, MAGIC_AT + 1)
    while hit >= 0:
        start = at + hit - MAGIC_AT
        base = int.from_bytes(data[hit - MAGIC_AT : hit - MAGIC_AT + 8], "big", signed=True)
        if following <= base < end:
            found = _sound(view, start)
            if found is not None and _follows(view, found, following, end):
                return start, base
        hit = data.find(_MAGIC, hit + 1)
    return len(view), end


def _follows(view: memoryview, found: tuple[int, int, int], following: int, end: int) -> bool:
    """Return True if the base offset of a valid batch after a damaged one is plausible. Damage may
    reach into it, and the batch's checksum does not cover it: so it must match the offsets after
    it."""
    stop, base, after = found
    upper = end if stop == len(view) else int.from_bytes(view[stop : stop + 8], "big", signed=True)
    return following <= base and after == upper <= end
