"""`kafkawire tier ...` as a person types it, against a broker with a bucket in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkawire.broker.options import ServeOptions
from kafkawire.cli.app import app
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.messages.registry import TIER
from kafkawire.messages.tier import TierRequest
from kafkawire.server.run import Server
from log.disk import real_env
from tests.kit import fakestore
from tests.kit.client import Client, batch
from tests.kit.fakestore import FakeBucket, FakeStore
from tests.kit.server import options, port_of, running

URL, OTHER = "s3://bucket/prefix", "s3://elsewhere/x"
"""What the broker is told; fakes stand there."""
QUICK = {"cut_interval_ms": "20", "tier_retry_max_ms": "200", "hot_bytes": "1048576"}
LAG_MS = "5000"


class Typed:
    """Commands and what comes of them. The broker runs on this loop, so they must not."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = f"127.0.0.1:{port_of(server)}"

    async def __call__(self, *words: str, code: int = 0) -> str:
        line = ["tier", *words, "--server", self.address]
        result = await asyncio.to_thread(CliRunner().invoke, app, line)
        assert result.exit_code == code, result.output
        if not code:
            return result.stdout
        assert result.stderr.startswith("kafkawire: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    async def json(self, *words: str) -> Any:
        """What it says with --json."""
        return json.loads(await self(*words, "--json"))

    async def until(self, settled: Callable[[Any], bool], *words: str) -> Any:
        """Ask again until the answer is as it should be."""
        while True:
            answer = await self.json(*words)
            if settled(answer):
                return answer
            await asyncio.sleep(0.05)

    async def produce(self, topic: str, count: int = 3, **configs: str) -> None:
        """Records in partition 0 of a topic that is made first, unless it is there."""
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


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeBucket]:
    """By URL. One that is not there is made when it is first asked for."""
    made = {URL: FakeBucket()}
    monkeypatch.setattr(fakestore, "BUCKETS", made)

    def opened(url: str, _: object) -> FakeStore:
        return FakeStore(made.setdefault(url, FakeBucket()), memory_bytes=16 << 20)

    monkeypatch.setattr("tiering.opening.open_store", opened)
    monkeypatch.setattr("tiering.service.open_store", opened)
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


@pytest.mark.real
async def test_from_the_journal_to_the_bucket(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="600000") as tier:
        await tier.produce("t", 3)
        told = await tier.json("why")
        assert pieces(told) == [("t", 0, 0, 3, "active")]
        (piece,) = told["pieces"]
        assert 3000 < piece["bytes"] < 4000
        assert 0 <= piece["until_s"] <= 2.6  # half of the lag
        (row,) = (await tier.json("status"))["partitions"]
        assert (row["commit"], row["lag_records"], row["high_watermark"]) == (0, 3, 3)
        assert row["last_upload_ms"] is None
        await tier.until(all_uploaded, "why")
        answer = await tier.json("status")
        (row,) = answer["partitions"]
        assert (row["commit"], row["dispatch"], row["local_log_start"]) == (3, 3, 0)
        assert (row["lag_records"], row["lag_bytes"], row["lag_s"], row["error"]) == (0, 0, 0, None)
        assert row["last_upload_ms"] <= answer["tier"]["now_ms"]
        state = answer["tier"]
        assert (state["url"], state["state"], state["owner_epoch"]) == (URL, "attached", 1)
        assert state["uploads"] == 1
        assert state["manifest_sequence"] >= 1
        assert any(key.startswith("segments/") for key in buckets[URL].objects)


async def test_tables_for_people(tmp_path: Path, buckets: dict[str, FakeBucket]) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="100") as tier:
        await tier.produce("t", 3)
        await tier.until(all_uploaded, "why")
        assert "everything is in the remote tier" in await tier("why")
        assert "uploaded" in await tier("why", "--all")
        shown = await tier("status")
        assert f"{URL}: attached" in shown
        assert "owner epoch 1" in shown
        assert len([line for line in shown.splitlines() if line.strip().startswith("t ")]) == 1
        every = await tier("status", "--all")
        assert len([line for line in every.splitlines() if line.strip().startswith("t ")]) == 2
        assert "(cluster)" in await tier("cost")


async def test_paused_is_the_reason_and_survives_a_restart(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        assert (await tier.json("pause")) == {"paused": True}
        await tier.produce("t", 3)
        paused = [("t", 0, 0, 3, "paused")]
        await tier.until(lambda told: pieces(told) == paused, "why")
        assert "paused by tier.paused" in await tier("why")
    async with tiered(tmp_path / "data") as tier:
        await tier.until(lambda told: pieces(told) == paused, "why")
        assert not [key for key in buckets[URL].objects if key.startswith("segments/")]
        assert "go on" in await tier("resume")
        await tier.until(all_uploaded, "why")


async def test_a_bucket_that_is_down_is_the_reason(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    faults = buckets[URL].faults
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        await tier.produce("t", 1)
        await tier.until(all_uploaded, "why")
        faults.down, faults.timeout_s = True, 0.0
        await tier.produce("t", 2)

        def erring(told: Any) -> bool:
            return pieces(told) == [("t", 0, 1, 3, "error")]

        told = await tier.until(erring, "why")
        (piece,) = told["pieces"]
        assert "EndpointConnectionError" in piece["detail"]
        assert piece["until_s"] is None or piece["until_s"] <= 0.3
        answer = await tier.json("status")
        assert answer["partitions"][0]["lag_records"] == 2
        assert "EndpointConnectionError" in answer["partitions"][0]["error"]
        assert "EndpointConnectionError" in answer["tier"]["last_error"]
        assert "last error" in await tier("status")
        faults.down = False
        await tier.until(all_uploaded, "why")


@pytest.mark.parametrize(
    ("refused", "reason"), [("AccessDenied", "error"), ("", "owned by another broker")]
)
async def test_a_bucket_that_cannot_be_used_is_the_reason_and_the_broker_serves(
    tmp_path: Path, buckets: dict[str, FakeBucket], refused: str, reason: str
) -> None:
    buckets[URL].faults.refused = refused
    if not refused:
        foreign = {"cluster_id": "another", "node_id": 7, "epoch": 3, "nonce": "", "claimed_ms": 0}
        buckets[URL].store("owner", json.dumps({"format": 1, **foreign}).encode())
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        await tier.produce("t", 1)
        told = await tier.until(lambda told: pieces(told) == [("t", 0, 0, 1, reason)], "why")
        expected = refused or "another"
        assert expected in told["pieces"][0]["detail"]
        assert expected in (await tier.json("status"))["tier"]["error"]
        assert expected in await tier("status")


async def test_topics_that_are_not_copied_say_so_when_they_are_asked_for(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        await tier.produce("local", 1, remote_storage_enable="false")
        await tier.produce("read", 1, remote_log_copy_disable="true")
        assert pieces(await tier.json("why")) == []
        for topic, setting in (("local", "storage.enable=false"), ("read", "copy.disable=true")):
            told = await tier.json("why", "--topic", topic)
            assert pieces(told) == [(topic, 0, 0, 1, "not tiered")]
            assert setting in told["pieces"][0]["detail"]
        tiers = {row["topic"]: row["tiered"] for row in (await tier.json("status"))["partitions"]}
        assert tiers == {"local": "no", "read": "reads"}


async def test_answers_come_in_pages(
    tmp_path: Path, buckets: dict[str, FakeBucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiering.status.PAGE", 1)
    async with tiered(tmp_path / "data", journal_roll_ms="600000") as tier:
        for topic in ("b", "a"):
            await tier.produce(topic, 1)
        every = (await tier.json("status", "--all"))["partitions"]
        assert [(row["topic"], row["partition"]) for row in every] == [
            ("a", 0),
            ("a", 1),
            ("b", 0),
            ("b", 1),
        ]
        assert len((await tier.json("status", "--all", "--topic", "b"))["partitions"]) == 2
        assert [piece[0] for piece in pieces(await tier.json("why"))] == ["a", "b"]


async def test_cost_is_counted_by_topic_and_kept_over_a_restart(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    settings = {"tier_prices": "PUT=1000,GB_MONTH=1", "tier_budget_month": "100"}
    async with tiered(tmp_path / "data", journal_roll_ms="50", **settings) as tier:
        await tier.produce("t", 3)
        await tier.until(all_uploaded, "why")
        cost = await tier.json("cost")
        by_topic = {row["topic"]: row for row in cost["topics"]}
        assert by_topic["t"]["requests"] == {"PUT": 1}
        assert by_topic["t"]["in_bytes"] > 3000
        assert by_topic["t"]["cost"] == 1
        assert by_topic["(cluster)"]["requests"]["PUT"] >= 3  # owner, snapshot, current, delta
        assert cost["cost"] >= 4
        assert cost["storage"]["bytes"] == by_topic["t"]["in_bytes"]
        assert (cost["budget"], cost["budget_percent"]) == (100, round(cost["cost"], 1))
        puts = buckets[URL].requests["put"]
        assert sum(row["requests"].get("PUT", 0) for row in cost["topics"]) == puts
    async with tiered(tmp_path / "data", **settings) as tier:
        again = await tier.until(
            lambda told: any(row["topic"] == "t" for row in told["topics"]), "cost"
        )
        assert {row["topic"]: row for row in again["topics"]}["t"] == by_topic["t"]
        assert again["since_start"]["requests"].get("PUT", 0) < puts
        assert "budget of the month: 100 USD" in await tier("cost")


async def test_an_estimate_of_what_would_be(tmp_path: Path, buckets: dict[str, FakeBucket]) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="600000") as tier:
        await tier.produce("t", 50, tiering_max_lag_ms="300000")
        wish = ("--set", "tiering.max.lag.ms=10000")
        told = await tier.json("estimate", *wish, "--topic", "t")
        assert 0 < told["now"]["puts_a_day"] < told["then"]["puts_a_day"]
        assert told["currency"] == "USD"
        assert "PUTs a day" in await tier("estimate")
        assert "flush: the estimate" in await tier("estimate", "--set", "flush=os", code=1)
        assert "at least 5000" in await tier("estimate", "--set", "tiering.max.lag.ms=1", code=1)
        assert "NAME=VALUE" in await tier("estimate", "--set", "x", code=2)
        assert "no topic" in await tier("estimate", "--topic", "none", code=1)


async def test_a_typed_rate_needs_no_broker() -> None:
    def typed(*words: str) -> Any:
        result = CliRunner().invoke(app, ["tier", "estimate", "--json", *words])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)["then"]

    usual = typed("--rate", "5MB/s", "--partitions", "100")
    hasty = typed("--rate", "5MB/s", "--partitions", "100", "--set", "tiering.max.lag.ms=5000")
    assert hasty["puts_a_day"] > usual["puts_a_day"] > 0
    free = typed("--rate", "5MB/s", "--set", "tier.prices=free", "--reads", "4MiB/s")
    assert (free["storage_cost_a_month"], free["gets_a_day"]) == (0, 86_400)


async def test_scrub_finds_what_is_gone(tmp_path: Path, buckets: dict[str, FakeBucket]) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        await tier.produce("t", 3)
        await tier.until(all_uploaded, "why")
        assert "agree" in await tier("scrub")
        (key,) = [key for key in buckets[URL].objects if key.startswith("segments/")]
        buckets[URL].forget(key)
        result = await asyncio.to_thread(
            CliRunner().invoke, app, ["tier", "scrub", "--json", "--server", tier.address]
        )
        assert result.exit_code == 1
        (finding,) = json.loads(result.stdout)["findings"]
        assert (finding["kind"], finding["key"]) == ("dangling", key)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["status", "--topic", "none"], "there is no topic 'none'"),
        (["why", "--topic", "none"], "there is no topic 'none'"),
        (["move", "--to", "s4://x"], "'s4://x' is no tier"),
        (["move"], f"everything is in {URL} already"),
        (["move", "--to", URL], f"everything is in {URL} already"),
    ],
)
async def test_what_is_asked_wrongly_is_one_sentence(
    tmp_path: Path, buckets: dict[str, FakeBucket], words: list[str], sentence: str
) -> None:
    async with tiered(tmp_path / "data") as tier:
        assert sentence in await tier(*words, code=1)


async def test_a_broker_without_a_tier_says_so(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as server:
        tier = Typed(server)
        for command in ("status", "why", "cost", "pause", "resume", "scrub", "move", "estimate"):
            assert "no remote tier: start it with" in await tier(command, code=1)


async def test_another_kafka_does_not_know_the_api() -> None:
    """Apache Kafka closes the connection on an API key it does not know."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from kafkawire.codec.compile import encode
        from kafkawire.messages.api_versions import ApiVersion, ApiVersionsResponse

        await reader.readexactly(4)
        head = await reader.read(1000)
        rows = [ApiVersion(api_key=18, min_version=0, max_version=4)]
        body = head[4:8] + encode(ApiVersionsResponse(api_keys=rows), 3)
        writer.write(len(body).to_bytes(4, "big") + body)
        await reader.readexactly(4)
        writer.close()

    kafka = await asyncio.start_server(close, "127.0.0.1", 0)
    address = f"127.0.0.1:{kafka.sockets[0].getsockname()[1]}"
    line = ["tier", "status", "--server", address]
    result = await asyncio.to_thread(CliRunner().invoke, app, line)
    kafka.close()
    await kafka.wait_closed()
    assert result.exit_code == 1
    assert "it is no kafkawire" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "arguments", "sentence"),
    [
        ("dance", b"{}", "'dance' is no command"),
        ("status", b"[]", "no JSON object"),
        ("status", b"\xff", "not JSON"),
        ("status", b"[" * 5000, "not JSON"),
        ("status", b'{"after": 3}', "after=3"),
        ("status", b'{"topic": 3}', "no topic 3"),
        ("estimate", b'{"set": [1]}', "settings by name"),
        ("estimate", b'{"reads": "x"}', "bytes a second"),
        ("move", b'{"to": 3}', "to=3"),
        ("status", b" " * 70_000, "at most 65536"),
    ],
)
async def test_garbage_from_clients_is_refused_in_a_sentence(
    tmp_path: Path,
    buckets: dict[str, FakeBucket],
    command: str,
    arguments: bytes,
    sentence: str,
) -> None:
    async with tiered(tmp_path / "data") as tier:

        def ask() -> Any:
            with Cluster(tier.address) as cluster:
                return cluster.first.request_own(TIER, TierRequest(command, arguments))

        answer = await asyncio.to_thread(ask)
        assert answer.error_code == 42  # INVALID_REQUEST
        assert sentence in answer.error_message
        assert answer.body == b""


async def test_a_wrong_tier_ends_the_start(tmp_path: Path) -> None:
    wrong: ServeOptions = options(tmp_path, tier_url="s4://bucket")
    with pytest.raises(ValueError, match="s4://bucket"):
        await Server.start(wrong, real_env())


def test_no_broker_is_one_sentence() -> None:
    with pytest.raises(ClientError, match="cannot connect"):
        Cluster("127.0.0.1:1")
