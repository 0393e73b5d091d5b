"""librdkafka pushes what a subscription of client metrics names (KIP-714).

Covers: kafkawire.telemetry.service, kafkawire.telemetry.otlp, kafkawire.handlers.push_telemetry.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.kit.client_metrics import broker_with_page, pushed_latencies
from tests.kit.configs import METRICS
from tests.kit.waiting import wait_until
from tests.real.conftest import SETTINGS, alter_settings


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A broker: its address, and that of its metrics page."""
    with broker_with_page(tmp_path / "data", SETTINGS) as addresses:
        yield addresses


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_producer_and_consumer_push_their_latencies(
    running: tuple[str, str], protocol: str
) -> None:
    bootstrap, url = running
    wanted = "org.apache.kafka.producer.,org.apache.kafka.consumer."
    match = "client_id=pushing-.*,client_software_name=confluent-kafka-python"
    alter_settings(bootstrap, METRICS, "m", metrics=wanted, interval_ms="200", match=match)
    common = {"bootstrap.servers": bootstrap, "enable.metrics.push": True}
    producer = Producer({**common, "client.id": "pushing-producer"})
    other = Producer({**common, "client.id": "other"})
    consumer = Consumer(
        {
            **common,
            "client.id": "pushing-consumer",
            "group.id": "g",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["t"])
    expected = {"pushing-producer": "request", "pushing-consumer": "fetch"}

    def have_pushed() -> bool:
        for each in (producer, other):
            each.produce("t", b"value")
            each.flush(1)
        consumer.poll(0.1)
        found = pushed_latencies(url)
        return all(found.get(each, {}).get((kind, "max")) for each, kind in expected.items())

    try:
        wait_until(have_pushed, "latencies of a producer and of a consumer")
        found = pushed_latencies(url)
        assert found.keys() == expected.keys()
        assert all(0 <= seconds < 60 for each in found.values() for seconds in each.values())
    finally:
        consumer.close()
    wait_until(
        lambda: pushed_latencies(url).keys() == {"pushing-producer"},
        "the end of the consumer's latencies",
    )
