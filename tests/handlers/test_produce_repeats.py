"""Produces that repeat one another: handled in rows, answered as if each had been sent alone.

Covers: kafkawire.handlers.produce.repeat.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from kafkawire.codec.compile import DecodeError, encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.schema import info_of
from kafkawire.handlers.produce.shape import KNOWN_BYTES_MAX, SHARED_MAX, Shape, Shapes
from kafkawire.log.append.commit_log import MANY_REQUESTS
from kafkawire.log.io.disk import DiskFile, SystemClock
from kafkawire.log.io.ports import Buffer
from kafkawire.log.io.slices import run_at_once
from kafkawire.messages.delete_topics import DeleteTopicsRequest
from kafkawire.messages.flat_produce import ProduceAsk, read_request
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.server.connection import Connection
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.connections import FakeWire
from tests.kit.produce_fetch import fetch, make, produce, values
from tests.kit.server import port_of, running
from tests.kit.waiting import until

TOPIC_ID = bytes(range(16))
PRODUCE = info_of(ProduceRequest)
VERSIONS = range(PRODUCE.min_version, PRODUCE.max_version + 1)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path / "data", flush="os") as started:
        yield started


async def warm(client: Client, topic: str | bytes, version: int, acks: int = 1) -> None:
    """Send two identical requests: from the third on they are handled as repetitions."""
    for _ in range(2):
        row = await produced(client, produce(topic, batch(b"w"), acks=acks), version)
        assert row.error_code == 0


async def produced(client: Client, request: ProduceRequest, version: int) -> Any:
    answer = await client.call(request, version)
    return answer.responses[0].partition_responses[0]


async def rows_of(client: Client, count: int) -> list[Any]:
    answers = [await client.receive() for _ in range(count)]
    return [answer.responses[0].partition_responses[0] for answer in answers]


async def test_many_connections_are_answered_before_end_of_iteration(
    server: Server, client: Client
) -> None:
    await make(client, "topic", 4)
    wires = []
    for _ in range(3 * MANY_REQUESTS - 1):
        wires.append(FakeWire())
        connection = Connection(server.host, wires[-1], "", "")
        data = request(9, batch(b"x" * 200))
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
    answered = [bool(wire.sent) for wire in wires]
    assert answered[:MANY_REQUESTS] == [True] * MANY_REQUESTS
    assert not answered[-1]
    await until(lambda: bool(wires[-1].sent))
    assert all(wire.sent for wire in wires)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
async def test_repeated_produces_are_answered_and_stored_one_by_one(
    client: Client, version: int, acks: int
) -> None:
    topic_id = await make(client, "t", 2)
    topic: str | bytes = topic_id if version >= 13 else "t"
    await warm(client, topic, version, acks)
    sent: list[tuple[int, bytes]] = []
    for n in range(150):
        index, value = n // 3 % 2, bytes([n]) * (1, 60, 200, 20_000)[n % 4]
        client.send(produce(topic, batch(value), acks=acks, index=index), version)
        sent.append((index, value))
    ends = [2, 0]
    for (index, _), row in zip(sent, await rows_of(client, len(sent)), strict=True):
        assert (row.index, row.error_code, row.base_offset) == (index, 0, ends[index])
        ends[index] += 1
    asked = fetch(topic_id, 0)
    asked.max_bytes = asked.topics[0].partitions[0].partition_max_bytes = 8 << 20
    got = (await client.call(asked, 13)).responses[0].partitions[0]
    assert values(got) == [b"w", b"w", *(value for index, value in sent if index == 0)]


async def test_refused_batch_in_row_gets_its_error(client: Client) -> None:
    await make(client, "t")
    await warm(client, "t", 9)
    broken = bytearray(batch(b"broken"))
    broken[-1] ^= 1
    for body in (batch(b"a"), batch(b"b"), bytes(broken), batch(b"c"), b"", batch(b"d")):
        client.send(produce("t", body), 9)
    rows = await rows_of(client, 6)
    codes = [row.error_code for row in rows]
    assert codes == [0, 0, ErrorCode.CORRUPT_MESSAGE, 0, ErrorCode.INVALID_RECORD, 0]
    assert [row.base_offset for row in rows if not row.error_code] == [2, 3, 4, 5]


async def test_repeated_produces_with_acks_0_get_no_response(
    client: Client, server: Server
) -> None:
    topic_id = await make(client, "t")
    for n in range(20):
        client.send(produce("t", batch(b"%d" % n), acks=0), 9, answered=False)
    assert (await produced(client, produce("t", batch(b"end"), acks=1), 9)).base_offset == 20
    client.send(produce("t", batch(b"20"), acks=0), 9, answered=False)
    client.send(produce("t", b"garbage", acks=0), 9, answered=False)
    assert await client.reader.read() == b""
    other = await Client.connect(port_of(server))
    got = (await other.call(fetch(topic_id, 0), 13)).responses[0].partitions[0]
    assert values(got)[-2:] == [b"end", b"20"]
    await other.close()


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("acks", [1, -1])
async def test_failed_write_fails_whole_row(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch, version: int, acks: int
) -> None:
    await make(client, "t", 2)
    await warm(client, "t", version, acks)
    write = DiskFile.pwritev

    def full(self: DiskFile, buffers: Sequence[Buffer], position: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(DiskFile, "pwritev", full)
    for n in range(10):
        client.send(produce("t", batch(b"x"), acks=acks, index=n % 2), version)
    for n, row in enumerate(await rows_of(client, 10)):
        assert (row.index, row.base_offset) == (n % 2, -1)
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "no room" in row.error_message
    monkeypatch.setattr(DiskFile, "pwritev", write)
    assert server.host.memory.arena.pins == 0
    row = await produced(client, produce("t", batch(b"y"), acks=acks), version)
    assert (row.error_code, row.base_offset) == (0, 2)


async def test_failed_write_of_acks_0_row_closes_connection(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(client, "t")
    for _ in range(3):
        client.send(produce("t", batch(b"x"), acks=0), 9, answered=False)
    assert (await produced(client, produce("t", batch(b"x"), acks=1), 9)).base_offset == 3

    def full(self: DiskFile, buffers: Sequence[Buffer], position: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(DiskFile, "pwritev", full)
    for _ in range(5):
        client.send(produce("t", batch(b"x"), acks=0), 9, answered=False)
    assert await client.reader.read() == b""
    assert server.host.memory.arena.pins == 0


async def test_idempotent_retries_in_rows_get_original_offsets(client: Client) -> None:
    """Retries get the offset of the original, also those of the same row; gaps are refused."""
    await make(client, "t")
    more = {"producer_id": 7, "producer_epoch": 0}
    sequences = [0, 1, 2, 1, 3, 3, 9, 4]
    for sequence in sequences:
        client.send(produce("t", batch(b"x", base_sequence=sequence, **more), acks=1), 9)
    rows = await rows_of(client, len(sequences))
    gap = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    results = [row.error_code or row.base_offset for row in rows]
    assert results == [0, 1, 2, 1, 3, 3, gap, 4]


async def test_topic_recreated_between_repetitions(client: Client) -> None:
    await make(client, "t")
    await warm(client, "t", 9)
    await client.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000), 5)
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for _ in range(3):
        assert (await produced(client, produce("t", batch(b"x"), acks=1), 9)).error_code == gone
    await make(client, "t")
    for n in range(3):
        row = await produced(client, produce("t", batch(b"x"), acks=1), 9)
        assert (row.error_code, row.base_offset) == (0, n)
    assert (
        await produced(client, produce("t", batch(b"x"), acks=1, index=1), 9)
    ).error_code == gone


async def test_clock_advances_after_refused_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written for it, so no write batch begins after it."""
    hour_ms = 3_600_000
    now_ms = 1_700_000_000_000
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: now_ms)
    async with running(tmp_path / "data", flush="os") as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        for n in range(5):
            late = produce("t", batch(b"x", timestamp_ms=now_ms + hour_ms + 1), acks=1)
            assert (await produced(client, late, 9)).error_code == ErrorCode.INVALID_TIMESTAMP
            now_ms += 2 * hour_ms
            row = await produced(client, produce("t", batch(b"x", timestamp_ms=now_ms), acks=1), 9)
            assert (row.error_code, row.base_offset) == (0, n)
        await client.close()


async def test_rows_respect_limits_of_requests_in_flight(client: Client) -> None:
    await make(client, "t")
    await warm(client, "t", 7)
    for n in range(1000):
        client.send(produce("t", batch(b"%d" % n), acks=-1), 7)
    async with asyncio.timeout(90):
        rows = await rows_of(client, 1000)
    assert [row.base_offset for row in rows] == list(range(2, 1002))


async def test_other_requests_between_repetitions_keep_order(client: Client) -> None:
    """Order is kept: a Fetch returns the records of the Produces before it."""
    topic_id = await make(client, "t")
    await warm(client, "t", 9)
    for n in range(10):
        client.send(produce("t", batch(b"%d" % n), acks=1), 9)
        asked = fetch(topic_id, 2 + n, wait_ms=5000)
        client.send(asked, 13)
    for n in range(10):
        assert (await rows_of(client, 1))[0].base_offset == 2 + n
        assert values((await client.receive()).responses[0].partitions[0])[0] == b"%d" % n


# -- the shape itself


def request(version: int, body: bytes, *, index: int = 3, acks: int = 1, tag: bytes = b"") -> bytes:
    """A whole frame as clients send it; `tag` replaces the tag section at its end."""
    data = TopicProduceData(name="topic", partition_data=[PartitionProduceData(index, body)])
    if version >= 13:
        data = TopicProduceData(topic_id=TOPIC_ID, partition_data=data.partition_data)
    raw = encode(ProduceRequest(acks=acks, timeout_ms=100, topic_data=[data]), version)
    if tag:
        raw = raw[:-1] + tag
    head = pack(">hhih", 0, version, 77, 4) + b"test" + (b"\0" if version >= 9 else b"")
    return pack(">i", len(head) + len(raw)) + head + raw


def body_at(version: int) -> int:
    return 14 + 4 + (version >= 9)


def decode(view: memoryview, pos: int, version: int) -> ProduceAsk:
    ask = ProduceAsk()
    run_at_once(read_request(ask, view, pos, len(view), version))
    return ask


def shape_of(version: int, frame: bytes, shapes: Shapes | None = None) -> Shape | None:
    view = memoryview(frame)
    ask = decode(view, body_at(version), version)
    return (shapes or Shapes()).cut(version, view, 0, len(frame), ask.items[0], ask.acks)


@pytest.mark.parametrize("version", VERSIONS)
def test_shape_matches_its_request_with_any_batch_and_partition(version: int) -> None:
    shape = shape_of(version, request(version, b"x" * 100))
    if version < 7:
        assert shape is None
        return
    assert shape is not None
    for size in (0, 1, 126, 127, 128, 16_382, 16_383, 70_000):
        frame = request(version, b"y" * size, index=9)
        view = memoryview(frame + b"next")
        ((number, index, start, stop, last),) = shape.find(view, 0, len(view), 2)
        assert (number, index, last) == (77, 9, len(frame))
        assert frame[start:stop] == b"y" * size
        for end in (0, 5, 20, len(frame) - 1):
            assert shape.find(view[:end], 0, end, 1) == []


def test_row_ends_at_limit_and_before_different_request() -> None:
    frames = [request(9, b"x" * n, index=n) for n in range(5)]
    shape = shape_of(9, frames[0])
    assert shape is not None
    view = memoryview(b"".join([*frames, request(9, b"y", acks=0), frames[0]]))
    assert [found[1] for found in shape.find(view, 0, len(view), 10)] == list(range(5))
    assert [found[1] for found in shape.find(view, 0, len(view), 3)] == list(range(3))


def test_requests_without_shape_are_not_repetitions() -> None:
    assert shape_of(9, request(9, b"x" * 100, tag=b"\1\5\1x")) is None
    shape = shape_of(9, request(9, b"x" * 100))
    assert shape is not None
    tagged = request(9, b"x" * 100, tag=b"\1\5\1x")
    assert shape.find(memoryview(tagged), 0, len(tagged), 1) == []
    other = request(9, b"x" * 100, acks=-1)
    assert shape.find(memoryview(other), 0, len(other), 1) == []
    long = memoryview(bytes(KNOWN_BYTES_MAX + 200))
    assert Shapes().cut(9, long, 0, len(long), ("t", 0, len(long) - 50, len(long) - 3), 1) is None


def test_equal_requests_share_a_shape() -> None:
    shapes = Shapes()
    first = shape_of(9, request(9, b"x" * 100), shapes)
    assert first is not None
    assert shape_of(9, request(9, b"y" * 20_000, index=7), shapes) is first
    assert shape_of(10, request(10, b"x" * 100), shapes) is not first
    assert shape_of(9, request(9, b"x" * 100, acks=-1), shapes) is not first
    assert shape_of(9, request(9, b"x" * 100, tag=b"\1\5\1x"), shapes) is None
    for acks in range(2, SHARED_MAX - 1):
        shape_of(9, request(9, b"x", acks=acks), shapes)
    assert shape_of(9, request(9, b"x"), shapes) is first  # all of them are kept
    shape_of(9, request(9, b"x", acks=SHARED_MAX), shapes)  # one more is not
    again = shape_of(9, request(9, b"x" * 100), shapes)
    assert again is not None
    assert again is not first
    assert again.known == first.known


@pytest.mark.parametrize("version", [7, 9, 13])
def test_shape_match_equals_decoding(version: int) -> None:
    """However a request is changed: if it is handled as a repetition, it is one."""
    rng = random.Random(version)
    sound = request(version, b"x" * 150)
    shape = shape_of(version, sound)
    assert shape is not None
    taken = 0
    for _ in range(3000):
        frame = bytearray(sound)
        for _ in range(rng.randint(1, 2)):
            at = rng.choice((rng.randrange(60), rng.randrange(len(frame)), len(frame) - 1))
            frame[at] = rng.choice((frame[at] ^ 1 << rng.randrange(8), rng.randrange(256)))
        view = memoryview(frame)
        found = shape.find(view, 0, len(frame), 1)
        if not found:
            continue
        taken += 1
        ask = decode(view, body_at(version), version)
        assert (ask.acks, *ask.items) == (1, (shape.topic, *found[0][1:4]))
        assert found[0][4] == len(frame)
    assert taken > 100


def test_garbage_has_no_shape_and_raises_nothing() -> None:
    rng = random.Random(1)
    shape = shape_of(9, request(9, b"x"))
    assert shape is not None
    for _ in range(500):
        view = memoryview(rng.randbytes(rng.randrange(120)))
        assert shape.find(view, 0, len(view), 1) == []
        with pytest.raises(DecodeError):
            decode(view[:11], 0, 9)
