"""Metrics of log objects of a running broker.

Covers: kafkawire.server.metrics.durability.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.client import Client, batch
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of
from tests.kit.tier.commands import (
    QUICK,
    URL,
    buckets_in_memory,  # noqa: F401  (a fixture, by name)
)
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.waiting import until
from tests.server.test_metrics import of, scrape, watched


async def test_log_objects_are_counted(tmp_path: Path, buckets: dict[str, FakeBucket]) -> None:
    async with watched(tmp_path / "data", tier_url=URL, **QUICK) as (server, port):
        client = await Client.connect(port_of(server))
        soon: dict[str, Any] = {"tiering_max_lag_ms": "5000", "tiering_min_object_bytes": "0"}
        await make(client, "t", durability="s3", **soon)
        await client.call(produce("t", batch(b"one")), 9)
        samples = await scrape(port)
        assert of(samples, "kafkawire_log_objects_stored_total") == 1
        stored = of(samples, "kafkawire_log_object_bytes_stored_total")
        assert stored > len(batch(b"one"))
        assert of(samples, "kafkawire_log_object_put_seconds_count") == 1
        assert of(samples, "kafkawire_log_object_unstored_bytes") == 0
        assert of(samples, "kafkawire_log_object_unreleased_bytes") == stored
        assert of(samples, "kafkawire_log_object_refusing") == 0

        (bucket,) = buckets.values()
        bucket.faults.error_rate = 1.0
        objects = server.broker.log.commit_log.object_sink
        waiting = client.call(produce("t", batch(b"two")), 9)
        answer = server.broker.env.spawn(waiting, "produce")
        await until(lambda: objects.failed_puts > 1)
        samples = await scrape(port)
        assert of(samples, "kafkawire_log_object_failed_puts_total") >= 2
        assert of(samples, "kafkawire_log_object_unstored_bytes") > len(batch(b"two"))
        bucket.faults.error_rate = 0.0
        await answer
        await client.close()


async def test_refusal_and_release_are_shown(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with watched(tmp_path / "data", tier_url=URL, **QUICK) as (server, port):
        objects = server.broker.log.commit_log.object_sink
        objects.refuse_batches("the test says so")
        objects.note_released(3, 0)
        samples = await scrape(port)
        assert of(samples, "kafkawire_log_objects_released_total") == 3
        assert of(samples, "kafkawire_log_object_refusing") == 1


async def test_broker_without_tier_has_no_series_of_log_objects(tmp_path: Path) -> None:
    async with watched(tmp_path / "data") as (_, port):
        assert not [name for name, _ in await scrape(port) if "log_object" in name]
