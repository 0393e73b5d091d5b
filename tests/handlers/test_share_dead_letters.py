"""Dead letters of share groups, through the sockets of a broker: what they contain, which topics
take them, and that each is written once, also by a leader that begins in the middle.

Covers: kafkawire.share.dead_letters, kafkawire.broker.dead_letter_topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kafkawire.codec.batches import Record, build, iter_batches, pack, records
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.partition import Partition
from kafkawire.messages.fetch import FetchRequest
from kafkawire.server.run import Server
from kafkawire.share.dead_letters import (
    DELIVERY_COUNT,
    MESSAGE,
    OFFSET,
    PARTITION,
    TOPIC,
    DeadLetterWriter,
    producer_id_of,
)
from kafkawire.share.dead_letters import (
    GROUP as GROUP_HEADER,
)
from kafkawire.share.persister import SharePartitionKey, StateBatch
from kafkawire.share.states import RecordState
from tests.kit.client import Client
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.share.members import (
    GROUP,
    REJECT,
    RELEASE,
    Member,
    initialize,
    row_of,
    serve_shares,
    set_group,
)
from tests.kit.share.persister import MemoryPersister

DLQ = "dlq.g"


@pytest.fixture
def persister(server: Server, monkeypatch: pytest.MonkeyPatch) -> MemoryPersister:
    monkeypatch.setattr("kafkawire.share.dead_letters.BACKOFF_S", 0.001)
    return serve_shares(server.broker, monkeypatch)


async def begin(
    server: Server, client: Client, persister: MemoryPersister, **settings: str
) -> tuple[Member, bytes]:
    """A member of a group with a dead-letter topic, and a topic with three records."""
    await set_group(server.broker, errors_deadletterqueue_topic_name=DLQ, **settings)
    topic = await make(client, "t")
    initialize(persister, topic)
    pairs: list[tuple[bytes | None, bytes | None]] = [(b"k%d" % n, b"v%d" % n) for n in range(3)]
    await client.call(produce("t", bytes(build(pairs, timestamp_ms=1))), 9)
    return Member(client, topic), topic


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it does not happen")


def state_of(persister: MemoryPersister) -> tuple[int, tuple[StateBatch, ...]]:
    (state,) = persister.states.values()
    return state.start_offset, state.batches


async def letters(client: Client, topic: str = DLQ) -> list[Record]:
    asked: FetchRequest = fetch(topic, 0)
    answer: Any = await client.call(asked, 4)
    raw = bytes(answer.responses[0].partitions[0].records or b"")
    return [each for at, _ in iter_batches(raw) for each in records(raw, at)]


def headers(record: Record) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers}


async def test_rejected_records_and_those_delivered_too_often(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    await make(client, DLQ, errors_deadletterqueue_group_enable="true")
    member, _ = await begin(server, client, persister, share_delivery_count_limit="2")
    await member.acquire()
    assert await member.settle(0, 0, REJECT) == (0, 0)
    assert await member.settle(1, 2, RELEASE) == (0, 0)
    assert await member.acquire() == [(1, 2, 2)]
    assert await member.settle(1, 2, 0, RELEASE) == (0, 0)  # a gap never goes there
    await until(lambda: state_of(persister)[0] == 3)
    found = await letters(client)
    assert [headers(each) for each in found] == [
        {TOPIC: "t", PARTITION: "0", OFFSET: "0", GROUP_HEADER: GROUP, DELIVERY_COUNT: "1",
         MESSAGE: "Offset rejected by client."},
        {TOPIC: "t", PARTITION: "0", OFFSET: "2", GROUP_HEADER: GROUP, DELIVERY_COUNT: "2",
         MESSAGE: "Offset delivery count exceeded the threshold."},
    ]  # fmt: skip
    assert all(each.key is None and each.value is None for each in found)
    stored = [batches for _, batches in persister.writes if batches]
    assert StateBatch(0, 0, RecordState.ARCHIVING, 1) in stored[0], "before its dead letter"


async def test_copies_have_keys_and_values(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    await make(client, DLQ, errors_deadletterqueue_group_enable="true", max_message_bytes="400")
    member, _ = await begin(
        server, client, persister, errors_deadletterqueue_copy_record_enable="true"
    )
    await client.call(produce("t", bytes(build([(b"big", b"x" * 500)], timestamp_ms=1))), 9)
    await member.acquire()
    assert await member.settle(0, 3, 3, 1, 3, 3) == (0, 0)
    await until(lambda: state_of(persister)[0] == 4)
    found = [(headers(each)[OFFSET], each.key, each.value) for each in await letters(client)]
    # The last one would be too large for the topic.
    assert found == [("0", b"k0", b"v0"), ("2", b"k2", b"v2"), ("3", None, None)]


@pytest.mark.parametrize(
    ("topic", "settings", "why"),
    [
        (None, {}, "does not exist"),
        ({}, {}, "does not have"),
        (None, {"errors_deadletterqueue_topic_name": "other"}, "does not begin with"),
        ({"errors_deadletterqueue_group_enable": "true", "max_message_bytes": "70"}, {}, "bytes"),
    ],
)
async def test_records_are_archived_without_dead_letters_if_the_topic_does_not_take_them(
    server: Server,
    client: Client,
    persister: MemoryPersister,
    caplog: pytest.LogCaptureFixture,
    topic: dict[str, str] | None,
    settings: dict[str, str],
    why: str,
) -> None:
    if topic is not None:
        await make(client, DLQ, 1, **topic)
    member, _ = await begin(server, client, persister)
    if settings:
        await set_group(server.broker, **settings)
    await member.acquire()
    assert await member.settle(0, 2, REJECT) == (0, 0)
    await until(lambda: state_of(persister)[0] == 3)
    (line,) = [each for each in caplog.messages if "without dead letters" in each]
    assert "3 records of t-0 from offset 0 on" in line
    assert why in line or "MESSAGE_TOO_LARGE" in line


async def test_a_missing_topic_is_created_where_that_is_enabled(
    server: Server, client: Client, persister: MemoryPersister, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = server.broker.config
    monkeypatch.setattr(config, "errors_deadletterqueue_auto_create_topics_enable", True)
    member, _ = await begin(server, client, persister)
    await member.acquire()
    assert await member.settle(0, 2, REJECT) == (0, 0)
    await until(lambda: state_of(persister)[0] == 3)
    assert [headers(each)[OFFSET] for each in await letters(client)] == ["0", "1", "2"]
    info = server.broker.catalog.by_name[DLQ]
    assert info.configs["errors.deadletterqueue.group.enable"] == "true"


async def test_a_failing_log_is_tried_again(
    server: Server, client: Client, persister: MemoryPersister, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.share.dead_letters.BACKOFF_S", 0.1)
    await make(client, DLQ, errors_deadletterqueue_group_enable="true")
    member, _ = await begin(server, client, persister)
    partition = await server.broker.table.load_partition(DLQ, 0)
    partition.close_appends()
    await member.acquire()
    assert await member.settle(0, 0, REJECT) == (0, 0)
    await until(lambda: state_of(persister)[1] != ())
    partition.open_appends()
    await until(lambda: state_of(persister)[0] == 1)
    assert [headers(each)[OFFSET] for each in await letters(client)] == ["0"]


async def test_dead_letters_wait_while_the_broker_reads_only(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    await make(client, DLQ, errors_deadletterqueue_group_enable="true")
    member, _ = await begin(server, client, persister)
    configs = server.broker.topics.configs
    await configs.replace_static({"broker.read.only": "true"})
    await member.acquire()
    assert await member.settle(0, 0, REJECT) == (0, 0)
    await until(lambda: state_of(persister)[1] != ())
    for _ in range(100):  # far more than its attempts take
        await asyncio.sleep(0.002)
    assert state_of(persister)[0] == 0
    await configs.replace_static({"broker.read.only": None})
    await until(lambda: state_of(persister)[0] == 1)
    assert [headers(each)[OFFSET] for each in await letters(client)] == ["0"]


@pytest.mark.parametrize("written", [(), (0,), (0, 1), (0, 1, 2)])
async def test_a_new_leader_writes_what_is_missing_and_nothing_twice(
    server: Server, client: Client, persister: MemoryPersister, written: tuple[int, ...]
) -> None:
    """The leader before has stored the records as archiving, and then written some batch."""
    await make(client, DLQ, errors_deadletterqueue_group_enable="true")
    member, topic = await begin(server, client, persister)
    key = SharePartitionKey(GROUP, topic, 0)
    await persister.write(key, 1, 0, 0, 0, (StateBatch(0, 2, RecordState.ARCHIVING, 1),))
    if written:
        await _write_before(server, key, written)
    await member.fetch(max_wait_ms=100)
    await until(lambda: state_of(persister)[0] == 3)
    found = sorted(headers(each)[OFFSET] for each in await letters(client))
    assert found == ["0", "1", "2"]


async def _write_before(server: Server, key: SharePartitionKey, offsets: tuple[int, ...]) -> None:
    """Append dead letters as an earlier process has."""
    partition = await server.broker.table.load_partition(DLQ, 0)
    made = [Record(n, 1, None, None, [(OFFSET, b"%d" % at)]) for n, at in enumerate(offsets)]
    batch = pack(made, producer_id=producer_id_of(key, 1), producer_epoch=0, base_sequence=0)
    partition.append(memoryview(batch), 1)
    await server.broker.log.commit_log.wait_until_committed()


class CrashingPersister(MemoryPersister):
    """Ends the leader at one write, with or without its effect."""

    def __init__(self, crash: Callable[[], None], at: int, *, stored: bool) -> None:
        super().__init__()
        self.crash = crash
        self.at = at
        self.stored = stored

    async def write(self, *write: Any) -> None:
        self.at -= 1
        if self.at or self.stored:
            await super().write(*write)
        if not self.at:
            self.crash()
            raise KafkaError(ErrorCode.NOT_COORDINATOR)


@pytest.mark.parametrize("appended", [True, False])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 99])
async def test_leaders_that_end_at_each_step_write_each_dead_letter_once(
    server: Server,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    stored: bool,
    appended: bool,
) -> None:
    """`appended`: the leader ends also directly after the first batch of dead letters."""
    monkeypatch.setattr(DeadLetterWriter, "AT_ONCE", 2)  # three records are two batches
    serve_shares(server.broker, monkeypatch)
    persister = CrashingPersister(lambda: shares.end_group(GROUP), at, stored=stored)
    monkeypatch.setitem(server.broker.__dict__, "share_persister", persister)
    shares = server.broker.shares
    await make(client, DLQ, errors_deadletterqueue_group_enable="true")
    member, topic = await begin(server, client, persister)
    dlq = await server.broker.table.load_partition(DLQ, 0)
    append, appends = Partition.append, 0

    def append_and_end(self: Partition, data: memoryview, now_ms: int) -> Any:
        nonlocal appends
        result = append(self, data, now_ms)
        appends += self is dlq
        if self is dlq and appends == 1 and appended:
            asyncio.get_running_loop().call_soon(shares.end_group, GROUP)
        return result

    monkeypatch.setattr(Partition, "append", append_and_end)
    key = SharePartitionKey(GROUP, topic, 0)
    for _ in range(40):
        answer = await member.fetch(max_wait_ms=20)
        row = row_of(answer)
        for run in [] if row is None else row.acquired_records:
            await member.settle(run.first_offset, run.last_offset, REJECT)
        if persister.states[key].start_offset == 3:
            break
    found = sorted(headers(each)[OFFSET] for each in await letters(client))
    assert found == ["0", "1", "2"]


async def test_an_old_leader_is_refused_by_the_partition(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    """Its epoch as a producer is lower than that of the new leader, which has written."""
    await make(client, DLQ, errors_deadletterqueue_group_enable="true")
    key = SharePartitionKey(GROUP, bytes(16), 0)
    partition = await server.broker.table.load_partition(DLQ, 0)
    made = [Record(0, 1, None, None, [(OFFSET, b"0")])]
    for epoch, refused in ((7, False), (6, True)):
        batch = pack(
            made, producer_id=producer_id_of(key, 1), producer_epoch=epoch, base_sequence=0
        )
        if not refused:
            partition.append(memoryview(batch), 1)
            continue
        with pytest.raises(KafkaError) as fenced:
            partition.append(memoryview(batch), 1)
        assert fenced.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_records_that_are_rejected_again_after_a_reset_have_another_dead_letter(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    await make(client, DLQ, errors_deadletterqueue_group_enable="true")
    member, topic = await begin(server, client, persister)
    for epoch in (1, 2):
        persister.initialize(SharePartitionKey(GROUP, topic, 0), epoch, 0)
        server.broker.shares.end_group(GROUP)
        await member.acquire()
        assert await member.settle(0, 2, REJECT) == (0, 0)
        await until(lambda: state_of(persister)[0] == 3)
    found = [headers(each)[OFFSET] for each in await letters(client)]
    assert found == ["0", "1", "2", "0", "1", "2"]


async def test_no_dead_letters_below_share_version_2(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    persister = serve_shares(server.broker, monkeypatch, level=1)
    await make(client, DLQ, errors_deadletterqueue_group_enable="true")
    member, _ = await begin(server, client, persister)
    await member.acquire()
    assert await member.settle(0, 2, REJECT) == (0, 0)
    await until(lambda: state_of(persister)[0] == 3)
    assert await letters(client) == []
