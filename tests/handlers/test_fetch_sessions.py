"""Fetch sessions (KIP-227): what a client lists once, and what each answer has.

Covers: kafkawire.handlers.fetch.sessions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.fetch import MAX_ITEMS
from kafkawire.handlers.fetch import sessions as module
from kafkawire.handlers.fetch.handler import Fetch
from kafkawire.handlers.fetch.sessions import PARTITIONS_MIN, FetchSession, FetchSessions
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import make, produce, values
from tests.kit.server import port_of
from tests.kit.waiting import until

COUNT = PARTITIONS_MIN + 3


def sessions_of(server: Server) -> FetchSessions:
    hot = server.host.apis[1].hot
    assert isinstance(hot, Fetch)
    return hot.context.sessions


class Reader:
    """A client with a session of one topic: it lists what has changed, as Java's does."""

    def __init__(self, client: Client, topic: str | bytes, version: int, **fields: Any) -> None:
        self.client = client
        self.topic = topic
        self.version = version
        self.fields = fields
        self.session_id = 0
        self.epoch = 0
        self.positions: dict[int, int] = {}
        self.listed: dict[int, int] = {}
        self.read: dict[int, list[bytes]] = {}

    def request(self, **fields: Any) -> FetchRequest:
        changed = {n: at for n, at in self.positions.items() if self.listed.get(n) != at}
        gone = [n for n in self.listed if n not in self.positions]
        self.listed = dict(self.positions)
        rows = [
            FetchPartition(n, fetch_offset=at, partition_max_bytes=1 << 20)
            for n, at in changed.items()
        ]
        asked, forgotten = FetchTopic(partitions=rows), ForgottenTopic(partitions=gone)
        for each in (asked, forgotten):
            setattr(each, "topic_id" if isinstance(self.topic, bytes) else "topic", self.topic)
        request = FetchRequest(
            max_bytes=1 << 20, min_bytes=1, topics=[asked] if rows else [],
            forgotten_topics_data=[forgotten] if gone else [],
        )  # fmt: skip
        request.session_id, request.session_epoch = self.session_id, self.epoch
        for name, value in {**self.fields, **fields}.items():
            setattr(request, name, value)
        return request

    def take(self, answer: Any) -> dict[int, Any]:
        """Take an answer; return its partitions."""
        assert answer.error_code == 0
        self.session_id, self.epoch = answer.session_id, self.epoch + 1
        rows = {row.partition_index: row for topic in answer.responses for row in topic.partitions}
        for index, row in rows.items():
            if index in self.positions and not row.error_code:
                found = values(row)
                self.read.setdefault(index, []).extend(found)
                self.positions[index] += len(found)
        return rows

    async def poll(self, **fields: Any) -> dict[int, Any]:
        return self.take(await self.client.call(self.request(**fields), self.version))

    def restart(self) -> None:
        self.session_id, self.epoch, self.listed = 0, 0, {}


async def reader_of(client: Client, version: int = 12, count: int = COUNT) -> Reader:
    topic_id = await make(client, "t", count)
    reader = Reader(client, topic_id if version >= 13 else "t", version)
    reader.positions = dict.fromkeys(range(count), 0)
    rows = await reader.poll()
    assert set(rows) == set(range(count))
    assert reader.session_id > 0
    return reader


async def send(client: Client, *indexes: int, topic: str = "t", value: bytes = b"x") -> None:
    for index in indexes:
        await client.call(produce(topic, batch(value), index=index), 9)


@pytest.mark.parametrize("count", [COUNT, MAX_ITEMS * 2])
@pytest.mark.parametrize("version", [7, 11, 12, 18])
async def test_answers_have_what_has_changed(client: Client, version: int, count: int) -> None:
    reader = await reader_of(client, version, count)
    assert await reader.poll(max_wait_ms=0) == {}
    await send(client, 3, 7)
    rows = await reader.poll()
    assert {n: values(row) for n, row in rows.items()} == {3: [b"x"], 7: [b"x"]}
    assert rows[3].high_watermark == 1
    assert await reader.poll(max_wait_ms=0) == {}  # lists the new offsets of both


async def test_same_records_come_again_if_their_offset_is_asked_again(client: Client) -> None:
    reader = await reader_of(client)
    await send(client, 3)
    for _ in range(3):
        rows = await reader.poll()
        assert values(rows[3]) == [b"x"]
        reader.positions[3] = 0
        reader.listed[3] = 0  # as the session has it: it is not listed


async def test_waiting_request_is_answered_by_a_record(server: Server, client: Client) -> None:
    reader = await reader_of(client)
    client.send(reader.request(max_wait_ms=60_000), reader.version)
    hot: Any = server.host.apis[1].hot
    await until(lambda: bool(hot.context.parked))
    other = await Client.connect(port_of(server))
    await send(other, 5)
    rows = reader.take(await asyncio.wait_for(client.receive(), 30))
    assert {n: values(row) for n, row in rows.items()} == {5: [b"x"]}
    await other.close()


async def test_request_waits_no_longer_than_it_asks(client: Client) -> None:
    reader = await reader_of(client)
    assert await asyncio.wait_for(reader.poll(max_wait_ms=20), 30) == {}


async def test_records_before_the_next_request_are_found(client: Client) -> None:
    reader = await reader_of(client)
    for _ in range(3):
        await send(client, 4)
    rows = await reader.poll()
    assert values(rows[4]) == [b"x"] * 3


async def test_forgotten_partitions_are_not_answered(server: Server, client: Client) -> None:
    reader = await reader_of(client)
    del reader.positions[4]
    await reader.poll(max_wait_ms=0)
    await send(client, 4)
    assert await reader.poll(max_wait_ms=0) == {}
    partition = server.broker.table.find_by_name("t", 4)
    assert not partition.watchers


async def test_added_partitions_are_answered_once(client: Client) -> None:
    reader = await reader_of(client)
    await make(client, "u", 1)
    reader.topic, reader.listed = "u", {}
    reader.positions = {0: 0}
    rows = await reader.poll(max_wait_ms=0)
    assert rows[0].high_watermark == 0
    assert await reader.poll(max_wait_ms=0) == {}


async def test_what_does_not_fit_comes_with_the_next_answers(client: Client) -> None:
    reader = await reader_of(client)
    value = bytes(1000)
    await send(client, *range(COUNT), value=value)
    answers = 0
    while sum(map(len, reader.read.values())) < COUNT:
        rows = await reader.poll(max_bytes=5000, max_wait_ms=0)
        assert rows
        answers += 1
    assert answers >= COUNT // 5
    assert reader.read == {n: [value] for n in range(COUNT)}


async def test_error_is_answered_until_it_is_gone(client: Client) -> None:
    reader = await reader_of(client)
    reader.positions[2] = 99
    for _ in range(2):
        rows = await reader.poll(max_wait_ms=60_000)
        assert {n: row.error_code for n, row in rows.items()} == {2: ErrorCode.OFFSET_OUT_OF_RANGE}
    reader.positions[2] = 0
    rows = await reader.poll(max_wait_ms=0)
    assert (rows[2].error_code, rows[2].high_watermark) == (0, 0)


async def test_deleted_topic_is_answered(client: Client) -> None:
    reader = await reader_of(client)
    gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000)
    await client.call(gone, 6)
    rows = await reader.poll(max_wait_ms=60_000)
    codes = {row.error_code for row in rows.values()}
    assert (len(rows), codes) == (COUNT, {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"session_id": 5}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ({"session_epoch": 2}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ({"session_epoch": -2}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ],
)
async def test_wrong_session_is_refused(
    client: Client, change: dict[str, int], code: ErrorCode
) -> None:
    reader = await reader_of(client)
    answer = await client.call(reader.request(**change), 12)
    assert (answer.error_code, answer.responses) == (code, [])
    assert await reader.poll(max_wait_ms=0) == {}


async def test_names_and_ids_are_not_mixed(client: Client) -> None:
    reader = await reader_of(client)
    answer = await client.call(reader.request(), 13)
    assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


async def test_epoch_is_used_once(client: Client) -> None:
    reader = await reader_of(client)
    request = reader.request(max_wait_ms=0)
    assert (await client.call(request, 12)).error_code == 0
    answer = await client.call(request, 12)
    assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


@pytest.mark.parametrize("epoch", [0, -1])
async def test_full_request_ends_the_session(server: Server, client: Client, epoch: int) -> None:
    reader = await reader_of(client)
    before = reader.session_id
    reader.listed, reader.epoch = {}, epoch
    rows = await reader.poll(max_wait_ms=0)
    assert set(rows) == set(range(COUNT))
    assert before not in sessions_of(server)._sessions
    assert (reader.session_id == 0) == (epoch == -1)
    partition = server.broker.table.find_by_name("t", 0)
    await until(lambda: len(partition.watchers) == len(sessions_of(server)))


async def test_few_partitions_make_no_session(server: Server, client: Client) -> None:
    await make(client, "t", 2)
    reader = Reader(client, "t", 12)
    reader.positions = {0: 0, 1: 0}
    await reader.poll(max_wait_ms=0)
    assert reader.session_id == 0
    assert not server.broker.table.find_by_name("t", 0).watchers


async def test_sessions_are_bounded(server: Server, client: Client, clock_s: list[float]) -> None:
    reader = await reader_of(client)
    sessions = sessions_of(server)
    sessions._slots = 1
    another = Reader(client, "t", 12)
    another.positions = dict.fromkeys(range(COUNT), 0)
    await another.poll(max_wait_ms=0)
    assert another.session_id == 0
    assert await reader.poll(max_wait_ms=0) == {}
    clock_s[0] += module.IDLE_S + 1
    another.restart()
    await another.poll(max_wait_ms=0)
    assert another.session_id > 0
    answer = await client.call(reader.request(), 12)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_idle_session_ends(server: Server, client: Client, clock_s: list[float]) -> None:
    await reader_of(client)
    clock_s[0] += module.IDLE_S + 1
    sessions_of(server)._expire()
    assert len(sessions_of(server)) == 0
    partition = server.broker.table.find_by_name("t", 0)
    await until(lambda: not partition.watchers)


@pytest.fixture
def clock_s(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that are added to the clock of the broker."""
    added = [0.0]
    clock = server.broker.env.clock
    real = clock.monotonic
    monkeypatch.setattr(type(clock), "monotonic", lambda self: real() + added[0], raising=False)
    return added


async def test_only_what_changed_is_planned(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = await reader_of(client, count=MAX_ITEMS * 2)
    planned: list[int] = []
    real = FetchSession.choose

    def choose(self: FetchSession, most: int) -> Any:
        found = real(self, most)
        planned.append(len(found))
        return found

    monkeypatch.setattr(FetchSession, "choose", choose)
    for indexes, expected in (((), 0), ((3, 5, 400), 3), ((), 3), ((), 0)):
        await send(client, *indexes)
        await reader.poll(max_wait_ms=0)
        assert max(planned) == expected  # with 3 offsets listed after 3 records
        planned.clear()


async def test_session_of_a_client_that_is_gone_costs_one_notice(
    server: Server, client: Client
) -> None:
    await reader_of(client)
    await send(client, 1, 1, 1)
    assert not server.broker.table.find_by_name("t", 1).watchers
    assert server.broker.table.find_by_name("t", 2).watchers


@pytest.mark.parametrize("seed", range(6))
async def test_every_record_is_read_once_in_order(
    server: Server, client: Client, seed: int
) -> None:
    """Random requests: few and many bytes, with and without a wait, forgotten and added again,
    new sessions, records in between."""
    rng = random.Random(seed)
    count = rng.choice((COUNT, MAX_ITEMS + 50))
    reader = await reader_of(client, rng.choice((7, 12, 18)), count)
    other = await Client.connect(port_of(server))
    sent: dict[int, list[bytes]] = {}
    paused: dict[int, int] = {}

    async def send_some(indexes: Iterable[int]) -> None:
        for index in indexes:
            value = b"%d-%d" % (index, len(sent.setdefault(index, [])))
            sent[index].append(value)
            await send(other, index, value=value)

    for _ in range(60):
        await send_some(rng.choices(range(count), k=rng.choice((0, 0, 1, 2, 30))))
        if rng.random() < 0.1:
            index = rng.randrange(count)
            if index in reader.positions:
                paused[index] = reader.positions.pop(index)
        if paused and rng.random() < 0.2:
            index = rng.choice([*paused])
            reader.positions[index] = paused.pop(index)
        if rng.random() < 0.1:
            reader.restart()
        await reader.poll(max_wait_ms=rng.choice((0, 5)), max_bytes=rng.choice((100, 500, 1 << 20)))
    reader.positions |= paused
    while any(len(reader.read.get(n, ())) < len(found) for n, found in sent.items()):
        await asyncio.wait_for(reader.poll(max_wait_ms=0), 30)
    assert {n: found for n, found in reader.read.items() if found} == sent
    await other.close()
