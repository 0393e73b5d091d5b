"""No request holds the event loop for more than 5 ms of CPU time, whatever is in it.

Every API with arrays as long as they may be (tests.kit.codec.extremes): the newest version with
many entries, and the oldest and the newest with the longest arrays: lengths of both encodings,
where an API has both.

CPU time depends on the machine and on its load: page faults, caches and memory bandwidth shared
with other processes, a virtual processor that the host takes away. So a fixed computation of the
same kind is timed before and after each request, and the limit is scaled with it. A case that
takes longer is repeated with growing pauses: load passes, a stretch that is not sliced stays.

Covers: kafkawire.handlers.api_versions, kafkawire.handlers.clients,
kafkawire.handlers.topic_parts, kafkawire.log.io.watchdog.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafkawire.codec.batches import HEAD_BYTES, build, resum
from kafkawire.codec.compile import encode
from kafkawire.codec.compression import GZIP, LZ4, SNAPPY, ZSTD, compress
from kafkawire.codec.emit import uvarint
from kafkawire.codec.validate import MAX_BYTES_AT_ONCE
from kafkawire.codec.walk import MAX_RECORD_HEADERS
from kafkawire.handlers.table import ROWS, ApiRow
from kafkawire.log.io.slices import MAX_STRETCH_S
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.messages.registry import APIS
from tests.kit.codec.extremes import GROUP, TOPIC, Case, cases, frame
from tests.kit.loop_time import MeasuredBroker, measured
from tests.kit.slowness import least_cpu_time

PARTITIONS = 200
COMPACTED = "compacted"
PARKED = ("JoinGroup", "SyncGroup")
"""Answered only when all members of the group have joined."""
NEWEST = [pytest.param(row, id=APIS[row.key].name) for row in ROWS]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    data: Path = tmp_path_factory.mktemp("stretches")
    with measured(data / "data") as started:
        topics = [
            CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1),
            CreatableTopic(name=COMPACTED, num_partitions=1, replication_factor=1,
                           configs=[CreatableTopicConfig("cleanup.policy", "compact")]),
        ]  # fmt: skip
        started.ask(frame(19, 7, encode(CreateTopicsRequest(topics=topics), 7)))
        started.ask(frame(10, 4, encode(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)))
        yield started


def excess(broker: MeasuredBroker, case: Case) -> str | None:
    """Describe by how much the case exceeded the limit in its best try; None if it did not."""
    took = least_cpu_time(lambda: broker.ask(case.frame, case.count), MAX_STRETCH_S)
    if took <= MAX_STRETCH_S:
        return None
    return f"{case.name}: {took * 1000:.1f} ms, {MAX_STRETCH_S * 1000:.1f} ms are allowed"


def check(broker: MeasuredBroker, row: ApiRow, version: int, count: int) -> None:
    topic_id = broker.server.broker.catalog.by_name[TOPIC].id
    found = [excess(broker, case) for case in cases(row, version, count, topic_id)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.slow
@pytest.mark.parametrize("row", NEWEST)
def test_request_with_many_entries_in_newest_version(broker: MeasuredBroker, row: ApiRow) -> None:
    check(broker, row, row.max_version, 1500)


@pytest.mark.slow
@pytest.mark.parametrize("row", NEWEST)
def test_request_with_maximum_entries(broker: MeasuredBroker, row: ApiRow) -> None:
    for version in sorted({row.min_version, row.max_version}):
        check(broker, row, version, 24_000)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("topic", [TOPIC, COMPACTED])
def test_batch_with_maximum_records(broker: MeasuredBroker, topic: str, codec: int) -> None:
    count = 300_000 if codec else 100_000
    batch = bytes(build([(b"k", b"")] * count, timestamp_ms=1_700_000_000_000, codec=codec))
    rows = [PartitionProduceData(0, batch)]
    data = TopicProduceData(name=topic, partition_data=rows)
    body = encode(ProduceRequest(acks=-1, topic_data=[data]), 9)
    case = Case(f"{count} records, codec {codec}", "Produce", 9, frame(0, 9, body))
    assert excess(broker, case) is None


@pytest.mark.slow
@pytest.mark.parametrize("row", [each for each in NEWEST if each.id not in PARKED])
def test_pipelined_requests_of_every_api(broker: MeasuredBroker, row: ApiRow) -> None:
    """Fetches and Produces that each are short enough held the loop together for 10 to 280 ms."""
    topic_id = broker.server.broker.catalog.by_name[TOPIC].id
    for case in cases(row, row.max_version, 40, topic_id, ("same", "distinct")):
        found = excess(broker, replace(case, count=200))
        assert not found, f"200 times {found}"


def produce_of(partitions: int, codec: int) -> bytes:
    records = [(b"k", b"v" * 20)] * 20
    batch = bytes(build(records, timestamp_ms=1_700_000_000_000, codec=codec))
    rows = [PartitionProduceData(index, batch) for index in range(partitions)]
    data = TopicProduceData(name=TOPIC, partition_data=rows)
    return frame(0, 9, encode(ProduceRequest(acks=1, topic_data=[data]), 9))


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [60, PARTITIONS])
def test_pipelined_fetches_of_many_partitions(broker: MeasuredBroker, partitions: int) -> None:
    broker.ask(produce_of(partitions, 0))
    wanted = [FetchPartition(index, partition_max_bytes=1 << 10) for index in range(partitions)]
    body = encode(
        FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(TOPIC, partitions=wanted)]), 12
    )
    case = Case(f"200 times {partitions} partitions", "Fetch", 12, frame(1, 12, body), 200)
    assert excess(broker, case) is None


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, GZIP, ZSTD])
def test_pipelined_produces_of_many_partitions(broker: MeasuredBroker, codec: int) -> None:
    case = Case("200 times 60 partitions", "Produce", 9, produce_of(60, codec), 200)
    assert excess(broker, case) is None


def test_many_small_requests_in_one_read(broker: MeasuredBroker) -> None:
    for key, version, body in ((12, 0, b"\0\1g\0\0\0\0\0\1m"), (18, 0, b""), (3, 1, bytes(4))):
        case = Case(f"API {key}", "many", version, frame(key, version, body) * 3000)
        assert excess(broker, case) is None


def test_request_of_null_partitions_only(broker: MeasuredBroker) -> None:
    """16 MB that listed 2.7 million partitions without a batch held the event loop for 54 s."""
    count = 2_700_000
    body = b"\0\xff\xff\0\0\0\0\2" + b"\2t" + uvarint(count + 1) + bytes(6 * count) + bytes(2)
    assert excess(broker, Case("null partitions", "Produce", 9, frame(0, 9, body))) is None


def test_request_of_topics_without_partitions(broker: MeasuredBroker) -> None:
    count = 90_000
    topic = uvarint(61) + b"t" * 60 + b"\1\0"
    body = b"\0\xff\xff\0\0\0\0" + uvarint(count + 1) + topic * count + b"\0"
    assert excess(broker, Case("topics only", "Produce", 9, frame(0, 9, body))) is None


@pytest.mark.slow
@pytest.mark.parametrize("count", [MAX_RECORD_HEADERS, 20_000_000])
def test_record_with_many_headers(broker: MeasuredBroker, count: int) -> None:
    fields = b"\0\0\0\1\1" + uvarint(2 * count) + b"\0\1" * count
    batch = bytearray(build([(None, b"")], timestamp_ms=1_700_000_000_000))[:HEAD_BYTES]
    batch += bytes(compress(ZSTD, uvarint(2 * len(fields)) + fields))
    assert excess(broker, packed_case("headers", batch, ZSTD)) is None


@pytest.mark.slow
@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_compressed_batch_of_empty_members(broker: MeasuredBroker, codec: int) -> None:
    batch = bytearray(build([(None, b"")], timestamp_ms=1_700_000_000_000))[:HEAD_BYTES]
    member = bytes(compress(codec, b""))
    batch += member * (900_000 // len(member))
    assert excess(broker, packed_case("empty members", batch, codec)) is None


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
def test_batch_of_a_megabyte(broker: MeasuredBroker, codec: int) -> None:
    rng = random.Random(codec)
    values = [(None, bytes(rng.choices(b"abcdefghijkl", k=1000))) for _ in range(1000)]
    batch = bytearray(build(values, timestamp_ms=1_700_000_000_000, codec=codec))
    assert excess(broker, packed_case("a megabyte", batch, codec)) is None


@pytest.mark.slow
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("size", [MAX_BYTES_AT_ONCE - 1000, 100 << 20])
def test_batch_that_unpacks_to_many_times_its_size(
    broker: MeasuredBroker, codec: int, size: int
) -> None:
    """As the only one of a request, and as that of 60 partitions."""
    batch = bytearray(build([(None, b"")] * 9, timestamp_ms=1_700_000_000_000))[:HEAD_BYTES]
    batch += bytes(compress(codec, bytes(size)))
    for partitions in (1, 60) if len(batch) < 1 << 16 else (1,):
        case = packed_case(f"{size} bytes", batch, codec, partitions)
        assert excess(broker, case) is None


@pytest.mark.slow
@pytest.mark.parametrize("packed", [575_000, 900_000])
def test_batch_of_short_copies_of_snappy(broker: MeasuredBroker, packed: int) -> None:
    batch = bytearray(build([(None, b"")] * 9, timestamp_ms=1_700_000_000_000))[:HEAD_BYTES]
    copies = packed // 3
    batch += uvarint(copies + 1) + b"\0A" + b"\2\1\0" * copies
    assert excess(broker, packed_case(f"{copies} copies", batch, SNAPPY)) is None


def packed_case(name: str, batch: bytearray, codec: int, partitions: int = 1) -> Case:
    """A Produce of a batch whose records are packed already."""
    batch[22] = codec
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    resum(batch, 0, len(batch))
    rows = [PartitionProduceData(index, bytes(batch)) for index in range(partitions)]
    data = TopicProduceData(name=TOPIC, partition_data=rows)
    body = encode(ProduceRequest(acks=-1, topic_data=[data]), 9)
    return Case(f"{name}, codec {codec}", "Produce", 9, frame(0, 9, body))
