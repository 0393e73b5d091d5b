"""Sensors of quotas: use by clients, compared with their limits."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.security.quotas import sensors as module
from kafkawire.security.quotas.alterations import Entity, QuotaChange
from kafkawire.security.quotas.arithmetic import SampleWindow
from kafkawire.security.quotas.rules import Rules
from kafkawire.security.quotas.sensors import MAX_SENSORS, Label, Sensors

MB = 1_000_000
USER: Entity = (("user", "u"),)
EACH_CLIENT: Entity = (("client-id", None),)


class Bench:
    """Sensors with a clock of the test's own."""

    def __init__(self, *quotas: tuple[Entity, str, float]) -> None:
        self.now_ms = 1_000_000
        self.rules = Rules()
        self.rules.apply(QuotaChange(*quota) for quota in quotas)
        window = SampleWindow(11, 1000)
        self.sensors = Sensors(self.rules, window, window, lambda: self.now_ms)

    def labels(self) -> list[Label]:
        return [label for label, _, _ in self.sensors.all()]


def test_a_client_without_a_quota_is_not_measured() -> None:
    bench = Bench((USER, "producer_byte_rate", MB))
    other = bench.sensors.of_client("x", "c")
    assert other.record_produce(1000 * MB) == 0
    assert other.record_fetch(1000 * MB) == 0
    assert other.fetch_bytes_max(77) == 77
    assert other.mutation_quota(strict=True) is None
    assert not bench.labels()


def test_a_user_shares_one_counter_over_its_client_ids() -> None:
    bench = Bench((USER, "producer_byte_rate", MB))
    assert bench.sensors.of_client("u", "a").record_produce(10 * MB) == 0
    assert bench.sensors.of_client("u", "b").record_produce(10 * MB) == 10_000
    assert bench.labels() == [Label("producer_byte_rate", "u", "")]


def test_a_throttled_fetch_is_not_counted() -> None:
    bench = Bench((USER, "consumer_byte_rate", MB))
    client = bench.sensors.of_client("u", "a")
    assert client.fetch_bytes_max(2**31 - 1) == 10 * MB
    assert client.record_fetch(10 * MB) == 0
    assert client.record_fetch(10 * MB) == 10_000
    bench.now_ms += 10_500
    assert client.record_fetch(0) == 0


def test_the_larger_delay_counts_and_that_of_time_is_bounded() -> None:
    bench = Bench((USER, "request_percentage", 1.0), (USER, "producer_byte_rate", MB))
    client = bench.sensors.of_client("u", "a")
    client.record_loop_time(5.0)
    assert client.throttle_request_time() == 1_000
    assert client.record_produce(10 * MB) == 1_000
    assert client.record_produce(10 * MB) == 10_000
    client.take_back_produce(10 * MB)
    assert client.record_produce(0) == 1_000
    throttled = {label.key: sensor.throttled for label, sensor, _ in bench.sensors.all()}
    assert throttled == {"request_percentage": 3, "producer_byte_rate": 1}


def test_a_strict_mutation_quota_refuses_when_it_is_overdrawn() -> None:
    bench = Bench((USER, "controller_mutation_rate", 1.0))
    client = bench.sensors.of_client("u", "a")
    first = client.mutation_quota(strict=True)
    assert first is not None
    first.count_partitions(12)
    assert first.delay_ms() == 0, "admitted as a whole"
    second = client.mutation_quota(strict=True)
    assert second is not None
    with pytest.raises(KafkaError) as refused:
        second.count_partitions(1)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    bench.now_ms += 400
    assert second.delay_ms() == 600, "less what has passed meanwhile"
    older = client.mutation_quota(strict=False)
    assert older is not None
    older.count_partitions(1)
    assert older.delay_ms() == 1_600


def test_connections_over_the_limit_are_not_counted() -> None:
    bench = Bench(((("ip", None),), "connection_creation_rate", 1.0))
    assert [bench.sensors.record_connection("10.0.0.1") for _ in range(12)] == [0] * 10 + [1000] * 2
    assert bench.sensors.record_connection("10.0.0.2") == 0
    bench.now_ms += 11_000
    assert bench.sensors.record_connection("10.0.0.1") == 0


def test_a_changed_limit_counts_for_what_was_used_before() -> None:
    bench = Bench((USER, "producer_byte_rate", MB))
    client = bench.sensors.of_client("u", "a")
    assert client.record_produce(10 * MB) == 0
    bench.rules.apply([QuotaChange(USER, "producer_byte_rate", MB / 2)])
    assert client.generation != bench.sensors.generation
    client = bench.sensors.of_client("u", "a")
    assert client.generation == bench.sensors.generation
    assert client.record_produce(0) == 10_000


def test_unused_sensors_go_after_an_hour() -> None:
    bench = Bench((EACH_CLIENT, "producer_byte_rate", MB))
    old = bench.sensors.of_client("u", "old")
    bench.now_ms += 1_800_000
    new = bench.sensors.of_client("u", "new")
    new.record_produce(1)
    bench.now_ms += 1_800_000
    assert [label.client_id for label in bench.labels()] == ["new"]
    assert old.generation != bench.sensors.generation


def test_sensors_go_with_the_last_quota_of_their_kind() -> None:
    bench = Bench((USER, "producer_byte_rate", MB))
    bench.sensors.of_client("u", "a")
    bench.rules.apply([QuotaChange(USER, "producer_byte_rate", None)])
    bench.now_ms += module.SWEEP_MS
    assert not bench.labels()


def test_the_number_of_sensors_is_bounded() -> None:
    bench = Bench((EACH_CLIENT, "producer_byte_rate", MB))
    for number in range(MAX_SENSORS + 1):
        bench.now_ms += 1
        bench.sensors.of_client("u", f"client-{number}")
    labels = bench.labels()
    assert len(labels) == MAX_SENSORS - module.EVICTED_AT_ONCE + 1
    assert labels[-1].client_id == f"client-{MAX_SENSORS}"
    assert labels[0].client_id == f"client-{module.EVICTED_AT_ONCE}"
