"""View topics through a socket: what may be created, who may read, what a Fetch without a match
does, sessions, limits of a scan, time and key indexes.

Covers: kafkawire.handlers.fetch.view_reads, kafkawire.log.segments.store.key_lookup.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.batches import CRC_FROM, Record, iter_batches, pack, records
from kafkawire.codec.errors import ErrorCode
from kafkawire.crc32c import crc32c
from kafkawire.handlers.fetch import view_reads
from kafkawire.handlers.fetch.view_reads import make_skip
from kafkawire.log.partition import read_plan
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
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
from kafkawire.security.acls.model import Operation, ResourceKind
from kafkawire.server.run import Server
from tests.handlers.test_access import ADMIN, allow, guarded
from tests.handlers.test_fetch_sessions import Reader
from tests.kit.access_cases import rule
from tests.kit.client import Client
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.server import port_of, running
from tests.kit.waiting import until

SKIP_BYTES = len(make_skip(0, 0))
VIEW = {"view_source_topic": "t", "view_filter": "key == 'k'"}


async def create(client: Client, name: str, configs: dict[str, str], partitions: int = -1) -> Any:
    """Create a topic; return the code, the message and the number of partitions."""
    rows = [CreatableTopicConfig(key.replace("_", "."), text) for key, text in configs.items()]
    topic = CreatableTopic(name, partitions, -1, configs=rows)
    (row,) = (await client.call(CreateTopicsRequest([topic], 5_000), 7)).topics
    return row.error_code, row.error_message, row.num_partitions


async def send(client: Client, *keys: bytes, index: int = 0, topic: str = "t", **more: Any) -> None:
    rows = [Record(n, 1_000 + n, key, b"v") for n, key in enumerate(keys)]
    answer = await client.call(produce(topic, bytes(pack(rows, **more)), index=index), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


async def get(client: Client, offset: int = 0, topic: str = "view", **more: int) -> Any:
    return (await client.call(fetch(topic, offset, **more), 12)).responses[0].partitions[0]


def offsets(row: Any) -> list[int]:
    """The offsets of the records, without those of control batches; all batches are valid."""
    raw = bytes(row.records or b"")
    found = []
    for at, head in iter_batches(raw):
        if head.attributes & 0x20:
            continue
        assert crc32c(raw[at + CRC_FROM : at + head.size_bytes]) == head.crc
        found += [record.offset for record in records(raw, at)]
    return found


def next_offset(row: Any) -> int:
    return max(head.last_offset + 1 for _, head in iter_batches(bytes(row.records)))


@pytest.mark.parametrize(
    ("configs", "why"),
    [
        ({"view_filter": "key == 'k'"}, "view.source.topic is not set"),
        ({"view_source_topic": "none"}, "view.source.topic=none: there is no such topic"),
        ({"view_source_topic": "view"}, "the topic is a view itself"),
        ({"view_source_topic": "t", "view_filter": "key = 1"}, "unexpected '= 1' at character 5"),
    ],
)
async def test_what_is_no_view(client: Client, configs: dict[str, str], why: str) -> None:
    await make(client, "t", 3)
    assert (await create(client, "view", VIEW))[::2] == (0, 3)
    code, message, _ = await create(client, "other", configs)
    assert code == ErrorCode.INVALID_CONFIG
    assert why in message


async def test_partitions_and_settings_of_a_view(client: Client) -> None:
    await make(client, "t", 3)
    code, message, _ = await create(client, "view", VIEW, 2)
    assert (code, "3 of t" in message) == (ErrorCode.INVALID_PARTITIONS, True)
    assert (await create(client, "view", VIEW, 3))[0] == 0

    async def alter(topic: str, name: str, value: str) -> int:
        rows = [AlterConfigsResource(2, topic, [AlterableConfig(name, 0, value)])]
        answer = await client.call(IncrementalAlterConfigsRequest(rows), 1)
        return int(answer.responses[0].error_code)

    await send(client, b"k", b"l", b"k")
    assert offsets(await get(client)) == [0, 2]
    assert await alter("view", "view.filter", "key == 'l'") == 0
    assert offsets(await get(client)) == [1]
    for topic, name, value in (
        ("view", "view.filter", "key =="), ("view", "view.source.topic", "other"),
        ("view", "view.source.topic", ""), ("t", "view.source.topic", "other"),
    ):  # fmt: skip
        assert await alter(topic, name, value) == ErrorCode.INVALID_CONFIG
    wanted = DescribeConfigsResource(2, "view", ["view.source.topic", "view.filter"])
    answer = await client.call(DescribeConfigsRequest([wanted]), 4)
    shown = {row.name: (row.value, row.read_only) for row in answer.results[0].configs}
    assert shown == {
        "view.source.topic": ("t", True), "view.filter": ("key == 'l'", False),
    }  # fmt: skip


async def test_offsets_are_those_of_the_source(client: Client) -> None:
    await make(client, "t")
    await create(client, "view", VIEW)
    await send(client, b"k", b"l", b"k", b"l")
    asked = [
        ListOffsetsTopic("view", [ListOffsetsPartition(0, -1, each)]) for each in (-1, -2, 1001)
    ]
    found = [
        (await client.call(ListOffsetsRequest(-1, 0, [topic]), 7)).topics[0].partitions[0].offset
        for topic in asked
    ]
    assert found == [4, 0, 1]
    epoch = (await metadata(client, "view")).partitions[0].leader_epoch
    topics = [OffsetForLeaderTopic("view", [OffsetForLeaderPartition(0, epoch, epoch)])]
    answer = await client.call(OffsetForLeaderEpochRequest(-1, topics), 4)
    assert answer.topics[0].partitions[0].end_offset == 4
    rows = [DeleteRecordsTopic("view", [DeleteRecordsPartition(0, 2)])]
    refused = await client.call(DeleteRecordsRequest(rows, 5_000), 2)
    assert refused.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    rows = [DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 2)])]
    await client.call(DeleteRecordsRequest(rows, 5_000), 2)
    assert (await get(client)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await get(client, 5)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    row = await get(client, 2)
    # As of any topic the answer begins with a whole batch, of which clients drop what is before.
    assert (offsets(row), row.log_start_offset, row.high_watermark) == ([0, 2], 2, 4)


async def test_a_fetch_without_a_match_waits_and_then_goes_on(client: Client) -> None:
    await make(client, "t")
    await create(client, "view", VIEW)
    await send(client, b"l", b"l")
    row = await get(client, wait_ms=50)
    assert (offsets(row), next_offset(row), len(row.records)) == ([], 2, SKIP_BYTES)
    client.send(fetch("view", 0, wait_ms=60_000), 12)
    other = client
    sender = await Client.connect(client.writer.get_extra_info("peername")[1])
    for _ in range(3):
        await send(sender, b"l")
    await send(sender, b"l", b"k", b"l")
    row = (await other.receive()).responses[0].partitions[0]
    assert offsets(row) == [6]
    assert next_offset(row) == 8, "in one answer, with what follows it in its batch"
    await sender.close()


async def test_matches_keep_their_batches(client: Client) -> None:
    """Compression, producer and the whole range of offsets, as after compaction."""
    await make(client, "t")
    await create(client, "view", VIEW)
    await send(client, b"k", b"l", b"k", b"l", codec=4, producer_id=7, producer_epoch=1,
               base_sequence=0)  # fmt: skip
    await send(client, b"k", b"k")
    row = await get(client)
    raw = bytes(row.records)
    first, second = [head for _, head in iter_batches(raw)]
    assert (first.base_offset, first.last_offset, first.count, first.codec) == (0, 3, 2, 4)
    assert (first.producer_id, first.max_timestamp) == (7, 1_002)
    assert (second.base_offset, second.count) == (4, 2)
    source = await get(client, topic="t")
    assert raw[-second.size_bytes :] == bytes(source.records)[-second.size_bytes :]


async def test_one_fetch_scans_a_part(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await make(client, "t")
    await create(client, "view", VIEW)
    for _ in range(20):
        await send(client, *[b"l"] * 100)
    await send(client, b"k")
    monkeypatch.setattr(view_reads, "SCAN_BYTES", 4_000)
    monkeypatch.setattr(view_reads, "PIECE_BYTES", 2_000)
    offset, answers = 0, 0
    while not offsets(row := await get(client, offset, wait_ms=60_000)):
        assert len(row.records) == SKIP_BYTES
        offset, answers = next_offset(row), answers + 1
    assert offsets(row) == [2_000]
    assert answers >= 3


async def test_memory_of_a_scan_is_given_back(client: Client, server: Server) -> None:
    await make(client, "t")
    await create(client, "view", VIEW)
    await send(client, *[b"l"] * 1_000, codec=4)
    await get(client)
    await until(lambda: server.broker.answer_memory.held_bytes == 0)


@pytest.mark.parametrize("version", [12, 18])
async def test_sessions_have_views(client: Client, version: int) -> None:
    """A view and its source in one session: each is noted when a record comes."""
    count = 40
    await make(client, "t", count)
    await create(client, "view", VIEW)
    readers = []
    for topic in ("view", "t"):
        name: str | bytes = topic
        if version >= 13:
            name = server_id(await metadata(client, topic))
        reader = Reader(client, name, version)
        reader.positions = dict.fromkeys(range(count), 0)
        assert set(await reader.poll()) == set(range(count))
        readers.append(reader)
    view, source = readers
    assert view.session_id > 0
    assert await view.poll(max_wait_ms=0) == {}
    await send(client, b"k", index=3)
    await send(client, b"l", index=7)
    rows = await view.poll()
    assert {n: (offsets(row), next_offset(row)) for n, row in rows.items()} == {
        3: ([0], 1), 7: ([], 1),
    }  # fmt: skip
    assert set(await source.poll()) == {3, 7}


async def metadata(client: Client, topic: str) -> Any:
    from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic

    return (await client.call(MetadataRequest([MetadataRequestTopic(name=topic)]), 12)).topics[0]


def server_id(row: Any) -> bytes:
    assert row.error_code == 0
    return bytes(row.topic_id)


async def test_a_deleted_source(client: Client) -> None:
    await make(client, "t")
    await create(client, "view", VIEW)
    names = [DeleteTopicState(name="t")]
    await client.call(DeleteTopicsRequest(topics=names, timeout_ms=5_000), 6)
    assert (await get(client)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    row = await metadata(client, "view")
    assert (row.error_code, row.partitions) == (ErrorCode.LEADER_NOT_AVAILABLE, [])
    await make(client, "t", 2)
    await send(client, b"k")
    assert offsets(await get(client)) == [0]
    assert len((await metadata(client, "view")).partitions) == 2


async def test_readers_need_the_rights_of_both(tmp_path: Path) -> None:
    topic, refused = ResourceKind.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    async with guarded(tmp_path) as (server, client):  # it has the topic t
        admin = await Client.connect(port_of(server), host=ADMIN)
        await allow(server, rule(Operation.CREATE, topic, "view"))
        assert (await create(client, "view", VIEW))[0] == refused
        assert (await create(admin, "view", VIEW))[0] == 0
        await send(admin, b"k", b"l")
        assert (await get(client)).error_code == refused
        await allow(server, rule(Operation.READ, topic, "view"))
        assert (await get(client)).error_code == refused
        asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("view", [ListOffsetsPartition()])])
        answer = await client.call(asked, 7)
        assert answer.topics[0].partitions[0].error_code == refused
        await allow(server, rule(Operation.READ, topic, "t"))
        assert offsets(await get(client)) == [0]
        await admin.close()


async def test_records_before_a_time_are_not_read(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(client, "t")
    await create(client, "view", {**VIEW, "view_filter": "timestamp >= 5000"})
    for batch in range(10):
        rows = [Record(n, 1_000 * batch + n, b"k", b"v") for n in range(10)]
        await client.call(produce("t", bytes(pack(rows))), 9)
    scanned: list[int] = []
    original = read_plan.make_plan

    def plan(partition: Any, offset: int, *rest: Any) -> Any:
        scanned.append(offset)
        return original(partition, offset, *rest)

    monkeypatch.setattr(view_reads, "make_plan", plan)
    assert offsets(await get(client)) == list(range(50, 100))
    assert scanned == [50]


async def test_blocks_without_the_key_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    settings = {"cut_interval_ms": "50", "journal_roll_ms": "100"}
    async with running(tmp_path / "data", **settings) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t", index_keys_enable="true")
        await create(client, "view", VIEW)
        for batch in range(64):
            key = b"k" if batch in (20, 50) else b"%d" % batch
            rows = [Record(n, 1_000, key, b"x" * 1_000) for n in range(32)]
            await client.call(produce("t", bytes(pack(rows))), 9)
        partition = server.broker.table.find_by_name("t", 0)
        await until(lambda: partition.cut_offset == 64 * 32)
        read: list[int] = []
        original = view_reads.ViewReads._scan

        async def scan(self: Any, view: Any, wanted: Any, piece: Any, *rest: Any) -> int:
            read.append(piece.end - piece.offset)
            return await original(self, view, wanted, piece, *rest)

        monkeypatch.setattr(view_reads.ViewReads, "_scan", scan)
        row = await get(client)
        expected = [*range(20 * 32, 21 * 32), *range(50 * 32, 51 * 32)]
        assert (offsets(row), next_offset(row)) == (expected, 64 * 32)
        assert sum(read) < 64 * 32 / 3
        await client.close()
