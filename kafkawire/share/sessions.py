"""Share sessions (KIP-932): the share partitions that a member fetches from this broker. Pure.

    epoch of the request   the session
    0                      begins, in place of an earlier one of this member; takes no
                           acknowledgements. Not with ShareAcknowledge
    1, 2, ...              is continued, each epoch once; after 2^31 - 1 comes 1
    -1                     ends after the acknowledgements of the request

A session is that of a group and a member, and of the connection on which it began: when that is
closed it ends, and what the member has acquired is released. No session ends for its age.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

from kafkawire.codec.errors import ErrorCode, KafkaError

NEW_SESSION: Final = 0
FINAL: Final = -1
LAST_EPOCH: Final = (1 << 31) - 1
PARTITIONS_MAX: Final = 1_000_000
"""Partitions of all sessions together, of some 200 bytes each, as of fetch sessions."""

Connection = Hashable
Place = tuple[bytes, int]
"""Topic id and index of a partition."""


class ShareSession:
    """The partitions of one member, in the order in which they came. `epoch`: of the next
    request."""

    __slots__ = ("connection", "epoch", "partitions")

    def __init__(self, partitions: Iterable[Place], connection: Connection) -> None:
        self.partitions: dict[Place, None] = dict.fromkeys(partitions)
        self.connection = connection
        self.epoch = 1

    def rotate(self, epoch: int) -> list[Place]:
        """Return the partitions, each time from another one on (Kafka: PartitionRotateStrategy)."""
        places = list(self.partitions)
        first = epoch % len(places) if places else 0
        return places[first:] + places[:first]


class ShareSessions:
    """The sessions of a broker. `limit`: how many there may be."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._groups: dict[str, int] = {}  # how many sessions each has
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def create_session(
        self, group_id: str, member: str, partitions: Iterable[Place], connection: Connection
    ) -> ShareSession:
        """Return a new session. Raises SHARE_SESSION_LIMIT_REACHED."""
        self.remove(group_id, member)
        made = ShareSession(partitions, connection)
        held = self._partitions + len(made.partitions)
        if len(self._sessions) >= self._limit or held > PARTITIONS_MAX:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        self._sessions[group_id, member] = made
        self._groups[group_id] = self._groups.get(group_id, 0) + 1
        self._partitions = held
        return made

    def find(self, group_id: str, member: str) -> ShareSession:
        """Return the session of a member. Raises SHARE_SESSION_NOT_FOUND."""
        session = self._sessions.get((group_id, member))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def continue_session(self, group_id: str, member: str, epoch: int) -> ShareSession:
        """Return the session that a request continues. Raises KafkaError."""
        session = self.find(group_id, member)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = 1 if epoch == LAST_EPOCH else epoch + 1
        return session

    def update(
        self, session: ShareSession, added: Iterable[Place], forgotten: Iterable[Place]
    ) -> None:
        """Add partitions to a session, then remove some; exactly those of the request. Raises
        SHARE_SESSION_LIMIT_REACHED."""
        before = len(session.partitions)
        for place in added:
            session.partitions.setdefault(place)
        for place in forgotten:
            session.partitions.pop(place, None)
        self._partitions += len(session.partitions) - before
        if self._partitions > PARTITIONS_MAX:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)

    def remove(self, group_id: str, member: str) -> None:
        """Remove the session of a member, if it has one."""
        session = self._sessions.pop((group_id, member), None)
        if session is not None:
            self._partitions -= len(session.partitions)
            left = self._groups.pop(group_id) - 1
            if left:
                self._groups[group_id] = left

    def has_group(self, group_id: str) -> bool:
        """Return whether a group has a session."""
        return group_id in self._groups

    def of_connection(self, connection: Connection) -> list[tuple[str, str]]:
        """Return the groups and members whose sessions began on a connection."""
        return [key for key, session in self._sessions.items() if session.connection == connection]
