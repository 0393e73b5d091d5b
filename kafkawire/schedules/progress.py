"""The progress of a schedule partition: a few corners of a staircase. Pure.

The delivered occurrences of records are those below a corner: of a lower offset than its `end`, and
due at or before its `due`, in the order of (due time, offset). One corner is enough while records
are followed before they are due. A record that arrives late, or a clock that was set back, needs a
second one, until due times pass the first.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

LAST_OFFSET = (1 << 63) - 1

Due: TypeAlias = tuple[int, int]
"""Due time in ms, and offset: records of one due time are delivered in the order of offsets."""


class Corner(NamedTuple):
    """Everything of an offset below `end`, due at or before (`due_ms`, `offset`), is delivered."""

    end: int
    due_ms: int
    offset: int

    @property
    def due(self) -> Due:
        """The last of what is delivered, in the order of delivery."""
        return self.due_ms, self.offset


class Progress(NamedTuple):
    """The corners: `end` rises, `due` falls."""

    corners: tuple[Corner, ...] = ()

    def delivered_until(self, offset: int) -> Due | None:
        """Return up to which due time the record at an offset is delivered; None: not at all."""
        for corner in self.corners:
            # The largest due time: those of later corners are lower.
            if offset < corner.end:
                return corner.due
        return None

    def add_corner(self, end: int, due: Due) -> Progress:
        """Return the progress when also everything below the corner (end, due) is delivered."""
        for corner in self.corners:
            if corner.end >= end and corner.due >= due:
                return self
        # The others are inside of the new one.
        kept = [each for each in self.corners if each.end > end or each.due > due]
        kept.append(Corner(end, *due))
        kept.sort()
        return Progress(tuple(kept))
