"""A schedule topic in MinIO: the broker loses its disk, `kafkawire restore` brings back what
is in the bucket, and the schedule continues.

Covers: kafkawire.schedules.service, kafkawire.schedules.states.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.log.io.disk import SystemClock
from tests.kit.server import running
from tests.kit.tier.commands import Typed, all_uploaded
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real

LATER, ORDERS = "later", "orders"
RECORDS = 300
HOUR_MS = 3_600_000
TIERED = {"tiering.max.lag.ms": "5000", "tiering.min.object.bytes": "1", "retention.ms": "-1"}
BROKER = {"journal_roll_ms": "100", "cut_interval_ms": "50", "offsets_topic_num_partitions": "1"}


def create(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    cold = {**TIERED, "local.retention.bytes": "1", "schedule.target.topic": ORDERS}
    for name, configs in ((ORDERS, TIERED), (LATER, cold)):
        admin.create_topics([NewTopic(name, 1, 1, config=configs)])[name].result(60)


def send(address: str, text: str, after_ms: int) -> set[bytes]:
    """Schedule records; return their values."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    values = {f"{text} {number}".encode() + b"x" * 1000 for number in range(RECORDS)}
    for value in sorted(values):
        headers: list[tuple[str, bytes | str | None]] = [
            ("kafkawire-deliver-after", str(after_ms).encode())
        ]
        producer.produce(LATER, value, headers=headers)
    assert producer.flush(60) == 0
    return values


def read(address: str, count: int) -> Counter[bytes]:
    """Read what is delivered until there are so many records."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "r", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([ORDERS])
    found: Counter[bytes] = Counter()

    def arrived() -> bool:
        for message in consumer.consume(500, timeout=0.2):
            if message.error() is None:
                found[message.value() or b""] += 1
        return found.total() >= count

    wait_until(arrived, f"{count} delivered records")
    consumer.close()
    return found


async def test_schedule_continues_after_a_restore(
    tier_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"tier_url": tier_url, **BROKER}
    async with running(tmp_path / "data", **settings) as server:
        tier = Typed(server)
        await asyncio.to_thread(create, tier.address)
        now = await asyncio.to_thread(send, tier.address, "now", 0)
        waits = await asyncio.to_thread(send, tier.address, "waits", HOUR_MS)
        await asyncio.to_thread(read, tier.address, len(now))
        await tier.until(all_uploaded, "why")
    shutil.rmtree(tmp_path / "data")
    again = tmp_path / "again"
    words = ["restore", "--yes", tier_url, "--data", str(again)]
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert done.exit_code == 0, done.output
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: time.time_ns() // 1_000_000 + HOUR_MS)
    async with running(again, **settings) as server:
        tier = Typed(server)
        found = await asyncio.to_thread(read, tier.address, len(now) + len(waits))
        last = await asyncio.to_thread(send, tier.address, "last", 0)
        found = await asyncio.to_thread(read, tier.address, len(found) + len(last))
    assert found.keys() == now | waits | last
    assert set(found.values()) == {1}
