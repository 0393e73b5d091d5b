"""Fetches that a broker answers from segment files: every byte as if it had been read, order, and
memory.

Covers: kafkawire.server.listener, kafkawire.handlers.fetch.request.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from struct import unpack
from typing import Any

import pytest

from kafkawire.codec.fetch import FetchResult
from kafkawire.handlers.fetch.context import FetchContext
from kafkawire.log.io.disk import DiskFile
from kafkawire.log.io.file_span import FileSpan
from kafkawire.log.partition.read_plan import Plan
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.server.connection import Connection
from kafkawire.server.file_sender import FileSender
from kafkawire.server.listener import ClientProtocol
from kafkawire.server.receiving import DRAINING
from kafkawire.server.run import Server
from kafkawire.server.tls_wire import TlsProtocol
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.server import port_of, running
from tests.kit.tls import certificates, client_context
from tests.kit.waiting import until

QUICK_CUTS = {"hot_bytes": str(1 << 20), "cut_interval_ms": "20", "journal_roll_ms": "50"}
COUNT, SIZE = 100, 20_000
PARTITIONS = 3
MIB = 1 << 20


async def cut(server: Server, topic: str, offset: int, partitions: int = 1) -> None:
    """Wait until everything below the offset is in segments."""
    for index in range(partitions):
        partition = server.broker.table.find_by_name(topic, index)
        await until(lambda p=partition: p.cut_offset >= offset, "cut")  # type: ignore[misc]


@pytest.fixture(name="server")
async def filled(tmp_path: Path) -> AsyncIterator[Server]:
    """A broker with three partitions of two MB each in segments."""
    rng = random.Random(2)
    async with running(tmp_path, **QUICK_CUTS) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t", PARTITIONS)
        for _ in range(COUNT):
            rows = [batch(rng.randbytes(SIZE)) for _ in range(PARTITIONS)]
            await client.call(produce("t", *rows), 7)
        await cut(server, "t", COUNT, PARTITIONS)
        await client.close()
        yield server
    assert all(not each.pins for each in server.broker.log.segments.store.by_id.values())


def ask(rng: random.Random) -> FetchRequest:
    """A request for some of the partitions, from anywhere, with any limits."""
    rows = [
        FetchPartition(
            index,
            fetch_offset=rng.randrange(COUNT + 1),
            partition_max_bytes=rng.choice([1, 50_000, 500_000, 3_000_000]),
        )
        for index in rng.sample(range(PARTITIONS), rng.randrange(1, PARTITIONS + 1))
    ]
    topics = [FetchTopic("t", partitions=rows)]
    most = rng.choice([100_000, 1_000_000, 10_000_000])
    level = rng.randrange(2)
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=most, isolation_level=level, topics=topics
    )


async def raw_response(client: Client) -> bytes:
    """The bytes of the next response after its correlation id."""
    (size,) = unpack(">i", await client.reader.readexactly(4))
    client.sent.pop(0)
    return (await client.reader.readexactly(size))[4:]


@pytest.mark.slow
async def test_bytes_sent_from_files_are_those_read_into_memory(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipelined with other requests; the second connection gets the same spans as buffers."""
    spans = 0
    send_file = ClientProtocol.send_file

    def read_instead(protocol: ClientProtocol, span: FileSpan) -> bool:
        nonlocal spans
        if protocol.connection.client_id == "sent":
            spans += 1
            return send_file(protocol, span)
        protocol.write([span.read(0, len(span))])
        return not protocol.connection.waits & DRAINING

    monkeypatch.setattr(ClientProtocol, "send_file", read_instead)
    clients = [await Client.connect(port_of(server), name) for name in ("sent", "read")]
    rng = random.Random(5)
    for _ in range(15):
        requests = [ask(rng) for _ in range(rng.randrange(1, 5))]
        requests.insert(rng.randrange(len(requests)), fetch("absent", 0))
        version = rng.choice([4, 7, 11, 12])
        got = []
        for client in clients:
            for request in requests:
                client.send(request, version)
            got.append([await raw_response(client) for _ in requests])
        assert got[0] == got[1]
    assert spans > 20
    for client in clients:
        await client.close()


@pytest.mark.slow
@pytest.mark.parametrize("cached", [True, False])
async def test_bytes_are_the_same_over_tls(
    tmp_path: Path, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encrypted from files, on the event loop or by threads."""
    if not cached:
        monkeypatch.setattr(DiskFile, "is_cached", lambda *_: False)
    files = {
        "ssl_keystore_location": str(certificates() / "server.pem"),
        "ssl_key_location": str(certificates() / "server.key"),
    }
    spans = 0
    send_file = TlsProtocol.send_file

    def counted(protocol: TlsProtocol, span: FileSpan) -> bool:
        nonlocal spans
        spans += 1
        return send_file(protocol, span)

    monkeypatch.setattr(TlsProtocol, "send_file", counted)
    rng = random.Random(9)
    async with running(tmp_path, ("PLAINTEXT", "TLS"), **QUICK_CUTS, **files) as server:
        plain = await Client.connect(port_of(server))
        secured = await Client.connect(port_of(server, "TLS"), context=client_context())
        await make(plain, "t", PARTITIONS)
        for _ in range(COUNT):
            rows = [batch(rng.randbytes(SIZE)) for _ in range(PARTITIONS)]
            await secured.call(produce("t", *rows), 7)
        await cut(server, "t", COUNT, PARTITIONS)
        for _ in range(15):
            request = ask(rng)
            got = []
            for client in (plain, secured):
                client.send(request, 11)
                got.append(await raw_response(client))
            assert got[0] == got[1]
        assert spans > 10
        for client in (plain, secured):
            await client.close()
        store = server.broker.log.segments.store
        await until(lambda: not any(each.pins for each in store.by_id.values()), "all are released")


@pytest.mark.slow
async def test_bytes_outside_of_the_page_cache_are_sent_by_threads(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a slow reader gets them, another client is served."""
    monkeypatch.setattr(FileSender, "_is_cached", lambda _: False)
    slow, other = [await Client.connect(port_of(server)) for _ in range(2)]
    request = fetch("t", 0, partition_max_bytes=2 * MIB)
    request.max_bytes = 2 * MIB
    slow.send(request, 11)
    assert (await other.call(fetch("absent", 0), 11)).responses[0].partitions[0].error_code
    again = (await other.call(request, 11)).responses[0].partitions[0].records
    first = (await slow.receive()).responses[0].partitions[0].records
    assert bytes(again) == bytes(first)
    assert len(first) > MIB
    for client in (slow, other):
        await client.close()


@pytest.mark.slow
async def test_everything_is_released_if_clients_disconnect_at_any_byte(server: Server) -> None:
    store = server.broker.log.segments.store
    request = fetch("t", 0, partition_max_bytes=2 * MIB)
    request.max_bytes = 2 * MIB
    rng = random.Random(6)
    before = open_sockets()
    for _ in range(20):
        client = await Client.connect(port_of(server))
        client.send(request, 11)
        await client.reader.readexactly(rng.choice([0, 1, 100, rng.randrange(MIB)]))
        client.writer.transport.abort()
    await until(lambda: not server.host.connections, "all are closed")
    await until(lambda: not any(each.pins for each in store.by_id.values()), "all are released")
    assert server.host.answers.held_bytes == 0
    await until(lambda: open_sockets() <= before, "no duplicate is left")


@pytest.mark.slow
async def test_everything_is_released_if_one_of_the_reads_fails(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a defect, before the other reads have ended. The fixture checks the pins."""
    read = FetchContext.read
    read_after = 0

    async def fail(
        self: FetchContext, result: FetchResult, plan: Plan, *args: Any, **more: Any
    ) -> None:
        nonlocal read_after
        if plan.partition.index == 1:
            raise RuntimeError("injected")
        await read(self, result, plan, *args, **more)
        read_after += len(result.records)

    monkeypatch.setattr(FetchContext, "read", fail)
    client = await Client.connect(port_of(server))
    rows = [FetchPartition(n, fetch_offset=0, partition_max_bytes=MIB) for n in range(PARTITIONS)]
    topics = [FetchTopic("t", partitions=rows)]
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await client.call(FetchRequest(min_bytes=1, max_bytes=9 * MIB, topics=topics), 11)
    await client.close()
    await until(lambda: read_after >= 2, "the other reads have ended")
    await until(lambda: server.host.answers.held_bytes == 0, "all memory is released")


@pytest.mark.slow
async def test_stop_cuts_off_a_client_that_does_not_read(server: Server) -> None:
    client = await Client.connect(port_of(server))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    requests = [FetchPartition(n, fetch_offset=0, partition_max_bytes=9 * MIB) for n in range(3)]
    topics = [FetchTopic("t", partitions=requests)]
    for _ in range(3):
        client.send(FetchRequest(min_bytes=1, max_bytes=9 * MIB, topics=topics), 11)
    (connection,) = server.host.connections
    await until(lambda: bool(connection.waits & DRAINING), "it is behind")
    segments = server.broker.log.segments.store.by_id.values()
    assert any(each.pins for each in segments)
    await server.host.drain(0.05)
    await until(lambda: not any(each.pins for each in segments), "all are released")
    assert connection.closed
    client.writer.transport.abort()


@pytest.mark.slow
@pytest.mark.parametrize("why", ["records deleted", "topic deleted", "moved to the tier"])
async def test_response_is_whole_although_its_files_are_to_be_deleted(
    tmp_path: Path, why: str
) -> None:
    """Files that a slow client still receives stay until the last byte has left."""
    settings = {**QUICK_CUTS, "log_segment_delete_delay_ms": "1", "cut_interval_ms": "100"}
    if why == "moved to the tier":
        settings |= {"tier_url": str(tmp_path / "tier"), "tiering_max_lag_ms": "5000"}
        settings |= {"tiering_min_object_bytes": "1"}
        (tmp_path / "tier").mkdir()
    rng = random.Random(8)
    async with running(tmp_path / "data", **settings) as server:
        store = server.broker.log.segments.store
        folder = Path(store.folder)
        admin, slow = [await Client.connect(port_of(server)) for _ in range(2)]
        topic_id = await make(admin, "t")
        for _ in range(3):  # more than the socket takes, in several segments
            for _ in range(200):
                await admin.call(produce("t", batch(rng.randbytes(SIZE))), 7)
            await cut(server, "t", server.broker.table.find_by_name("t", 0).next_offset)
        request = fetch("t", 0, partition_max_bytes=30 * MIB)
        request.max_bytes = 30 * MIB
        admin.send(request, 11)
        whole = await raw_response(admin)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slow.send(request, 11)
        theirs = next(c for c in server.host.connections if c.last_key < 0)
        await until(lambda: bool(theirs.waits & DRAINING), "the response is being sent")
        held = [Path(each.path) for each in store.by_id.values() if each.pins]
        assert held
        if why == "records deleted":
            await admin.call(trim("t", 600), 2)
        elif why == "topic deleted":
            state = DeleteTopicState(name=None, topic_id=topic_id)
            await admin.call(DeleteTopicsRequest([state], [], 30_000), 6)
        else:
            await configure(admin, "t", "local.retention.ms", "1")
        await until(lambda: len([*folder.glob("*.segment")]) <= len(held), "others are deleted")
        assert existing(held) == held
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await raw_response(slow) == whole
        await until(lambda: not existing(held), "these are too")
        for client in (admin, slow):
            await client.close()


def existing(paths: list[Path]) -> list[Path]:
    return [path for path in paths if path.exists()]


def trim(topic: str, offset: int) -> DeleteRecordsRequest:
    row = DeleteRecordsTopic(topic, [DeleteRecordsPartition(0, offset)])
    return DeleteRecordsRequest([row], 10_000)


async def configure(client: Client, topic: str, name: str, value: str) -> None:
    row = AlterConfigsResource(2, topic, [AlterableConfig(name, 0, value)])
    answer = await client.call(IncrementalAlterConfigsRequest([row]), 1)
    assert answer.responses[0].error_code == 0


def open_sockets() -> int:
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found += os.readlink(each).startswith("socket:")
    return found


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.real
async def test_clients_that_never_read_cost_no_memory(tmp_path: Path) -> None:
    """200 of them, and each asks for 55 MB."""
    count, size = 60, 1_000_000
    async with running(tmp_path, **QUICK_CUTS) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t", max_message_bytes="2000000")
        for _ in range(count):
            await client.call(produce("t", batch(bytes(size))), 7)
        await cut(server, "t", count - 2)
        request = fetch("t", 0, partition_max_bytes=55 * MIB)
        request.max_bytes = 55 * MIB
        client.send(request, 11)
        assert len((await client.receive()).responses[0].partitions[0].records) > 50 * MIB
        before = resident_bytes()
        silent = []
        for number in range(200):
            one = await Client.connect(port_of(server), f"silent {number}")
            one.writer.transport.pause_reading()  # type: ignore[attr-defined]
            one.send(request, 11)
            silent.append(one)
        theirs: list[Connection] = []

        def answered() -> bool:
            theirs[:] = [c for c in server.host.connections if "silent" in (c.client_id or "")]
            return len(theirs) == 200 and not any(each.fetching for each in theirs)

        await until(answered, "all have their response")
        long = sum(bool(each.waits & DRAINING) for each in theirs)
        assert long > 100, f"{long} got more than the socket takes: the others were answered less"
        grown = resident_bytes() - before
        unsent = [each.wire.unsent_bytes() + sum(map(len, each.out)) for each in theirs]
        assert sum(unsent) > long * 20 * MIB
        assert server.host.answers.held_bytes < MIB
        assert grown < 50 * MIB, f"it grew by {grown >> 20} MiB"
        for one in silent:
            one.writer.transport.abort()
        await client.close()
        store = server.broker.log.segments.store
        await until(lambda: not any(each.pins for each in store.by_id.values()), "all are released")
