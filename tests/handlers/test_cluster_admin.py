"""DescribeQuorum and AlterReplicaLogDirs.

Covers: kafkawire.handlers.describe_quorum, kafkawire.handlers.alter_replica_log_dirs.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kafkawire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kafkawire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from tests.kit.admin import ME, OTHER, FakeBroker, call


def asked(*topics: tuple[str, list[int]]) -> DescribeQuorumRequest:
    return DescribeQuorumRequest(
        [TopicData(name, [PartitionData(at) for at in indexes]) for name, indexes in topics]
    )


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_broker_that_is_asked_is_the_voter(version: int) -> None:
    broker = FakeBroker()
    await broker.topics.create([CreatableTopic("t", 1, 1)])
    answer = await call(broker, asked(("__cluster_metadata", [0])), version)
    assert answer.error_code == 0
    ((partition,),) = [topic.partitions for topic in answer.topics]
    offset = broker.catalog.stored_version
    assert (partition.leader_id, partition.high_watermark) == (ME, offset)
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (ME, offset)
    assert (voter.last_fetch_timestamp >= 0) == (version > 0)
    assert {(each.replica_id, each.log_end_offset) for each in partition.observers} == {(OTHER, -1)}
    assert [node.node_id for node in answer.nodes] == ([ME] if version > 1 else [])


@pytest.mark.parametrize(
    "topics",
    [
        [("__cluster_metadata", [1])],
        [("__cluster_metadata", [0, 0])],
        [("t", [0])],
        [("__cluster_metadata", [0]), ("t", [0])],
    ],
)
async def test_other_partitions_are_unknown(topics: list[tuple[str, list[int]]]) -> None:
    answer = await call(FakeBroker(), asked(*topics), 2)
    found = [
        (topic.topic_name, [(p.partition_index, p.error_code) for p in topic.partitions])
        for topic in answer.topics
    ]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == [(name, [(at, unknown) for at in indexes]) for name, indexes in topics]


@pytest.mark.parametrize("version", [1, 2])
async def test_only_directory_is_that_of_the_broker(version: int) -> None:
    broker = FakeBroker()
    topic = CreatableTopic("t", -1, -1)
    topic.assignments = [
        CreatableReplicaAssignment(at, [led]) for at, led in enumerate((ME, OTHER))
    ]
    await broker.topics.create([topic])
    request = AlterReplicaLogDirsRequest(
        [
            AlterReplicaLogDir(broker.folder, [AlterReplicaLogDirTopic("t", [0, 1, 2])]),
            AlterReplicaLogDir("/elsewhere", [AlterReplicaLogDirTopic("t", [0])]),
        ]
    )
    answer = await call(broker, request, version)
    ((name, rows),) = [(topic.topic_name, topic.partitions) for topic in answer.results]
    assert (name, [(each.partition_index, each.error_code) for each in rows]) == (
        "t",
        [
            (0, ErrorCode.NONE),
            (1, ErrorCode.REPLICA_NOT_AVAILABLE),
            (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (0, ErrorCode.LOG_DIR_NOT_FOUND),
        ],
    )
