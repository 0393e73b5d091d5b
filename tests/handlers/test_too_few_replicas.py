"""Produces that are written, and then committed at fewer in-sync replicas than their topic wants.

Covers: kafkawire.handlers.produce.pending, kafkawire.handlers.produce.repeat.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.flat_produce import MAX_ITEMS
from kafkawire.messages.produce import ProduceRequest
from kafkawire.server.run import Server
from tests.handlers.test_resigned import Commits
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of, running
from tests.kit.waiting import until

TOO_FEW = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A broker that needs no followers."""
    async with running(
        tmp_path / "data", metadata=f"sqlite+aiosqlite:///{tmp_path}/shared.db",
        tier_url=str(tmp_path / "tier"), replication_listener="127.0.0.1:1",
        replica_group_size="2", replica_lag_time_max_ms="500",
    ) as started:  # fmt: skip
        yield started


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    connected = await Client.connect(port_of(server))
    await make(connected, "one", 1, durability="replicated")
    await make(connected, "two", 1, durability="replicated", min_insync_replicas="2")
    replicas = server.broker.log.commit_log.follower_sink
    await connected.call(produce("one", batch(b"first"), acks=1), 9)  # begins replication
    await until(lambda: replicas.refusal is None)
    yield connected
    await connected.close()


def to_both(more: int = 0) -> ProduceRequest:
    """A Produce to both topics, and to `more` partitions that do not exist."""
    request = produce("one", batch(b"1"), *[batch(b"no")] * more)
    request.topic_data += produce("two", batch(b"2")).topic_data
    return request


async def codes(client: Client) -> list[ErrorCode]:
    """Return the codes of the first partition of each topic in the next answer."""
    answer = await client.receive()
    return [ErrorCode(each.partition_responses[0].error_code) for each in answer.responses]


class ShrinkingSet(Commits):
    """Holds back commits with two replicas in sync, until there is one."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._replicas = server.broker.log.commit_log.follower_sink
        self._replicas.in_sync = 2

    def release(self) -> None:
        self._replicas.in_sync = 1
        super().release()


@pytest.mark.parametrize("more", [0, MAX_ITEMS])
async def test_error_is_that_of_one_topic(server: Server, client: Client, more: int) -> None:
    one, two = (server.broker.table.find_by_name(topic, 0) for topic in ("one", "two"))
    before = one.next_offset
    with ShrinkingSet(server) as commits:
        client.send(to_both(more), 9)
        await until(lambda: (one.next_offset, two.next_offset) == (before + 1, 1))
        commits.release()
        assert await codes(client) == [ErrorCode.NONE, TOO_FEW]
    assert two.high_watermark == 1


@pytest.mark.parametrize(("topic", "wanted"), [("one", ErrorCode.NONE), ("two", TOO_FEW)])
async def test_repeated_produces(
    server: Server, client: Client, topic: str, wanted: ErrorCode
) -> None:
    server.broker.log.commit_log.follower_sink.in_sync = 2
    request = produce(topic, batch(b"value"))
    for _ in range(2):  # from the third on they are handled as repetitions
        client.send(request, 9)
        assert await codes(client) == [ErrorCode.NONE]
    found = server.broker.table.find_by_name(topic, 0)
    before = found.next_offset
    with ShrinkingSet(server) as commits:
        for _ in range(3):
            client.send(request, 9)
        await until(lambda: found.next_offset == before + 3)
        commits.release()
        assert [await codes(client) for _ in range(3)] == [[wanted]] * 3
