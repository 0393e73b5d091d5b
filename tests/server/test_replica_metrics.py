"""Metrics of replication of a running broker, with followers in threads.

Covers: kafkawire.server.metrics.durability.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.followers import RunningFollower
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of
from tests.kit.waiting import until
from tests.server.test_metrics import of, scrape, watched

LISTENER = "127.0.0.1:1"
"""Of the broker's own machine, whose follower does not run in these tests."""


class ReplicatedBroker:
    """A broker with a topic `t`, and its followers by the node id of their machines."""

    def __init__(
        self, server: Server, port: int, client: Client, followers: dict[int, RunningFollower]
    ) -> None:
        self.server = server
        self.port = port
        self.client = client
        self.followers = followers

    async def send(self, acks: int = -1) -> ErrorCode:
        answer = await self.client.call(produce("t", batch(b"value"), acks=acks), 9)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    async def in_sync(self, count: int) -> None:
        """Wait until this many followers are in sync."""
        await self.send(acks=1)  # the first one begins replication, and is refused
        replication = self.server.broker.log.replication
        assert replication is not None
        assert replication.in_sync is not None
        in_sync = replication.in_sync
        await until(lambda: in_sync.established and len(in_sync.members) == count)


@asynccontextmanager
async def replicated(
    tmp_path: Path, *nodes: int, **settings: str
) -> AsyncIterator[ReplicatedBroker]:
    url = f"sqlite+aiosqlite:///{tmp_path}/shared.db"
    with ExitStack() as stack:
        followers = {}
        for node in nodes:
            followers[node] = RunningFollower(tmp_path / f"replicas-{node}", node)
            stack.callback(followers[node].stop)
            await followers[node].register(url)
        settings = {"tier_url": str(tmp_path / "tier"), "replication_listener": LISTENER} | settings
        async with watched(tmp_path / "data", metadata=url, **settings) as (server, port):
            client = await Client.connect(port_of(server))
            try:
                await make(client, "t", durability="replicated")
                yield ReplicatedBroker(server, port, client, followers)
            finally:
                await client.close()


@contextmanager
def silent(port: int) -> Iterator[None]:
    """Accept connections to a port, and answer nothing: a follower that hangs."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        yield


@pytest.mark.slow
async def test_replicas_are_counted(tmp_path: Path) -> None:
    async with replicated(tmp_path, 2, 3, replica_lag_time_max_ms="500") as broker:
        await broker.in_sync(2)
        assert await broker.send() is ErrorCode.NONE
        samples = await scrape(broker.port)
        assert of(samples, "kafkawire_replicas_in_sync") == 3
        assert of(samples, "kafkawire_replicas_wanted") == 3
        assert of(samples, "kafkawire_replica_unreplicated_bytes") == 0
        assert of(samples, "kafkawire_replica_refusing") == 0
        assert of(samples, "kafkawire_replica_lag_seconds", follower="2") == 0
        broker.followers[3].stop()
        await broker.in_sync(1)
        samples = await scrape(broker.port)
        assert of(samples, "kafkawire_replicas_in_sync") == 2
        assert of(samples, "kafkawire_replicas_wanted") == 3
        assert of(samples, "kafkawire_replica_refusing") == 0
        assert of(samples, "kafkawire_replica_lag_seconds", follower="3") > 0


@pytest.mark.slow
async def test_bytes_without_followers_and_refusal_are_shown(tmp_path: Path) -> None:
    """The last follower that is needed stays in the set: in sync are still two, but it lags."""
    settings = {
        "replica_group_size": "2", "min_insync_replicas": "2",
        "replica_lag_time_max_ms": "2000",  # far longer than a produce takes
    }  # fmt: skip
    async with replicated(tmp_path, 2, **settings) as broker:
        await broker.in_sync(1)
        assert await broker.send() is ErrorCode.NONE
        replicas = broker.server.broker.log.commit_log.follower_sink
        broker.followers[2].stop()
        with silent(broker.followers[2].port):
            assert await broker.send(acks=1) is ErrorCode.NONE
            samples = await scrape(broker.port)
            assert of(samples, "kafkawire_replica_unreplicated_bytes") >= len(batch(b"value"))
            await until(lambda: replicas.refusal is not None)
            samples = await scrape(broker.port)
        assert of(samples, "kafkawire_replica_refusing") == 1
        assert of(samples, "kafkawire_replicas_in_sync") == 2
        assert of(samples, "kafkawire_replica_lag_seconds", follower="2") > 2
        broker.followers[2].start()
        await until(lambda: replicas.refusal is None and not replicas.queue.size_bytes)
        samples = await scrape(broker.port)
        assert of(samples, "kafkawire_replica_refusing") == 0
        assert of(samples, "kafkawire_replica_unreplicated_bytes") == 0


async def test_broker_without_replicated_topics_has_no_series_of_replicas(tmp_path: Path) -> None:
    settings = {"tier_url": str(tmp_path / "tier"), "replication_listener": LISTENER}
    async with watched(tmp_path / "data", **settings) as (_, port):
        assert not [name for name, _ in await scrape(port) if "replicas" in name]
        assert not [name for name, _ in await scrape(port) if name.startswith("kafkawire_replica_")]
