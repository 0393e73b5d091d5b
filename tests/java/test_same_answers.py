"""One conversation with Apache Kafka and with ours: every field of every answer is compared.

What is not compared stands beside the request as `but`: this module is the list of differences
in the answers of the APIs served.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.client.connection import Connection
from kafkawire.codec.batches import build
from kafkawire.messages import (
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_configs,
    describe_groups,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from kafkawire.messages.describe_cluster import DescribeClusterRequest
from kafkawire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from tests.java.apache import shared_kafka
from tests.java.twins import KEYS, Twins
from tests.real.conftest import OTHER_BROKER, START_MS


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with shared_kafka(run / "apache", f"{jars}/*") as address:
        yield address


@pytest.fixture(scope="module")
def twins(kafka: str, bootstrap: str) -> Iterator[Twins]:
    if OTHER_BROKER:
        pytest.skip("compares ours with Apache Kafka")
    both = []
    for address in (kafka, bootstrap):
        host, _, port = address.rpartition(":")
        both.append(Connection(host, int(port)))
    found = Twins(*both)
    find = find_coordinator.FindCoordinatorRequest(key="warm", key_type=0)
    producer = init_producer_id.InitProducerIdRequest(transactional_id=None)
    for connection in both:  # in Kafka both answer only after a while
        end = time.monotonic() + 60
        while (
            connection.request(KEYS["FindCoordinator"], find, at_most=2).error_code
            or connection.request(KEYS["InitProducerId"], producer, at_most=4).error_code
        ):
            assert time.monotonic() < end
            time.sleep(0.2)
    yield found
    for connection in both:
        connection.close()


@pytest.fixture
def topic(twins: Twins) -> str:
    """A topic of two partitions in both, with 9 records in the first."""
    made = f"t-{uuid.uuid4().hex[:8]}"
    twins.ask("CreateTopics", create(made), 7, but=ELR)
    wait_for_leaders(twins, made)
    for i in range(3):
        twins.ask("Produce", send(made, [(b"k", b"v")] * 3, START_MS + i * 1000), 9)
    return made


ELR = ("min.insync.replicas",)  # KRaft stores a cluster-wide default of its own (KIP-966)


def wait_for_leaders(twins: Twins, name: str) -> None:
    ask = list_offsets_request(name, -1)
    for connection in twins.both:
        end = time.monotonic() + 20
        while any(
            p.error_code
            for t in connection.request(KEYS["ListOffsets"], ask).topics
            for p in t.partitions
        ):
            assert time.monotonic() < end
            time.sleep(0.05)


def create(name: str, **fields: Any) -> create_topics.CreateTopicsRequest:
    values = {"num_partitions": 2, "replication_factor": 1, **fields}
    topic = create_topics.CreatableTopic(name=name, **values)
    return create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def send(
    topic: str, pairs: list[tuple[bytes, bytes]], time_ms: int, **head: int
) -> produce.ProduceRequest:
    records = build(pairs, timestamp_ms=time_ms, **head)
    partition = produce.PartitionProduceData(index=0, records=records)
    data = produce.TopicProduceData(name=topic, partition_data=[partition])
    return produce.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])


def list_offsets_request(topic: str, timestamp: int, *partitions: int, epoch: int = -1) -> Any:
    rows = [
        list_offsets.ListOffsetsPartition(
            partition_index=p, timestamp=timestamp, current_leader_epoch=epoch
        )
        for p in partitions or (0, 1)
    ]
    asked = list_offsets.ListOffsetsTopic(name=topic, partitions=rows)
    return list_offsets.ListOffsetsRequest(replica_id=-1, topics=[asked])


SETTING = create_topics.CreatableTopicConfig


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_partitions": 0},
        {"num_partitions": -2},
        {"num_partitions": -1, "replication_factor": -1},
        {"replication_factor": 0},
        {"replication_factor": 3},
        {"name": ""},
        {"name": "."},
        {"name": "a/b"},
        {"name": "n" * 250},
        {"configs": [SETTING(name="no.such", value="1")]},
        {"configs": [SETTING(name="retention.ms", value="soon")]},
        {"configs": [SETTING(name="retention.ms", value="-5")]},
        {"configs": [SETTING(name="retention.ms", value=" 5 ")]},
        {"configs": [SETTING(name="retention.ms", value=None)]},
        {"configs": [SETTING(name="cleanup.policy", value="burn")]},
        {"configs": [SETTING(name="min.insync.replicas", value="0")]},
    ],
    ids=str,
)
@pytest.mark.parametrize("version", [2, 5, 7])
def test_create_topics(twins: Twins, fields: dict[str, Any], version: int) -> None:
    name = fields.get("name", f"c-{uuid.uuid4().hex[:8]}")
    rest = {key: value for key, value in fields.items() if key != "name"}
    kafka, _ = twins.ask("CreateTopics", create(name, **rest), version, but=ELR)
    if not kafka.topics[0].error_code:
        twins.ask("CreateTopics", create(name, **rest), version)


def test_describe_topic_configs(twins: Twins, topic: str) -> None:
    """Synonyms apart: Kafka leaves out some broker settings a topic's default comes from."""
    for version in (1, 4):
        place = describe_configs.DescribeConfigsResource(
            resource_type=2, resource_name=topic, configuration_keys=None
        )
        request = describe_configs.DescribeConfigsRequest(resources=[place])
        twins.ask("DescribeConfigs", request, version, but=ELR)


@pytest.mark.parametrize("place", [(4, "99"), (4, "x"), (2, ""), (2, "none"), (99, "q")])
def test_describe_configs_of_what_is_not_there(twins: Twins, place: tuple[int, str]) -> None:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=place[0], resource_name=place[1], configuration_keys=["zzz"]
    )
    twins.ask("DescribeConfigs", describe_configs.DescribeConfigsRequest(resources=[resource]), 4)


@pytest.mark.parametrize("version", [0, 1, 4, 7, 8, 9, 10, 12, 13])
def test_metadata(twins: Twins, topic: str, version: int) -> None:
    names = [topic, "bad/name"] if version < 4 else [topic, "bad/name", "not-there"]
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=n) for n in names],
        allow_auto_topic_creation=version < 4,  # before that asking makes a topic
        include_topic_authorized_operations=version >= 8,
        include_cluster_authorized_operations=8 <= version <= 10,
    )
    twins.ask("Metadata", request, version)


def test_describe_cluster_and_topic_partitions(twins: Twins, topic: str) -> None:
    for version in (0, 1, 2):
        ask = DescribeClusterRequest(include_cluster_authorized_operations=True)
        twins.ask("DescribeCluster", ask, version)
    rows = [TopicRequest(name=n) for n in (topic, "not-there")]
    request = DescribeTopicPartitionsRequest(topics=rows, response_partition_limit=1)
    twins.ask("DescribeTopicPartitions", request, 0)


@pytest.mark.parametrize("after_start_ms", [1, 1000, 2001, 9999])
def test_list_offsets_by_time(twins: Twins, topic: str, after_start_ms: int) -> None:
    for version in (1, 4, 11):
        request = list_offsets_request(topic, START_MS + after_start_ms, 0, 1, 7)
        twins.ask("ListOffsets", request, version)


@pytest.mark.parametrize("stamp", [-1, -2, -3, -4, -5, -6, -7, 0])
def test_list_offsets(twins: Twins, topic: str, stamp: int) -> None:
    for version in (1, 4, 11):
        twins.ask("ListOffsets", list_offsets_request(topic, stamp, 0, 1, 7), version)


@pytest.mark.parametrize("epoch", [-1, 0, 5])
def test_leader_epochs(twins: Twins, topic: str, epoch: int) -> None:
    twins.ask("ListOffsets", list_offsets_request(topic, -1, epoch=epoch), 6)
    for asked in (-1, 0, 5):
        rows = [
            offset_for_leader_epoch.OffsetForLeaderPartition(
                partition=p, current_leader_epoch=epoch, leader_epoch=asked
            )
            for p in (0, 9)
        ]
        named = offset_for_leader_epoch.OffsetForLeaderTopic(topic=topic, partitions=rows)
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(replica_id=-1, topics=[named])
        twins.ask("OffsetForLeaderEpoch", request, 4)


def fetch_request(topic: str, offset: int, index: int = 0, **partition: int) -> Any:
    fields: dict[str, Any] = {
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
        **partition,
    }
    row = fetch.FetchPartition(partition=index, fetch_offset=offset, log_start_offset=-1, **fields)
    named = fetch.FetchTopic(topic=topic, partitions=[row])
    return fetch.FetchRequest(replica_id=-1, max_bytes=1 << 20, session_epoch=-1, topics=[named])


# Beside an error Kafka leaves out what we know of the partition.
STATE = ("high_watermark", "last_stable_offset", "log_start_offset")
ABORTED = ("aborted_transactions",)  # null or empty where there can be none


@pytest.mark.parametrize("version", [4, 5, 7, 11, 12])
def test_fetch(twins: Twins, topic: str, version: int) -> None:
    """The batches themselves are compared, too: stored, they are the same bytes."""
    for offset in (0, 4, 8, 9):
        twins.ask("Fetch", fetch_request(topic, offset), version)
    for offset in (10, -1):
        twins.ask("Fetch", fetch_request(topic, offset), version, but=STATE + ABORTED)
    twins.ask("Fetch", fetch_request(topic, 3, partition_max_bytes=10), version)
    twins.ask("Fetch", fetch_request(topic, 0, 9), version, but=ABORTED)
    twins.ask("Fetch", fetch_request("none", 0), version, but=ABORTED)
    if version >= 9:
        twins.ask("Fetch", fetch_request(topic, 0, current_leader_epoch=7), version, but=ABORTED)


def test_create_partitions(twins: Twins, topic: str) -> None:
    def asked(count: int, *nodes: int) -> Any:
        rows = [create_partitions.CreatePartitionsAssignment(broker_ids=[n]) for n in nodes]
        row = create_partitions.CreatePartitionsTopic(
            name=topic, count=count, assignments=rows or None
        )
        return create_partitions.CreatePartitionsRequest(topics=[row], timeout_ms=10_000)

    for request in (asked(1), asked(2), asked(0), asked(-1), asked(3), asked(5, 1, 1), asked(6, 9)):
        twins.ask("CreatePartitions", request, 3)


def test_delete_records(twins: Twins, topic: str) -> None:
    for offset in (2, 1, 99, -5, -1):
        rows = [
            delete_records.DeleteRecordsPartition(partition_index=p, offset=offset) for p in (0, 9)
        ]
        named = delete_records.DeleteRecordsTopic(name=topic, partitions=rows)
        request = delete_records.DeleteRecordsRequest(topics=[named], timeout_ms=10_000)
        twins.ask("DeleteRecords", request, 2)
        twins.ask("ListOffsets", list_offsets_request(topic, -2), 9)


@pytest.mark.parametrize(
    ("setting", "operation", "value"),
    [
        ("retention.ms", 0, "50000000"),
        ("retention.ms", 0, "soon"),
        ("retention.ms", 0, None),
        ("retention.ms", 2, "5"),
        ("no.such", 0, "1"),
        ("no.such", 1, None),
        ("cleanup.policy", 2, "compact"),
        ("cleanup.policy", 3, "delete"),
    ],
)
def test_incremental_alter_configs(
    twins: Twins, topic: str, setting: str, operation: int, value: str | None
) -> None:
    row = incremental_alter_configs.AlterableConfig(
        name=setting, config_operation=operation, value=value
    )
    # Of two things wrong, a bad setting for no topic, each broker names another.
    for name in (topic, "none") if value == "50000000" else (topic,):
        place = incremental_alter_configs.AlterConfigsResource(
            resource_type=2, resource_name=name, configs=[row]
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[place])
        twins.ask("IncrementalAlterConfigs", request, 1)


def test_delete_topics(twins: Twins, topic: str) -> None:
    for names in ([topic, "none"], [topic], [""]):
        request = delete_topics.DeleteTopicsRequest(topic_names=names, timeout_ms=10_000)
        twins.ask("DeleteTopics", request, 5)


def test_idempotent_producers(twins: Twins, topic: str) -> None:
    """Sequences in order, again, with gaps, too old, of another epoch, of an unknown producer."""
    ask = init_producer_id.InitProducerIdRequest(transactional_id=None)
    ids = [answer.producer_id for answer in twins.ask("InitProducerId", ask, 4)]
    pairs = [(b"k", b"v")] * 2
    for sequence, epoch in (
        *((0, 0), (2, 0), (0, 0), (9, 0), (1, 0), (4, 0), (6, 0), (8, 0), (10, 0)),
        *((0, 0), (2, 0), (4, 0), (5, 1), (0, 1), (12, 0)),
    ):
        # Kafka gives a duplicate the time of the original even under CreateTime, and names the
        # log start beside some errors.
        twins.ask(
            "Produce",
            lambda index, sequence=sequence, epoch=epoch: send(  # type: ignore[misc]
                topic,
                pairs,
                START_MS,
                producer_id=ids[index],
                producer_epoch=epoch,
                base_sequence=sequence,
            ),
            9,
            but=("log_append_time_ms", "log_start_offset"),
        )
    for sequence, count in (((1 << 31) - 1, 3), (2, 1), ((1 << 31) - 1, 3)):
        request = send(
            topic,
            [(b"k", b"v")] * count,
            START_MS,
            producer_id=987_654,
            producer_epoch=0,
            base_sequence=sequence,
        )
        twins.ask("Produce", request, 9, but=("log_append_time_ms", "log_start_offset"))


class Group:
    """One group in both; member ids are each broker's own."""

    def __init__(self, twins: Twins, topic: str) -> None:
        self.twins = twins
        self.topic = topic
        self.id = f"g-{uuid.uuid4().hex[:8]}"
        self.members = ["", ""]

    def join(self, version: int = 9, *, member: str | None = None, **fields: Any) -> None:
        row = join_group.JoinGroupRequestProtocol(
            name=fields.pop("protocol", "range"), metadata=fields.pop("data", b"a")
        )
        values = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 5_000, **fields}
        answers = self.twins.ask(
            "JoinGroup",
            lambda index: join_group.JoinGroupRequest(
                group_id=self.id,
                member_id=self.members[index] if member is None else member,
                protocol_type="consumer",
                protocols=[row],
                **values,
            ),
            version,
        )
        if answers[0].member_id and answers[0].error_code in (0, 79):
            self.members = [answer.member_id for answer in answers]

    def sync(self, generation: int, version: int = 5, **fields: Any) -> None:
        values = {"protocol_type": "consumer", "protocol_name": "range", **fields}
        self.twins.ask(
            "SyncGroup",
            lambda index: sync_group.SyncGroupRequest(
                group_id=self.id,
                generation_id=generation,
                member_id=self.members[index],
                assignments=[
                    sync_group.SyncGroupRequestAssignment(
                        member_id=self.members[index], assignment=b"share"
                    )
                ],
                **values,
            ),
            version,
        )

    def beat(self, generation: int, member: str | None = None, instance: str | None = None) -> None:
        self.twins.ask(
            "Heartbeat",
            lambda index: heartbeat.HeartbeatRequest(
                group_id=self.id,
                generation_id=generation,
                member_id=self.members[index] if member is None else member,
                group_instance_id=instance,
            ),
            4,
        )

    def commit(self, generation: int, member: str | None = None, **fields: Any) -> None:
        row = offset_commit.OffsetCommitRequestPartition(
            partition_index=fields.pop("partition", 0),
            committed_offset=5,
            committed_leader_epoch=0,
            committed_metadata=fields.pop("note", "here"),
        )
        named = offset_commit.OffsetCommitRequestTopic(
            name=fields.pop("topic", self.topic), partitions=[row]
        )
        self.twins.ask(
            "OffsetCommit",
            lambda index: offset_commit.OffsetCommitRequest(
                group_id=self.id,
                generation_id_or_member_epoch=generation,
                member_id=self.members[index] if member is None else member,
                topics=[named],
                **fields,
            ),
            8,
        )

    def describe(self) -> None:
        for version in (0, 5, 6):
            ask = describe_groups.DescribeGroupsRequest(groups=[self.id])
            self.twins.ask("DescribeGroups", ask, version)

    def leave(self, member: str | None = None, instance: str | None = None) -> None:
        self.twins.ask(
            "LeaveGroup",
            lambda index: leave_group.LeaveGroupRequest(
                group_id=self.id,
                members=[
                    leave_group.MemberIdentity(
                        member_id=self.members[index] if member is None else member,
                        group_instance_id=instance,
                    )
                ],
            ),
            5,
        )


def test_the_life_of_a_group(twins: Twins, topic: str) -> None:
    group = Group(twins, topic)
    group.describe()
    group.join()  # MEMBER_ID_REQUIRED; whether there is a group yet, Kafka says now so, now so
    group.join()
    for say in (group.beat, group.commit):
        say(1)
    group.commit(-1, "")
    group.describe()
    group.sync(7)
    group.sync(1, protocol_name="other")
    group.sync(1)
    group.beat(1)
    group.beat(0)
    group.beat(1, "nobody")
    group.beat(1, None, "i")
    group.sync(1)
    group.commit(1)
    group.commit(0)
    group.commit(1, "nobody")
    group.commit(1, group_instance_id="i")
    group.commit(1, note="n" * 5000)
    group.commit(1, topic="none")
    group.commit(1, partition=9)
    offsets(group)
    group.join(data=b"other")
    group.sync(2)
    group.describe()
    group.join(3, member="", protocol="strange")
    group.join(3, member="ghost")
    group.leave("x", "y")
    group.leave()
    group.describe()
    group.commit(2)
    group.commit(-1, "")
    group.beat(2)
    offsets(group)
    for groups in ([group.id, "none", ""], [group.id]):
        ask = delete_groups.DeleteGroupsRequest(groups_names=groups)
        twins.ask("DeleteGroups", ask, 2)


def offsets(group: Group) -> None:
    """What is committed, and that it cannot be deleted while the topic is read, or then can."""
    for version in (2, 5, 7):
        ask = offset_fetch.OffsetFetchRequest(group_id=group.id, topics=None)
        group.twins.ask("OffsetFetch", ask, version)
    row = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    named = offset_delete.OffsetDeleteRequestTopic(name=group.topic, partitions=[row])
    request = offset_delete.OffsetDeleteRequest(group_id=group.id, topics=[named])
    group.twins.ask("OffsetDelete", request, 0)


def test_the_life_of_a_static_member(twins: Twins, topic: str) -> None:
    group = Group(twins, topic)
    group.join(group_instance_id="one")
    group.sync(1, group_instance_id="one")
    first = list(group.members)
    group.join(member="", group_instance_id="one")  # back, without a rebalance
    group.join(7, member="", group_instance_id="one")
    for members in (first, group.members):
        group.members = list(members)
        group.beat(1, None, "one")
        group.sync(1, group_instance_id="one")
    group.describe()
    group.join(member="", group_instance_id="one", data=b"changed")
    group.join(member="stranger", group_instance_id="two")
    group.leave("", "one")
    group.describe()
