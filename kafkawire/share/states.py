"""The states of a record in a share partition, and the moves between them. Pure.

Its numbers and names are those that Kafka stores (server: RecordState).
"""

from __future__ import annotations

from enum import IntEnum


class RecordState(IntEnum):
    """The state of one record for one share group."""

    AVAILABLE = 0
    """May be acquired, unless it was released with a delay that is not over."""
    ACQUIRED = 1
    """Locked for one member until it is acknowledged or the lock expires. Never stored."""
    ACKNOWLEDGED = 2
    """Accepted. Terminal."""
    ARCHIVING = 3
    """Will be archived when its dead letter is written, or cannot be written."""
    ARCHIVED = 4
    """Rejected, delivered too often, a gap, aborted, or removed from the log. Terminal."""


class AcknowledgeType(IntEnum):
    """How a member settles a record (clients: AcknowledgeType, and 0)."""

    GAP = 0
    """There is no record at this offset, or a control record."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The lock begins again (KIP-1222)."""


class ArchiveReason(IntEnum):
    """Why a record is archived with a dead letter; not stored, so unknown after a load."""

    UNKNOWN = 0
    REJECTED = 1
    DELIVERED_TOO_OFTEN = 2


TERMINAL = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
"""States that the start offset of a share partition moves over."""

LEGAL: dict[RecordState, frozenset[RecordState]] = {
    # Acquired; or compacted away, aborted, a control record.
    RecordState.AVAILABLE: frozenset({RecordState.ACQUIRED, RecordState.ARCHIVED}),
    # Released, the lock expired or the session ended; accepted; and the ways to end without it.
    RecordState.ACQUIRED: frozenset(
        {
            RecordState.AVAILABLE,
            RecordState.ACKNOWLEDGED,
            RecordState.ARCHIVING,
            RecordState.ARCHIVED,
        }
    ),
    RecordState.ACKNOWLEDGED: frozenset(),
    # The dead letter is written, or cannot be.
    RecordState.ARCHIVING: frozenset({RecordState.ARCHIVED}),
    RecordState.ARCHIVED: frozenset(),
}
"""Legal moves from each state; asserted at every move."""
