"""The group service and its handlers: routing, versions, topics, what each request becomes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from groups.coordinator import Phase
from groups.records import partition_for
from groups.service import OFFSETS_TOPIC, Client, GroupService
from kafkawire.codec.compile import decode, encode
from kafkawire.codec.counts import Counts
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.delete_groups import delete_groups
from kafkawire.handlers.describe_groups import describe_groups
from kafkawire.handlers.exchange import Exchange
from kafkawire.handlers.find_coordinator import find_coordinator
from kafkawire.handlers.heartbeat import Heartbeat
from kafkawire.handlers.join_group import join_group
from kafkawire.handlers.leave_group import leave_group
from kafkawire.handlers.list_groups import list_groups
from kafkawire.handlers.offset_commit import offset_commit
from kafkawire.handlers.offset_delete import offset_delete
from kafkawire.handlers.offset_fetch import offset_fetch
from kafkawire.handlers.sync_group import sync_group
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.describe_groups import DescribeGroupsRequest
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kafkawire.metadata.catalog import BrokerInfo, Catalog, PartitionInfo, TopicInfo
from tests.kit.group_log import FakeCommitLog, FakePartition, fake_env, until
from tests.kit.groupdesk import commit_of
from tests.kit.groupdesk import offset_delete as offset_delete_of
from tests.kit.script import GroupSettings

PARTITIONS = 4
ELSEWHERE = 2  # the partition that broker 2 leads


def topic(name: str, count: int, number: int) -> TopicInfo:
    partitions = [PartitionInfo(100 * number + n, n, 1, 0) for n in range(count)]
    return TopicInfo(bytes([number]) * 16, name, name == OFFSETS_TOPIC, partitions, {})


class House:
    """A broker as far as the group handlers see one."""

    def __init__(self, **changed: int) -> None:
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
        self.refuse: ErrorCode | None = None
        self.settings = GroupSettings(**{"group_initial_rebalance_delay_ms": 0, **changed})
        self.groups = self.service()
        self.parked = 0

    def service(self) -> GroupService:
        log: Any = self.log
        config: Any = self.settings
        internal: Any = self.internal
        return GroupService(self.env, config, "/data", log, internal, self.catalog)

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
        broker: Any = SimpleNamespace(
            groups=self.groups,
            counts=Counts(),
            catalog=self.catalog,
            node_id=self.node_id,
            listeners=self.listeners,
        )

        def park() -> None:
            self.parked += 1

        return RequestContext(broker, version, "client", "1.2.3.4", listener, 1, park)

    async def ask(self, handler: Any, request: Any, version: int) -> Any:
        """As the server does: decode what a client encoded, encode what the handler answers."""
        seen = decode(type(request), version, encode(request, version))
        answer = await handler(self.ctx(version), seen)
        return decode(type(answer), version, encode(answer, version))

    def start(self, request: HeartbeatRequest, version: int = 4) -> Sender:
        """A heartbeat's bytes given to its handler, as a connection does it."""
        sender: Any = Sender()
        broker: Any = SimpleNamespace(groups=self.groups, counts=Counts())
        body = encode(request, version)
        memory = memoryview(b"before" + body + b"after")
        unused: Any = None
        assert Heartbeat(broker).start(sender, version, 7, unused, memory, 6, 6 + len(body))
        answered: Sender = sender
        return answered

    async def beat(self, request: HeartbeatRequest, version: int = 4) -> int:
        """The code a heartbeat is answered with."""
        sender = self.start(request, version)
        await until(lambda: bool(sender.answers))
        return sender.code(version)


class Sender:
    """The connection a heartbeat came by."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.answers: list[bytes] = []
        self.closed = False

    def answered(self, exchange: Exchange) -> None:
        assert exchange is self.exchanges[len(self.answers)]
        assert exchange.parts is not None
        self.answers.append(b"".join(exchange.parts))

    def code(self, version: int) -> int:
        """Of the only answer, whose frame and header are whole."""
        (answer,) = self.answers
        tags = b"\0" if version >= 4 else b""
        assert answer[:8] == (len(answer) - 4).to_bytes(4, "big") + (7).to_bytes(4, "big")
        assert answer[8 : 8 + len(tags)] == tags
        return decode(HeartbeatResponse, version, answer[8 + len(tags) :]).error_code


def group_at(partition: int) -> str:
    """A group id that hashes to this partition."""
    return next(f"g{n}" for n in range(99) if partition_for(f"g{n}", PARTITIONS) == partition)


HERE = group_at(1)
THERE = group_at(ELSEWHERE)


@pytest.fixture
async def house() -> Any:
    built = House()
    await built.groups.open()
    yield built
    for coordinator in built.groups.led():
        coordinator.timers.clear()


# -- FindCoordinator --------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_the_topic_is_made_when_a_coordinator_is_looked_for(version: int) -> None:
    house = House()
    request = FindCoordinatorRequest(key=HERE, coordinator_keys=[HERE])
    if version >= 4:
        (found,) = (
            await house.ask(
                find_coordinator, FindCoordinatorRequest(coordinator_keys=[HERE]), version
            )
        ).coordinators
        assert (found.key, found.error_message) == (HERE, None)
    else:
        found = await house.ask(find_coordinator, FindCoordinatorRequest(key=HERE), version)
    assert (found.error_code, found.node_id) == (0, 1)
    assert (found.host, found.port) == ("advertised", 9092)
    assert house.made == 1
    assert request.key == HERE


async def test_the_leader_of_the_partition_is_the_coordinator(house: House) -> None:
    keys = FindCoordinatorRequest(coordinator_keys=[THERE, HERE])
    found = (await house.ask(find_coordinator, keys, 4)).coordinators
    assert [(c.node_id, c.host) for c in found] == [(2, "host2"), (1, "advertised")]
    house.catalog.brokers.clear()
    found = (await house.ask(find_coordinator, keys, 4)).coordinators
    assert [c.error_code for c in found] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2


async def test_many_who_look_make_the_topic_once() -> None:
    house = House()
    keys = FindCoordinatorRequest(coordinator_keys=[HERE])
    await asyncio.gather(*(house.ask(find_coordinator, keys, 6) for _ in range(5)))
    assert house.made == 1


@pytest.mark.parametrize(
    ("key_type", "code"),
    [
        (1, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (2, ErrorCode.INVALID_REQUEST),
        (9, ErrorCode.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("version", [1, 3, 4, 6])
async def test_other_coordinators_are_not_here(key_type: int, code: int, version: int) -> None:
    house = House()
    if version >= 4:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"])
        (found,) = (await house.ask(find_coordinator, request, version)).coordinators
    else:
        request = FindCoordinatorRequest(key_type=key_type, key="x")
        found = await house.ask(find_coordinator, request, version)
    assert (found.error_code, found.node_id, found.port) == (code, -1, -1)
    assert "not served" in found.error_message
    assert house.made == 0


async def test_a_topic_that_cannot_be_made_is_no_coordinator() -> None:
    house = House()
    house.refuse = ErrorCode.KAFKA_STORAGE_ERROR
    found = await house.ask(find_coordinator, FindCoordinatorRequest(key=HERE), 3)
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert found.error_message == "no room"


# -- members ----------------------------------------------------------------------------------


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
    """One member in a stable group: its id and generation."""
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


async def test_a_heartbeat_is_answered_before_its_handler_returns(house: House) -> None:
    member, generation = await alone(house)
    beat = HeartbeatRequest(group_id=HERE, member_id=member, generation_id=generation)
    for version in range(5):
        assert house.start(beat, version).code(version) == 0
    beat.generation_id += 1
    assert house.start(beat).code(4) == ErrorCode.ILLEGAL_GENERATION
    assert house.start(HeartbeatRequest(group_id="")).code(4) == ErrorCode.INVALID_GROUP_ID
    unknown = house.start(HeartbeatRequest(group_id=HERE, member_id="x"))
    assert unknown.code(4) == ErrorCode.UNKNOWN_MEMBER_ID
    elsewhere = house.start(HeartbeatRequest(group_id=THERE, member_id="x"))
    assert elsewhere.code(4) == ErrorCode.NOT_COORDINATOR


async def test_a_heartbeat_waits_for_the_commit_before_it(house: House) -> None:
    member, generation = await alone(house)
    house.log.by_itself = False
    stored = commit_of({("t", 0): 5}, group=HERE, generation=generation, member=member)
    committed = house.groups.offset_commit(Client("c", "/h"), 8, stored)
    await until(lambda: bool(house.log.callbacks))
    beat = HeartbeatRequest(group_id=HERE, member_id=member, generation_id=generation)
    waiting, gone = house.start(beat), house.start(beat)
    gone.closed = True
    await asyncio.sleep(0)
    assert not waiting.answers
    house.log.commit()
    await until(committed.done)
    await asyncio.sleep(0)
    assert waiting.code(4) == 0
    assert not gone.answers


async def test_a_heartbeat_that_waits_hears_of_a_failed_commit(house: House) -> None:
    member, generation = await alone(house)
    house.log.by_itself = False
    stored = commit_of({("t", 0): 5}, group=HERE, generation=generation, member=member)
    house.groups.offset_commit(Client("c", "/h"), 8, stored)
    await until(lambda: bool(house.log.callbacks))
    beat = HeartbeatRequest(group_id=HERE, member_id=member, generation_id=generation)
    waiting = house.start(beat)
    house.log.fail()
    await until(lambda: bool(waiting.answers))
    assert waiting.code(4) == ErrorCode.NOT_COORDINATOR


def test_group_ids_of_any_length_have_a_partition() -> None:
    """Hashes are remembered for short ids only; both ways give what Java's hashCode does."""
    for text in ("", "a", "group", "é\U0001f600", "x" * 249, "x" * 250, "x" * 10_000):
        units = text.encode("utf-16-be")
        code = 0
        for at in range(0, len(units), 2):
            code = (code * 31 + int.from_bytes(units[at : at + 2], "big")) % 2**32
        assert [partition_for(text, 50) for _ in range(2)] == [code % 2**31 % 50] * 2


@pytest.mark.parametrize("version", range(10))
async def test_a_member_from_join_to_leave_in_every_version(house: House, version: int) -> None:
    member, generation = await alone(house, version)
    assert house.parked >= 1
    beat = HeartbeatRequest(group_id=HERE, member_id=member, generation_id=generation)
    assert (await house.beat(beat, min(version, 4))) == 0
    kept = house.groups._find(HERE)
    assert kept is not None
    assert kept.shard.groups[HERE].members[member].client_host == "/1.2.3.4"
    timeout_ms = kept.shard.groups[HERE].members[member].rebalance_timeout_ms
    assert timeout_ms == (10_000 if version else 6000)
    v = min(version, 5)
    if v < 3:
        left = await house.ask(leave_group, LeaveGroupRequest(group_id=HERE, member_id=member), v)
        again = await house.ask(leave_group, LeaveGroupRequest(group_id=HERE, member_id=member), v)
        assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    else:
        one = LeaveGroupRequest(group_id=HERE, members=[MemberIdentity(member_id=member)])
        left = await house.ask(leave_group, one, v)
        assert left.members[0].error_code == 0
    assert left.error_code == 0


async def test_a_sync_names_its_protocol_from_version_5(house: House) -> None:
    answer = await house.ask(sync_group, SyncGroupRequest(group_id=HERE, protocol_name="r"), 5)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    answer = await house.ask(sync_group, SyncGroupRequest(group_id=HERE), 4)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_groups_of_other_brokers_are_not_ours(house: House) -> None:
    request = joining(group=THERE)
    assert (await house.ask(join_group, request, 9)).error_code == ErrorCode.NOT_COORDINATOR
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=THERE)])
    (group,) = (await house.ask(offset_fetch, fetch, 8)).groups
    assert group.error_code == ErrorCode.NOT_COORDINATOR


async def test_without_the_topic_there_is_no_coordinator() -> None:
    house = House()
    await house.groups.start()
    assert (await house.ask(join_group, joining(), 9)).error_code == ErrorCode.NOT_COORDINATOR
    assert (await house.ask(list_groups, ListGroupsRequest(), 5)).groups == []
    assert house.made == 0


# -- offsets ----------------------------------------------------------------------------------


async def test_commits_of_topics_that_do_not_exist_are_refused(house: House) -> None:
    request = commit_of({("t", 0): 1, ("x", 0): 2, ("t", 9): 3, ("u", 0): 4}, group=HERE)
    request.topics[0].partitions += request.topics[2].partitions
    answer = await house.ask(offset_commit, request, 8)
    found = [(t.name, [p.error_code for p in t.partitions]) for t in answer.topics]
    assert found == [("t", [0, 3]), ("x", [3]), ("t", [3]), ("u", [0])]
    assert house.parked == 1
    nothing = await house.ask(offset_commit, commit_of({("x", 0): 2}, group=THERE), 8)
    assert nothing.topics[0].partitions[0].error_code == 3  # the group was not asked


async def test_offsets_by_topic_id(house: House) -> None:
    request = commit_of({("t", 0): 11, ("x", 0): 2}, group=HERE)
    request.topics[0].topic_id = house.catalog.by_name["t"].id
    request.topics[1].topic_id = b"?" * 16
    answer = await house.ask(offset_commit, request, 10)
    found = [(t.topic_id, t.partitions[0].error_code) for t in answer.topics]
    assert found == [(b"\1" * 16, 0), (b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID)]
    asked = OffsetFetchRequestGroup(
        group_id=HERE,
        topics=[
            OffsetFetchRequestTopics(topic_id=id_, partition_indexes=[0])
            for id_ in (b"\1" * 16, b"?" * 16)
        ],
    )
    (group,) = (await house.ask(offset_fetch, OffsetFetchRequest(groups=[asked]), 10)).groups
    rows = [
        (t.topic_id, t.partitions[0].committed_offset, t.partitions[0].error_code)
        for t in group.topics
    ]
    assert rows == [(b"\1" * 16, 11, 0), (b"?" * 16, -1, ErrorCode.UNKNOWN_TOPIC_ID)]
    everything = OffsetFetchRequestGroup(group_id=HERE, topics=None)
    (group,) = (await house.ask(offset_fetch, OffsetFetchRequest(groups=[everything]), 10)).groups
    assert [(t.topic_id, t.partitions[0].committed_offset) for t in group.topics] == [
        (b"\1" * 16, 11)
    ]


@pytest.mark.parametrize("version", range(1, 8))
async def test_fetching_one_group(house: House, version: int) -> None:
    await house.ask(offset_commit, commit_of({("t", 1): 7}, group=HERE, metadata="m"), 8)
    request = OffsetFetchRequest(
        group_id=HERE, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[1, 2])]
    )
    answer = await house.ask(offset_fetch, request, version)
    rows = [
        (p.committed_offset, p.committed_leader_epoch, p.metadata)
        for p in answer.topics[0].partitions
    ]
    assert rows == [(7, 3 if version >= 5 else -1, "m"), (-1, -1, "")]
    request.group_id = THERE
    answer = await house.ask(offset_fetch, request, version)
    if version >= 2:
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        everything = OffsetFetchRequest(group_id=HERE, topics=None)
        answer = await house.ask(offset_fetch, everything, version)
        assert [(t.name, len(t.partitions)) for t in answer.topics] == [("t", 1)]
    else:
        codes = [p.error_code for p in answer.topics[0].partitions]
        assert codes == [ErrorCode.NOT_COORDINATOR] * 2


@pytest.mark.parametrize("version", [8, 9])
async def test_fetching_many_groups(house: House, version: int) -> None:
    other = group_at(3)
    await house.ask(offset_commit, commit_of({("t", 1): 7}, group=HERE), version)
    await house.ask(offset_commit, commit_of({("u", 0): 8}, group=other), version)
    request = OffsetFetchRequest(
        require_stable=True,
        groups=[OffsetFetchRequestGroup(group_id=g, topics=None) for g in (other, HERE, "nobody")],
    )
    found = (await house.ask(offset_fetch, request, version)).groups
    rows = [[(t.name, t.partitions[0].committed_offset) for t in g.topics] for g in found]
    nobody_here = partition_for("nobody", PARTITIONS) != ELSEWHERE
    assert rows == [[("u", 8)], [("t", 7)], []]
    assert found[2].error_code == (0 if nobody_here else ErrorCode.NOT_COORDINATOR)


async def test_offsets_are_deleted(house: House) -> None:
    await house.ask(offset_commit, commit_of({("t", 1): 7, ("u", 0): 8}, group=HERE), 8)
    request = offset_delete_of(("u", 0), ("x", 0), ("t", 9))
    request.group_id = HERE
    answer = await house.ask(offset_delete, request, 0)
    found = [(t.name, t.partitions[0].error_code) for t in answer.topics]
    assert found == [("u", 0), ("x", 3), ("t", 3)]
    request.group_id = "nobody" if partition_for("nobody", PARTITIONS) != ELSEWHERE else "no"
    answer = await house.ask(offset_delete, request, 0)
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


async def test_a_deleted_topic_is_forgotten_everywhere(house: House) -> None:
    for group in (HERE, group_at(3)):
        await house.ask(offset_commit, commit_of({("t", 1): 7}, group=group), 8)
    house.catalog.remove_topic(house.catalog.by_name["t"].id)
    house.groups.topic_deleted("t", b"\1" * 16)
    listed = await house.ask(list_groups, ListGroupsRequest(), 5)
    assert listed.groups == []


# -- describe, list, delete -------------------------------------------------------------------


async def test_groups_are_described_in_the_order_asked_for(house: House) -> None:
    member, _ = await alone(house)
    ids = ["zz", HERE, THERE]
    request = DescribeGroupsRequest(groups=ids, include_authorized_operations=True)
    found = (await house.ask(describe_groups, request, 6)).groups
    assert [g.group_id for g in found] == ids
    assert [g.error_code for g in found] == [
        ErrorCode.NOT_COORDINATOR
        if partition_for(g, PARTITIONS) == ELSEWHERE
        else (0 if g == HERE else ErrorCode.GROUP_ID_NOT_FOUND)
        for g in ids
    ]
    assert found[1].members[0].member_id == member
    assert found[1].authorized_operations == 3400  # read, delete, describe, both configs
    assert found[2].authorized_operations == -(2**31)
    request.include_authorized_operations = False
    found = (await house.ask(describe_groups, request, 5)).groups
    assert found[1].authorized_operations == -(2**31)


async def test_groups_are_listed_and_deleted(house: House) -> None:
    await alone(house)
    await house.ask(offset_commit, commit_of({("u", 0): 8}, group=group_at(3)), 8)
    listed = await house.ask(list_groups, ListGroupsRequest(states_filter=["Stable"]), 5)
    assert [(g.group_id, g.group_state, g.group_type) for g in listed.groups] == [
        (HERE, "Stable", "classic")
    ]
    assert len((await house.ask(list_groups, ListGroupsRequest(), 0)).groups) == 2
    request = DeleteGroupsRequest(groups_names=[group_at(3), HERE, group_at(3), THERE])
    results = (await house.ask(delete_groups, request, 2)).results
    assert [(r.group_id, r.error_code) for r in results] == [
        (group_at(3), 0),
        (HERE, ErrorCode.NON_EMPTY_GROUP),
        (THERE, ErrorCode.NOT_COORDINATOR),
    ]


# -- life -------------------------------------------------------------------------------------


async def test_a_restart_loads_in_the_background(house: House) -> None:
    member, generation = await alone(house)
    await house.groups.close()
    assert (await house.ask(join_group, joining(), 9)).error_code == 15
    house.groups = house.service()
    await house.groups.start()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await house.ask(list_groups, ListGroupsRequest(), 5)).error_code == loading
    beat = HeartbeatRequest(group_id=HERE, member_id=member, generation_id=generation)
    await until(lambda: all(c.phase is Phase.ACTIVE for c in house.groups.led()))
    assert (await house.beat(beat)) == 0
    client = Client("c", "/h")
    left = await house.groups.leave_group(
        client, 3, LeaveGroupRequest(group_id=HERE, members=[MemberIdentity(member_id=member)])
    )
    assert left.members[0].error_code == 0


async def test_closing_answers_the_parked_and_is_final(house: House) -> None:
    waiting = house.env.spawn(house.ask(join_group, joining(), 3), "join")
    house.settings.group_initial_rebalance_delay_ms = 60_000
    await asyncio.sleep(0)
    await house.groups.close()
    await house.groups.close()
    assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
    found = await house.ask(find_coordinator, FindCoordinatorRequest(key=HERE), 3)
    assert found.error_code == 0  # where it was: another broker may take over
