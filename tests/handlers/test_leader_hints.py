"""Errors of Produce and Fetch that name the leader of the partition (KIP-951).

Covers: kafkawire.handlers.leader_hints.
"""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest

from kafkawire.codec.compile import encode
from kafkawire.codec.errors import ErrorCode as E
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.fetch import MAX_ITEMS as MAX_FETCHED
from kafkawire.messages.fetch import FetchPartition
from kafkawire.messages.flat_produce import MAX_ITEMS
from kafkawire.messages.leaders import LeaderIdAndEpoch, NodeEndpoint
from kafkawire.messages.produce import ProduceResponse
from kafkawire.metadata.catalog import BrokerInfo
from kafkawire.security.acls.model import Operation, ResourceKind
from kafkawire.server.run import Server
from tests.handlers.test_access import allow, guarded
from tests.kit.access_cases import rule
from tests.kit.client import Client, batch
from tests.kit.leaders import move
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.server import port_of
from tests.kit.waiting import until

GONE, STAYS = 0, 1
OTHER = NodeEndpoint(2, "second.example", 9093, "rack-b")


def add_other(server: Server, listener: str = "PLAINTEXT") -> None:
    info = BrokerInfo(2, {listener: (OTHER.host, OTHER.port)}, OTHER.rack)
    server.broker.catalog.add_broker(info)


def give_away(server: Server, leader: int = 2) -> list[int]:
    """Make another broker the leader of partition 0, in the catalog."""
    number = server.broker.catalog.by_name["t"].partitions[GONE].number
    move(server.broker.catalog, [number], leader)
    return [number]


@pytest.fixture
async def topic(server: Server, client: Client) -> bytes:
    """A topic of two partitions, the first of which broker 2 has led since it was used here."""
    topic_id = await make(client, "t", 2)
    await client.call(produce("t", batch(b"a"), batch(b"b")), 9)
    add_other(server)
    await server.broker.log.resign(give_away(server))
    return topic_id


def rows_of(answer: Any) -> dict[int, Any]:
    """Partitions of the only topic by index, of Produce or Fetch."""
    (found,) = answer.responses
    if isinstance(answer, ProduceResponse):
        return {row.index: row for row in found.partition_responses}
    return {row.partition_index: row for row in found.partitions}


def check(answer: Any, *, hinted: bool = True) -> None:
    """The first partition was refused, with a hint or without; no other partition has one."""
    rows = rows_of(answer)
    row = rows.pop(GONE)
    assert row.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert row.current_leader == (LeaderIdAndEpoch(2, 1) if hinted else None)
    assert answer.node_endpoints == ([OTHER] if hinted else [])
    assert not any(other.current_leader for other in rows.values())
    assert not rows or not rows[STAYS].error_code


def fetch_both(topic: bytes | str, more: int = 0) -> Any:
    request = fetch(topic, 0)
    rows = request.topics[0].partitions
    rows.append(FetchPartition(partition=STAYS, fetch_offset=0, partition_max_bytes=1 << 20))
    rows += [FetchPartition(partition=2 + n) for n in range(more)]
    return request


@pytest.mark.parametrize("version", range(3, 14))
async def test_produce(client: Client, topic: bytes, version: int) -> None:
    name: str | bytes = topic if version >= 13 else "t"
    answer = await client.call(produce(name, batch(b"x"), batch(b"y")), version)
    check(answer, hinted=version >= 10)


@pytest.mark.parametrize("version", range(4, 19))
async def test_fetch(client: Client, topic: bytes, version: int) -> None:
    answer = await client.call(fetch_both(topic if version >= 13 else "t"), version)
    check(answer, hinted=version >= 16)


async def frame_of(client: Client) -> bytes:
    size = int.from_bytes(await client.reader.readexactly(4))
    return await client.reader.readexactly(size)


async def test_bytes_of_produce(client: Client, topic: bytes) -> None:
    client.send(produce("t", batch(b"x")), 10)
    leader = b"\1\0\x09" + pack(">iib", 2, 1, 0)
    node = pack(">i", 2) + b"\x0fsecond.example" + pack(">i", 9093) + b"\x07rack-b\0"
    errors = b"\1\0"
    assert await frame_of(client) == b"".join((
        pack(">ib", 3, 0),
        b"\2" b"\2t" b"\2", pack(">ihqqq", 0, 6, -1, -1, -1), errors, leader, b"\0",
        pack(">i", 0), b"\1" b"\0\x20" b"\2", node,
    ))  # fmt: skip


async def test_bytes_of_fetch(client: Client, topic: bytes) -> None:
    client.send(fetch(topic, 0), 16)
    leader = b"\1\1\x09" + pack(">iib", 2, 1, 0)
    node = pack(">i", 2) + b"\x0fsecond.example" + pack(">i", 9093) + b"\x07rack-b\0"
    assert await frame_of(client) == b"".join((
        pack(">ib", 3, 0), pack(">ihi", 0, 0, 0),
        b"\2", topic, b"\2", pack(">ihqqq", 0, 6, -1, -1, -1), b"\0", pack(">i", -1), b"\1",
        leader, b"\0", b"\1" b"\0\x20" b"\2", node,
    ))  # fmt: skip


async def test_broker_without_rack(server: Server, client: Client, topic: bytes) -> None:
    server.broker.catalog.add_broker(BrokerInfo(2, {"PLAINTEXT": ("::1", 1)}, None))
    answer = await client.call(produce("t", batch(b"x")), 10)
    assert answer.node_endpoints == [NodeEndpoint(2, "::1", 1, None)]


@pytest.mark.parametrize("version", [12, 13])
async def test_long_produce(client: Client, topic: bytes, version: int) -> None:
    name: str | bytes = topic if version >= 13 else "t"
    check(await client.call(produce(name, *[batch(b"x")] * (MAX_ITEMS + 1)), version))


async def test_long_produce_of_old_version(client: Client, topic: bytes) -> None:
    check(await client.call(produce("t", *[batch(b"x")] * (MAX_ITEMS + 1)), 9), hinted=False)


@pytest.mark.parametrize("version", [15, 16])
async def test_long_fetch(client: Client, topic: bytes, version: int) -> None:
    answer = await client.call(fetch_both(topic, more=MAX_FETCHED), version)
    check(answer, hinted=version >= 16)


async def test_fetch_with_records_from_files(server: Server, client: Client, topic: bytes) -> None:
    await server.broker.log.segments.cut()
    answer = await client.call(fetch_both(topic), 16)
    check(answer)
    assert bytes(rows_of(answer)[STAYS].records)


async def test_parked_fetch(server: Server, client: Client) -> None:
    topic = await make(client, "t", 2)
    add_other(server)
    client.send(fetch(topic, 0, wait_ms=500_000), 16)
    await until(lambda: bool(server.broker.table.find_by_name("t", GONE).watchers))
    await server.broker.log.resign(give_away(server))
    check(await client.receive())


async def test_fenced_leader_epoch(server: Server, client: Client) -> None:
    """A broker that leads the partition again names itself."""
    topic = await make(client, "t", 2)
    add_other(server)
    await client.call(produce("t", batch(b"a")), 9)
    broker = server.broker
    await broker.metadata.register_broker(2, {"PLAINTEXT": (OTHER.host, OTHER.port)}, OTHER.rack)
    await broker.topics.lock.apply_changes()
    number = broker.catalog.by_name["t"].partitions[GONE].number
    for leader in (2, broker.node_id):
        await broker.metadata.move_partitions([number], leader, broker.catalog.stored_version)
        await broker.topics.lock.apply_changes()
    answer = await client.call(fetch(topic, 0, current_leader_epoch=0), 16)
    (row,) = rows_of(answer).values()
    assert row.error_code == E.FENCED_LEADER_EPOCH
    assert row.current_leader == LeaderIdAndEpoch(1, 2)
    own = ("127.0.0.1", port_of(server))
    assert [(n.node_id, n.host, n.port) for n in answer.node_endpoints] == [(1, *own)]


async def test_epoch_that_this_broker_does_not_know_has_no_hint(
    server: Server, client: Client
) -> None:
    topic = await make(client, "t", 2)
    answer = await client.call(fetch(topic, 0, current_leader_epoch=7), 16)
    (row,) = rows_of(answer).values()
    assert (row.error_code, row.current_leader) == (E.UNKNOWN_LEADER_EPOCH, None)
    assert not answer.node_endpoints


@pytest.mark.parametrize("fault", ["silent", "unknown", "other listener", "this one"])
async def test_no_hint_if_leader_cannot_be_reached(
    server: Server, client: Client, topic: bytes, fault: str
) -> None:
    catalog = server.broker.catalog
    if fault == "silent":
        catalog.set_silent(frozenset({2}))
    elif fault == "unknown":
        del catalog.brokers[2]
    elif fault == "other listener":
        add_other(server, "INTERNAL")
    else:  # led here since a moment ago, but refused by the log
        give_away(server, server.broker.node_id)
        server.broker.log.commit_log.refusal = KafkaError(E.NOT_LEADER_OR_FOLLOWER)
        server.broker.log.commit_log.full = True
    check(await client.call(produce("t", batch(b"x")), 10), hinted=False)
    if fault != "this one":
        check(await client.call(fetch(topic, 0), 16), hinted=False)


@pytest.mark.parametrize("throttle_ms", [0, 7])
@pytest.mark.parametrize("version", [9, 10, 13])
async def test_repeated_produces_that_wait_for_a_commit(
    server: Server,
    client: Client,
    version: int,
    throttle_ms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kafkawire.handlers.produce.repeat import RepeatedProduces
    from tests.handlers.test_resigned import Commits, resign

    topic = await make(client, "t", 2)
    add_other(server)
    name: str | bytes = topic if version >= 13 else "t"
    for _ in range(2):
        await client.call(produce(name, batch(b"w")), version)
    pending = server.broker.table.find_by_name("t", GONE)
    with Commits(server) as commits:
        for index in (STAYS, GONE, GONE):
            client.send(produce(name, batch(b"x"), index=index), version)
        await until(lambda: pending.next_offset == 4)
        for peer in server.host.connections:
            for exchange in peer.exchanges:
                assert isinstance(exchange, RepeatedProduces)
                exchange.throttle_ms = throttle_ms
        resigning = server.broker.env.spawn(resign(server, GONE), "resign")
        await until(lambda: pending.resigned)
        commits.release()
        first, *others = [await client.receive() for _ in range(3)]
        await resigning
    assert not rows_of(first)[STAYS].error_code
    for answer in others:
        check(answer, hinted=version >= 10)
    assert others[-1].throttle_time_ms == throttle_ms


async def test_topic_that_client_may_not_describe_has_no_hint(tmp_path: Path) -> None:
    """The error of the log comes before it is known whether the client may write."""
    async with guarded(tmp_path) as (server, client):
        add_other(server)
        give_away(server)
        log = server.broker.log.commit_log
        log.full, log.refusal = True, KafkaError(E.NOT_LEADER_OR_FOLLOWER)
        topic = server.broker.catalog.by_name["t"].id
        for name, version in (("t", 10), (topic, 13)):
            check(await client.call(produce(name, batch(b"x")), version), hinted=False)
        await allow(server, rule(Operation.DESCRIBE, ResourceKind.TOPIC, "t"))
        for name, version in (("t", 10), (topic, 13)):
            check(await client.call(produce(name, batch(b"x")), version))
        answer = await client.call(fetch(topic, 0), 16)
        (row,) = rows_of(answer).values()
        assert row.error_code == E.TOPIC_AUTHORIZATION_FAILED
        assert (row.current_leader, answer.node_endpoints) == (None, [])


def test_hint_is_encoded_as_declared() -> None:
    """An endpoint whose fields need more than 127 bytes has a size of two bytes."""
    from kafkawire.codec.flat import PartitionTags
    from kafkawire.handlers.leader_hints import encoded_endpoints, encoded_leader
    from kafkawire.messages.flat_produce import ProduceResult, write_response
    from kafkawire.messages.produce import PartitionProduceResponse, TopicProduceResponse

    nodes = [NodeEndpoint(n, "h" * 100, 65535, None if n % 2 else "r" * 200) for n in range(300)]
    row = PartitionProduceResponse(5, E.NOT_LEADER_OR_FOLLOWER, -1, -1, -1)
    row.current_leader = LeaderIdAndEpoch(299, 2**31 - 1)
    whole = ProduceResponse([TopicProduceResponse(name="t", partition_responses=[row])], 0, nodes)
    result: ProduceResult = ("t", 5, E.NOT_LEADER_OR_FOLLOWER, -1, -1, -1, None, ())
    leaders: PartitionTags = {("t", 5): encoded_leader(299, 2**31 - 1, 0)}
    tags = leaders, encoded_endpoints(nodes)
    assert write_response([result], 10, 0, tags) == encode(whole, 10)
