"""Fetches that a broker answers from its journals, by spans of their files.

Covers: kafkawire.log.partition.reader, kafkawire.log.journal.directory.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from struct import pack, unpack

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.log.io.disk import DiskFile
from kafkawire.log.io.file_span import FileSpan
from kafkawire.log.journal import directory
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.server.listener import ClientProtocol
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.server import port_of, running
from tests.kit.waiting import until

MIB = 1 << 20
SIZE = 200_000
"""Bytes of a batch: a fetch of one is sent from the file."""
UNCUT = {"cut_interval_ms": str(1 << 40), "journal_bytes": str(4 * MIB)}
MAPPED = {**UNCUT, "hot_bytes": str(1 << 30)}
COLD = {**UNCUT, "hot_bytes": str(MIB)}


async def fill(client: Client, count: int, topic: str = "t", seed: int = 1) -> list[bytes]:
    """Produce batches of SIZE one by one; return them as a Fetch has them."""
    rng = random.Random(seed)
    sent = [bytearray(batch(rng.randbytes(SIZE))) for _ in range(count)]
    for offset, each in enumerate(sent):
        answer = await client.call(produce(topic, bytes(each)), 9)
        each[:8], each[12:16] = pack(">q", offset), bytes(4)  # as the leader sets them
        assert answer.responses[0].partition_responses[0].base_offset == offset
    return [bytes(each) for each in sent]


async def read_from(client: Client, offset: int, **partition: int) -> tuple[int, bytes]:
    """The error code and records from an offset."""
    answer = await client.call(fetch("t", offset, **partition), 11)
    row = answer.responses[0].partitions[0]
    return row.error_code, bytes(row.records or b"")


@pytest.mark.parametrize("settings", [MAPPED, COLD], ids=["mapped", "cold"])
async def test_long_runs_are_sent_from_journals(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From each offset, in answers of one batch and of many; what is not mapped is not copied."""
    sent = 0
    send_file, read = ClientProtocol.send_file, DiskFile.pread

    def count(protocol: ClientProtocol, span: FileSpan) -> bool:
        nonlocal sent
        sent += len(span)
        return send_file(protocol, span)

    def refuse_copies(file: DiskFile, length: int, position: int) -> bytes:
        assert length < SIZE, "records are read into memory"
        return read(file, length, position)

    monkeypatch.setattr(ClientProtocol, "send_file", count)
    async with running(tmp_path, **settings) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        stored = await fill(client, 60)
        assert len(server.broker.log.journals.by_number) > 2
        monkeypatch.setattr(DiskFile, "pread", refuse_copies)
        for offset in range(60):
            most = random.Random(offset).choice([SIZE + 1000, SIZE * 2, SIZE * 4])
            code, got = await read_from(client, offset, partition_max_bytes=most)
            expected = b"".join(stored[offset:])
            assert code == 0
            assert len(got) >= SIZE
            assert expected.startswith(got)
        assert sent >= 60 * SIZE
        assert not any(journal.pins for journal in server.broker.log.journals)
        await client.close()


async def test_run_that_has_to_be_cut_is_read(tmp_path: Path) -> None:
    """A read that begins within a frame of several batches, and one that ends in it."""
    async with running(tmp_path, **COLD) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        rng = random.Random(3)
        for _ in range(20):  # in one frame each, as far as they arrive together
            for _ in range(4):
                client.send(produce("t", batch(rng.randbytes(SIZE // 4))), 9)
            for _ in range(4):
                await client.receive()
        whole = b""
        while len(whole) < 80 * SIZE // 4:
            code, got = await read_from(client, len(_positions(whole)))
            assert code == 0
            assert got
            whole += got
        for offset in range(0, 80, 3):
            code, got = await read_from(client, offset, partition_max_bytes=SIZE // 2)
            assert code == 0
            assert got == whole[_at(whole, offset) :][: len(got)]
            assert got
        await client.close()


def _at(batches: bytes, offset: int) -> int:
    return _positions(batches)[offset]


def _positions(batches: bytes) -> list[int]:
    found, at = [], 0
    while at < len(batches):
        found.append(at)
        at += 12 + int(unpack(">i", batches[at + 8 : at + 12])[0])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel copies what it sends")
@pytest.mark.parametrize("checked", [True, False])
async def test_recycled_journal_changes_nothing_a_client_has_still_to_read(
    checked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response is in the socket's buffer while its journal dies, and its file is used again.

    Without the check the client gets bytes of another topic, so the test can fail.
    """
    if not checked:
        monkeypatch.setattr(directory, "_is_in_use", lambda *_: False)
    async with running(tmp_path, **MAPPED) as server:
        journals = server.broker.log.journals
        client, slow = [await Client.connect(port_of(server)) for _ in range(2)]
        await make(client, "t")
        await make(client, "other")
        stored = await fill(client, 50)
        first = next(iter(journals))
        assert first.rolled
        assert not first.shared
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slow.send(fetch("t", 0, partition_max_bytes=1), 11)
        await until(lambda: first.shared and not first.pins, "the response was sent")
        rows = [DeleteRecordsPartition(0, 50)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic("t", rows)], timeout_ms=5000)
        assert (await client.call(request, 2)).topics[0].partitions[0].error_code == 0
        await server.broker.log.upkeep.retain()
        await journals.wait_for_files()
        assert any(spare.shared for spare in journals.spares)
        # Until each spare was used again, the one in question twice over if it is kept.
        for at in range(400):
            await client.call(produce("other", batch(random.Random(at).randbytes(SIZE))), 9)
            if at > 100 and not any(spare.shared for spare in journals.spares):
                break
        else:
            raise AssertionError("a spare was not used")
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        row = (await slow.receive()).responses[0].partitions[0]
        assert (bytes(row.records) == stored[0]) == checked
        for each in (client, slow):
            await each.close()


async def test_journal_that_cannot_be_sent_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of a response that cannot be completed is closed; the next one gets the error
    of the disk, and the records once that is gone."""
    async with running(tmp_path, **COLD) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        stored = await fill(client, 50)

        def fail(*_: object) -> int:
            raise OSError(5, "input/output error")

        with monkeypatch.context() as broken:
            broken.setattr(DiskFile, "send", fail)
            broken.setattr(DiskFile, "pread", fail)
            with pytest.raises(asyncio.IncompleteReadError):
                await read_from(client, 0)
            await client.close()
            client = await Client.connect(port_of(server))
            assert await read_from(client, 0) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
        code, got = await read_from(client, 0)
        assert code == 0
        assert b"".join(stored).startswith(got)
        assert got
        await client.close()


async def test_journals_of_an_earlier_start_are_verified_before_they_are_sent(
    tmp_path: Path,
) -> None:
    """One batch of the first journal was damaged while the broker was stopped."""
    async with running(tmp_path, **COLD) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        stored = await fill(client, 60)
        await client.close()
        first = next(iter(server.broker.log.journals))
    damaged = 5
    data = bytearray(Path(first.path).read_bytes())  # noqa: ASYNC240 (a test may block its loop)
    data[data.index(stored[damaged]) + SIZE // 2] ^= 1
    Path(first.path).write_bytes(data)  # noqa: ASYNC240
    async with running(tmp_path, **COLD) as server:
        client = await Client.connect(port_of(server))
        for offset in range(60):
            code, got = await read_from(client, offset)
            assert b"".join(stored[offset:]).startswith(got)
            if offset == damaged:
                assert (code, got) == (ErrorCode.CORRUPT_MESSAGE, b"")
            else:
                assert code == 0
                assert got
                assert stored[damaged] not in got
        await client.close()
