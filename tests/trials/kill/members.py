"""Members of a consumer group in a kill trial: they join, read, commit, and sometimes leave.

The leader assigns partitions in turn. A member that gets a partition asks for its committed
offset, which must not be below a commit that was acknowledged before.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.kit.client import Client
from tests.trials.kill.world import Topic, World
from tests.trials.ledger import Commits
from tests.trials.link import Link, fetch
from tests.trials.records import read

LOADING, NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER = 14, 16, 22, 25
REBALANCING, MEMBER_ID_REQUIRED, OUT_OF_RANGE = 27, 79, 1
RETRY = {LOADING, 15, NOT_COORDINATOR}
JOIN_AGAIN = {ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING}
TOPIC_GONE = {3, 100}
SESSION_MS, REBALANCE_MS = 2000, 1000
"""Short, like the lives of the broker: otherwise no rebalance would ever end."""
STAYS = 0.985
"""The chance that a member stays for another pass over its partitions."""

Key = tuple[bytes, int]


class Again(Exception):
    """Raised when the member must join again."""


async def committed(client: Client, group: str, keys: list[Key]) -> dict[Key, int]:
    """Committed offsets by topic id and partition (-1: none); waits while the group loads."""
    topics = [OffsetFetchRequestTopics(topic_id=id_, partition_indexes=[n]) for id_, n in keys]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=topics)])
    while True:
        answer = (await client.call(request, 10)).groups[0]
        if answer.error_code not in RETRY:
            break
        await asyncio.sleep(0.05)
    if answer.error_code:
        return {key: -100 - answer.error_code for key in keys}
    return {
        (topic.topic_id, row.partition_index): row.committed_offset
        for topic in answer.topics
        for row in topic.partitions
        if row.error_code not in TOPIC_GONE
    }


async def find_coordinator(client: Client, group: str) -> None:
    """Ask until there is a coordinator; the first request creates the internal topic."""
    code = -1
    while code in (-1, *RETRY):
        await asyncio.sleep(0.05)
        code = (await client.call(FindCoordinatorRequest(group), 2)).error_code


@dataclass(slots=True)
class Place:
    """The position at which a member reads one of its partitions."""

    topic: Topic
    partition: int
    position: int


class Member:
    """One consumer of a group."""

    def __init__(self, world: World, group: str, name: str) -> None:
        self.world, self.group, self.name = world, group, name
        self.commits = world.commits.setdefault(group, Commits(group))
        self.member_id, self.generation = "", -1

    async def run(self) -> None:
        """Consume whenever the broker serves, until the trial is over."""
        await self.world.keep(self.name, self._life)

    async def _life(self, client: Link) -> None:
        await find_coordinator(client, self.group)
        while not self.world.over:
            try:
                places = await self._join(client)
                await self._consume(client, places)
                await self._leave(client)
            except Again:
                await asyncio.sleep(0.02)

    def _judge(self, code: int, what: str) -> None:
        """Raise Again where the protocol requires it; report any other error as a finding."""
        if code in JOIN_AGAIN or code in RETRY:
            if code == UNKNOWN_MEMBER:
                self.member_id = ""
            raise Again
        if code:
            self.world.broken(f"group {self.group}: {what} was refused with {code}")
            raise Again

    async def _join(self, client: Link) -> list[Place]:
        """Join and sync; return the position to read from in each assigned partition."""
        protocol = JoinGroupRequestProtocol("trial", b"")
        request = JoinGroupRequest(
            self.group, SESSION_MS, REBALANCE_MS, self.member_id, None, "trial", [protocol]
        )
        joined = await client.call(request, 5)
        if joined.error_code == MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            raise Again
        self._judge(joined.error_code, "JoinGroup")
        self.member_id, self.generation = joined.member_id, joined.generation_id
        assigned = self._assign([row.member_id for row in joined.members])
        sync = SyncGroupRequest(self.group, self.generation, self.member_id, assignments=assigned)
        synced = await client.call(sync, 3)
        self._judge(synced.error_code, "SyncGroup")
        self.world.context.tried("group generations joined")
        mine = json.loads(synced.assignment or b"[]")
        return await self._positions(client, [(bytes.fromhex(id_), n) for id_, n in mine])

    def _assign(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        """The assignments of the leader; empty for other members, who receive no member list."""
        if not members:
            return []
        all_ = [(topic.id.hex(), n) for topic in self.world.live() for n in range(topic.count)]
        return [
            SyncGroupRequestAssignment(id_, json.dumps(all_[turn :: len(members)]).encode())
            for turn, id_ in enumerate(members)
        ]

    async def _positions(self, client: Link, keys: list[Key]) -> list[Place]:
        """The committed offsets, compared with the ledger."""
        owed = {key: self.commits.acked.get(key, -1) for key in keys}
        found = await committed(client, self.group, keys) if keys else {}
        places = []
        for key, offset in found.items():
            topic = self.world.topics.get(key[0])
            if topic is None or topic.state != "live":
                continue
            if offset < owed[key]:
                name = topic.ledgers[key[1]].name
                self.world.broken(*self.commits.check(key, offset, name))
            places.append(Place(topic, key[1], max(0, offset)))
        return places

    async def _consume(self, client: Link, places: list[Place]) -> None:
        """Read and commit alternately until the member leaves or must join again."""
        while not self.world.over and self.world.rng.random() < STAYS:
            beat = HeartbeatRequest(self.group, self.generation, self.member_id)
            self._judge((await client.call(beat, 3)).error_code, "Heartbeat")
            self.world.rng.shuffle(places)
            for place in places[:4]:
                if place.topic.state == "live":
                    await self._read(client, place)
            live = [place for place in places if place.topic.state == "live"]
            await self._commit(client, [place for place in live if place.position])
            await asyncio.sleep(0.02)

    async def _read(self, client: Link, place: Place) -> None:
        row = await fetch(client, place.topic.id, place.partition, place.position, wait_ms=20)
        ledger = place.topic.ledgers[place.partition]
        if row.error_code == OUT_OF_RANGE:
            place.position = max(row.log_start_offset, 0)  # records were deleted
            return
        if row.error_code:
            if place.topic.state == "live":
                self.world.broken(f"{ledger.name}: Fetch was refused with {row.error_code}")
            return
        records = [r for r in read(bytes(row.records or b"")) if r.offset >= place.position]
        self.world.broken(*ledger.see(records)[:3])
        self.world.context.tried("records consumed", len(records))
        if records:
            place.position = records[-1].offset + 1

    async def _commit(self, client: Link, places: list[Place]) -> None:
        """Commit all positions in one request."""
        if not places:
            return
        topics = []
        for place in places:
            self.commits.send((place.topic.id, place.partition), place.position)
            row = OffsetCommitRequestPartition(place.partition, place.position)
            topics.append(OffsetCommitRequestTopic(topic_id=place.topic.id, partitions=[row]))
        request = OffsetCommitRequest(self.group, self.generation, self.member_id, topics=topics)
        asked = {(place.topic.id, place.partition): place for place in places}
        answer = await client.call(request, 10)
        for topic in answer.topics:
            for row in topic.partitions:
                place = asked[topic.topic_id, row.partition_index]
                if not row.error_code:
                    self.commits.ack((place.topic.id, place.partition), place.position)
                    self.world.context.tried("commits acknowledged")
                elif row.error_code not in TOPIC_GONE or place.topic.state == "live":
                    self._judge(row.error_code, "OffsetCommit")

    async def _leave(self, client: Link) -> None:
        """Leave like a consumer that is closed, so that the others rebalance."""
        request = LeaveGroupRequest(self.group, "", [MemberIdentity(self.member_id)])
        await client.call(request, 3)
        self.member_id = ""
