"""One life of a simulated broker, as far as groups go: consumers, failures, then some kind of
end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any
from unittest.mock import patch

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.groups.load import GroupLoader
from kafkawire.groups.model.decision import Step
from kafkawire.groups.model.records import GroupRecord
from kafkawire.groups.model.request import HEARTBEAT, JOIN, LEAVE, OFFSET_COMMIT, OFFSET_FETCH, SYNC
from kafkawire.groups.model.states import GroupState
from kafkawire.groups.service import OFFSETS_TOPIC, Client, GroupService
from kafkawire.groups.shard import Shard
from kafkawire.groups.snapshot import group_snapshot
from kafkawire.log.manager import Log
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kafkawire.metadata.catalog import NewTopic, TopicInfo
from tests.kit.env import sim_env
from tests.kit.groups.model import GROUPS, Consumer, Key, Model, known
from tests.kit.log.life import die
from tests.kit.log.logs import FOLDER
from tests.kit.memory_metadata import MemoryMetadata
from tests.kit.simloop import SimLoop

TOPIC = "t"
PARTITIONS = 5
FLEETING = "d"  # deleted and created again
SETTLED_S = 90.0  # sessions of 6 s, rounds of 5 s: enough time for every member twice
CLIENT = Client("c", "/127.0.0.1")
FORGET = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


class Life:
    """One process, and the clients as long as it lives."""

    def __init__(self, model: Model, last: bool) -> None:
        self.model = model
        self.rng = model.rng
        self.last = last
        self.loop = SimLoop()
        self.env = sim_env(self.loop, self.rng, model.fs)
        self.metadata = MemoryMetadata(model.database)
        self.over = False
        model.fs.pause = self.pause

    def pause(self, what: str) -> None:
        if not self.over:
            self.loop.now += self.rng.random() * 0.0005

    # -- the broker -----------------------------------------------------------------------

    async def main(self) -> None:
        """Live with a shard whose removed groups the model knows."""
        apply = Shard.apply

        def noted(shard: Shard, step: Step, group_id: str = "") -> None:
            if isinstance(step, GroupRecord) and step.value is None:
                self.model.end_group(step.group_id)
            apply(shard, step, group_id)

        with patch.object(Shard, "apply", noted):
            await self.live_once()

    async def live_once(self) -> None:
        await self.start()
        await self.compare_with_the_log_alone()
        await self.groups.start()
        await self.groups.open()
        self.calm = self.last
        tasks = [self.env.spawn(self.live(c), c.name) for c in self.model.consumers]
        tasks.append(self.env.spawn(self.simple_consumer(), "simple"))
        if self.last:
            await self.env.sleep(SETTLED_S)
            self.check_settled()
        else:
            tasks += [self.env.spawn(self.trouble(), "trouble")]
            end = self.env.spawn(self.env.sleep(self.rng.random() * 40), "end of life")
            await asyncio.wait([end, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        await self.end(tasks)

    async def start(self) -> None:
        model = self.model
        self.catalog = await self.metadata.open()
        await self.metadata.register_broker(1, {}, None)
        storage = self.metadata.storage(self.env.clock.now_ms)
        self.log = await Log.open(
            self.env,
            FOLDER,
            model.config,
            self.catalog,
            storage,
            self.metadata,
            1,
        )
        if TOPIC not in self.catalog.by_name:
            await self.make(NewTopic(TOPIC, [1] * PARTITIONS, {}))
        self.groups = GroupService(
            self.env, model.config, FOLDER, self.log.commit_log, self.internal, self.catalog
        )

    async def make(self, new: NewTopic) -> TopicInfo:
        (info,) = await self.metadata.create_topics([new])
        self.catalog.add_topic(info)
        self.log.add_topics([info])
        await self.log.commit_log.wait_until_committed()
        return info

    async def internal(self) -> Any:
        if OFFSETS_TOPIC not in self.catalog.by_name:
            compact = {"cleanup.policy": "compact"}
            await self.make(NewTopic(OFFSETS_TOPIC, [1] * 3, compact, internal=True))
        rows = self.catalog.by_name[OFFSETS_TOPIC].partitions
        fresh_from = self.log.loader.fresh_from
        await self.log.loader.load(row.number for row in rows if row.number < fresh_from)
        return [self.log.loader.get(row.number) for row in rows]

    async def compare_with_the_log_alone(self) -> None:
        """Check before the first request that the snapshot adds nothing that is not in the log."""
        if OFFSETS_TOPIC not in self.catalog.by_name:
            return
        for partition in await self.internal():
            found = []
            for folder in (f"{FOLDER}/groups", "/nowhere"):
                place = group_snapshot(folder, partition.topic_id, partition.index)
                loaded = GroupLoader(
                    self.env, self.model.config, partition, self.log.commit_log, place
                )
                await loaded.load()
                assert loaded.next_offset == partition.high_watermark
                found.append(known(loaded.shard))
            assert found[0] == found[1]

    async def end(self, tasks: list[asyncio.Task[None]]) -> None:
        model = self.model
        how = self.rng.choice(("power", "kill", "close"))
        if how == "power" and model.config.flush == "os":
            model.forget()
        self.over = True
        for task in tasks:
            task.cancel()
        model.trace.append((how, self.loop.now, model.commits, self.rng.random()))
        if how == "close":
            model.fs.faults.room_bytes = None
            await self.groups.close()
            await self.log.close()
            model.fs.kill()
            return
        die(how, self.env, self.log, self.metadata, model.fs)

    async def trouble(self) -> None:
        faults = self.model.fs.faults
        while True:
            await self.env.sleep(self.rng.random() * 4)
            match self.rng.randrange(6):
                case 0:
                    faults.room_bytes = self.rng.randrange(500)
                    await self.env.sleep(self.rng.random() * 2)
                    faults.room_bytes = None
                case 1:
                    faults.short_writes = self.rng.randrange(1, 4)
                case 2:
                    faults.failing_writes = self.rng.randrange(1, 4)
                case 3 if self.rng.random() < 0.2:
                    faults.failing_syncs = 1
                case _:
                    pass

    # -- consumers ------------------------------------------------------------------------

    async def ask(self, answer: Awaitable[Any]) -> Any:
        """Return a response; a dead broker never returns one."""
        found = await answer
        if self.over:
            await self.loop.create_future()
        return found

    async def live(self, consumer: Consumer) -> None:
        """Join and work, over and over, with the accidents of a consumer's life."""
        if self.rng.random() < 0.3:
            consumer.member_id = ""  # the consumer was restarted too
        while True:
            await self.env.sleep(self.rng.random() * 0.2)
            if await self.join(consumer) and await self.fetch(consumer):
                await self.work(consumer)
            if not self.calm and self.rng.random() < 0.3:
                await self.accident(consumer)

    async def accident(self, consumer: Consumer) -> None:
        if self.rng.random() < 0.5:
            identity = MemberIdentity(
                member_id=consumer.member_id, group_instance_id=consumer.instance
            )
            leave = LeaveGroupRequest(group_id=consumer.group, members=[identity])
            await self.ask(self.groups.handle_request(LEAVE, CLIENT, 5, leave))
            consumer.member_id = ""
        elif self.rng.random() < 0.5:
            consumer.member_id = ""  # killed and restarted
        await self.env.sleep(self.rng.random() * 10)

    async def join(self, consumer: Consumer) -> bool:
        request = JoinGroupRequest(
            group_id=consumer.group,
            member_id=consumer.member_id,
            group_instance_id=consumer.instance,
            session_timeout_ms=6000,
            rebalance_timeout_ms=5000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0")],
        )
        joined = await self.ask(self.groups.handle_request(JOIN, CLIENT, consumer.version, request))
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            consumer.member_id = joined.member_id
            return False
        if joined.error_code in FORGET:
            consumer.member_id = ""
        if joined.error_code:
            return False
        consumer.member_id = joined.member_id
        consumer.generation = joined.generation_id
        consumer.leads = joined.leader == joined.member_id and not joined.skip_assignment
        return await self.sync(consumer, sorted(m.member_id for m in joined.members))

    async def sync(self, consumer: Consumer, members: list[str]) -> bool:
        request = SyncGroupRequest(
            group_id=consumer.group,
            member_id=consumer.member_id,
            generation_id=consumer.generation,
            group_instance_id=consumer.instance,
        )
        if consumer.leads:
            request.assignments = [
                SyncGroupRequestAssignment(
                    member_id=member, assignment=bytes(range(n, PARTITIONS, len(members)))
                )
                for n, member in enumerate(members)
            ]
            await self.env.sleep(self.rng.random() * 0.3)
        synced = await self.ask(self.groups.handle_request(SYNC, CLIENT, 5, request))
        if synced.error_code in FORGET:
            consumer.member_id = ""
        if synced.error_code:
            return False
        consumer.positions = dict.fromkeys(synced.assignment, -1)
        self.model.assign(consumer, list(synced.assignment))
        return True

    async def fetch(self, consumer: Consumer) -> bool:
        found = await self.offsets(consumer.group, TOPIC, list(consumer.positions))
        if found is None:
            return False
        consumer.positions = found
        return True

    async def offsets(self, group: str, topic: str, indexes: list[int]) -> dict[int, int] | None:
        topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)]
        floors = {index: self.model.floor((group, topic, index)) for index in indexes}
        request = OffsetFetchRequestGroup(group_id=group, topics=topics)
        answer = await self.ask(self.groups.handle_request(OFFSET_FETCH, CLIENT, 9, request))
        if answer.error_code:
            return None
        found = {p.partition_index: p.committed_offset for p in answer.topics[0].partitions}
        for index, offset in found.items():
            self.model.read((group, topic, index), offset, floors[index])
        return found

    async def work(self, consumer: Consumer) -> None:
        """Heartbeat and commit until the group says otherwise or something happens."""
        while self.calm or self.rng.random() > 0.03:
            await self.env.sleep(self.rng.random() * 2)
            if self.rng.random() < 0.5 and not await self.commit(consumer):
                return
            beat = HeartbeatRequest(
                group_id=consumer.group,
                member_id=consumer.member_id,
                generation_id=consumer.generation,
                group_instance_id=consumer.instance,
            )
            code: int | None = self.groups.heartbeat_now(beat)
            if code is None:
                code = (
                    await self.ask(self.groups.handle_request(HEARTBEAT, CLIENT, 4, beat))
                ).error_code
            if code in FORGET:
                consumer.member_id = ""
            if code == ErrorCode.REBALANCE_IN_PROGRESS and self.rng.random() < 0.5:
                await self.commit(consumer)  # as clients do before they release partitions
            if code:
                return

    async def commit(self, consumer: Consumer) -> bool:
        moved = {p: at + self.rng.randrange(1, 9) for p, at in consumer.positions.items()}
        consumer.positions = moved
        return await self.store(consumer.group, TOPIC, moved, consumer)

    async def store(
        self, group: str, topic: str, offsets: dict[int, int], consumer: Consumer | None = None
    ) -> bool:
        partitions = [
            OffsetCommitRequestPartition(partition_index=p, committed_offset=at)
            for p, at in offsets.items()
        ]
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)]
        )
        if consumer is not None:
            request.generation_id_or_member_epoch = consumer.generation
            request.member_id = consumer.member_id
            request.group_instance_id = consumer.instance
        answer = await self.ask(self.groups.handle_request(OFFSET_COMMIT, CLIENT, 8, request))
        codes = {p.error_code for topic in answer.topics for p in topic.partitions}
        if codes <= {0}:
            for index, offset in offsets.items():
                self.model.acknowledge((group, topic, index), offset)
        return codes <= {0}

    # -- a simple consumer of a topic that is deleted and created again
    # ---------------------------------

    async def simple_consumer(self) -> None:
        key: Key = ("s", FLEETING, 0)
        model = self.model
        while True:
            await self.env.sleep(self.rng.random())
            try:
                if FLEETING not in self.catalog.by_name:
                    await self.make(NewTopic(FLEETING, [1], {}))
                    model.acked.pop(key, None)
                    model.seen.pop(key, None)
                    found = await self.offsets("s", FLEETING, [0])
                    assert found in (None, {0: -1}), (
                        "a committed offset remains after its topic was deleted"
                    )
                elif self.rng.random() < 0.1 and not self.calm:
                    model.acked.pop(key, None)
                    model.seen.pop(key, None)
                    await self.delete(self.catalog.by_name[FLEETING])
                    continue
            except KafkaError:
                if self.log.commit_log.failed is not None:
                    return  # no more writes in this life
                await self.restart_topics()
                continue
            found = await self.offsets("s", FLEETING, [0])
            if found is not None:
                await self.store("s", FLEETING, {0: found[0] + 1})

    async def restart_topics(self) -> None:
        """Load topics as SQL has them. The topic service would report a failure; SQL decides."""
        await self.env.sleep(1)

    async def delete(self, info: TopicInfo) -> None:
        await self.metadata.delete_topics([info.id])
        self.catalog.remove_topic(info.id)
        self.groups.topic_deleted(info.name, info.id)
        self.log.remove_topic(info)
        await self.log.commit_log.wait_until_committed()

    # -- the end of it --------------------------------------------------------------------

    def check_settled(self) -> None:
        for group_id in GROUPS:
            coordinator = self.groups.find_coordinator(group_id)
            assert coordinator is not None
            assert coordinator.phase is CoordinatorPhase.ACTIVE
            group = coordinator.shard.groups[group_id]
            mine = [c for c in self.model.consumers if c.group == group_id]
            assert group.state is GroupState.STABLE, f"{group_id} is in state {group.state}"
            assert {c.member_id for c in mine} == set(group.members)
            assert {c.generation for c in mine} == {group.generation}
            read = sorted(p for c in mine for p in c.positions)
            assert read == list(range(PARTITIONS)), f"{group_id} has members that read {read}"
