"""Batches and requests that no client library sends, written by hand.

Each row has Apache Kafka 4.3.1's error code and, where we differ on purpose, ours: the table is the
list of those differences.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafkawire.client.connection import ClientConnection
from kafkawire.codec import batches
from kafkawire.codec.batches import Record, build, pack
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.fetch import FetchRequest
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.real.conftest import OTHER_BROKER, MakeTopic

PRODUCE = 0
FETCH = 1
NOW = int(time.time() * 1000)
HOUR = 3_600_000
E = ErrorCode
NOT_YET = (E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_OR_PARTITION)
Change = Callable[[bytearray], object]


@pytest.fixture
def connection(bootstrap: str) -> Iterator[ClientConnection]:
    made = ClientConnection(*address(bootstrap))
    yield made
    made.close()


def address(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


def send(connection: ClientConnection, topic: str, records: Any, **options: int) -> Any:
    """The one partition's response."""
    partition = PartitionProduceData(index=options.get("partition", 0), records=records)
    request = ProduceRequest(
        acks=options.get("acks", -1),
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[partition])],
    )
    for _ in range(600):  # in Kafka the leader of a new topic receives it a little later
        answer = connection.request(PRODUCE, request, at_most=options.get("version", 12))
        found = answer.responses[0].partition_responses[0]
        if options.get("known") or found.error_code not in NOT_YET:
            break
        time.sleep(0.1)
    return found


def three(**options: Any) -> bytearray:
    return build([(b"k", b"v")] * 3, timestamp_ms=NOW, **options)


def put(at: int, size: int, value: int, base: Callable[[], bytearray] = three) -> bytearray:
    batch = base()
    batch[at : at + size] = value.to_bytes(size, "big", signed=value < 0)
    batches.resum(batch, 0, len(batch))
    return batch


def bad_sum() -> bytearray:
    batch = three()
    batch[17] ^= 1
    return batch


def wrong_delta() -> bytearray:
    return put(23, 4, 1, lambda: pack([Record(0, NOW, b"a", b""), Record(2, NOW, b"b", b"")]))


def garbage(codec: int) -> bytearray:
    batch = three(codec=codec)
    batch[61:] = bytes(len(batch) - 61)
    batches.resum(batch, 0, len(batch))
    return batch


# name, batch, Kafka's code, ours where it differs
BATCHES: list[tuple[str, bytes | bytearray, ErrorCode, ErrorCode | None]] = [
    ("sound", three(), E.NONE, None),
    ("a base offset", put(0, 8, 3), E.INVALID_RECORD, None),
    ("format 0", put(16, 1, 0), E.INVALID_RECORD, None),
    ("format 1", put(16, 1, 1), E.INVALID_RECORD, None),
    ("format 3", put(16, 1, 3), E.CORRUPT_MESSAGE, None),
    ("control", put(22, 1, 0x20), E.INVALID_RECORD, None),
    ("horizon bit", put(22, 1, 0x40), E.NONE, None),
    ("unused bits", put(21, 2, 0x7F80), E.NONE, None),
    ("last delta too large", put(23, 4, 3), E.INVALID_RECORD, None),
    ("last delta negative", put(23, 4, -1), E.INVALID_RECORD, None),
    ("count zero", put(57, 4, 0), E.INVALID_RECORD, None),
    ("count negative", put(57, 4, -3), E.INVALID_RECORD, None),
    ("producer without sequence", put(43, 8, 9), E.INVALID_RECORD, None),
    ("length too small", put(8, 4, 48), E.CORRUPT_MESSAGE, None),
    ("length negative", put(8, 4, -1), E.CORRUPT_MESSAGE, None),
    ("length too large", put(8, 4, 1 << 30), E.INVALID_RECORD, None),
    ("checksum", bad_sum(), E.CORRUPT_MESSAGE, None),
    ("nothing", b"", E.INVALID_RECORD, None),
    ("two batches", three() + three(), E.INVALID_RECORD, None),
    ("cut in the head", three()[:30], E.INVALID_RECORD, None),
    ("cut in the records", three()[:-1], E.INVALID_RECORD, None),
    ("records of zeros", garbage(0), E.INVALID_RECORD, None),
    ("too large", build([(b"k", bytes(1_048_600))], timestamp_ms=NOW), E.MESSAGE_TOO_LARGE, None),
    ("future", build([(b"k", b"v")], timestamp_ms=NOW + 48 * HOUR), E.INVALID_TIMESTAMP, None),
    ("no timestamp", build([(b"k", b"v")], timestamp_ms=-1), E.NONE, None),
    # Where we differ: stricter, or with a code that says more.
    ("bytes after the batch", three() + b"\0", E.NONE, E.INVALID_RECORD),
    ("wrong offset delta", wrong_delta(), E.NONE, E.INVALID_RECORD),
    ("log append time bit", put(22, 1, 0x08), E.NONE, E.INVALID_TIMESTAMP),
    ("codec 5", put(22, 1, 5), E.UNKNOWN_SERVER_ERROR, E.UNSUPPORTED_COMPRESSION_TYPE),
    ("damaged gzip", garbage(1), E.UNKNOWN_SERVER_ERROR, E.INVALID_RECORD),
    ("damaged snappy", garbage(2), E.UNKNOWN_SERVER_ERROR, E.INVALID_RECORD),
    ("damaged lz4", garbage(3), E.UNKNOWN_SERVER_ERROR, E.INVALID_RECORD),
    ("damaged zstd", garbage(4), E.UNKNOWN_SERVER_ERROR, E.INVALID_RECORD),
    ("transactional", put(22, 1, 0x10), E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None),
]


@pytest.mark.parametrize(
    ("batch", "kafkas", "ours"), [row[1:] for row in BATCHES], ids=[row[0] for row in BATCHES]
)
def test_invalid_batches_are_refused_with_kafkas_code(
    connection: ClientConnection,
    make_topic: MakeTopic,
    batch: bytes | bytearray,
    kafkas: ErrorCode,
    ours: ErrorCode | None,
) -> None:
    topic = make_topic()
    expected = kafkas if OTHER_BROKER or ours is None else ours
    answer = send(connection, topic, batch)
    assert ErrorCode(answer.error_code) is expected
    assert answer.base_offset == (0 if expected is E.NONE else -1)
    # Nothing of a refused batch is stored, and the partition is still usable.
    after = send(connection, topic, three())
    assert (after.error_code, after.base_offset) == (
        0,
        stored(batch) if answer.base_offset == 0 else 0,
    )


def stored(batch: bytes | bytearray) -> int:
    return batches.read_head(batch).count


def test_invalid_records_are_named(connection: ClientConnection, make_topic: MakeTopic) -> None:
    pairs = [(b"k", b"v"), (None, b"v"), (b"k", b"v"), (None, b"v")]
    compacted = make_topic(cleanup_policy="compact")
    for codec in range(5):
        answer = send(connection, compacted, build(pairs, timestamp_ms=NOW, codec=codec))
        assert ErrorCode(answer.error_code) is E.INVALID_RECORD
        assert [row.batch_index for row in answer.record_errors] == [1, 3]
        assert answer.error_message
    times = [NOW, NOW + 3 * HOUR, NOW]
    batch = pack([Record(i, t, b"k", b"v") for i, t in enumerate(times)])
    answer = send(connection, make_topic(suffix="-t"), batch)
    assert ErrorCode(answer.error_code) is E.INVALID_TIMESTAMP
    assert [row.batch_index for row in answer.record_errors] == [1]


def test_zstd_below_produce_v7_is_refused(
    connection: ClientConnection, make_topic: MakeTopic
) -> None:
    batch = three(codec=4)
    answer = send(connection, make_topic(), batch, version=6)
    assert ErrorCode(answer.error_code) is E.UNSUPPORTED_COMPRESSION_TYPE


def test_missing_topics_and_partitions_are_refused(
    connection: ClientConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    assert send(connection, topic, three()).base_offset == 0
    answer = send(connection, topic, three(), partition=7, known=1)
    assert ErrorCode(answer.error_code) is E.UNKNOWN_TOPIC_OR_PARTITION
    answer = send(connection, topic + "-none", three(), known=1)
    assert ErrorCode(answer.error_code) is E.UNKNOWN_TOPIC_OR_PARTITION
    answer = send(connection, topic, three(), acks=2)
    assert ErrorCode(answer.error_code) is E.INVALID_REQUIRED_ACKS
    assert send(connection, topic, three()).base_offset == 3


def test_wrong_newest_timestamp_in_header_is_corrected(
    connection: ClientConnection, make_topic: MakeTopic, bootstrap: str
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    topic = make_topic()
    assert send(connection, topic, put(35, 8, NOW + 30 * HOUR)).error_code == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, NOW + 1)], 10)
    consumer.close()
    assert found.offset == -1


def raw(bootstrap: str, data: bytes, limit_s: float = 60) -> bytes:
    """The bytes received until the broker closes or has sent one whole frame."""
    with socket.create_connection(address(bootstrap), limit_s) as connection:
        connection.sendall(data)
        received = b""
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            part = connection.recv(65536)
            if not part:
                break
            received += part
        return received


def frame(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">i", len(body)) + body


def test_unknown_api_versions_version_is_answered_in_v0(bootstrap: str) -> None:
    """KIP-511; Java 4.4 depends on it. The body is not parsed: here it is garbage."""
    answer = raw(bootstrap, frame(struct.pack(">hhih", 18, 99, 7, -1), b"\0" + b"\xff" * 40))
    _, correlation, code, count, key, _, newest = struct.unpack_from(">iihihhh", answer)
    assert (correlation, code, count, key) == (7, 35, 1, 18)
    assert newest >= 4


@pytest.mark.parametrize(
    "data",
    [
        frame(struct.pack(">hhih", 3, 99, 7, -1)),
        frame(struct.pack(">hhih", 999, 0, 7, -1)),
        frame(b""),
        struct.pack(">i", -5),
        struct.pack(">i", 0x7FFFFFFF),
        b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    ],
    ids=["version", "api", "empty", "negative", "huge", "http"],
)
def test_garbage_closes_its_own_connection_only(bootstrap: str, data: bytes) -> None:
    assert raw(bootstrap, data) == b""
    assert raw(bootstrap, frame(struct.pack(">hhih", 18, 0, 1, -1)))[4:8] == b"\0\0\0\x01"


def test_unknown_fetch_session_is_refused(
    connection: ClientConnection,
) -> None:
    """A client whose session was another broker's sends no partitions: it must get an error."""
    for session_id, epoch in ((77, 3), (0, 5)):
        request = FetchRequest(max_bytes=1 << 20, session_id=session_id, session_epoch=epoch)
        answer = connection.request(FETCH, request, at_most=12)
        assert ErrorCode(answer.error_code) is E.FETCH_SESSION_ID_NOT_FOUND
