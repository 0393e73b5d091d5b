"""A broker as group handlers see it: a catalog, a log that commits, a group service."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafkawire.broker.rack_reads.selector import ReplicaSelector
from kafkawire.codec.compile import decode, encode
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.java_hash import group_partition_of
from kafkawire.groups.model.transactional import Verification, Verified
from kafkawire.groups.service import OFFSETS_TOPIC, GroupService
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.exchange import Exchange
from kafkawire.handlers.heartbeat import Heartbeat
from kafkawire.handlers.join_group import join_group
from kafkawire.handlers.sync_group import sync_group
from kafkawire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kafkawire.metadata.catalog import BrokerInfo, Catalog, PartitionInfo, TopicInfo
from kafkawire.metric_counters import Counts
from kafkawire.security.acls.security import Security
from tests.kit.groups.log import FakeCommitLog, FakePartition, fake_env
from tests.kit.groups.script import GroupSettings
from tests.kit.waiting import until

PARTITIONS = 4


ELSEWHERE = 2  # the partition that broker 2 leads


def topic(name: str, count: int, number: int) -> TopicInfo:
    partitions = [PartitionInfo(100 * number + n, n, 1, 0) for n in range(count)]
    return TopicInfo(bytes([number]) * 16, name, name == OFFSETS_TOPIC, partitions, {})


class House:
    """A broker as the group handlers see it."""

    def __init__(self, **changed: Any) -> None:
        self.env = fake_env()
        self.log = FakeCommitLog()
        self.log.by_itself = True
        self.catalog = Catalog("cluster")
        for made in (topic("t", 3, 1), topic("u", 1, 2)):
            self.catalog.add_topic(made)
        for node in (1, 2):
            address = {"PLAIN": (f"host{node}", 9000 + node)}
            self.catalog.add_broker(BrokerInfo(node, address, None))
        self.node_id = 1
        self.listeners = {"PLAIN": ("advertised", 9092)}
        self.partitions: list[FakePartition | None] = []
        self.made = 0
        self.refusing = ErrorCode.NONE
        self.verifications: list[Verification] = []
        self.refuse: ErrorCode | None = None
        self.settings = GroupSettings(**{"group_initial_rebalance_delay_ms": 0, **changed})
        self.groups = self.service()
        self.parked = 0

    def service(self) -> GroupService:
        log: Any = self.log
        config: Any = self.settings
        internal: Any = self.internal
        return GroupService(self.env, config, "/data", log, internal, self.catalog, self.verify)

    async def verify(self, asked: Verification) -> Verified:
        """The transaction coordinator: every transaction has every partition, except `refusing`."""
        self.verifications.append(asked)
        await asyncio.sleep(0)
        guard: Any = "guard"
        return Verified(self.refusing, guard)

    async def internal(self) -> list[FakePartition | None]:
        if self.refuse is not None:
            raise KafkaError(self.refuse, "no room")
        await asyncio.sleep(0)
        if OFFSETS_TOPIC not in self.catalog.by_name:
            self.made += 1
            made = topic(OFFSETS_TOPIC, PARTITIONS, 9)
            made.partitions[ELSEWHERE].leader = 2
            self.catalog.add_topic(made)
            self.partitions = [
                None if n == ELSEWHERE else FakePartition(self.log, n) for n in range(PARTITIONS)
            ]
        return self.partitions

    def ctx(self, version: int, listener: str = "PLAIN") -> RequestContext:
        async def load_groups() -> GroupService:
            return self.groups

        broker: Any = SimpleNamespace(
            config=SimpleNamespace(share_version=0, broker_read_only=False),
            groups=self.groups,
            load_groups=load_groups,
            env=self.env,
            counts=Counts(),
            catalog=self.catalog,
            node_id=self.node_id,
            listeners=self.listeners,
            security=Security(),
            replica_selector=ReplicaSelector(
                self.catalog, self.node_id, self.listeners, enabled=False
            ),
        )

        def park() -> None:
            self.parked += 1

        return RequestContext(broker, version, "client", "1.2.3.4", listener, 1, park)

    async def ask(self, handler: Any, request: Any, version: int) -> Any:
        """Handle a request like the server: decode what a client encoded, encode what the handler
        returns."""
        seen = decode(type(request), version, encode(request, version))
        answer = await handler(self.ctx(version), seen)
        return decode(type(answer), version, encode(answer, version))

    def start(self, request: HeartbeatRequest, version: int = 4) -> Sender:
        """Pass the bytes of a heartbeat to its handler, as a connection does."""
        sender: Any = Sender()
        broker: Any = SimpleNamespace(groups=self.groups, counts=Counts())
        body = encode(request, version)
        memory = memoryview(b"before" + body + b"after")
        unused: Any = None
        assert Heartbeat(broker).start(sender, version, 7, unused, memory, 6, 6 + len(body))
        answered: Sender = sender
        return answered

    async def beat(self, request: HeartbeatRequest, version: int = 4) -> int:
        """The error code in the response to a heartbeat."""
        sender = self.start(request, version)
        await until(lambda: bool(sender.answers))
        return sender.code(version)


class Sender:
    """The connection that a heartbeat arrived on."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.answers: list[bytes] = []
        self.closed = False
        self.rights = None
        self.throttle_ms = 0

    def note_answered(self, exchange: Exchange) -> None:
        assert exchange is self.exchanges[len(self.answers)]
        assert exchange.parts is not None
        self.answers.append(b"".join(cast("list[bytes]", exchange.parts)))

    def code(self, version: int) -> int:
        """The error code of the only response, whose frame and header are complete."""
        (answer,) = self.answers
        tags = b"\0" if version >= 4 else b""
        assert answer[:8] == (len(answer) - 4).to_bytes(4, "big") + (7).to_bytes(4, "big")
        assert answer[8 : 8 + len(tags)] == tags
        return decode(HeartbeatResponse, version, answer[8 + len(tags) :]).error_code


def group_at(partition: int) -> str:
    """A group id that hashes to this partition."""
    return next(f"g{n}" for n in range(99) if group_partition_of(f"g{n}", PARTITIONS) == partition)


HERE = group_at(1)


THERE = group_at(ELSEWHERE)


@pytest.fixture(name="house")
async def open_house() -> Any:
    built = House()
    await built.groups.open()
    yield built
    for coordinator in built.groups.list_led():
        coordinator.timers.clear()


def joining(member: str = "", **more: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=more.pop("group", HERE),
        member_id=member,
        session_timeout_ms=6000,
        rebalance_timeout_ms=more.pop("rebalance_ms", 10_000),
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range")],
        **more,
    )


async def alone(house: House, version: int = 9) -> tuple[str, int]:
    """A stable group with one member: its id and generation."""
    member = ""
    if version >= 4:
        first = await house.ask(join_group, joining(), version)
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert first.protocol_name == (None if version >= 7 else "")
        member = first.member_id
        assert member.startswith("client-")
        assert len(member) == len("client-") + 36
    request = joining(member) if version else joining(member, rebalance_ms=-1)
    joined = await house.ask(join_group, request, version)
    assert (joined.error_code, joined.leader) == (0, joined.member_id)
    assert [m.member_id for m in joined.members] == [joined.member_id]
    sync = SyncGroupRequest(
        group_id=HERE,
        member_id=joined.member_id,
        generation_id=joined.generation_id,
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
    )
    if version >= 5:
        sync.protocol_type, sync.protocol_name = "consumer", "range"
    synced = await house.ask(sync_group, sync, min(version, 5))
    assert (synced.error_code, synced.assignment) == (0, b"all")
    return joined.member_id, joined.generation_id
