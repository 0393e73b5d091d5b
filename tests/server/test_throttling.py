"""Clients over a quota: the throttle time in responses, and the muted connection.

Covers: kafkawire.server.quotas.metering, kafkawire.server.throttled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.codec.batches import build
from kafkawire.codec.compression import GZIP
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.fetch import request as fetch_request
from kafkawire.handlers.fetch.context import BATCH_BYTES
from kafkawire.handlers.fetch.request import Attempt
from kafkawire.messages import create_partitions, delete_topics
from kafkawire.messages.api_versions import ApiVersionsRequest
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkawire.security.quotas.alterations import QuotaChange
from kafkawire.security.quotas.sensors import ClientQuotas
from kafkawire.server.connection import Connection
from kafkawire.server.quotas import metering
from kafkawire.server.quotas.metering import Timed
from kafkawire.server.receiving import THROTTLED
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.connections import ECHO, frame
from tests.kit.connections import Client as FakeClient
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.quotas import USER, set_quotas
from tests.kit.server import port_of, running
from tests.kit.tls import certificates, client_context
from tests.kit.waiting import until


def connections_of(server: Server, client_id: str) -> list[Connection]:
    return [each for each in server.host.connections if each.client_id == client_id]


def limit(client: FakeClient, key: str, value: float | None) -> None:
    client.host.quotas.put([QuotaChange(USER, key, value)])


class TestMute:
    """A connection without a socket."""

    def test_requests_after_the_delayed_one_stay_unread(self) -> None:
        client = FakeClient()
        limit(client, "producer_byte_rate", 10)
        one = frame(ECHO, 1, b"x" * 86)  # 100 bytes and their length
        assert client.feed(one * 3) == len(one) * 3
        host = client.host
        host.pass_time(0)
        assert len(host.echo.seen) == 2, "the second is over 100 bytes in 10 s"
        assert client.connection.waits & THROTTLED
        assert not client.wire.reading
        assert client.feed(one) == 0
        host.pass_time(9.9)
        assert len(host.echo.seen) == 2
        host.pass_time(0.2)
        assert len(host.echo.seen) == 3
        assert client.connection.waits & THROTTLED, "the third is delayed, too"

    def test_reading_continues_after_the_delay(self) -> None:
        client = FakeClient()
        limit(client, "producer_byte_rate", 10)
        client.feed(frame(ECHO, 1, b"x" * 181))
        assert not client.wire.reading
        client.host.pass_time(9.6)
        assert client.wire.reading
        assert not client.connection.waits & THROTTLED
        client.feed(frame(ECHO, 1, b"x"))
        assert len(client.host.echo.seen) == 2

    def test_a_closed_connection_has_no_timer(self) -> None:
        client = FakeClient()
        limit(client, "producer_byte_rate", 10)
        client.feed(frame(ECHO, 1, b"x" * 181))
        client.connection.release_all()
        assert all(timer.cancelled for timer in client.host.timers)
        client.connection.throttle(1000)
        assert all(timer.cancelled for timer in client.host.timers)

    def test_a_longer_delay_replaces_a_shorter_one(self) -> None:
        client = FakeClient()
        client.connection.throttle(1000)
        client.connection.throttle(3000)
        client.connection.throttle(2000)
        client.host.pass_time(2.5)
        assert client.connection.waits & THROTTLED
        client.host.pass_time(0.6)
        assert not client.connection.waits & THROTTLED

    def test_a_produce_that_is_not_started_is_not_counted(self) -> None:
        client = FakeClient()
        limit(client, "producer_byte_rate", 1_000)
        client.host.echo.ready = False
        client.feed(frame(ECHO, 1, b"x" * 5_000))
        for _ in range(5):
            client.connection.resume()
            client.host.run()
        assert not client.connection.waits & THROTTLED
        client.host.echo.ready = True
        client.connection.resume()
        client.host.run()
        assert len(client.host.echo.seen) == 1
        assert not client.connection.waits & THROTTLED

    def test_time_of_requests_that_had_to_wait_counts(self) -> None:
        """They start when the connection is resumed, not when bytes are received."""
        client = FakeClient()
        limit(client, "request_percentage", 1)
        client.host.echo.ready = False
        client.feed(frame(ECHO, 1, b"x"))
        client.host.echo.ready = True
        start = client.host.echo.start

        def slow(*given: Any) -> bool:
            client.host.pass_time(1)
            return start(*given)

        client.host.apis[ECHO].hot = SimpleNamespace(start=slow)
        client.connection.resume()
        client.host.run()
        assert client.connection.client_quotas().throttle_request_time() == 1_000

    def test_without_quotas_nothing_is_measured(self) -> None:
        client = FakeClient()
        client.feed(frame(ECHO, 1, b"x" * 5_000))
        assert client.connection.quotas is None
        limit(client, "producer_byte_rate", 1)
        limit(client, "producer_byte_rate", None)
        client.feed(frame(ECHO, 1, b"x" * 5_000))
        assert client.connection.quotas is None


@pytest.fixture
async def server(tmp_path: Path) -> Any:
    async with running(tmp_path / "data") as started:
        yield started


@pytest.fixture
async def admin(server: Server) -> Any:
    client = await Client.connect(port_of(server), "admin")
    yield client
    await client.close()


@pytest.mark.parametrize("version", [3, 5, 8, 9, 11])
async def test_a_produce_over_the_limit_is_answered_at_once(
    server: Server, admin: Client, version: int
) -> None:
    await make(admin, "t")
    await set_quotas(admin, (("client-id", "fast"),), {"producer_byte_rate": 100_000})
    client = await Client.connect(port_of(server), "fast")
    answer = await client.call(produce("t", batch(bytes(50_000))), version)
    assert answer.throttle_time_ms == 0
    for _ in range(30):
        client.send(produce("t", batch(bytes(90_000))), version)
    delay_ms = written = 0
    while not delay_ms:
        answer = await client.receive()
        delay_ms = answer.throttle_time_ms
        assert answer.responses[0].partition_responses[0].error_code == 0
        written += 1
    assert 11 <= written < 30, "1.04 MB are over 100 kB/s"
    (connection,) = connections_of(server, "fast")
    assert connection.waits & THROTTLED
    assert not connection.reading
    await client.close()


async def test_one_large_produce_is_delayed_by_ten_seconds(server: Server, admin: Client) -> None:
    await make(admin, "t")
    await set_quotas(admin, (("client-id", "fast"),), {"producer_byte_rate": 100_000})
    client = await Client.connect(port_of(server), "fast")
    answer = await client.call(produce("t", batch(bytes(1_000_000), bytes(1_000))), 9)
    assert answer.throttle_time_ms == pytest.approx(12, abs=8)
    answer = await client.call(produce("t", batch(bytes(1_000_000))), 9)
    assert 9_000 <= answer.throttle_time_ms <= 10_100
    (connection,) = connections_of(server, "fast")
    client.send(ListGroupsRequest(), 4)
    await client.writer.drain()
    assert connection.waits & THROTTLED
    other = await Client.connect(port_of(server), "other")
    assert (await other.call(produce("t", batch(bytes(1_000_000))), 9)).throttle_time_ms == 0
    assert connection.last_key == 0, "the ListGroups is unread"
    await other.close()
    await client.close()


async def test_repeated_produces_are_counted(server: Server, admin: Client) -> None:
    await make(admin, "t")
    await set_quotas(admin, USER, {"producer_byte_rate": 1_000})
    client = await Client.connect(port_of(server), "fast")
    one = produce("t", batch(bytes(1_000)))
    delays = [(await client.call(one, 9)).throttle_time_ms for _ in range(5)]
    assert delays == [0] * 5
    (connection,) = connections_of(server, "fast")
    assert connection.repeat is not None
    while not delays[-1]:
        delays.append((await client.call(one, 9)).throttle_time_ms)
    assert connection.waits & THROTTLED
    await client.close()


async def test_each_request_counts_for_its_own_client_id(server: Server, admin: Client) -> None:
    await make(admin, "t")
    await set_quotas(admin, (("client-id", "fast"),), {"producer_byte_rate": 1_000})
    client = await Client.connect(port_of(server), "slow")
    one = produce("t", batch(bytes(50_000)))
    for _ in range(3):
        assert (await client.call(one, 9)).throttle_time_ms == 0
    client.client_id = "fast"
    assert (await client.call(one, 9)).throttle_time_ms > 0
    unmute(server, "fast")
    client.client_id = ""
    assert (await client.call(one, 9)).throttle_time_ms == 0
    await client.close()


async def test_a_first_request_in_two_reads_is_counted(server: Server, admin: Client) -> None:
    """The time of the first read is measured before the client id is known."""
    await make(admin, "t")
    quotas: dict[str, float | None] = {"producer_byte_rate": 1_000, "request_percentage": 100}
    await set_quotas(admin, (("client-id", "fast"),), quotas)
    client = await Client.connect(port_of(server), "fast")
    write: Any = client.writer.write
    frames: list[bytes] = []
    client.writer.write = frames.append  # type: ignore[assignment]
    client.send(produce("t", batch(bytes(100_000))), 9)
    client.writer.write = write  # type: ignore[method-assign]
    before = server.broker.counts.received_bytes
    write(frames[0][:6])
    await until(lambda: server.broker.counts.received_bytes > before)
    write(frames[0][6:])
    assert (await client.receive()).throttle_time_ms > 0
    await client.close()


async def test_time_of_requests_is_measured_over_tls(tmp_path: Path) -> None:
    files = {
        "ssl_keystore_location": str(certificates() / "server.pem"),
        "ssl_key_location": str(certificates() / "server.key"),
    }
    async with running(tmp_path, ("PLAINTEXT", "TLS"), **files) as server:
        admin = await Client.connect(port_of(server))
        await make(admin, "t")
        await set_quotas(admin, (("client-id", "busy"),), {"request_percentage": 0.0001})
        client = await Client.connect(port_of(server, "TLS"), "busy", context=client_context())
        one = produce("t", batch(b"x"))
        await client.call(one, 9)
        assert (await client.call(one, 9)).throttle_time_ms > 0
        for each in (client, admin):
            await each.close()


async def test_acks_0_is_muted_without_a_response(server: Server, admin: Client) -> None:
    await make(admin, "t")
    await set_quotas(admin, USER, {"producer_byte_rate": 10_000})
    client = await Client.connect(port_of(server), "fast")
    client.send(produce("t", batch(bytes(500_000)), acks=0), 9, answered=False)
    await until(lambda: any(c.waits & THROTTLED for c in connections_of(server, "fast")))
    await client.close()


@pytest.mark.parametrize("version", [4, 11, 13])
async def test_a_throttled_fetch_is_empty(server: Server, admin: Client, version: int) -> None:
    topic_id = await make(admin, "t")
    for _ in range(4):
        await admin.call(produce("t", batch(bytes(500_000))), 9)
    await set_quotas(admin, (("client-id", "reader"),), {"consumer_byte_rate": 100_000})
    client = await Client.connect(port_of(server), "reader")
    name = topic_id if version >= 13 else "t"
    first = await client.call(fetch(name, 0, partition_max_bytes=50 << 20), version)
    records = first.responses[0].partitions[0].records
    assert first.throttle_time_ms == 0
    assert records
    assert len(records) <= 1_000_000, "at most what the limit allows in ten seconds"
    answer = first
    while not answer.throttle_time_ms:
        answer = await client.call(fetch(name, 0, partition_max_bytes=50 << 20), version)
    assert answer.responses == []
    (connection,) = connections_of(server, "reader")
    assert connection.waits & THROTTLED
    assert connection.held_bytes == 0
    await client.close()


async def test_time_of_requests_delays_any_answer(server: Server, admin: Client) -> None:
    await set_quotas(admin, (("client-id", "busy"),), {"request_percentage": 0.0001})
    client = await Client.connect(port_of(server), "busy")
    everything = [
        (ListGroupsRequest(), 4),
        (MetadataRequest(topics=None), 9),
        (ApiVersionsRequest("a", "1"), 3),
        (HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 3),
    ]
    for request, version in everything:
        answer = await client.call(request, version)
        assert 0 < answer.throttle_time_ms <= 1_000, type(request)
        (connection,) = connections_of(server, "busy")
        assert connection.waits & THROTTLED
        connection._unmute()
    free = await Client.connect(port_of(server), "free")
    assert (await free.call(ListGroupsRequest(), 4)).throttle_time_ms == 0
    await free.close()
    await client.close()


async def create(client: Client, name: str, partitions: int, version: int) -> tuple[int, int]:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = await client.call(CreateTopicsRequest(topics=[topic]), version)
    (connection,) = [answer.topics[0]]
    return connection.error_code, answer.throttle_time_ms


def unmute(server: Server, client_id: str) -> None:
    for connection in connections_of(server, client_id):
        if connection.muted is not None:
            connection._unmute()


async def test_changes_over_the_limit_are_refused(server: Server, admin: Client) -> None:
    await set_quotas(admin, (("client-id", "maker"),), {"controller_mutation_rate": 0.01})
    client = await Client.connect(port_of(server), "maker")
    assert await create(client, "a", 12, 7) == (0, 0)
    code, delay_ms = await create(client, "b", 1, 7)
    assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert 1_000_000 < delay_ms < 1_200_000
    unmute(server, "maker")
    code, delay_ms = await create(client, "b", 2, 5)
    assert code == 0, "older clients do not know the error"
    assert 1_200_000 < delay_ms < 1_400_000
    unmute(server, "maker")
    more = create_partitions.CreatePartitionsTopic("b", 4, None)
    answer = await client.call(create_partitions.CreatePartitionsRequest([more], 1000), 3)
    assert answer.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert answer.throttle_time_ms > 0
    unmute(server, "maker")
    gone = delete_topics.DeleteTopicsRequest(topic_names=["b"], timeout_ms=1000)
    answer = await client.call(gone, 5)
    assert answer.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    unmute(server, "maker")
    answer = await client.call(gone, 4)
    assert answer.responses[0].error_code == 0
    unmute(server, "maker")
    wanted = MetadataRequest(
        topics=[MetadataRequestTopic(name="c")], allow_auto_topic_creation=True
    )
    answer = await client.call(wanted, 9)
    assert answer.throttle_time_ms > 1_200_000, "created, then delayed"
    await client.close()


async def test_a_removed_quota_has_no_effect(server: Server, admin: Client) -> None:
    await make(admin, "t")
    entity = (("client-id", "fast"),)
    await set_quotas(admin, entity, {"producer_byte_rate": 10_000})
    client = await Client.connect(port_of(server), "fast")
    assert (await client.call(produce("t", batch(b"x")), 9)).throttle_time_ms == 0
    await set_quotas(admin, entity, {"producer_byte_rate": None})
    assert (await client.call(produce("t", batch(bytes(900_000))), 9)).throttle_time_ms == 0
    await client.close()


async def test_a_tenant_that_floods_is_muted_and_others_are_served(
    server: Server, admin: Client
) -> None:
    """Each connection of the tenant is muted by its first request for over a minute."""
    await make(admin, "flooded")
    await make(admin, "t")
    limits = {"producer_byte_rate": 1_000.0, "request_percentage": 1.0}
    await set_quotas(admin, (("client-id", "flood"),), limits)
    flood = [await Client.connect(port_of(server), "flood") for _ in range(4)]
    for client in flood:
        for _ in range(20):
            client.send(produce("flooded", batch(bytes(90_000))), 9)
    for client in flood:
        assert (await client.receive()).throttle_time_ms > 60_000
    other = await Client.connect(port_of(server), "other")
    for _ in range(50):
        answer = await other.call(produce("t", batch(bytes(90_000))), 9)
        assert answer.throttle_time_ms == 0
        assert answer.responses[0].partition_responses[0].error_code == 0
    assert all(each.waits & THROTTLED for each in connections_of(server, "flood"))
    answer = await other.call(produce("flooded", batch(b"x")), 9)
    assert answer.responses[0].partition_responses[0].base_offset == len(flood)
    for client in (*flood, other):
        await client.close()


async def test_a_stop_does_not_wait_for_muted_connections(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as server:
        client = await Client.connect(port_of(server), "fast")
        await make(client, "t")
        await set_quotas(client, USER, {"producer_byte_rate": 1})
        answer = await client.call(produce("t", batch(bytes(900_000))), 9)
        assert answer.throttle_time_ms > 100_000
    assert await client.reader.read() == b""
    await client.close()


class HundredSeconds(Timed):
    """Measures a hundred seconds for whatever it awaits."""

    def __await__(self) -> Generator[Any, None, Any]:
        found = yield from super().__await__()
        self.seconds = 100.0
        return found


@pytest.mark.parametrize("kind", ["partitions", "unpacked", "fetch"])
async def test_time_of_requests_that_are_served_in_tasks_counts(
    server: Server, admin: Client, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await make(admin, "t")
    await set_quotas(admin, (("client-id", "long"),), {"request_percentage": 100})
    client = await Client.connect(port_of(server), "long")
    monkeypatch.setattr(metering, "Timed", HundredSeconds)
    if kind == "fetch":
        topic = FetchTopic("t", partitions=[FetchPartition(n) for n in range(300)])
        await client.call(FetchRequest(max_bytes=1 << 20, topics=[topic]), 12)
    else:
        size = 5_000_000 if kind == "unpacked" else 5
        packed = build([(None, bytes(size))], timestamp_ms=1_700_000_000_000, codec=GZIP)
        request = produce("t", bytes(packed))
        if kind == "partitions":
            request.topic_data[0].partition_data *= 100
        await client.call(request, 9)
    (connection,) = connections_of(server, "long")
    # A Fetch is answered before its task ends, which counts then.
    await until(lambda: connection.client_quotas().throttle_request_time() > 0)
    await client.close()


async def test_time_of_fetches_that_wait_for_an_iteration_counts(
    server: Server, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(admin, "t")
    await set_quotas(admin, (("client-id", "long"),), {"request_percentage": 100})
    client = await Client.connect(port_of(server), "long")
    spent: list[float] = []
    deferred: list[int] = []
    begin_later = Attempt.answer_or_park_later

    def recorded(attempt: Attempt) -> int:
        before = len(spent)
        cost = begin_later(attempt)
        assert len(spent) == before + 1
        deferred.append(cost)
        return cost

    monkeypatch.setattr(ClientQuotas, "record_loop_time", lambda _, seconds: spent.append(seconds))
    monkeypatch.setattr(Attempt, "answer_or_park_later", recorded)
    monkeypatch.setattr(fetch_request, "ATTEMPT_BYTES", BATCH_BYTES)
    write: Any = client.writer.write
    frames: list[bytes] = []
    client.writer.write = frames.append  # type: ignore[assignment]
    for _ in range(5):
        topics = [FetchTopic("t", partitions=[FetchPartition(0)])]
        client.send(FetchRequest(max_bytes=1 << 20, topics=topics), 12)
    write(b"".join(frames))
    for _ in range(5):
        await client.receive()
    assert deferred
    await client.close()


async def test_only_the_steps_of_a_handler_are_timed() -> None:
    clock = iter(range(100))

    async def work() -> str:
        await asyncio.sleep(0)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "cancelled"
        return "done"

    timed = Timed(work(), lambda: next(clock))

    async def run() -> Any:
        return await timed

    task = asyncio.ensure_future(run())
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    assert await task == "cancelled"
    assert timed.seconds == 3
    with pytest.raises(ValueError, match="x"):
        await Timed(_fail(), time.monotonic)


async def _fail() -> None:
    raise ValueError("x")
