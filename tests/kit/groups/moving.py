"""Two group services whose partitions of the offsets topic move between them, and their clients.

A move fences the old leader: it appends nothing more, and what it had appended without a commit is
in the log of the new leader, or lost. The old service learns of the move before its log commits
again, the new one before or after that. Each node keeps its snapshots, so it finds old ones when a
partition comes back. Some requests go to the wrong node.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.java_hash import group_partition_of
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.groups.model.request import JOIN, OFFSET_COMMIT, SYNC
from kafkawire.groups.service import OFFSETS_TOPIC, Client, GroupService
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kafkawire.metadata.catalog import Catalog
from tests.kit.groups.broker import PARTITIONS, topic
from tests.kit.groups.desk import commit_of
from tests.kit.groups.log import FakeCommitLog, FakePartition, fake_env
from tests.kit.groups.script import GroupSettings
from tests.kit.waiting import until

ME = Client("c", "/h")
MEMBERS = ("g0", "g1", "g3")
SIMPLE = ("s1", "s2", "s3", "s4")


class Node:
    """A broker: its service, its snapshots, the partitions that its log has."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.env = fake_env()
        self.log = FakeCommitLog()
        self.catalog = Catalog("cluster")
        for made in (topic("t", 3, 1), topic(OFFSETS_TOPIC, PARTITIONS, 9)):
            self.catalog.add_topic(made)
        self.partitions: dict[int, FakePartition] = {}
        self.stalled = 0  # moves that the node has not learned of
        log: Any = self.log
        config: Any = GroupSettings(group_initial_rebalance_delay_ms=0)
        internal: Any = self.internal
        self.groups = GroupService(self.env, config, "/data", log, internal, self.catalog)

    async def internal(self) -> list[FakePartition | None]:
        found = [self.partitions.get(index) for index in range(PARTITIONS)]
        await asyncio.sleep(0)
        return found

    def commit(self) -> None:
        """Commit what is appended, unless the node is to learn of a move first."""
        if not self.stalled:
            self.log.commit()


class Moving:
    """The cluster. `acked`: the last offset of each group that was answered without an error;
    `generations`: those of rebalances that completed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.nodes = (Node(0), Node(1))
        self.leaders = [self.dice.randrange(2) for _ in range(PARTITIONS)]
        self.epochs = [0] * PARTITIONS
        self.acked: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.generations: dict[str, int] = {}
        self.terms: dict[tuple[int, int], int] = {}
        self.over = False
        self.moves = 0
        for index, leader in enumerate(self.leaders):
            node = self.nodes[leader]
            node.partitions[index] = FakePartition(node.log, index)

    # -- the cluster ----------------------------------------------------------------------

    async def pause(self) -> None:
        for _ in range(self.dice.choice((1, 1, 2, 4, 9))):
            await asyncio.sleep(0)

    async def move(self, index: int) -> None:
        """Give a partition to the other node."""
        old, new = self.nodes[self.leaders[index]], self.nodes[1 - self.leaders[index]]
        partition = old.partitions.pop(index)
        partition.refuse, partition.removed = ErrorCode.NOT_LEADER_OR_FOLLOWER, True
        old.log.partitions.remove(partition)
        self.moves += 1
        self.leaders[index], self.epochs[index] = new.number, self.epochs[index] + 1
        taken = FakePartition(new.log, index)
        taken.epochs = list(partition.epochs)
        if self.dice.random() < 0.5:
            partition.lose_uncommitted()
        taken.batches = partition.batches
        taken.next_appended = taken.next_offset = taken.high_watermark = partition.next_appended
        taken.leader_epoch = self.epochs[index]
        new.partitions[index] = taken
        old.stalled += 1
        steps = [partial(self._resign, old, index), partial(self._lead, new, index)]
        self.dice.shuffle(steps)
        for step in steps:
            await step()

    async def _resign(self, node: Node, index: int) -> None:
        await self.pause()
        await node.groups.resign([index])
        node.stalled -= 1
        await self.pause()

    async def _lead(self, node: Node, index: int) -> None:
        await self.pause()
        await node.groups.lead([index])
        await self.pause()

    async def rule(self, steps: int) -> None:
        """Commit, fail writes, take snapshots and move partitions."""
        for _ in range(steps):
            await self.pause()
            node = self.dice.choice(self.nodes)
            match self.dice.randrange(12):
                case 0 | 1:
                    index = self.dice.randrange(PARTITIONS)
                    await self.move(index)
                    if self.dice.random() < 0.3:
                        await self.move(index)
                case 2 if not node.stalled:
                    node.log.fail()
                case 3:
                    for coordinator in node.groups.list_led():
                        node.env.spawn(coordinator._store(0), "store")
                case _:
                    node.commit()

    async def commit_always(self) -> None:
        """Commit from time to time, so that no answer waits forever."""
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            for node in self.nodes:
                node.commit()

    # -- clients --------------------------------------------------------------------------

    def node_of(self, group: str) -> Node:
        """Return the leader, or sometimes the other node."""
        leader = self.leaders[group_partition_of(group, PARTITIONS)]
        return self.nodes[leader if self.dice.random() < 0.85 else 1 - leader]

    def succeeded(self, node: Node, group: str, epoch: int) -> None:
        """Note which node has answered a write in a term."""
        term = group_partition_of(group, PARTITIONS), epoch
        assert self.terms.setdefault(term, node.number) == node.number, "two leaders in a term"

    async def commit(self, group: str, **member: Any) -> bool:
        """Commit the next offset; return whether it was stored."""
        node = self.node_of(group)
        epoch = self.epochs[group_partition_of(group, PARTITIONS)]
        self.sent[group] = offset = self.sent.get(group, 0) + 1
        request: Any = commit_of({("t", 0): offset}, group=group, **member)
        stored = await node.groups.handle_request(OFFSET_COMMIT, ME, 7, request)
        code = stored.topics[0].partitions[0].error_code
        if not code:
            self.acked[group] = offset
            self.succeeded(node, group, epoch)
        return not code

    async def simple(self, group: str) -> None:
        """Commit offsets without a membership."""
        while not self.over:
            await self.commit(group)
            await self.pause()

    async def member(self, group: str) -> None:
        """Be the only member of a group, and commit offsets."""
        member = ""
        while not self.over:
            await self.pause()
            node = self.node_of(group)
            joining = JoinGroupRequest(
                group_id=group, member_id=member, session_timeout_ms=6000,
                rebalance_timeout_ms=20, protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range")],
            )  # fmt: skip
            joined = await node.groups.handle_request(JOIN, ME, 3, joining)
            if joined.error_code:
                member = "" if joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID else member
                continue
            member, generation = joined.member_id, joined.generation_id
            sync = SyncGroupRequest(group_id=group, member_id=member, generation_id=generation)
            if joined.leader == member:
                sync.assignments = [SyncGroupRequestAssignment(member, b"all")]
            synced = await node.groups.handle_request(SYNC, ME, 3, sync)
            if not synced.error_code and synced.assignment:
                before = self.generations.get(group, 0)
                assert generation > before, "a generation came twice"
                self.generations[group] = generation
                for _ in range(self.dice.randrange(4)):
                    if not await self.commit(group, member=member, generation=generation):
                        break

    # -- the end --------------------------------------------------------------------------

    def settled(self) -> bool:
        for index, leader in enumerate(self.leaders):
            led = [
                node.number
                for node in self.nodes
                for each in node.groups.list_led()
                if each.partition.index == index and each.phase is CoordinatorPhase.ACTIVE
            ]
            if led != [leader]:
                return False
        return True

    async def run(self, steps: int) -> None:
        """Run clients and moves; then check what is stored."""
        for node in self.nodes:
            await node.groups.open()
        committing = asyncio.ensure_future(self.commit_always())
        clients = [asyncio.ensure_future(self.member(group)) for group in MEMBERS]
        clients += [asyncio.ensure_future(self.simple(group)) for group in SIMPLE]
        ruling = asyncio.ensure_future(self.rule(steps))
        try:
            await asyncio.wait([ruling, *clients], return_when=asyncio.FIRST_COMPLETED)
            for each in (ruling, *clients):
                if each.done():
                    each.result()  # of a failed client the cause
            assert ruling.done(), "a client has ended before the moves"
            self.over = True
            await asyncio.wait(clients, timeout=60)
            for each in clients:
                assert each.done(), "a client was never answered"
                each.result()
            committing.cancel()
            await self.check()
        finally:
            await self.end([ruling, committing, *clients])

    async def end(self, tasks: list[asyncio.Future[None]]) -> None:
        """Cancel what is left, so that nothing of a simulation runs during the next test."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in self.nodes:
            for coordinator in node.groups.list_led():
                coordinator.timers.clear()

    async def check(self) -> None:
        """Check that what was answered is stored, at the leader, after a last load."""
        for index in range(PARTITIONS):
            self.nodes[self.leaders[index]].log.commit()
            await self.move(index)
        await until(self.settled)
        for group, offset in self.acked.items():
            node = self.nodes[self.leaders[group_partition_of(group, PARTITIONS)]]
            stored = [
                part.offset
                for coordinator in node.groups.list_led()
                for part in [coordinator.shard.offsets.committed_offsets(group).get("t", {}).get(0)]
                if part is not None
            ]
            assert len(stored) == 1, f"offsets of {group} are lost"
            assert offset <= stored[0] <= self.sent[group], f"an offset of {group} is lost"
