"""Lost offset ranges of a segment with reasons, laid out in kafkawire.codec.segment.format.

Written when damaged batches are left out of a rewritten segment (--skip-lost), and copied by every
later rewrite, so that a reader can distinguish these gaps from those of compaction. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.types import Buffer

_COUNT = Struct("<II")
_RANGE = Struct("<QqqqII")

DAMAGED, GONE = 1, 2
REASON_NAMES = {DAMAGED: "damaged", GONE: "gone"}
"""damaged: a checksum was wrong; gone: the file or object was missing."""


class LostRange(NamedTuple):
    """Offsets [first, end) of a partition that were discarded at `noticed_ms`."""

    first: int
    end: int
    noticed_ms: int
    reason: int


def select_overlapping(ranges: Iterable[LostRange], base: int, end: int) -> list[LostRange]:
    """Return the ranges that overlap [base, end), sorted, without duplicates."""
    # A set: rewrites copy ranges from several inputs.
    return sorted({each for each in ranges if each.first < end and each.end > base})


def write_lost(ranges: Sequence[tuple[int, LostRange]]) -> bytes:
    """Encode the body of the section: (partition number, range), numbers and offsets rise."""
    rows = [
        _RANGE.pack(number, each.first, each.end, each.noticed_ms, each.reason, 0)
        for number, each in ranges
    ]
    return _COUNT.pack(len(rows), 0) + b"".join(rows)


def read_lost(body: Buffer) -> dict[int, list[LostRange]]:
    """Decode lost ranges by partition number. FormatError for anything `write_lost` did not
    write."""
    view = memoryview(body)
    if len(view) < _COUNT.size:
        raise FormatError("its lost ranges are cut short")
    count, _ = _COUNT.unpack_from(view)
    # The count must fill the body exactly.
    if len(view) != _COUNT.size + count * _RANGE.size:
        raise FormatError(f"its lost ranges have no room for {count} of them")
    found: dict[int, list[LostRange]] = {}
    for number, first, end, noticed_ms, reason, _ in _RANGE.iter_unpack(view[_COUNT.size :]):
        if first >= end:
            raise FormatError(f"its lost ranges have {first}-{end}, which is none")
        found.setdefault(number, []).append(LostRange(first, end, noticed_ms, reason))
    return found
