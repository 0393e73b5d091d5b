"""Run `kafkawire tier ...` in the test process, against a broker with buckets in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kafkawire.cli.restore.command
import kafkawire.cli.restore.from_backup  # noqa: F401  (see `buckets_in_memory`)
from kafkawire.cli.app import app
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.objectstore.url import TierUrl
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.json_schema import check_document
from tests.kit.server import port_of, running
from tests.kit.tier import fake_store as fakestore
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore

URL = "s3://bucket/prefix"
"""The broker's tier URL; a fake store is opened for it."""
QUICK = {"cut_interval_ms": "20", "tier_retry_max_ms": "200", "hot_bytes": "1048576"}
LAG_MS = "5000"


class Typed:
    """Runs commands and returns their output, in a thread, since the broker runs on this loop."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = f"127.0.0.1:{port_of(server)}"

    async def __call__(self, *words: str, code: int = 0) -> str:
        line = ["tier", *words, "--server", self.address]
        result = await asyncio.to_thread(CliRunner().invoke, app, line)
        late = words[0] == "why" and result.exit_code == 1 and not result.stderr
        assert result.exit_code == code or late, result.output
        if not code:
            return result.stdout
        assert result.stderr.startswith("kafkawire: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    async def json(self, *words: str) -> Any:
        """The output with --json."""
        return check_document(await self(*words, "--json"))

    async def until(self, settled: Callable[[Any], bool], *words: str) -> Any:
        """Run the command again until its output satisfies a condition."""
        while True:
            answer = await self.json(*words)
            if settled(answer):
                return answer
            await asyncio.sleep(0.05)

    async def produce(self, topic: str, count: int = 3, **configs: str) -> None:
        """Append records to partition 0 of a topic, which is created unless it exists."""
        client = await Client.connect(port_of(self.server))
        if topic not in self.server.broker.catalog.by_name:
            made = CreatableTopic(name=topic, num_partitions=2, replication_factor=1)
            texts = {"tiering.max.lag.ms": LAG_MS, "tiering.min.object.bytes": "0"} | {
                key.replace("_", "."): value for key, value in configs.items()
            }
            made.configs = [CreatableTopicConfig(name=n, value=v) for n, v in texts.items()]
            answer = await client.call(CreateTopicsRequest(topics=[made], timeout_ms=5000), 7)
            assert answer.topics[0].error_code == 0
        raw = batch(*[bytes(1000)] * count)
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, raw)])
        asked = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data])
        answer = await client.call(asked, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        await client.close()


@pytest.fixture(name="buckets")
def buckets_in_memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeBucket]:
    """Buckets by URL, created when they are first opened."""
    made = {URL: FakeBucket()}
    monkeypatch.setattr(fakestore, "BUCKETS", made)

    def opened(tier: TierUrl, **_: object) -> FakeStore:
        return FakeStore(made.setdefault(tier.url, FakeBucket()), memory_bytes=16 << 20)

    # Not `open_store`: a module that is first imported meanwhile would keep the fake. This
    # one name is looked up when a store is opened, but for `restore`, which is imported above.
    monkeypatch.setattr("kafkawire.tiering.store.process.StoreProcess", opened)
    return made


@asynccontextmanager
async def tiered(data: Path, **settings: str) -> AsyncIterator[Typed]:
    """A broker whose journals are cut at once."""
    async with running(data, **{"tier_url": URL, **QUICK, **settings}) as server:
        yield Typed(server)


def pieces(answer: Any) -> list[tuple[Any, ...]]:
    return [
        (row["topic"], row["partition"], row["from"], row["to"], row["reason"])
        for row in answer["pieces"]
    ]


def all_uploaded(answer: Any) -> bool:
    return not answer["pieces"]
