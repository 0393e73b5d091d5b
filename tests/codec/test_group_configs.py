"""The settings of groups, and the broker's settings that are their defaults and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.configs.group_config import (
    GROUP_CONFIGS,
    ConsumerGroupSettings,
    ShareGroupSettings,
    StreamsGroupSettings,
    bounds_of,
    check_group,
    list_beyond,
)
from kafkawire.codec.configs.group_rows import broker_name
from kafkawire.codec.configs.offset_reset import OffsetReset, ResetKind, parse_offset_reset
from kafkawire.codec.configs.parse import ConfigError
from kafkawire.codec.configs.settings import BROKER_CONFIGS, BrokerConfig, text_of

SESSION, HEARTBEAT, ASSIGNMENT = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)

KAFKA_BROKER_CONFIGS = """
group.consumer.assignment.interval.ms INT 1000 dynamic
group.consumer.assignors LIST uniform,range static
group.consumer.heartbeat.interval.ms INT 5000 static
group.consumer.max.assignment.interval.ms INT 15000 static
group.consumer.max.heartbeat.interval.ms INT 15000 static
group.consumer.max.session.timeout.ms INT 60000 static
group.consumer.max.size INT 2147483647 static
group.consumer.migration.policy STRING bidirectional static
group.consumer.min.assignment.interval.ms INT 0 static
group.consumer.min.heartbeat.interval.ms INT 5000 static
group.consumer.min.session.timeout.ms INT 45000 static
group.consumer.regex.refresh.interval.ms INT 600000 static
group.consumer.session.timeout.ms INT 45000 static
group.share.assignment.interval.ms INT 1000 dynamic
group.share.assignors LIST simple static
group.share.delivery.count.limit INT 5 static
group.share.heartbeat.interval.ms INT 5000 static
group.share.initialize.retry.interval.ms INT 30000 static
group.share.max.assignment.interval.ms INT 15000 static
group.share.max.delivery.count.limit INT 10 static
group.share.max.heartbeat.interval.ms INT 15000 static
group.share.max.partition.max.record.locks INT 4000 static
group.share.max.record.lock.duration.ms INT 60000 static
group.share.max.session.timeout.ms INT 60000 static
group.share.max.share.sessions INT 2000 static
group.share.max.size INT 200 static
group.share.min.assignment.interval.ms INT 0 static
group.share.min.delivery.count.limit INT 2 static
group.share.min.heartbeat.interval.ms INT 5000 static
group.share.min.partition.max.record.locks INT 100 static
group.share.min.record.lock.duration.ms INT 15000 static
group.share.min.session.timeout.ms INT 45000 static
group.share.partition.max.record.locks INT 2000 static
group.share.record.lock.duration.ms INT 30000 static
group.share.session.timeout.ms INT 45000 static
"""
"""GroupCoordinatorConfig and ShareGroupConfig of Kafka 4.4."""


def test_broker_settings_are_kafkas() -> None:
    ours = [
        [row.name, row.type.name, text_of(row.default), "dynamic" if row.dynamic else "static"]
        for row in BROKER_CONFIGS.values()
        if row.name.startswith(("group.consumer.", "group.share."))
    ]
    assert sorted(ours, key=str) == [
        line.split() for line in KAFKA_BROKER_CONFIGS.split("\n")[1:-1]
    ]


def test_groups_have_the_settings_of_kafka_whose_defaults_are_the_brokers() -> None:
    assert list(GROUP_CONFIGS) == [
        *(SESSION, HEARTBEAT, ASSIGNMENT),
        "share.session.timeout.ms",
        "share.heartbeat.interval.ms",
        "share.assignment.interval.ms",
        "share.record.lock.duration.ms",
        "share.delivery.count.limit",
        "share.partition.max.record.locks",
        "share.auto.offset.reset",
        "share.isolation.level",
        "share.renew.acknowledge.enable",
        "share.retry.delay.ms",
        "share.retry.delay.max.ms",
        "errors.deadletterqueue.topic.name",
        "errors.deadletterqueue.copy.record.enable",
        "streams.session.timeout.ms",
        "streams.heartbeat.interval.ms",
        "streams.assignment.interval.ms",
        "streams.num.standby.replicas",
        "streams.initial.rebalance.delay.ms",
        "streams.task.offset.interval.ms",
        "streams.num.warmup.replicas",
        "streams.acceptable.recovery.lag",
        "streams.rack.aware.assignment.tags",
        "streams.assignor.name",
    ]
    for name, row in GROUP_CONFIGS.items():
        if not row.broker_name:
            continue
        assert row.default == BROKER_CONFIGS[broker_name(name)].default
        assert all(bound in BROKER_CONFIGS for bound in bounds_of(name) if bound)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ({"group.consumer.session.timeout.ms": "44999"}, "must not be above"),
        ({"group.consumer.session.timeout.ms": "60001"}, "must not be above"),
        ({"group.streams.session.timeout.ms": "60001"}, "must not be above"),
        ({"group.streams.num.standby.replicas": "3"}, "must not be above"),
        ({"group.streams.num.warmup.replicas": "21"}, "must not be above"),
        ({"group.streams.task.offset.interval.ms": "14999"}, "must not be above"),
        ({"group.streams.acceptable.recovery.lag": "-1"}, "of at least 0"),
        ({"group.consumer.heartbeat.interval.ms": "4999"}, "must not be above"),
        ({"group.consumer.max.heartbeat.interval.ms": "4999"}, "must not be above"),
        ({"group.consumer.assignment.interval.ms": "15001"}, "must not be above"),
        (
            {
                "group.consumer.min.session.timeout.ms": "5000",
                "group.consumer.session.timeout.ms": "5000",
            },
            "must be less than group.consumer.session.timeout.ms, which is 5000",
        ),
        ({"group.consumer.assignors": ""}, "must name an assignor"),
        ({"group.share.assignors": ""}, "must name an assignor"),
        ({"group.share.max.size": "1001"}, "from 1 to 1000"),
        ({"group.share.max.share.sessions": "199"}, "must not be above"),
        ({"group.share.delivery.count.limit": "11"}, "from 2 to 10"),
        ({"group.share.min.record.lock.duration.ms": "30001"}, "from 1000 to 30000"),
        ({"group.share.max.partition.max.record.locks": "1999"}, "from 2000 to 10000"),
        ({"group.share.record.lock.duration.ms": "60001"}, "must not be above"),
        ({"group.consumer.assignors": "sticky"}, "a list of uniform and range"),
        ({"group.consumer.regex.refresh.interval.ms": "9999"}, "from 10000"),
    ],
)
def test_broker_settings_that_do_not_fit_together(texts: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        BrokerConfig(texts)


def test_the_migration_policy_is_known_in_any_case() -> None:
    config = BrokerConfig({"group.consumer.migration.policy": "UPGRADE"})
    assert config.group_consumer_migration_policy == "upgrade"


def test_a_group_has_its_own_settings_or_those_of_the_broker() -> None:
    groups: dict[str, dict[str, str]] = {"own": {SESSION: "50000"}}
    config = BrokerConfig({"group.consumer.assignment.interval.ms": "7"}, groups=groups)
    assert config.consumer_group_settings("own") == ConsumerGroupSettings(50_000, 5_000, 7)
    assert config.consumer_group_settings("other") == ConsumerGroupSettings(45_000, 5_000, 7)
    groups["other"] = {ASSIGNMENT: "9", "of.a.newer.version": "x"}
    assert config.consumer_group_settings("other") == ConsumerGroupSettings(45_000, 5_000, 9)
    config.update({"group.consumer.assignment.interval.ms": "8"})
    assert config.consumer_group_settings("own").assignment_interval_ms == 8


def test_a_streams_group_has_its_own_settings_or_those_of_the_broker() -> None:
    own = {
        "streams.task.offset.interval.ms": "1",  # below the broker's bound: clamped
        "streams.num.warmup.replicas": "3",
        "streams.acceptable.recovery.lag": "99999999999",
        "streams.rack.aware.assignment.tags": "zone, rack",
    }
    config = BrokerConfig(
        {"group.streams.rack.aware.assignment.tags": "cell"}, groups={"own": own, "empty": {}}
    )
    of_broker = StreamsGroupSettings(45_000, 5_000, 1_000, 0, 3_000, 60_000, 2, 10_000, ["cell"])
    assert config.streams_group_settings("other") == of_broker
    assert config.streams_group_settings("empty") == of_broker
    assert config.streams_group_settings("own") == StreamsGroupSettings(
        45_000, 5_000, 1_000, 0, 3_000, 15_000, 3, 99_999_999_999, ["zone", "rack"]
    )
    assert list_beyond(own, config.number) == [("streams.task.offset.interval.ms", 15_000)]
    own["streams.rack.aware.assignment.tags"] = ""
    assert config.streams_group_settings("own").rack_tags == []


@given(
    st.integers(1, 100_000), st.integers(1, 100_000), st.integers(1, 100_000), st.integers(0, 99)
)
def test_effective_values_are_within_the_bounds(a: int, b: int, stored: int, more: int) -> None:
    low, high = sorted((a, b))
    config = BrokerConfig(
        {
            "group.consumer.min.session.timeout.ms": str(low + 5001),
            "group.consumer.session.timeout.ms": str(low + 5001),
            "group.consumer.max.session.timeout.ms": str(high + 5001),
        },
        groups={"g": {SESSION: str(stored)}},
    )
    found = config.consumer_group_settings("g").session_timeout_ms
    assert low + 5001 <= found <= high + 5001
    beyond = list_beyond({SESSION: str(stored)}, config.number)
    assert beyond == ([] if found == stored else [(SESSION, found)])


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({SESSION: "44999"}, "in the range 45000 to 60000 inclusive"),
        ({HEARTBEAT: "15001"}, "in the range 5000 to 15000 inclusive"),
        ({ASSIGNMENT: "-1"}, "a whole number from 0"),
        (
            {"streams.num.standby.replicas": "3"},
            "in the range 0 to 2 inclusive, of group.streams.max.standby.replicas",
        ),
        ({"streams.initial.rebalance.delay.ms": "-1"}, "a whole number from 0"),
        ({"streams.num.warmup.replicas": "21"}, "in the range 0 to 20 inclusive"),
        ({"streams.task.offset.interval.ms": "14999"}, "of group.streams.min.task.offset.interval"),
        ({"streams.acceptable.recovery.lag": "-1"}, "a whole number of at least 0"),
        ({"streams.rack.aware.assignment.tags": "a, a"}, "must not contain duplicate tag keys"),
        ({"streams.rack.aware.assignment.tags": "a,,b"}, "it must be a list"),
        ({SESSION: "soon"}, "a whole number from 1"),
    ],
)
def test_settings_that_a_group_cannot_have(own: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_group(own, BrokerConfig().number)


def test_the_session_is_longer_than_the_interval_of_heartbeats() -> None:
    config = BrokerConfig({"group.consumer.min.session.timeout.ms": "6000"})
    check_group({SESSION: "6000"}, config.number)
    for own in ({SESSION: "6000", HEARTBEAT: "6000"}, {SESSION: "7000", HEARTBEAT: "8000"}):
        with pytest.raises(ConfigError, match="must be greater than consumer"):
            check_group(own, config.number)
    check_group({ASSIGNMENT: "3"}, config.number)


def test_a_share_group_has_its_own_settings_or_those_of_the_broker() -> None:
    own = {
        "share.session.timeout.ms": "50000",
        "share.record.lock.duration.ms": "1000",  # below the broker's bound: clamped
        "share.auto.offset.reset": "by_duration:PT1H",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "FALSE",
        "errors.deadletterqueue.topic.name": "dlq.x",
        "errors.deadletterqueue.copy.record.enable": "true",
        "share.retry.delay.ms": "1500",
        "share.retry.delay.max.ms": "60000",
    }
    config = BrokerConfig({"group.share.delivery.count.limit": "7"}, groups={"own": own})
    assert config.share_group_settings("other") == ShareGroupSettings(
        45_000, 5_000, 1_000, 30_000, 7, 2_000
    )
    reset = OffsetReset(ResetKind.BY_DURATION, 3_600_000)
    assert config.share_group_settings("own") == ShareGroupSettings(
        50_000, 5_000, 1_000, 15_000, 7, 2_000, reset, True, False, "dlq.x", True, 1_500, 60_000
    )
    assert list_beyond(own, config.number) == [("share.record.lock.duration.ms", 15_000)]


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ({"share.auto.offset.reset": "none"}, "must be latest, earliest, or by_duration:"),
        ({"share.auto.offset.reset": "by_duration:-PT1H"}, "must be latest"),
        ({"share.isolation.level": "serializable"}, "must be read_committed or read_uncommitted"),
        ({"share.delivery.count.limit": "1"}, "from 2"),
        ({"share.record.lock.duration.ms": "14999"}, "in the range 15000 to 60000"),
        ({"errors.deadletterqueue.topic.name": "__x"}, "must not begin with two underscores"),
    ],
)
def test_settings_that_a_share_group_cannot_have(texts: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_group(texts, BrokerConfig().number)


def test_the_session_of_a_share_group_is_longer_than_its_heartbeat_interval() -> None:
    config = BrokerConfig(
        {"group.share.min.session.timeout.ms": "100", "group.share.session.timeout.ms": "5001"}
    )
    check_group({"share.session.timeout.ms": "5001"}, config.number)
    with pytest.raises(ConfigError, match=r"must be greater than share\.heartbeat\.interval\.ms"):
        check_group({"share.session.timeout.ms": "5000"}, config.number)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("P1D", 86_400_000), ("PT0.25S", 250), ("pt1h2m3s", 3_723_000), ("PT0S", 0), ("P2DT3H", None)],
)
def test_durations_are_those_of_iso_8601(text: str, duration_ms: int | None) -> None:
    found = parse_offset_reset(f"by_duration:{text}").duration_ms
    assert found == (183_600_000 if duration_ms is None else duration_ms)


@pytest.mark.parametrize("text", ["", "P", "PT", "P1Y", "1H", "PT1D", "P-1D", "PT1H ", "P1DT"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_offset_reset(f"by_duration:{text}")
