"""The reader of pushed metrics, compared with what protobuf writes."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.telemetry import otlp
from kafkawire.telemetry.otlp import LATENCIES, Latency, MalformedMetrics, read_latencies
from tests.kit.otlp import counter, gauge, metrics_data

REQUEST = "org.apache.kafka.producer.node.request.latency.max"
NAMES = sorted(name.decode() for name in LATENCIES)


def test_highest_latency_of_all_brokers_in_seconds() -> None:
    found = read_latencies(metrics_data(gauge(REQUEST, 5.0, 250.0, 7), gauge("other", 900.0)))
    assert found == {Latency("producer", "request", "max"): 0.25}


def test_what_is_no_latency_is_skipped() -> None:
    values = (math.nan, math.inf, -1.0)
    assert read_latencies(metrics_data(gauge(REQUEST, *values), counter(REQUEST, 3.0))) == {}
    assert read_latencies(b"") == {}


def test_names_are_those_of_kip_714() -> None:
    for name in (
        "producer.node.request.latency.avg",
        "producer.record.queue.time.max",
        "producer.produce.throttle.time.avg",
        "consumer.node.request.latency.avg",
        "consumer.fetch.manager.fetch.latency.avg",
        "consumer.coordinator.commit.latency.max",
        "consumer.coordinator.rebalance.latency.max",
    ):
        assert f"org.apache.kafka.{name}".encode() in LATENCIES
    assert len({latency[:2] for latency in LATENCIES.values()}) == 8  # as MAX_CLIENTS counts


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*NAMES, "org.apache.kafka.producer.buffer.total.bytes"]),
            st.lists(st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1)), max_size=3),
        ),
        max_size=5,
    )
)
def test_everything_that_protobuf_writes_is_read(metrics: list[tuple[str, list[Any]]]) -> None:
    wanted: dict[Latency, float] = {}
    for name, values in metrics:
        latency = LATENCIES.get(name.encode())
        for value in values:
            if latency is not None and math.isfinite(value) and value >= 0:
                wanted[latency] = max(wanted.get(latency, 0.0), value / 1000)
    assert (
        read_latencies(metrics_data(*(gauge(name, *values) for name, values in metrics))) == wanted
    )


def test_damaged_bytes_are_refused_or_read() -> None:
    whole = metrics_data(gauge(REQUEST, 5.0, 250.0), counter("x", 3.0), gauge("y", 7))
    rng = random.Random(1)
    refused = 0
    for _ in range(3000):
        data = bytearray(whole[: rng.randrange(len(whole) + 1)])
        for _ in range(rng.randrange(3)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert read_latencies(bytes(data)).keys() <= set(LATENCIES.values())
        except MalformedMetrics:
            refused += 1
    assert 500 < refused < 3000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0a\x05\x00", "longer than its message"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "does not end"),
        (b"\x0a\x80", "does not end"),
        (b"\x0b", "wire type 3"),
        (b"\x09\x00\x00\x00\x00", "longer than its message"),
    ],
)
def test_malformed_bytes(data: bytes, words: str) -> None:
    with pytest.raises(MalformedMetrics, match=words):
        read_latencies(data)


def test_number_of_fields_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = metrics_data(*(gauge(REQUEST, 5.0) for _ in range(20)))
    monkeypatch.setattr(otlp, "MAX_FIELDS", 199)
    with pytest.raises(MalformedMetrics, match="more than 199 fields"):
        read_latencies(data)
    monkeypatch.setattr(otlp, "MAX_FIELDS", 200)
    assert len(read_latencies(data)) == 1
