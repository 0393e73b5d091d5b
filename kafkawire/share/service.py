"""The share partitions that this broker leads, and the sessions of their members.

A ShareLeader is made by the first request for a share partition. It ends with the leadership of the
partition, and once its state is stored and the group has no session here any more: then the offsets
of a group without members may be changed, which the next leader reads. It also ends when it was not
used for a while. How many there are is bounded by the share partitions that were initialized, since
the state of another cannot be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.share.leader import ShareLeader, ShareParts
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.sessions import Connection, ShareSessions

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition

SWEPT_EVERY_S = 60.0
IDLE_S = 300.0
"""How long a share partition stays in memory that no member uses, a kilobyte or two: a group whose
members are restarted does not wait for its state to be read."""

FindPartition = Callable[[bytes, int], "Partition"]
"""Returns a partition by topic id and index. Raises as PartitionTable.find_by_id."""
Place = tuple[bytes, int]


class ShareService:
    """All share partitions and share sessions of a broker. `waiting_max`: requests that may wait
    for records; `closed`: it serves no more requests."""

    def __init__(
        self, parts: ShareParts, find: FindPartition, sessions_max: int, waiting_max: int
    ) -> None:
        self._parts = parts
        self._find = find
        self._groups: dict[str, dict[Place, ShareLeader]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closing: dict[Connection, Callable[[], None]] = {}
        self.sessions = ShareSessions(sessions_max)
        self.counts = parts.counts
        self.closed = False
        self._waiting = 0
        self._waiting_max = waiting_max

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def list_leaders(self) -> list[ShareLeader]:
        """Return all leaders."""
        return [leader for leaders in self._groups.values() for leader in leaders.values()]

    def find_leader(self, group_id: str, topic_id: bytes, index: int) -> ShareLeader:
        """Return the leader of a share partition, which may still be loading. Raises KafkaError,
        and NotLoaded if the partition is to be loaded first."""
        if self.closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition = self._find(topic_id, index)
        leader = self.find(group_id, topic_id, index)
        if leader is None:
            key = SharePartitionKey(group_id, topic_id, index)
            leader = ShareLeader(self._parts, key, partition, self._forget)
            self._groups.setdefault(group_id, {})[topic_id, index] = leader
            leader.start()
            if self._sweep is None:
                self._sweep = self._parts.env.call_later(SWEPT_EVERY_S, self._end_idle)
        leader.note_use()
        return leader

    def find(self, group_id: str, topic_id: bytes, index: int) -> ShareLeader | None:
        """Return the leader of a share partition, if there is one already."""
        leader = self._groups.get(group_id, {}).get((topic_id, index))
        if leader is not None:
            leader.check()  # it may be the one of an earlier leader epoch
        return None if leader is None or leader.ended is not None else leader

    def release_member(self, group_id: str, member: str) -> None:
        """End the session of a member, and release all that it has acquired. With the last session
        of a group its share partitions end, too: an operator may change its offsets now, which
        their coordinator does without asking the leader (Kafka: ShareGroupListener)."""
        self.sessions.remove(group_id, member)
        leaders = tuple(self._groups.get(group_id, {}).values())
        for leader in leaders:
            leader.release(member)
        if not self.sessions.has_group(group_id):
            for leader in leaders:
                leader.retire()

    def on_close(self, connection: Connection) -> Callable[[], None]:
        """Return what ends the sessions of a connection, to be called when it is closed; the same
        for each call."""
        closing = self._closing.get(connection)
        if closing is None:
            closing = self._closing[connection] = partial(self._release_connection, connection)
        return closing

    def _release_connection(self, connection: Connection) -> None:
        self._closing.pop(connection, None)
        for group_id, member in self.sessions.of_connection(connection):
            self.release_member(group_id, member)

    @contextmanager
    def waiting_request(self) -> Iterator[bool]:
        """Count a request that waits for records; False: there are too many, it must not wait."""
        admitted = self._waiting < self._waiting_max
        self._waiting += 1
        try:
            yield admitted
        finally:
            self._waiting -= 1

    def end_group(self, group_id: str) -> None:
        """End the share partitions of a group without members, whose offsets may be changed now."""
        self._end(tuple(self._groups.get(group_id, {}).values()))

    def close(self) -> None:
        """Answer all requests, since the broker stops: what is acquired stays so until it is
        acknowledged to the next leader, or delivered again by it."""
        self.closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        self._end(tuple(self.list_leaders()))

    def _end(self, leaders: tuple[ShareLeader, ...]) -> None:
        for leader in leaders:
            leader.stop_serving(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _forget(self, leader: ShareLeader) -> None:
        leaders = self._groups.get(leader.key.group_id, {})
        place = leader.key.topic_id, leader.key.partition
        if leaders.get(place) is leader:
            del leaders[place]
            self._parts.dead_letters.remove_partition(leader.key)
            if not leaders:
                del self._groups[leader.key.group_id]

    def _end_idle(self) -> None:
        self._sweep = None
        before_s = self._parts.env.clock.monotonic() - IDLE_S
        self._end(
            tuple(
                leader for leader in self.list_leaders() if leader.used_s < before_s and leader.idle
            )
        )
        if self._groups and not self.closed:
            self._sweep = self._parts.env.call_later(SWEPT_EVERY_S, self._end_idle)
