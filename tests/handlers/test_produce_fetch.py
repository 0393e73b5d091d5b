"""Produce and Fetch through a socket, in every version.

Covers: kafkawire.handlers.produce.ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.fetch.handler import Fetch
from kafkawire.handlers.table import Unmade
from kafkawire.log.io.ports import LogError
from kafkawire.messages.fetch import FetchRequest
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce, values
from tests.kit.server import port_of, running
from tests.kit.waiting import WITHIN_S, until


@pytest.fixture(params=["commit", "os"])
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    async with running(tmp_path / "data", flush=request.param) as started:
        yield started


@pytest.mark.parametrize("acks", [1, -1])
async def test_produced_records_are_fetched_in_every_version(client: Client, acks: int) -> None:
    for version in range(3, 14):
        await check_version(client, f"t{version}", version, acks)


async def check_version(client: Client, name: str, version: int, acks: int) -> None:
    """Produce to a new topic and fetch, in one version of the request."""
    topic_id = await make(client, name)
    topic: str | bytes = topic_id if version >= 13 else name
    for n in range(3):
        answer = await client.call(produce(topic, batch(b"%d" % n, b"x"), acks=acks), version)
        row = answer.responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (0, 2 * n)
    fetch_version = min(version + 5, 18)
    asked = fetch(topic_id if fetch_version >= 13 else name, 0, wait_ms=5000)
    asked.min_bytes = 3 * len(batch(b"0", b"x"))
    got = (await client.call(asked, fetch_version)).responses[0].partitions[0]
    assert got.error_code == 0
    assert values(got) == [b"0", b"x", b"1", b"x", b"2", b"x"]
    assert got.high_watermark == 6


async def test_acks_0_is_stored_without_response(client: Client) -> None:
    await make(client, "t")
    client.send(produce("t", batch(b"a"), acks=0), 9, answered=False)
    latest = await client.call(latest_offset("t"), 7)
    assert latest.topics[0].partitions[0].offset == 1


def latest_offset(topic: str) -> ListOffsetsRequest:
    row = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[row])])


async def test_refused_produce_with_acks_0_closes_connection(client: Client) -> None:
    client.send(produce("nowhere", batch(b"a"), acks=0), 9, answered=False)
    assert await client.reader.read() == b""


async def test_fetch_after_pipelined_produce_returns_its_records(client: Client) -> None:
    await make(client, "t")
    for n in range(20):
        client.send(produce("t", batch(b"x"), acks=1), 9)
        client.send(latest_offset("t"), 7)
        await client.receive()
        assert (await client.receive()).topics[0].partitions[0].offset == n + 1


async def test_parked_fetch_is_answered_after_produce(server: Server, client: Client) -> None:
    await make(client, "t")
    other = await Client.connect(port_of(server))
    client.send(fetch("t", 0, wait_ms=30_000), 11)
    await client.writer.drain()
    handler = await fetch_handler(server)
    await until(lambda: bool(handler.context.parked))
    await other.call(produce("t", batch(b"a"), acks=1), 9)
    got = await asyncio.wait_for(client.receive(), WITHIN_S)
    assert values(got.responses[0].partitions[0]) == [b"a"]
    await other.close()


async def fetch_handler(server: Server) -> Fetch:
    """The Fetch handler, once a request has created it."""
    await until(lambda: isinstance(server.host.apis[1].hot, Fetch))
    handler = server.host.apis[1].hot
    assert isinstance(handler, Fetch)
    return handler


async def test_hot_handler_is_created_by_first_request(server: Server, client: Client) -> None:
    for key in (0, 1, 12):
        assert isinstance(server.host.apis[key].hot, Unmade)
    await make(client, "t")
    assert (await client.call(produce("t", batch(b"a")), 9)).responses[0].name == "t"
    assert type(server.host.apis[0].hot).__name__ == "Produce"
    assert isinstance(server.host.apis[1].hot, Unmade)
    assert values((await client.call(fetch("t", 0), 11)).responses[0].partitions[0]) == [b"a"]
    assert isinstance(server.host.apis[1].hot, Fetch)


async def test_disconnected_client_releases_memory_of_waiting_fetch(
    server: Server, client: Client
) -> None:
    """The response at the deadline holds views although min_bytes was not reached, and no client
    takes them."""
    await make(client, "t")
    await client.call(produce("t", batch(b"a")), 9)
    going = await Client.connect(port_of(server))
    asked = fetch("t", 0, wait_ms=1500)  # parked long enough to be observed on a busy machine
    asked.min_bytes = 1 << 20
    going.send(asked, 12)
    handler = await fetch_handler(server)
    await until(lambda: bool(handler.context.parked))
    await going.close()
    await until(lambda: not handler.context.parked)
    assert [journal.pins for journal in server.broker.log.journals] == [0]


async def test_parked_fetch_is_dropped_when_client_disconnects(
    server: Server, client: Client
) -> None:
    await make(client, "t")
    gone = await Client.connect(port_of(server))
    gone.send(fetch("t", 0, wait_ms=2**31 - 1), 11)
    await gone.writer.drain()
    handler = await fetch_handler(server)
    await until(lambda: bool(handler.context.parked))
    await gone.close()
    await until(lambda: not handler.context.parked)
    assert not server.broker.table.find_by_name("t", 0).watchers


async def test_parked_fetch_is_answered_at_max_wait(client: Client) -> None:
    await make(client, "t")
    got = await client.call(fetch("t", 0, wait_ms=50), 11)
    row = got.responses[0].partitions[0]
    assert (row.error_code, row.high_watermark, values(row)) == (0, 0, [])


@pytest.mark.parametrize(
    ("asked", "version", "code"),
    [
        (fetch("none", 0), 11, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (fetch(b"i" * 16, 0), 13, ErrorCode.UNKNOWN_TOPIC_ID),
        (fetch("t", 0, partition=7), 11, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (fetch("t", 0, partition=-1), 11, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (fetch("t", 5), 11, ErrorCode.OFFSET_OUT_OF_RANGE),
        (fetch("t", -1), 11, ErrorCode.OFFSET_OUT_OF_RANGE),
        (fetch("t", 0, current_leader_epoch=99), 11, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_fetch_errors(
    client: Client, asked: FetchRequest, version: int, code: ErrorCode
) -> None:
    await make(client, "t")
    asked.max_wait_ms = 30_000  # an error does not wait
    got = await asyncio.wait_for(client.call(asked, version), 10)
    assert got.responses[0].partitions[0].error_code == code


def broken(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


@pytest.mark.parametrize(
    ("raw", "acks", "code"),
    [
        (batch(b"a"), 2, ErrorCode.INVALID_REQUIRED_ACKS),
        (broken(batch(b"a")), -1, ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a") * 2, -1, ErrorCode.INVALID_RECORD),
        (b"", -1, ErrorCode.INVALID_RECORD),
        (
            batch(b"a", attributes=16, producer_id=1, producer_epoch=0, base_sequence=0),
            -1,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (batch(b"x" * 2_000_000), -1, ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["acks 2", "wrong CRC", "two batches", "no batch", "transactional", "too large"],
)
async def test_produce_errors_write_nothing(
    client: Client, raw: bytes, acks: int, code: ErrorCode
) -> None:
    await make(client, "t")
    answer = await client.call(produce("t", raw, acks=acks), 9)
    row = answer.responses[0].partition_responses[0]
    assert (row.error_code, row.base_offset) == (code, -1)
    latest = await client.call(latest_offset("t"), 7)
    assert latest.topics[0].partitions[0].offset == 0


async def test_invalid_batch_does_not_affect_other_partitions(client: Client) -> None:
    await make(client, "t", 3)
    asked = produce("t", batch(b"a"), broken(batch(b"b")), batch(b"c"))
    rows = (await client.call(asked, 9)).responses[0].partition_responses
    assert [row.error_code for row in rows] == [0, ErrorCode.CORRUPT_MESSAGE, 0]


async def test_produce_to_internal_topic_is_refused(server: Server) -> None:
    client = await Client.connect(port_of(server))
    from kafkawire.messages.find_coordinator import FindCoordinatorRequest

    await client.call(FindCoordinatorRequest(key="g"), 1)
    answer = await client.call(produce("__consumer_offsets", batch(b"a")), 9)
    code = answer.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.INVALID_TOPIC_EXCEPTION
    await client.close()


async def test_idempotent_retry_is_stored_once(client: Client) -> None:
    await make(client, "t")
    raw = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    for _ in range(3):
        answer = await client.call(produce("t", raw), 9)
        assert answer.responses[0].partition_responses[0].base_offset == 0
    latest = await client.call(latest_offset("t"), 7)
    assert latest.topics[0].partitions[0].offset == 1


async def test_max_bytes_holds_except_for_first_batch(client: Client) -> None:
    await make(client, "t")
    raw = batch(b"x" * 1000)
    for _ in range(5):
        await client.call(produce("t", raw), 9)
    row = (await client.call(fetch("t", 0, partition_max_bytes=1), 11)).responses[0].partitions[0]
    assert len(row.records) == len(raw)
    size = 2 * len(raw) + 10
    row = (await client.call(fetch("t", 0, partition_max_bytes=size), 11)).responses[0]
    assert len(row.partitions[0].records) == 2 * len(raw)
    middle = (await client.call(fetch("t", 3), 11)).responses[0].partitions[0]
    assert len(middle.records) == 2 * len(raw)


@pytest.mark.slow
async def test_records_are_there_after_restart(tmp_path: Path) -> None:
    sent: list[bytes] = []
    for life in range(3):
        async with running(tmp_path / "data") as server:
            client = await Client.connect(port_of(server))
            if not life:
                await make(client, "t")
            got = (await client.call(fetch("t", 0), 11)).responses[0].partitions[0]
            assert values(got) == sent
            for n in range(50):
                sent.append(b"%d-%d" % (life, n))
                await client.call(produce("t", batch(sent[-1])), 9)
            await client.close()


async def test_close_answers_parked_fetches(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        client.send(fetch("t", 0, wait_ms=60_000), 11)
        await client.writer.drain()
        handler = await fetch_handler(server)
        await until(lambda: bool(handler.context.parked))
        closing = asyncio.ensure_future(server.close())
        got = await asyncio.wait_for(client.receive(), WITHIN_S)
        assert got.responses[0].partitions[0].error_code == 0
        await closing
        await client.close()


async def test_garbage_closes_its_own_connection_only(server: Server, client: Client) -> None:
    await make(client, "t")
    bad = await Client.connect(port_of(server))
    bad.writer.write(b"\x00\x00\x00\x20" + b"\xff" * 32)
    assert await bad.reader.read() == b""
    await bad.close()
    answer = await client.call(produce("t", batch(b"a")), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


async def test_second_process_on_data_folder_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as server:
        with pytest.raises(LogError, match="another kafkawire process uses"):
            async with running(tmp_path / "data"):
                pass
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await client.close()
