"""`kafkawire tier ...` against a broker with a bucket in memory.

Covers: kafkawire.handlers.tier, kafkawire.tiering.admin.commands.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.transactions.machine.request import InitProducer
from tests.kit.log.transactional import Producer
from tests.kit.tier.commands import (
    URL,
    all_uploaded,
    buckets_in_memory,  # noqa: F401  (a fixture, by name)
    pieces,
    tiered,
)
from tests.kit.tier.fake_bucket import FakeBucket


@pytest.mark.real
async def test_states_of_records_from_journal_to_bucket(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="600000") as tier:
        await tier.produce("t", 3)
        reported = await tier.json("why")
        assert pieces(reported) == [("t", 0, 0, 3, "active")]
        (piece,) = reported["pieces"]
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


@pytest.mark.slow
async def test_pause_is_reported_and_survives_restart(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        assert (await tier.json("pause")) == {"paused": True}
        await tier.produce("t", 3)
        paused = [("t", 0, 0, 3, "paused")]
        await tier.until(lambda reported: pieces(reported) == paused, "why")
    async with tiered(tmp_path / "data") as tier:
        await tier.until(lambda reported: pieces(reported) == paused, "why")
        assert not [key for key in buckets[URL].objects if key.startswith("segments/")]
        await tier("resume")
        await tier.until(all_uploaded, "why")


@pytest.mark.slow
async def test_unreachable_bucket_is_reported_as_reason(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    faults = buckets[URL].faults
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        await tier.produce("t", 1)
        await tier.until(all_uploaded, "why")
        faults.down, faults.timeout_s = True, 0.0
        await tier.produce("t", 2)

        def erring(reported: Any) -> bool:
            return pieces(reported) == [("t", 0, 1, 3, "error")]

        reported = await tier.until(erring, "why")
        (piece,) = reported["pieces"]
        assert "EndpointConnectionError" in piece["detail"]
        assert piece["until_s"] is None or piece["until_s"] <= 0.3

        def failed(answer: Any) -> bool:
            return answer["partitions"][0]["error"] is not None  # None while it is tried again

        answer = await tier.until(failed, "status")
        assert answer["partitions"][0]["lag_records"] == 2
        assert "EndpointConnectionError" in answer["partitions"][0]["error"]
        assert "EndpointConnectionError" in answer["tier"]["last_error"]
        assert "last error" in await tier("status")
        faults.down = False
        await tier.until(all_uploaded, "why")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refused", "reason"), [("AccessDenied", "error"), ("", "owned by another broker")]
)
async def test_unusable_bucket_is_reported_while_broker_serves(
    tmp_path: Path, buckets: dict[str, FakeBucket], refused: str, reason: str
) -> None:
    buckets[URL].faults.refused = refused
    first = 0
    if not refused:  # a tier of this broker, until another one claimed it
        async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
            await tier.produce("t", 1)
            await tier.until(all_uploaded, "why")
        first = 1
        foreign = {"cluster_id": "another", "node_id": 7, "epoch": 3, "nonce": "", "claimed_ms": 0}
        buckets[URL].store("owner", json.dumps({"format": 1, **foreign}).encode())
    serving = {"journal_roll_ms": "50", "tier_fenced_action": "serve"}
    async with tiered(tmp_path / "data", **serving) as tier:
        await tier.produce("t", 1)
        waiting = [("t", 0, first, first + 1, reason)]
        reported = await tier.until(lambda reported: pieces(reported) == waiting, "why")
        expected = refused or "another"
        assert expected in reported["pieces"][0]["detail"]
        assert expected in (await tier.json("status"))["tier"]["error"]
        assert expected in await tier("status")


async def test_untiered_topics_are_shown_when_named(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        await tier.produce("local", 1, remote_storage_enable="false")
        await tier.produce("read", 1, remote_log_copy_disable="true")
        assert pieces(await tier.json("why")) == []
        for topic, setting in (("local", "storage.enable=false"), ("read", "copy.disable=true")):
            reported = await tier.json("why", "--topic", topic)
            assert pieces(reported) == [(topic, 0, 0, 1, "not tiered")]
            assert setting in reported["pieces"][0]["detail"]
        tiers = {row["topic"]: row["tiered"] for row in (await tier.json("status"))["partitions"]}
        assert tiers == {"local": "no", "read": "reads"}


async def test_responses_are_paged(
    tmp_path: Path, buckets: dict[str, FakeBucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.tiering.admin.status.PAGE", 1)
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


@pytest.mark.slow
async def test_cost_is_counted_by_topic_and_survives_restart(
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
            lambda reported: any(row["topic"] == "t" for row in reported["topics"]), "cost"
        )
        assert {row["topic"]: row for row in again["topics"]}["t"] == by_topic["t"]
        assert again["since_start"]["requests"].get("PUT", 0) < puts
        assert "monthly budget: 100 USD" in await tier("cost")


async def test_cost_estimate_of_future_settings(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="600000") as tier:
        await tier.produce("t", 50, tiering_max_lag_ms="300000")
        wish = ("--set", "tiering.max.lag.ms=10000")
        reported = await tier.json("estimate", *wish, "--topic", "t")
        assert 0 < reported["now"]["puts_a_day"] < reported["then"]["puts_a_day"]
        assert reported["currency"] == "USD"
        stored = await tier.json("estimate", "--durability", "s3")
        assert stored["now"]["log_puts_a_day"] == 0 < stored["then"]["log_puts_a_day"]


async def test_estimate_from_given_rate_needs_no_broker() -> None:
    def typed(*words: str) -> Any:
        result = CliRunner().invoke(app, ["tier", "estimate", "--json", *words])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)["then"]

    usual = typed("--rate", "5MB/s", "--partitions", "100")
    hasty = typed("--rate", "5MB/s", "--partitions", "100", "--set", "tiering.max.lag.ms=5000")
    assert hasty["puts_a_day"] > usual["puts_a_day"] > 0
    stored = typed("--rate", "5MB/s", "--partitions", "100", "--durability", "s3")
    assert usual["log_puts_a_day"] == usual["log_cost_a_month"] == 0
    assert stored["log_puts_a_day"] == stored["puts_a_day"] - usual["puts_a_day"] == 864_000
    assert stored["log_unreleased_bytes"] == 1 << 30
    free = typed("--rate", "5MB/s", "--set", "tier.prices=free", "--reads", "4MiB/s")
    assert free["storage_cost_a_month"] == 0
    assert 86_400 < free["gets_a_day"] < 90_000


@pytest.mark.slow
async def test_scrub_finds_missing_objects(tmp_path: Path, buckets: dict[str, FakeBucket]) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        await tier.produce("t", 3)
        await tier.until(all_uploaded, "why")
        (key,) = [key for key in buckets[URL].objects if key.startswith("segments/")]
        buckets[URL].forget(key)
        result = await asyncio.to_thread(
            CliRunner().invoke, app, ["tier", "scrub", "--json", "--server", tier.address]
        )
        assert result.exit_code == 1
        (finding,) = json.loads(result.stdout)["findings"]
        assert (finding["kind"], finding["key"]) == ("dangling", key)


@pytest.mark.slow
async def test_open_transaction_is_named_as_reason(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="600000") as tier:
        broker = tier.server.broker
        await tier.produce("t", 2)
        await tier.produce("u", 1)
        await broker.transactions.coordinator_of("tx")
        made = await broker.transactions.init_producer(InitProducer("tx", 60_000))
        for topic, producer_id in (("t", made.producer_id), ("u", 987)):
            partition = broker.table.find_by_name(topic, 0)
            Producer(producer_id).send(partition, b"open")
            await partition.log.wait_until_committed()
        rows = (await tier.json("why"))["pieces"]
        found = [row for row in rows if row["producer_id"] is not None]
        assert [(row["topic"], row["from"], row["reason"]) for row in found] == [
            ("t", 2, "transaction open"),
            ("u", 1, "transaction open"),
        ]
        assert [row["transactional_id"] for row in found] == ["tx", None]
        text = f"producer {made.producer_id} has a transaction open since offset 2"
        assert found[0]["detail"] == f"{text}, transactional id 'tx'"
        assert found[1]["detail"] == "producer 987 has a transaction open since offset 1"
