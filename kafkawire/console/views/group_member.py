"""A member of a classic consumer group that reads one topic.

It offers the assignor `range`, which Kafka's clients for Java and C offer, too, so that it shares a
group with them. Each call sends a few requests and returns; the caller calls `poll` repeatedly,
which also sends the heartbeats. Records of aborted transactions are not delivered.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.fetching import fetch_partitions, sound_records
from kafkawire.client.groups import assignment, subscription
from kafkawire.client.offsets import (
    COMING,
    EARLIEST,
    READ_COMMITTED,
    Partition,
    commit,
    fetch_committed_offsets,
    leaders,
    list_offsets,
)
from kafkawire.codec.batches import Record
from kafkawire.codec.errors import ErrorCode

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
LEAVE_MANY = 3
"""The first version of LeaveGroup with a list of members."""
SESSION_MS, HEARTBEAT_S = 45_000, 3.0
"""Kafka's defaults: after this time without a heartbeat the member is removed from the group."""
REBALANCE_MS = 25_000
"""How long a rebalance waits for this member: it rejoins at its next heartbeat. The other members
may wait longer than a request may take; the request is then repeated."""
POLL_BYTES = 1 << 20
"""Bytes of one Fetch of all partitions of a broker."""
PROTOCOL, ASSIGNOR = "consumer", "range"

_REJOIN = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
)
_FORGOTTEN = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)


class TopicMember:
    """A member of `group` that reads `topic`. `start`: where partitions without a committed offset
    begin, EARLIEST or LATEST. `positions`: the next offset of each partition that it has."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topic: str,
        start: int = EARLIEST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group, self.topic = group, topic
        self.positions: dict[int, int] = {}
        # By partition, the offset after the last record that was: only `acknowledge` changes
        # the second one, since it may run while another thread polls.
        self._delivered: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._cluster = cluster
        self._start = start
        self._clock = clock
        self._member, self._generation, self._coordinator = "", -1, -1
        self._joined = False
        self._heartbeat_at = 0.0
        self._led_by: dict[Partition, int] = {}

    @property
    def heartbeat_due(self) -> bool:
        """Return whether `poll` is to be called even if no records are wanted."""
        return self._clock() >= self._heartbeat_at

    @property
    def unacknowledged(self) -> int:
        """Return the offsets that are delivered and not acknowledged."""
        return sum(max(0, end - self._acknowledged[at]) for at, end in self._delivered.items())

    def acknowledge(self, partition: int, offset: int) -> bool:
        """Note that a partition's records up to `offset` are processed; the next `poll` commits
        it. False if the record was not delivered, or its partition belongs to another member."""
        if not 0 <= offset < self._delivered.get(partition, 0):
            return False
        self._acknowledged[partition] = max(offset + 1, self._acknowledged.get(partition, 0))
        return True

    def poll(self, wait_ms: int, read: bool = True) -> tuple[dict[int, int], list[Any]]:
        """Join if necessary, commit what is acknowledged, send a heartbeat if it is due, and with
        `read` fetch, waiting up to `wait_ms` for records. Return what was committed, and the
        records as (partition, record). ClientError; the next call continues."""
        try:
            if not self._joined:
                self._join()
            committed = self._commit()
            if self.heartbeat_due:
                self._heartbeat()
            return committed, self._fetch(wait_ms) if read else []
        except BrokerError as error:
            if error.code in _REJOIN:
                self._joined = False
                if error.code in _FORGOTTEN:
                    self._forget(error.code)
                return {}, []
            if error.code in COMING:
                self._coordinator = -1  # it is looked up again
            raise
        except ClientError:
            self._coordinator = -1
            self._cluster.reset()
            raise

    def close(self) -> None:
        """Commit what is acknowledged, leave the group, and close the connections."""
        try:
            if self._joined:
                self._commit()
            self._leave()
        except ClientError:
            pass  # the session ends by itself
        finally:
            self._cluster.close()

    def _forget(self, code: int) -> None:
        """Forget what another member may have read since: after it was removed, or has missed a
        generation."""
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member = ""
        self._generation = -1
        for state in self._states():
            state.clear()

    def _states(self) -> tuple[dict[int, int], ...]:
        return self._delivered, self.positions, self._acknowledged, self._committed

    def _ask(self, key: int, message: object) -> Any:
        return self._cluster.node(self._find_coordinator()).request(key, message)

    def _find_coordinator(self) -> int:
        if self._coordinator < 0:
            self._coordinator = self._cluster.coordinator_id(self.group)
        return self._coordinator

    def _check(self, code: int) -> None:
        if code:
            raise BrokerError(f"group {self.group}", code)

    def _join(self) -> None:
        from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
        from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

        name = self.topic.encode()
        metadata = struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, -1)
        asked = JoinGroupRequest(
            self.group, SESSION_MS, REBALANCE_MS, self._member, None, PROTOCOL,
            [JoinGroupRequestProtocol(ASSIGNOR, metadata)],
        )  # fmt: skip
        joined = self._ask(JOIN_GROUP, asked)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member = asked.member_id = joined.member_id
            joined = self._ask(JOIN_GROUP, asked)
        self._check(joined.error_code)
        self._member = joined.member_id
        assignments: dict[str, bytes] = {}
        if joined.leader == self._member and not joined.skip_assignment:
            topics = {row.member_id: subscription(row.metadata) or [] for row in joined.members}
            counts = self._count_partitions({topic for each in topics.values() for topic in each})
            assignments = assign_ranges(topics, counts)
        synced = self._ask(
            SYNC_GROUP,
            SyncGroupRequest(
                self.group, joined.generation_id, self._member, None, PROTOCOL, ASSIGNOR,
                [SyncGroupRequestAssignment(*each) for each in assignments.items()],
            ),
        )  # fmt: skip
        self._check(synced.error_code)
        if joined.generation_id != self._generation + 1:
            self._forget(0)
        self._generation = joined.generation_id
        self._begin(
            [index for topic, index in assignment(synced.assignment) if topic == self.topic]
        )
        self._joined = True
        self._heartbeat_at = self._clock() + HEARTBEAT_S

    def _begin(self, owned: Sequence[int]) -> None:
        """Keep the positions of partitions that stay, and read those of new ones."""
        self._led_by = leaders(self._cluster, [self.topic])
        new = [(self.topic, index) for index in owned if index not in self.positions]
        for state in self._states():
            for index in set(state) - set(owned):
                del state[index]
        if not new:
            return
        node = self._coordinator
        committed = fetch_committed_offsets(self._cluster, self.group, stable=True, node=node)
        starts = list_offsets(self._cluster, dict.fromkeys(new, self._start), self._led_by)
        for place in new:
            found = committed.get(place)
            at = starts.get(place, 0) if found is None else found[0]
            for state in reversed(self._states()):
                state[place[1]] = at

    def _count_partitions(self, topics: set[str]) -> dict[str, int]:
        found = self._cluster.metadata(sorted(topics)).topics if topics else ()
        return {row.name: len(row.partitions) for row in found if not row.error_code}

    def _commit(self) -> dict[int, int]:
        wanted = {
            index: end
            for index, end in self._acknowledged.copy().items()
            if end != self._committed.get(index)
        }
        if not wanted:
            return {}
        places = {(self.topic, index): end for index, end in wanted.items()}
        codes = commit(
            self._cluster, self.group, places,
            member=self._member, generation=self._generation, node=self._find_coordinator(),
        )  # fmt: skip
        for code in codes.values():
            self._check(code)
        self._committed |= wanted
        return wanted

    def _heartbeat(self) -> None:
        from kafkawire.messages.heartbeat import HeartbeatRequest

        asked = HeartbeatRequest(self.group, self._generation, self._member)
        self._check(self._ask(HEARTBEAT, asked).error_code)
        self._heartbeat_at = self._clock() + HEARTBEAT_S

    def _leave(self) -> None:
        from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity

        if not self._member:
            return
        asked = LeaveGroupRequest(self.group, "", [MemberIdentity(self._member)])
        if self._cluster.node(self._coordinator).version(LEAVE_GROUP) < LEAVE_MANY:
            asked = LeaveGroupRequest(self.group, self._member, [])
        self._ask(LEAVE_GROUP, asked)

    def _fetch(self, wait_ms: int) -> list[tuple[int, Record]]:
        by_node: dict[int, dict[Partition, int]] = {}
        # The partition that was read last comes last: none waits for the others forever.
        for index, offset in self.positions.items():
            node = self._led_by.get((self.topic, index), -1)
            by_node.setdefault(node, {})[self.topic, index] = offset
        if not set(by_node) - {-1}:
            time.sleep(wait_ms / 1000)
        if -1 in by_node:
            self._led_by = leaders(self._cluster, [self.topic])
        found: list[tuple[int, Record]] = []
        for node in sorted(set(by_node) - {-1}):
            got = fetch_partitions(
                self._cluster, node, by_node[node], 0 if found else wait_ms // len(by_node),
                max_bytes=POLL_BYTES, isolation=READ_COMMITTED,
            )  # fmt: skip
            for (_, index), each in got.items():
                offset = self.positions.get(index, 0)
                if isinstance(each, BrokerError):
                    self._recover(index, each)
                    continue
                after = max((head.last_offset + 1 for _, head in each.batches()), default=offset)
                found += [(index, record) for record in sound_records(each, offset)]
                if after > offset:
                    self.positions.pop(index)
                    self.positions[index] = after
        for index, record in found:
            self._delivered[index] = record.offset + 1
        return found

    def _recover(self, index: int, error: BrokerError) -> None:
        """Continue after the error of a partition: at the log start or end if its position was
        deleted, else at its leader."""
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            place = self.topic, index
            starts = list_offsets(self._cluster, {place: self._start}, self._led_by)
            self.positions[index] = starts.get(place, self.positions[index])
        elif error.code in set(ErrorCode) and ErrorCode(error.code).retriable:
            self._led_by = leaders(self._cluster, [self.topic])
        else:
            raise error


def assign_ranges(
    topics: Mapping[str, Sequence[str]], counts: Mapping[str, int]
) -> dict[str, bytes]:
    """Return the assignment of each member, encoded (Kafka: RangeAssignor). `topics`: those that
    members subscribe to; `counts`: their partitions. Pure."""
    owned: dict[str, list[tuple[str, range]]] = {member: [] for member in topics}
    for topic, count in sorted(counts.items()):
        readers = sorted(member for member, names in topics.items() if topic in names)
        for at, member in enumerate(readers):
            share, extra = divmod(count, len(readers))
            first = at * share + min(at, extra)
            owned[member].append((topic, range(first, first + share + (at < extra))))
    found: dict[str, bytes] = {}
    for member, rows in owned.items():
        data = bytearray(struct.pack(">hi", 0, len(rows)))
        for topic, indexes in rows:
            name = topic.encode()
            data += struct.pack(f">h{len(name)}s", len(name), name)
            data += struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
        found[member] = bytes(data + struct.pack(">i", -1))
    return found
