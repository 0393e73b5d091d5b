"""Produces that are served in slices: of many partitions, or with batches of many records.

Covers: kafkawire.handlers.produce.long, kafkawire.log.append.long_batch.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.batches import build
from kafkawire.codec.compression import GZIP, NONE, ZSTD
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.validate import MAX_RECORDS_AT_ONCE
from kafkawire.log.append.long_batch import LongBatches
from kafkawire.log.partition.partition import Inspected
from kafkawire.messages.create_topics import CreateTopicsRequest
from kafkawire.messages.flat_produce import MAX_ITEMS
from kafkawire.messages.produce import PartitionProduceData
from kafkawire.server.run import Server
from tests.handlers.test_produce_fetch import latest_offset
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce, values
from tests.kit.server import port_of
from tests.kit.waiting import until

MANY = MAX_ITEMS * 5
NOW = 1_700_000_000_000
LONG = MAX_RECORDS_AT_ONCE + 1000


def long_batch(count: int = LONG, codec: int = ZSTD, key: bytes | None = b"k") -> bytes:
    return bytes(build([(key, b"")] * count, timestamp_ms=NOW, codec=codec))


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("acks", [1, -1])
async def test_each_of_many_partitions_gets_its_own_result(
    client: Client, version: int, acks: int
) -> None:
    topic_id = await make(client, "t", MANY - 1)  # the last index does not exist
    request = produce(topic_id if version >= 13 else "t", *[batch(b"x")] * MANY, acks=acks)
    rows = request.topic_data[0].partition_data
    rows[3] = PartitionProduceData(3, None)
    rows[4] = PartitionProduceData(4, batch(b"damaged")[:-1])
    for attempt in range(2):
        answer = await client.call(request, version)
        (topic,) = answer.responses
        found = {row.index: (row.error_code, row.base_offset) for row in topic.partition_responses}
        assert found.pop(3) == (ErrorCode.INVALID_RECORD, -1)
        assert found.pop(4) == (ErrorCode.INVALID_RECORD, -1)
        assert found.pop(MANY - 1)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert found == {index: (0, attempt) for index in range(MANY - 1) if index not in (3, 4)}


async def test_pipelined_produce_is_stored_after_long_one(client: Client) -> None:
    await make(client, "t", MANY)
    client.send(produce("t", *[batch(b"first")] * MANY, acks=1), 9)
    client.send(produce("t", batch(b"second"), acks=1, index=MANY - 1), 9)
    client.send(latest_offset("t"), 7)
    answers = [await client.receive() for _ in range(3)]
    assert answers[1].responses[0].partition_responses[0].base_offset == 1
    assert answers[2].topics[0].partitions[0].offset == 1


async def test_acks_0_of_many_partitions_gets_no_response(client: Client) -> None:
    await make(client, "t", MANY)
    client.send(produce("t", *[batch(b"x")] * MANY, acks=0), 9, answered=False)
    latest = await client.call(latest_offset("t"), 7)
    assert latest.topics[0].partitions[0].offset == 1


@pytest.mark.parametrize("codec", [0, GZIP, ZSTD])
async def test_batch_of_many_records_is_validated(client: Client, codec: int) -> None:
    await make(client, "t", cleanup_policy="compact")
    good, keyless = long_batch(codec=codec), long_batch(codec=codec, key=None)
    for raw in (good, keyless, batch(b"no key"), good):
        client.send(produce("t", raw), 9)
    rows = [(await client.receive()).responses[0].partition_responses[0] for _ in range(4)]
    assert [row.error_code for row in rows] == [0, ErrorCode.INVALID_RECORD, 87, 0]
    assert (rows[0].base_offset, rows[3].base_offset) == (0, LONG)
    assert len(rows[1].record_errors) == 1000
    assert f"{LONG} of" in rows[1].error_message
    damaged = bytearray(good)
    damaged[-1] ^= 1
    answer = await client.call(produce("t", bytes(damaged)), 9)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.CORRUPT_MESSAGE


async def test_long_batch_among_other_batches_is_stored(client: Client) -> None:
    await make(client, "t", 3, cleanup_policy="compact")
    short = bytes(build([(b"k", b"v")], timestamp_ms=NOW))
    answer = await client.call(produce("t", short, long_batch(), short), 9)
    rows = answer.responses[0].partition_responses
    assert [(row.index, row.error_code, row.base_offset) for row in rows] == [
        (0, 0, 0), (1, 0, 0), (2, 0, 0),
    ]  # fmt: skip


async def test_record_with_many_headers_is_validated(client: Client) -> None:
    await make(client, "t")
    headers = b"\0\1" * 300_000  # an empty key, no value
    body = b"\0\0\0\1\1" + b"\xc0\xcf\x24" + headers  # no key, no value, 300,000 of them
    size = len(body) << 1
    record = bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80,
                    size >> 21)) + body  # fmt: skip
    raw = bytearray(build([(None, b"")], timestamp_ms=NOW))[:61] + record
    from kafkawire.codec.batches import resum

    raw[8:12] = (len(raw) - 12).to_bytes(4, "big")
    resum(raw, 0, len(raw))
    answer = await client.call(produce("t", bytes(raw)), 9)
    row = answer.responses[0].partition_responses[0]
    assert (row.error_code, row.base_offset) == (0, 0), row.error_message


@pytest.mark.parametrize("validation", ["head", "standard"])
@pytest.mark.parametrize(
    ("sizes", "codec", "code"),
    [
        ([90], ZSTD, ErrorCode.NONE),
        ([80] * 3000, GZIP, ErrorCode.NONE),
        ([91], ZSTD, ErrorCode.INVALID_RECORD),  # the record has 10 bytes more
        ([1] * 3000 + [91], GZIP, ErrorCode.INVALID_RECORD),
        ([1 << 20], ZSTD, ErrorCode.INVALID_RECORD),  # it is not unpacked that far
        ([91], NONE, ErrorCode.NONE),
    ],
)
async def test_records_of_compressed_batches_have_a_limit(
    server: Server, client: Client, validation: str, sizes: list[int], codec: int, code: ErrorCode
) -> None:
    """As in Kafka 4.4 only max.message.bytes limits a record that is not compressed."""
    server.broker.log.commit_log.validation = validation
    await make(client, "t", max_decompressed_message_bytes="100")
    records = [(b"key", bytes(size)) for size in sizes]
    data = bytes(build(records, timestamp_ms=NOW, codec=codec))
    answer = await client.call(produce("t", data), 9)
    assert answer.responses[0].partition_responses[0].error_code == code


@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
async def test_long_batch_is_recompressed(client: Client, codec: str) -> None:
    await make(client, "t", compression_type=codec, message_timestamp_type="LogAppendTime")
    answer = await client.call(produce("t", long_batch(20_000)), 9)
    row = answer.responses[0].partition_responses[0]
    assert row.error_code == 0
    assert row.log_append_time_ms > 0
    asked = fetch("t", 0, wait_ms=5000)
    got = (await client.call(asked, 11)).responses[0].partitions[0]
    assert len(values(got)) == 20_000
    stored = bytes(got.records or b"")
    assert stored[22] & 7 == (GZIP if codec == "gzip" else 0)


async def test_disconnect_during_long_produce_releases_memory(server: Server) -> None:
    client = await Client.connect(port_of(server))
    await make(client, "t", MANY)
    client.send(produce("t", *[batch(b"x")] * MANY), 9)
    await client.writer.drain()
    await client.close()
    other = await Client.connect(port_of(server))
    answer = await other.call(CreateTopicsRequest(topics=[]), 7)
    assert answer.topics == []
    taken = server.host.memory.taken_bytes
    assert taken < 1 << 20
    await other.close()


async def test_memory_of_batch_is_pinned_until_written_if_client_disconnects_during_its_check(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is queued while nothing pins it could be overwritten before it is written."""
    await make(client, "t", 2, cleanup_policy="compact")
    inspect = LongBatches.inspect

    async def inspected(*arguments: Any) -> Inspected:
        found = await inspect(*arguments)
        client.writer.transport.abort()
        await until(lambda: not server.host.connections)
        return found

    monkeypatch.setattr(LongBatches, "inspect", inspected)
    client.send(produce("t", long_batch(), batch(b"never appended")), 9)
    partition = server.broker.table.find_by_name("t", 0)
    await until(lambda: partition.next_offset == LONG)
    assert server.broker.counts.produces == 1, "its memory was registered with the write batch"
    assert server.broker.table.find_by_name("t", 1).next_offset == 0


async def test_log_that_refuses_produces_refuses_those_of_many_partitions(
    client: Client, server: Server
) -> None:
    await make(client, "t", MANY)
    log = server.broker.log.commit_log
    log.refuse_appends("disk", KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full"))
    log.refuse_appends("tier", KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker"))
    for batches in ([batch(b"x")] * MANY, [long_batch(5000)]):
        answer = await client.call(produce("t", *batches), 9)
        rows = answer.responses[0].partition_responses
        assert {row.error_code for row in rows} == {ErrorCode.KAFKA_STORAGE_ERROR}
    log.refuse_appends("disk", None)
    answer = await client.call(produce("t", *[batch(b"x")] * MANY), 9)
    rows = answer.responses[0].partition_responses
    assert {row.error_code for row in rows} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    log.refuse_appends("tier", None)
    answer = await client.call(produce("t", *[batch(b"x")] * MANY), 9)
    rows = answer.responses[0].partition_responses
    assert {(row.error_code, row.base_offset) for row in rows} == {(0, 0)}
