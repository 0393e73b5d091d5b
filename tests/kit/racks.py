"""Two brokers of one cluster in the test's own loop, in racks a and b, with one bucket in memory;
broker 1 leads the topic "t", whose records it has uploaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kafkawire.broker.broker import Broker
from kafkawire.codec.configs.table import RACK_AWARE
from kafkawire.log.partition.partition import Partition
from kafkawire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kafkawire.messages.create_topics import CreatableTopicConfig as Setting
from kafkawire.messages.fetch import FetchRequest
from kafkawire.replication.options import FOLLOWER_FOLDER
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.env import EPOCH_MS
from tests.kit.followers import RunningFollower
from tests.kit.log.transactional import Producer, packed
from tests.kit.produce_fetch import fetch
from tests.kit.server import port_of, running
from tests.kit.tier.commands import QUICK, URL
from tests.kit.waiting import until

CONFIGS = {"tiering.max.lag.ms": "5000", "tiering.min.object.bytes": "0", "retention.ms": "-1"}


class Racks:
    """Broker 1 in rack a, broker 2 in rack b. `follower`: of the machine of broker 2."""

    follower: RunningFollower

    def __init__(self, one: Server, two: Server) -> None:
        self.servers = one, two
        self.one: Broker = one.broker
        self.two: Broker = two.broker

    @property
    def partition(self) -> Partition:
        """Partition 0 of "t" at its leader."""
        return self.one.table.find_by_name("t", 0)

    def bootstrap(self, node_id: int) -> str:
        return f"127.0.0.1:{port_of(self.servers[node_id - 1])}"

    async def client(self, node_id: int) -> Client:
        return await Client.connect(port_of(self.servers[node_id - 1]))

    async def create(self, **configs: str) -> None:
        """Create "t", with one partition."""
        topic = CreatableTopic("t", -1, -1)
        topic.assignments = [CreatableReplicaAssignment(0, [1])]
        own = {key.replace("_", "."): value for key, value in configs.items()}
        topic.configs = [Setting(key, value) for key, value in {**CONFIGS, **own}.items()]
        await self.one.topics.create([topic])
        await until(lambda: "t" in self.two.catalog.by_name)
        await self.one.table.load_partition("t", 0)

    async def append(self, *values: bytes) -> None:
        """Append a batch for each of the values."""
        for value in values:
            self.partition.append(packed([value], keyed=True), EPOCH_MS)
        await self.partition.log.wait_until_committed()

    async def transaction(self, producer: Producer, *values: bytes, commit: bool) -> None:
        producer.send(self.partition, *values, keyed=True)
        producer.end(self.partition, commit=commit)
        await self.partition.log.wait_until_committed()

    async def upload(self) -> None:
        """Wait until everything that was appended is uploaded."""
        end = self.partition.high_watermark
        await until(lambda: self.partition.commit_offset == end)

    def pause(self, paused: bool = True) -> None:
        """Let broker 1 upload nothing, or continue."""
        self.one.config.tier_paused = paused
        assert self.one.tiering is not None
        self.one.tiering.broker_changed()


@asynccontextmanager
async def racks(folder: Path, **settings: str) -> AsyncIterator[Racks]:
    """Start both; a fixture has replaced the bucket."""
    metadata = f"sqlite+aiosqlite:///{folder}/shared.db"
    own = {"tier_url": URL, "replica_selector_class": RACK_AWARE, "journal_roll_ms": "100"}
    own |= {**QUICK, **settings}
    async with (
        running(folder / "1", metadata=metadata, node_id="1", broker_rack="a", **own) as one,
        running(folder / "2", metadata=metadata, node_id="2", broker_rack="b", **own) as two,
    ):
        made = Racks(one, two)
        for broker in (made.one, made.two):
            await until(lambda b=broker: len(b.catalog.brokers) == 2)  # type: ignore[misc]
            await until(lambda b=broker: b.tiering.state == "attached")  # type: ignore[misc]
        yield made


@asynccontextmanager
async def replicated_racks(folder: Path, **settings: str) -> AsyncIterator[Racks]:
    """Start both, and a follower of broker 1 on the machine of broker 2: "t" is replicated, and
    nothing of it is uploaded."""
    follower = RunningFollower(folder / "2" / FOLLOWER_FOLDER, 2)
    own = {
        "replication_listener": f"127.0.0.1:{follower.port}", "replica_group_size": "2",
        "min_insync_replicas": "2", **settings,
    }  # fmt: skip
    try:
        async with racks(folder, **own) as made:
            made.follower = follower
            made.pause()
            await made.create(durability="replicated")
            sink = made.one.log.commit_log.follower_sink
            await until(lambda: sink.refusal is None)
            yield made
    finally:
        await asyncio.to_thread(follower.stop)


def from_rack(rack: str, offset: int, wait_ms: int = 0, **partition: int) -> FetchRequest:
    """A Fetch of "t" by a client of a rack."""
    request = fetch("t", offset, wait_ms, **partition)
    request.rack_id = rack
    return request


async def ask(client: Client, request: Any, version: int = 11) -> Any:
    """The only partition of the answer."""
    answer = await asyncio.wait_for(client.call(request, version), 60)
    return answer.responses[0].partitions[0]
