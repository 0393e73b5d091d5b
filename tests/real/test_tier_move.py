"""Moves from a MinIO bucket to another bucket and to a folder, with a real storage process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.kit.minio import Minio
from tests.kit.server import port_of, running
from tests.kit.tier.commands import Typed, all_uploaded

pytestmark = pytest.mark.real

RECORDS = 2000


def produce(address: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address, batch_size=1 << 16)
    for number in range(RECORDS):
        producer.send(topic, b"%d" % number * 200, partition=0)
    producer.flush()
    producer.close()


def consume(address: str, topic: str) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=address, consumer_timeout_ms=90_000)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[bytes] = []
    for record in consumer:
        found.append(record.value)
        if len(found) == RECORDS:
            break
    consumer.close()
    return found


@pytest.mark.parametrize("to", ["bucket", "folder"])
async def test_moved_objects_are_read_from_new_tier(
    minio: Minio, tier_url: str, tmp_path: Path, to: str
) -> None:
    target = f"{tier_url}-moved" if to == "bucket" else f"file://{tmp_path}/moved"
    settings = {"tier_url": tier_url, "journal_roll_ms": "200", "cut_interval_ms": "50"}
    async with running(tmp_path / "data", **settings) as server:
        tier = Typed(server)
        configs = {"local_retention_ms": "1", "segment_bytes": "1048576"}
        await tier.produce("t", 1, **configs)
        await tier.produce("wanted", 1, **{**configs, "retention_ms": "-1"})
        await asyncio.to_thread(produce, tier.address, "wanted")
        await tier.until(all_uploaded, "why")
        shown = await tier("move", "--to", target)
        assert f"all objects are in {target}" in shown
        (before,) = [row for row in await _rows(tier) if row["topic"] == "wanted"]
        assert before["commit"] == before["high_watermark"] == RECORDS + 1
        assert "agree" in await tier("scrub", "--deep")
        await tier.produce("wanted", 1)
        await tier.until(all_uploaded, "why")
        assert "agree" in await tier("scrub")
    async with running(tmp_path / "data", **{**settings, "tier_url": target}) as server:
        found = await asyncio.to_thread(consume, f"127.0.0.1:{port_of(server)}", "wanted")
        assert found[1:] == [b"%d" % number * 200 for number in range(RECORDS - 1)]


async def _rows(tier: Typed) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = (await tier.json("status"))["partitions"]
    return rows
