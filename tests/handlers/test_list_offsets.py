"""ListOffsets and OffsetForLeaderEpoch: special timestamps, epochs, and reading own writes.

Covers: kafkawire.handlers.offset_for_leader_epoch.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    list_offsets,
)
from kafkawire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kafkawire.offsets.catalog.port import SegmentRange
from tests.kit.admin import ME, OTHER, FakeBroker, call, context


@pytest.fixture
async def broker() -> FakeBroker:
    """A broker that leads t-0, with offsets 5..19, from 12 on under epoch 3, and does not lead
    t-1."""
    made = FakeBroker()
    assignments = [CreatableReplicaAssignment(0, [ME]), CreatableReplicaAssignment(1, [OTHER])]
    await made.topics.create([CreatableTopic("t", -1, -1, assignments)])
    partition = made.partition("t")
    partition.log_start, partition.next_offset, partition.high_watermark = 5, 20, 20
    partition.epochs, partition.leader_epoch = [(0, 0), (3, 12)], 3
    partition.times = [(1000, 5), (3000, 10), (2000, 15)]
    del made.steps[:]
    return made


async def ask(
    broker: FakeBroker, timestamp: int, version: int = 11, index: int = 0, epoch: int = -1
) -> Any:
    entry = ListOffsetsPartition(index, epoch, timestamp)
    request = ListOffsetsRequest(-1, topics=[ListOffsetsTopic("t", [entry])])
    answer = await call(broker, request, version)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize(
    ("timestamp", "offset", "found", "epoch"),
    [
        (LATEST, 20, -1, 3),
        (EARLIEST, 5, -1, 0),
        (MAX_TIMESTAMP, 10, 3000, 0),
        (EARLIEST_LOCAL, 5, -1, 0),
        (LATEST_TIERED, -1, -1, -1),
        (EARLIEST_PENDING_UPLOAD, -1, -1, -1),
        (0, 5, 1000, 0),
        (1000, 5, 1000, 0),
        (1001, 10, 3000, 0),
        (3001, -1, -1, -1),
    ],
)
async def test_offset_of_timestamp_is_first_at_or_after_it(
    broker: FakeBroker, timestamp: int, offset: int, found: int, epoch: int
) -> None:
    row = await ask(broker, timestamp)
    assert (row.error_code, row.offset, row.timestamp, row.leader_epoch) == (
        0,
        offset,
        found,
        epoch,
    )


def put_in_segments(broker: FakeBroker, *borders: int, remote: int) -> Any:
    """Put t-0 into segments between these offsets, the first `remote` of them without a file."""
    partition = broker.partition("t")
    pairs = list(itertools.pairwise(borders))
    rows = [SegmentRange(1, at, *pair, *[0] * 8) for at, pair in enumerate(pairs)]
    partition.segments.splice(0, 0, rows)
    partition.cut_offset = borders[-1]
    broker.log.remote = set(range(remote))
    return partition


async def tier_offsets(broker: FakeBroker) -> list[tuple[int, int]]:
    places = (EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
    rows = [await ask(broker, place) for place in places]
    assert [row.error_code for row in rows] == [0, 0, 0]
    return [(row.offset, row.leader_epoch) for row in rows]


async def test_earliest_local_and_latest_tiered_offsets() -> None:
    broker = FakeBroker(tier_url="s3://bucket")
    await broker.topics.create([CreatableTopic("t", 1, 1)])
    partition = put_in_segments(broker, 3, 8, 14, 17, remote=0)
    partition.log_start, partition.next_offset, partition.high_watermark = 5, 20, 20
    partition.epochs, partition.leader_epoch = [(0, 0), (3, 12)], 3
    assert partition.config.tiered
    assert await tier_offsets(broker) == [(5, 0), (-1, -1), (5, 0)]
    partition.commit_offset = 14
    assert await tier_offsets(broker) == [(5, 0), (13, 3), (14, 3)]
    for remote, offset in [(1, 8), (2, 14), (3, 17)]:
        broker.log.remote = set(range(remote))
        assert (await tier_offsets(broker))[0] == (offset, 3 if offset >= 12 else 0)
    broker.log.remote = {1}  # a gap: offsets before it are not contiguous with the end
    assert (await tier_offsets(broker))[0] == (14, 3)
    partition.log_start = 15  # everything that was tiered is deleted
    assert await tier_offsets(broker) == [(15, 3), (-1, -1), (15, 3)]


async def test_untiered_topic_has_no_pending_upload_offset() -> None:
    broker = FakeBroker(tier_url="s3://bucket")
    await broker.topics.create(
        [
            CreatableTopic(
                "t", 1, 1, configs=[CreatableTopicConfig("remote.storage.enable", "false")]
            )
        ]
    )
    assert await tier_offsets(broker) == [(0, 0), (-1, -1), (-1, -1)]


@pytest.mark.parametrize(("version", "given"), [(11, 50), (11, 0), (7, 0)])
async def test_slow_lookup_times_out_and_other_partitions_are_answered(
    broker: FakeBroker, version: int, given: int
) -> None:
    broker.config.remote_list_offsets_request_timeout_ms = 60
    partition = broker.partition("t")
    quick = partition.offset_for_time

    async def look_up(timestamp: int) -> tuple[int, int] | None:
        if timestamp == 7:
            await asyncio.Event().wait()
        found: tuple[int, int] | None = await quick(timestamp)
        return found

    partition.offset_for_time = look_up
    await broker.topics.create([CreatableTopic("t2", 1, 1)])
    broker.partition("t2").times = [(1, 0)]
    broker.partition("t2").next_offset = broker.partition("t2").high_watermark = 1
    topics = [
        ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, 7)]),
        ListOffsetsTopic("t2", [ListOffsetsPartition(0, -1, 1)]),
    ]
    request = ListOffsetsRequest(-1, topics=topics, timeout_ms=given)
    answer = await call(broker, request, version)
    rows = [topic.partitions[0] for topic in answer.topics]
    assert [row.error_code for row in rows] == [ErrorCode.REQUEST_TIMED_OUT, 0]
    assert [row.offset for row in rows] == [-1, 0]


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize(
    ("timestamp", "since"),
    [
        (LATEST, 0),
        (EARLIEST, 0),
        (MAX_TIMESTAMP, 7),
        (EARLIEST_LOCAL, 8),
        (LATEST_TIERED, 9),
        (EARLIEST_PENDING_UPLOAD, 11),
        (-7, 99),
        (-(2**63), 99),
        (0, 0),
    ],
)
async def test_special_timestamps_require_their_version(
    broker: FakeBroker, version: int, timestamp: int, since: int
) -> None:
    row = await ask(broker, timestamp, version)
    assert row.error_code == (0 if version >= since else ErrorCode.UNSUPPORTED_VERSION)
    if row.error_code:
        assert (row.offset, row.timestamp) == (-1, -1)


async def test_offsets_of_empty_partition(broker: FakeBroker) -> None:
    await broker.topics.create([CreatableTopic("t2", 1, 1)])
    partition = broker.partition("t")
    partition.log_start = partition.next_offset = partition.high_watermark = 0
    partition.epochs, partition.leader_epoch, partition.times = [(0, 0)], 0, []
    assert (await ask(broker, LATEST)).offset == 0
    assert (await ask(broker, EARLIEST)).leader_epoch == 0
    assert (await ask(broker, MAX_TIMESTAMP)).offset == -1
    assert (await ask(broker, 0)).offset == -1


@pytest.mark.parametrize("timestamp", [LATEST, MAX_TIMESTAMP, 3000])
async def test_latest_offset_waits_for_commit_of_own_writes(
    broker: FakeBroker, timestamp: int
) -> None:
    partition = broker.partition("t")
    partition.next_offset = 21
    partition.times.append((9000, 20))
    row = await ask(broker, timestamp)
    assert broker.steps == ["commit"]
    assert row.offset == {LATEST: 21, MAX_TIMESTAMP: 20, 3000: 10}[timestamp]


async def test_waiting_list_offsets_does_not_block_next_request(broker: FakeBroker) -> None:
    ctx = context(broker, 11)
    parked: list[int] = []
    ctx.park = lambda: parked.append(len(broker.steps))
    request = ListOffsetsRequest(
        -1, topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, LATEST)])]
    )
    await list_offsets(ctx, request)
    assert parked == []
    broker.partition("t").next_offset = 30
    await list_offsets(ctx, request)
    assert parked == [0]  # before the commit


@pytest.mark.parametrize("timestamp", [EARLIEST, EARLIEST_LOCAL, LATEST_TIERED])
async def test_earliest_offset_does_not_wait_for_commit(broker: FakeBroker, timestamp: int) -> None:
    broker.partition("t").next_offset = 30
    assert (await ask(broker, timestamp)).error_code == 0
    assert broker.steps == []


async def test_failed_commit_is_storage_error(broker: FakeBroker) -> None:
    broker.log.commit_log.fails = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    broker.partition("t").next_offset = 30
    assert (await ask(broker, LATEST)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await ask(broker, EARLIEST)).error_code == 0


@pytest.mark.parametrize(
    ("index", "epoch", "code"),
    [
        (1, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, 2, ErrorCode.FENCED_LEADER_EPOCH),
        (0, 4, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (0, 3, ErrorCode.NONE),
    ],
)
async def test_list_offsets_errors(
    broker: FakeBroker, index: int, epoch: int, code: ErrorCode
) -> None:
    row = await ask(broker, LATEST, index=index, epoch=epoch)
    assert row.error_code == code
    assert row.offset == (20 if code is ErrorCode.NONE else -1)


async def test_partition_named_twice_is_answered_twice(broker: FakeBroker) -> None:
    entries = [ListOffsetsPartition(0, -1, LATEST), ListOffsetsPartition(0, -1, EARLIEST)]
    request = ListOffsetsRequest(
        -1, topics=[ListOffsetsTopic("t", entries), ListOffsetsTopic("x", entries[:1])]
    )
    answer = await call(broker, request, 5)
    assert [row.error_code for row in answer.topics[0].partitions] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert answer.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- OffsetForLeaderEpoch


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("asked", "epoch", "end"), [(0, 0, 12), (1, 0, 12), (2, 0, 12), (3, 3, 20)]
)
async def test_end_offset_of_leader_epoch(
    broker: FakeBroker, version: int, asked: int, epoch: int, end: int
) -> None:
    row = await epoch_end(broker, version, 0, asked)
    assert (row.partition, row.error_code, row.leader_epoch, row.end_offset) == (0, 0, epoch, end)


@pytest.mark.parametrize(
    ("index", "current", "code"),
    [
        (0, 3, ErrorCode.NONE),
        (0, 1, ErrorCode.FENCED_LEADER_EPOCH),
        (0, 9, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (1, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (7, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_offset_for_leader_epoch_errors(
    broker: FakeBroker, index: int, current: int, code: ErrorCode
) -> None:
    row = await epoch_end(broker, 4, index, 0, current)
    assert row.error_code == code
    if code:
        assert (row.leader_epoch, row.end_offset) == (-1, -1)


async def epoch_end(
    broker: FakeBroker, version: int, index: int, epoch: int, current: int = -1
) -> Any:
    entry = OffsetForLeaderPartition(index, current, epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic("t", [entry])])
    return (await call(broker, request, version)).topics[0].partitions[0]
