"""The states of a record in a share partition, and the moves between them. Pure.

Its numbers and names are those that Kafka stores (server: RecordState).
"""

from __future__ import annotations

from enum import IntEnum


class RecordState(IntEnum):
    """The state of one record for one share group."""

    AVAILABLE = 0
    """May be acquired. A record that was released with a delay stays so until the delay is over."""
    ACQUIRED = 1
    """Locked for one member until it is acknowledged or the lock expires. Never stored."""
    ACKNOWLEDGED = 2
    """Accepted. Terminal."""
    ARCHIVING = 3
    """Will be archived when its dead letter is written, or cannot be written."""
    ARCHIVED = 4
    """Rejected, delivered too often, a gap, aborted, or removed from the log. Terminal."""


TERMINAL = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
"""States that the start offset of a share partition moves over."""
