"""Start positions of readers, and ranges of offsets. Pure values."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class OffsetType(IntEnum):
    """Start positions of a subscription. The numbers are those of SeaweedMQ's
    `schema_pb.OffsetType`, so that they can be sent and stored."""

    RESUME_OR_EARLIEST = 0  # the group's committed offset, else the log start
    RESET_TO_EARLIEST = 5  # the log start
    EXACT_TS_NS = 10  # first record at or after a time in ns, else the end
    RESET_TO_LATEST = 15  # the end
    RESUME_OR_LATEST = 20  # the group's committed offset, else the end
    EXACT_OFFSET = 25  # this offset, which must exist
    RESET_TO_OFFSET = 30  # this offset, or the nearest one that exists


class OffsetRange(NamedTuple):
    """Offsets [start, end)."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def last(self) -> int:
        """The last offset; of an empty range: the offset before its start."""
        return self.end - 1


class OffsetOutOfRange(ValueError):
    """An offset or a range that a partition does not have; the message is one sentence."""


def validate_offset_range(start: int, end: int, log_start: int, high_watermark: int) -> OffsetRange:
    """Return the range [start, end) if readers may read all of it. Raises OffsetOutOfRange
    otherwise. `end` may be the high watermark, which no record has yet."""
    if start > end:
        raise OffsetOutOfRange(f"range {start}..{end} ends before it begins")
    if start < log_start or end > high_watermark:
        raise OffsetOutOfRange(
            f"range {start}..{end} is not within {log_start}..{high_watermark}, "
            "which is what the partition has"
        )
    return OffsetRange(start, end)
