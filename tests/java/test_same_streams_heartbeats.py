"""Requests of streams groups to Kafka 4.4 and to ours: responses are compared."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafkawire.client.connection import ClientConnection
from kafkawire.codec.java_hash import group_partition_of, partition_of
from kafkawire.groups.model.records import StreamsGroupRecord, decode_record
from kafkawire.messages import delete_groups, delete_topics, list_groups
from kafkawire.messages import incremental_alter_configs as alter
from kafkawire.messages import streams_group_describe as describe
from kafkawire.messages import streams_group_heartbeat as beat
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tests.java.brokers import run_broker
from tests.java.committed import topic_partitions
from tests.java.conftest import STREAMS_SETTINGS, wait_for_coordinators
from tests.java.streams_tasks import describe_members
from tests.java.test_same_admin import ask_until_same
from tests.java.tools import ToolServer
from tests.java.twins import KEYS, Twins, create, find_differences, flatten, wait_for_leaders
from tests.real.conftest import OTHER_BROKER

GROUP = 32


@pytest.fixture(scope="module")
def twins(newer_kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    if OTHER_BROKER:
        pytest.skip("compares ours with Apache Kafka")
    with run_broker(tmp_path_factory.mktemp("broker"), more=STREAMS_SETTINGS) as ours:
        both = []
        for address in (newer_kafka, ours.bootstrap):
            wait_for_coordinators(address)
            host, _, port = address.rpartition(":")
            both.append(ClientConnection(host, int(port)))
        yield Twins(*both)
        for connection in both:
            connection.close()


def topology(name: str, *, epoch: int = 0, **fields: Any) -> beat.Topology:
    """Two subtopologies: NAME-in to a repartition topic, and from there to a store."""
    repartition = f"{name}-words-repartition"
    configs = [describe.KeyValue("cleanup.policy", "compact")]
    first = beat.Subtopology("0", [f"{name}-in"], repartition_sink_topics=[repartition])
    second = beat.Subtopology(
        "1",
        repartition_source_topics=[describe.TopicInfo(repartition, 0, 1)],
        state_changelog_topics=[describe.TopicInfo(f"{name}-counts-changelog", 0, 1, configs)],
    )
    for field, value in fields.items():
        setattr(second, field, value)
    return beat.Topology(epoch, [first, second])


def details(answer: Any) -> list[list[str]]:
    """Return the texts of a heartbeat's status as sorted words: topics have no order in Kafka."""
    return [sorted(re.split(r"[ ,]+", status.status_detail)) for status in answer.status or []]


def joining(member: str, topology: beat.Topology) -> dict[str, Any]:
    """Return the fields with which a member joins."""
    return {
        "member_id": member,
        "rebalance_timeout_ms": 10_000,
        "topology": topology,
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": f"process-{member}",
        "client_tags": [],
    }


OWN_VALUES = (".metadata_hash", ".assignment_timestamp", ".previous_member_epoch")
"""Fields of records that are not compared. A member that waits for tasks of others gets its own
epoch as the previous one in Kafka, with its next heartbeat: no request can show that."""


def read_records(
    bootstrap: str, hash_of: Callable[[str, int], int], group: str
) -> dict[tuple[int, str], dict[str, Any]]:
    """Return the fields of the last record of each type and member of a streams group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    partition = hash_of(group, len(topic_partitions(consumer, "__consumer_offsets")))
    at = TopicPartition("__consumer_offsets", partition, 0)
    _, end = consumer.get_watermark_offsets(at, 60)
    consumer.assign([at])
    found: dict[tuple[int, str], dict[str, Any]] = {}
    offset = -1
    while offset < end - 1:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None, message.error()
        offset = message.offset()
        record = decode_record(message.key(), message.value())
        if isinstance(record, StreamsGroupRecord) and record.group_id == group:
            key = (int(record.kind), record.name)
            found.pop(key, None)
            if record.value is not None:
                leaves = dict(flatten(record.value))
                found[key] = {k: v for k, v in leaves.items() if k not in OWN_VALUES}
    consumer.close()
    return found


class Group:
    """A streams group in both brokers. Epochs and tasks of members are those of their answers."""

    def __init__(self, twins: Twins) -> None:
        self.twins = twins
        self.addresses = [connection.address for connection in twins.both]
        self.id = f"streams-{uuid.uuid4().hex[:8]}"
        self.epochs: dict[str, list[int]] = {}

    def create_topic(self, suffix: str = "-in", partitions: int = 3) -> None:
        request = create(self.id + suffix, num_partitions=partitions)
        self.twins.ask("CreateTopics", request, 7)
        wait_for_leaders(self.twins, self.id + suffix)
        # In Kafka the coordinator of groups is notified of a topic after all others.
        probe = beat.Topology(0, [beat.Subtopology("0", [self.id + suffix])])
        given = joining("probe", probe)
        ask = beat.StreamsGroupHeartbeatRequest(f"probe-{self.id}{suffix}", **given)
        for connection in self.twins.both:
            end = time.monotonic() + 30
            while connection.request(KEYS["StreamsGroupHeartbeat"], ask, at_most=1).status:
                assert time.monotonic() < end
                time.sleep(0.05)

    def beat(self, member: str, version: int = 1, **fields: Any) -> tuple[Any, Any]:
        """One heartbeat with the member's epochs."""
        epochs = self.epochs.get(member, [0, 0])
        names: dict[str, Any] = {"group_id": self.id, "member_id": member}
        answers = self.twins.ask(
            "StreamsGroupHeartbeat",
            lambda index: beat.StreamsGroupHeartbeatRequest(
                **{**names, "member_epoch": epochs[index], **fields}
            ),
            version,
            but=("status_detail",),
        )
        assert details(answers[0]) == details(answers[1])
        if answers[0].error_code == 0:
            self.epochs[member] = [answer.member_epoch for answer in answers]
        return answers

    def join(self, member: str, version: int = 1, **fields: Any) -> tuple[Any, Any]:
        given = {"member_epoch": 0, **joining(member, topology(self.id))}
        return self.beat(member, version, **{**given, **fields})

    def own(self, member: str, *active: tuple[str, list[int]]) -> tuple[Any, Any]:
        """A heartbeat that says which active tasks the member has: without one of its tasks ours
        gives them again, which Kafka does not."""
        rows = [describe.TaskIds(*task) for task in active]
        return self.beat(member, active_tasks=rows, standby_tasks=[], warmup_tasks=[])

    def wait(self, member: str, done: Callable[[Any], bool]) -> None:
        """Send heartbeats to each broker until it answers so: topics are created in the
        background, in Kafka some targets are, too."""
        end = time.monotonic() + 60
        waiting = [0, 1]
        while waiting:
            for index, connection in enumerate(self.twins.both):
                epoch = self.epochs[member][index]
                request = beat.StreamsGroupHeartbeatRequest(self.id, member, epoch)
                answer = connection.request(KEYS["StreamsGroupHeartbeat"], request, at_most=1)
                assert answer.error_code == 0, (index, answer)
                self.epochs[member][index] = answer.member_epoch
                if index in waiting and done(answer):
                    waiting.remove(index)
                assert time.monotonic() < end, (index, answer)
            time.sleep(0.1)

    def describe(self, *more: str) -> None:
        """Compare descriptions of groups, with members in the order of their names."""
        for version in (0, 1):
            request = describe.StreamsGroupDescribeRequest([self.id, *more], version == 1)
            answers = []
            for connection in self.twins.both:
                key = KEYS["StreamsGroupDescribe"]
                answers.append(connection.request(key, request, at_most=version))
                for group in answers[-1].groups:
                    group.members.sort(key=lambda member: member.member_id)
            different = find_differences(*answers)
            assert not different, f"v{version}: (Apache Kafka, ours) differ in {different}"

    def delete(self) -> None:
        for version in (2, 3):
            request = delete_groups.DeleteGroupsRequest(groups_names=[self.id])
            self.twins.ask("DeleteGroups", request, version)

    def compare_records(self) -> None:
        """Compare what compaction keeps of the group in `__consumer_offsets`: between two answers
        Kafka sometimes writes a state that its next record replaces."""
        kafka = read_records(self.addresses[0], partition_of, self.id)
        ours = read_records(self.addresses[1], group_partition_of, self.id)
        assert kafka.keys() == ours.keys()
        different = [
            (key, leaf, kafka[key].get(leaf, "nothing"), ours[key].get(leaf, "nothing"))
            for key in kafka
            for leaf in kafka[key].keys() | ours[key].keys()
            if kafka[key].get(leaf, "nothing") != ours[key].get(leaf, "nothing")
        ]
        assert not different, f"records of (Apache Kafka, ours) differ in {different}"

    def list(self) -> None:
        request = list_groups.ListGroupsRequest(types_filter=["streams"])
        rows = [
            next(
                (r for r in c.request(KEYS["ListGroups"], request).groups if r.group_id == self.id),
                None,
            )
            for c in self.twins.both
        ]
        assert rows[0] == rows[1]


@pytest.fixture
def group(twins: Twins) -> Group:
    return Group(twins)


BAD_JOINS: list[dict[str, Any]] = [
    {"active_tasks": None},
    {"standby_tasks": None},
    {"active_tasks": None, "standby_tasks": None, "warmup_tasks": None},
    {"active_tasks": [describe.TaskIds("0", [0])]},
    {"group_id": ""},
    {"member_id": ""},
    {"rebalance_timeout_ms": -1},
    {"topology": None},
    {"process_id": None},
    {"client_tags": None},
    {"instance_id": ""},
    {"rack_id": ""},
    {"member_epoch": -3},
    {"member_epoch": -2},
    {"member_epoch": -1},
    {"member_epoch": 1},
    {"shutdown_application": True},
]


@pytest.mark.parametrize("fields", BAD_JOINS, ids=str)
def test_joins_match(group: Group, fields: dict[str, Any]) -> None:
    group.create_topic()
    group.join("m", **fields)


def odd_topologies(name: str) -> dict[str, dict[str, Any]]:
    """Fields of the second subtopology by what is odd in them. Not here: two subtopologies of one
    name, and an index that has no topic. Kafka fails with UNKNOWN_SERVER_ERROR."""
    store, sink = f"{name}-store", f"{name}-sink"
    setting = [describe.KeyValue("no.such.config", "1")]
    return {
        "subtopology without a name": {"subtopology_id": ""},
        "missing source": {"source_topics": ["no-such"]},
        "illegal source": {"source_topics": ["a b"]},
        "source without a name": {"source_topics": [""]},
        "expression": {"source_topic_regex": ["a.*"]},
        "illegal sink": {"repartition_sink_topics": ["a b"]},
        "sink without a source": {"repartition_sink_topics": [sink]},
        "no source": {"repartition_source_topics": []},
        "illegal repartition": {"repartition_source_topics": [describe.TopicInfo("a b", 0, 1)]},
        "source without a sink": {"repartition_source_topics": [describe.TopicInfo(sink, 0, 1)]},
        "source of two partitions": {"repartition_source_topics": [describe.TopicInfo(sink, 2, 1)]},
        "internal store": {
            "state_changelog_topics": [describe.TopicInfo("__consumer_offsets", 0, 1)]
        },
        "store of one partition": {"state_changelog_topics": [describe.TopicInfo(store, 1, 1)]},
        "store of no replicas": {"state_changelog_topics": [describe.TopicInfo(store, 0, -1)]},
        "store of many replicas": {"state_changelog_topics": [describe.TopicInfo(store, 0, 3)]},
        "unknown setting": {"state_changelog_topics": [describe.TopicInfo(store, 0, 1, setting)]},
        "copartitioned": {"copartition_groups": [beat.CopartitionGroup([], [], [0])]},
    }


@pytest.mark.parametrize("odd", odd_topologies(""))
def test_topologies_match(group: Group, odd: str) -> None:
    group.create_topic()
    group.join("m", topology=topology(group.id, **odd_topologies(group.id)[odd]))
    group.describe()


def test_life_of_a_group_matches(group: Group) -> None:
    group.describe("no-such", "")
    group.join("a")
    group.beat("a")
    group.describe()
    group.list()
    group.create_topic()
    group.wait("a", lambda answer: not answer.status)
    group.describe()
    group.list()
    group.own("a", ("0", [0, 1, 2]), ("1", [0, 1, 2]))
    group.beat("a", 0)
    group.join("b", user_endpoint=describe.Endpoint("b.example", 80))
    group.describe()
    group.beat("b")
    group.beat("a")
    group.own("a", ("0", [0, 1, 2]), ("1", [0, 1, 2]))
    group.own("a", ("0", [0, 1]), ("1", [0]))
    group.describe()
    group.compare_records()
    group.beat("b", endpoint_information_epoch=0)
    group.beat("a", endpoint_information_epoch=1)
    group.beat("a", member_epoch=99)
    group.beat("a", member_epoch=1)
    group.beat("c")
    group.beat("c", member_epoch=1)
    group.own("a", ("7", [0]))
    group.own("a", ("0", [9]))
    group.beat("a", topology=topology(group.id))
    group.join("a")
    group.describe()
    group.compare_records()
    group.delete()
    group.beat("a", member_epoch=-1)
    group.describe()
    group.beat("b")
    group.beat("b", shutdown_application=True)
    group.beat("b")
    group.join("d")
    group.beat("d", member_epoch=-1)
    group.beat("b", member_epoch=-1)
    group.describe()
    group.list()
    group.join("e", topology=topology(group.id, epoch=1))
    group.beat("e", member_epoch=-1)
    group.delete()
    group.describe()
    group.compare_records()


def test_topology_epochs_match(group: Group) -> None:
    group.create_topic()
    group.join("a", topology=topology(group.id, epoch=3))
    group.wait("a", lambda answer: not answer.status)
    group.join("b", topology=topology(group.id, epoch=2))
    group.beat("b")
    group.join("c", topology=topology(group.id, epoch=4))
    group.join("c", topology=topology(group.id, epoch=3, source_topics=["other"]))
    group.describe()
    group.compare_records()


def test_static_members_match(group: Group) -> None:
    group.create_topic()
    group.join("a", instance_id="one")
    group.wait("a", lambda answer: not answer.status)
    group.join("b", instance_id="one")
    group.beat("a", instance_id="one")
    group.beat("a", instance_id="two")
    group.beat("a", member_epoch=-2, instance_id="one")
    group.describe()
    group.join("b", instance_id="one")
    group.beat("b")
    group.beat("a", instance_id="one")
    group.beat("b", member_epoch=-1, instance_id="one")
    group.describe()
    group.compare_records()


def test_standby_tasks_match(group: Group) -> None:
    set_config(group, "streams.num.standby.replicas", "1")
    group.create_topic(partitions=2)
    group.join("a")
    group.wait("a", lambda answer: not answer.status)
    group.own("a", ("0", [0, 1]), ("1", [0, 1]))
    group.join("b")
    group.beat("b")
    group.beat("a")
    group.describe()
    group.compare_records()


def set_config(group: Group, name: str, value: str) -> None:
    resource = alter.AlterConfigsResource(GROUP, group.id, [alter.AlterableConfig(name, 0, value)])
    request = alter.IncrementalAlterConfigsRequest([resource])
    group.twins.ask("IncrementalAlterConfigs", request, 1)


def test_groups_without_warm_up_tasks_match(group: Group) -> None:
    set_config(group, "streams.num.warmup.replicas", "0")
    set_config(group, "streams.acceptable.recovery.lag", "7")
    set_config(group, "streams.task.offset.interval.ms", "16000")
    group.create_topic(partitions=2)
    group.join("a", task_offsets=[], task_end_offsets=[])
    group.wait("a", lambda answer: not answer.status)
    group.own("a", ("0", [0, 1]), ("1", [0, 1]))
    twice = [describe.TaskOffset("1", 0, 1)] * 2
    group.beat("a", task_offsets=twice)
    group.beat("a", task_end_offsets=twice)
    group.join("b", task_offsets=[], task_end_offsets=[])
    group.beat("a")
    group.own("a", ("0", [0]), ("1", [0]))
    group.beat("b")
    group.describe()
    group.compare_records()


def test_client_tags_match(group: Group) -> None:
    set_config(group, "streams.rack.aware.assignment.tags", "zone, rack")
    group.create_topic()
    group.join("a", client_tags=[describe.KeyValue("rack", "r")])
    group.wait("a", lambda answer: not group_is_waiting(answer))
    for version in (1, 0):
        group.beat("a", version)
    group.beat("a", client_tags=[describe.KeyValue(key, "1") for key in ("rack", "zone")])
    group.describe()
    group.compare_records()


def group_is_waiting(answer: Any) -> bool:
    """Return whether a group has no tasks yet."""
    missing_tags = 6
    return any(status.status_code != missing_tags for status in answer.status)


def test_kafka_assigns_no_warm_up_task(group: Group, newer_tools: ToolServer) -> None:
    """A difference: Kafka 4.4 has the settings, but lets the task move (KAFKA-20665)."""
    group.create_topic(partitions=2)
    group.join("a")
    group.wait("a", lambda answer: not answer.status)
    group.own("a", ("0", [0, 1]), ("1", [0, 1]))
    given = joining("b", topology(group.id))
    request = beat.StreamsGroupHeartbeatRequest(
        group.id, member_epoch=0, task_offsets=[], task_end_offsets=[], **given
    )
    key = KEYS["StreamsGroupHeartbeat"]
    answers = [connection.request(key, request) for connection in group.twins.both]
    group.epochs["b"] = [answer.member_epoch for answer in answers]
    task = [describe.TaskIds("1", [1])]
    assert [answer.warmup_tasks for answer in answers] == [[], task]
    kept = []
    for index, connection in enumerate(group.twins.both):
        epoch = group.epochs["a"][index]
        kept.append(
            connection.request(key, beat.StreamsGroupHeartbeatRequest(group.id, "a", epoch))
        )
    assert [describe.TaskIds("1", [0, 1]) in answer.active_tasks for answer in kept] == [
        False,
        True,
    ]
    rows = describe_members(newer_tools, group.addresses[1], group.id)
    (row,) = (row for row in rows if row.member == "b")
    assert (row.tasks["WARMUP"], row.tasks.get("TARGET-WARMUP", set())) == ({("1", 1)}, set())
    assert ("1", 1) in row.tasks["TARGET-ACTIVE"]


def test_offsets_of_tasks_match(group: Group) -> None:
    """Descriptions have the offsets of members. A task moves to an owner that lacks its state."""
    group.create_topic(partitions=2)
    group.join("a")
    group.wait("a", lambda answer: not answer.status)
    group.own("a", ("0", [0, 1]), ("1", [0, 1]))
    much = [describe.TaskOffset("1", partition, 1_000_000) for partition in (0, 1)]
    group.beat("a", task_offsets=much, task_end_offsets=much)
    group.join("b")
    group.beat("a")
    some = [describe.TaskOffset("1", 1, 500_000)]
    group.beat("b", task_offsets=some, task_end_offsets=much)
    group.own("a", ("0", [0]), ("1", [0]))
    group.beat("b")
    group.describe()
    group.compare_records()


SETTINGS = [
    ("streams.session.timeout.ms", "46000"),
    ("streams.session.timeout.ms", "1"),
    ("streams.session.timeout.ms", "60001"),
    ("streams.session.timeout.ms", "soon"),
    ("streams.heartbeat.interval.ms", "200"),
    ("streams.heartbeat.interval.ms", "1"),
    ("streams.heartbeat.interval.ms", "15001"),
    ("streams.num.standby.replicas", "2"),
    ("streams.num.standby.replicas", "3"),
    ("streams.num.standby.replicas", "-1"),
    ("streams.initial.rebalance.delay.ms", "0"),
    ("streams.initial.rebalance.delay.ms", "-1"),
    ("streams.assignment.interval.ms", "1"),
    ("streams.assignment.interval.ms", "-1"),
    ("streams.assignor.name", "sticky"),
    ("streams.assignor.name", "other"),
    ("streams.num.warmup.replicas", "0"),
    ("streams.num.warmup.replicas", "20"),
    ("streams.num.warmup.replicas", "21"),
    ("streams.num.warmup.replicas", "-1"),
    ("streams.acceptable.recovery.lag", "0"),
    ("streams.acceptable.recovery.lag", "99999999999"),
    ("streams.acceptable.recovery.lag", "-1"),
    ("streams.task.offset.interval.ms", "15000"),
    ("streams.task.offset.interval.ms", "14999"),
    ("streams.task.offset.interval.ms", "99999999"),
    ("streams.rack.aware.assignment.tags", "zone, rack"),
    ("streams.rack.aware.assignment.tags", "zone,zone"),
    ("streams.rack.aware.assignment.tags", "zone,,rack"),
    ("streams.rack.aware.assignment.tags", ""),
    ("streams.no.such", "1"),
]


INTERNAL = (
    "streams.num.warmup.replicas",
    "streams.acceptable.recovery.lag",
    "streams.task.offset.interval.ms",
)
"""Kafka does not describe them."""


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_settings_match(group: Group, name: str, value: str) -> None:
    for kind in (0, 1):
        row = alter.AlterableConfig(name, kind, value if kind == 0 else None)
        resource = alter.AlterConfigsResource(GROUP, group.id, [row])
        request = alter.IncrementalAlterConfigsRequest([resource])
        group.twins.ask("IncrementalAlterConfigs", request, 1)
        if name in INTERNAL:
            continue
        asked = DescribeConfigsRequest([DescribeConfigsResource(GROUP, group.id, [name])], True)
        ask_until_same(group.twins, asked)


def test_lost_topics_match(group: Group) -> None:
    group.create_topic()
    group.join("a")
    group.wait("a", lambda answer: not answer.status)
    topics = [delete_topics.DeleteTopicState(name=group.id + "-in")]
    request = delete_topics.DeleteTopicsRequest(topics=topics, timeout_ms=10_000)
    group.twins.ask("DeleteTopics", request, 6)
    missing_sources = 1
    group.wait("a", lambda answer: any(s.status_code == missing_sources for s in answer.status))
    group.beat("a")
    group.describe()
