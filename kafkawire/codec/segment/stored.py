"""Store times: when the batches of a segment were appended to the log, to the second.

A list of steps (offset, ms since 1970, a whole second): batches from an offset on, up to the next
step, were stored in that second. Times rise with offsets, unlike timestamps of producers. The
cut takes them from the index files of journals, rewrites copy them. Laid out in
kafkawire.codec.segment.format. Pure.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from struct import Struct

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.types import Buffer

Step = tuple[int, int]
"""An offset (of a journal: a position) and the time from it on, in ms since 1970."""
RESOLUTION_MS = 1000
"""Steps are whole seconds: with 8 bytes for each second they cost little."""

_COUNT = Struct("<II")
_ENTRY = Struct("<QqqII")
_MAX_DELTA = (1 << 32) - 1


def add_step(steps: list[Step], at: int, ms: int) -> None:
    """Append a step if its second is after that of the last one: times never fall."""
    if not steps or ms >= steps[-1][1] + RESOLUTION_MS:
        steps.append((at, ms // RESOLUTION_MS * RESOLUTION_MS))


def select_steps(steps: Sequence[Step], base: int, end: int) -> list[Step]:
    """Return the steps of [base, end); one that begins before `base` begins there."""
    at = bisect_right(steps, base, key=lambda step: step[0])
    found = [(base, steps[at - 1][1])] if at and base < end else []
    return found + [step for step in steps[at:] if step[0] < end]


def write_stored(parts: Iterable[tuple[int, Sequence[Step]]]) -> bytes:
    """Encode the body of the section: (partition number, steps), numbers and offsets rise."""
    rows = []
    for number, steps in parts:
        base, first_ms = steps[0]
        # Further steps are left out: their batches keep an earlier time.
        near = [step for step in steps if step[0] - base <= _MAX_DELTA]
        offsets, seconds = (
            array("I", values)
            for values in (
                [offset - base for offset, _ in near],
                [(ms - first_ms) // RESOLUTION_MS for _, ms in near],
            )
        )
        if sys.byteorder == "big":
            offsets.byteswap()
            seconds.byteswap()
        head = _ENTRY.pack(number, base, first_ms, len(near), 0)
        rows.append(head + offsets.tobytes() + seconds.tobytes())
    return _COUNT.pack(len(rows), 0) + b"".join(rows)


def read_stored(body: Buffer) -> dict[int, list[Step]]:
    """Decode the steps by partition number. FormatError for anything `write_stored` did not
    write."""
    view = memoryview(body)
    found: dict[int, list[Step]] = {}
    at = _COUNT.size
    for _ in range(_COUNT.unpack_from(view)[0] if len(view) >= at else 0):
        if at + _ENTRY.size > len(view):
            raise FormatError("its store times are cut short")
        number, base, first_ms, count, _ = _ENTRY.unpack_from(view, at)
        at += _ENTRY.size
        stop = at + 8 * count
        if not count or stop > len(view):
            raise FormatError(f"its store times have no room for {count} of partition {number}")
        columns: array[int] = array("I", view[at:stop].tobytes())
        if sys.byteorder == "big":
            columns.byteswap()
        offsets, seconds = columns[:count], columns[count:]
        steps = [
            (base + offset, first_ms + second * RESOLUTION_MS)
            for offset, second in zip(offsets, seconds, strict=True)
        ]
        if steps != sorted(steps):
            raise FormatError(f"its store times of partition {number} fall")
        found[number] = steps
        at = stop
    if at != len(view):
        raise FormatError("its store times do not fill their section")
    return found
