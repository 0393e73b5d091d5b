"""A whole broker on each offset storage: segments are cut, it is killed and restarted, every offset
is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed
from tests.real.members import wait_for

pytestmark = pytest.mark.real

ROLL_MS = 300
VALUE = os.urandom(1000)


def segments(data: Path) -> list[Path]:
    return list((data / "brokers" / "1" / "segments").glob("*.segment"))


def produce(server: str, count: int) -> int:
    """Append records to one partition; return the offset of the last."""
    producer = KafkaProducer(bootstrap_servers=server, acks="all")
    sent = [producer.send("cut", VALUE, partition=0) for _ in range(count)]
    producer.flush()
    last = max(future.get(90).offset for future in sent)
    producer.close()
    return int(last)


def offsets(server: str) -> list[int]:
    """All offsets that a consumer reads."""
    consumer = KafkaConsumer(bootstrap_servers=server, auto_offset_reset="earliest")
    place = TopicPartition("cut", 0)
    consumer.assign([place])
    (end,) = consumer.end_offsets([place]).values()
    found: list[int] = []
    while not found or found[-1] < end - 1:
        for records in consumer.poll(timeout_ms=5_000).values():
            found += [record.offset for record in records]
    consumer.close()
    return found


def stats(broker: BrokerProcess, data: Path) -> dict[str, Any]:
    """Return the row of `kafkawire offsets stats` of the topic."""
    words = ("offsets", "stats", "cut", "--data", str(data), "--json")
    (stored,) = Typed(broker.bootstrap, *words).json
    found: dict[str, Any] = stored
    return found


@pytest.mark.parametrize("storage", ["sql", "rocksdb"])
def test_offsets_survive_kill_and_clean_stop(storage: str, tmp_path: Path) -> None:
    settings = {
        "offset.storage": storage,
        "journal.bytes": str(1 << 20),
        "journal.roll.ms": str(ROLL_MS),
        "hot.bytes": str(1 << 20),
        "cut.interval.ms": "50",
    }
    with BrokerProcess(tmp_path, settings=settings) as broker:
        assert Typed(broker.bootstrap, "topics", "create", "cut", "--partitions", "1").code == 0
        assert produce(broker.bootstrap, 3_000) == 2_999
        wait_for(lambda: bool(segments(tmp_path)))
        broker.kill()
    with BrokerProcess(tmp_path, settings=settings) as broker:
        assert produce(broker.bootstrap, 10) == 3_009, "an offset was assigned twice or skipped"
        assert offsets(broker.bootstrap) == list(range(3_010))
        (row,) = Typed(broker.bootstrap, "offsets", "validate", "cut", "--json").json
        assert (row["read_to"], row["missing"], row["problems"]) == (3_010, 0, [])
        if storage == "sql":
            # A kill between a segment's file and its row undoes the cut, which is then done again.
            wait_for(lambda: bool(stats(broker, tmp_path)["segments"]))
            stored = stats(broker, tmp_path)
            assert stored["bytes_in_segments"] > stored["records_in_segments"] * 1000
    with BrokerProcess(tmp_path, settings=settings) as broker:  # after a clean end
        assert offsets(broker.bootstrap) == list(range(3_010))
