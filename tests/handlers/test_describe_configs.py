"""DescribeConfigs and ListConfigResources: the settings, their values and the sources of these.

Covers: kafkawire.handlers.describe_configs, kafkawire.handlers.list_config_resources,
kafkawire.broker.loggers.
"""

from __future__ import annotations

import logging

import pytest

from kafkawire.broker.overrides import ResourceType
from kafkawire.broker.resources import DECOMPRESSED
from kafkawire.codec.configs.settings import BROKER_CONFIGS, TOPIC_CONFIGS
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.list_config_resources import ListConfigResourcesRequest
from tests.kit.admin import ME, OTHER, FakeBroker, by_name, call
from tests.kit.configs import BROKER, GROUP, LOGGER, METRICS, TOPIC, alter, describe, make

# -- DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_topic_returns_values_and_sources(version: int) -> None:
    broker = FakeBroker(log_retention_hours="2")
    await make(broker, "t", cleanup_policy="compact,delete")
    flags = {"include_synonyms": True}
    if version >= 3:
        flags["include_documentation"] = True
    result = await describe(broker, TOPIC, "t", version=version, **flags)
    assert result.error_code == 0
    rows = by_name(result.configs)
    assert set(rows) == set(TOPIC_CONFIGS) - {DECOMPRESSED}
    policy, retention = rows["cleanup.policy"], rows["retention.ms"]
    assert (policy.value, policy.config_source, policy.read_only) == ("compact,delete", 1, False)
    assert [(s.name, s.value, s.source) for s in policy.synonyms] == [
        ("cleanup.policy", "compact,delete", 1),
        ("log.cleanup.policy", "delete", 5),
    ]
    assert (retention.value, retention.config_source) == ("7200000", 4)
    assert [(s.name, s.source) for s in retention.synonyms] == [
        ("log.retention.hours", 4),
        ("log.retention.hours", 5),
    ]
    if version >= 3:
        assert policy.config_type == 7
        assert policy.documentation


async def test_describe_shows_settings_of_listeners_as_kafka_does() -> None:
    broker = FakeBroker()
    name = "listener.name.out.plain.connections.max.reauth.ms"
    broker.static |= {name: "7", "listener.name.out.ssl.keystore.location": "/x"}
    broker.static["connections.max.reauth.ms"] = "8"
    rows = by_name((await describe(broker, BROKER, "1", include_synonyms=True)).configs)
    row = rows[name]
    assert (row.value, row.config_source, row.read_only, row.is_sensitive) == ("7", 4, True, False)
    assert [(s.name, s.value, s.source) for s in row.synonyms] == [
        (name, "7", 4),
        ("connections.max.reauth.ms", "8", 4),
        ("connections.max.reauth.ms", "0", 5),
    ]
    assert rows["listener.name.out.ssl.keystore.location"].value == "/x"
    assert rows["connections.max.reauth.ms"].value == "8"


async def test_describe_returns_only_named_settings() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    result = await describe(broker, TOPIC, "t", "retention.ms", "no.such")
    (row,) = result.configs
    assert (row.name, row.synonyms, row.documentation) == ("retention.ms", [], None)


async def test_describe_many_topics_yields_to_event_loop() -> None:
    broker = FakeBroker()
    for index in range(20):
        await make(broker, f"t{index}")
    resources = [DescribeConfigsResource(TOPIC, f"t{index}", []) for index in range(20)]
    answer = await call(broker, DescribeConfigsRequest(resources), 4)
    assert [len(result.configs) for result in answer.results] == [len(TOPIC_CONFIGS) - 1] * 20
    assert broker.env.pauses


async def test_describe_broker_returns_values_and_sources() -> None:
    broker = FakeBroker(num_partitions="6")
    await alter(broker, BROKER, str(ME), ("message.max.bytes", 0, "100"))
    result = await describe(broker, BROKER, str(ME), include_synonyms=True)
    rows = by_name(result.configs)
    fixed = {"advertised.listeners", "broker.id", "log.dirs"}
    assert set(rows) == set(BROKER_CONFIGS) - {DECOMPRESSED} | fixed
    assert all(rows[name].read_only and rows[name].config_source == 4 for name in fixed)
    assert rows["broker.id"].value == str(ME)
    assert rows["advertised.listeners"].value.startswith("INTERNAL://")
    assert ",EXTERNAL://" in rows["advertised.listeners"].value
    assert (rows["num.partitions"].value, rows["num.partitions"].config_source) == ("6", 4)
    assert rows["node.id"].read_only
    size = rows["message.max.bytes"]
    assert (size.value, size.config_source, size.read_only) == ("100", 2, False)
    assert [(s.value, s.source) for s in size.synonyms] == [("100", 2), ("1048588", 5)]
    assert rows["flush"].config_source == 5


async def test_describe_cluster_wide_broker_default() -> None:
    broker = FakeBroker()
    await alter(broker, BROKER, "", ("message.max.bytes", 0, "100"))
    (row,) = (await describe(broker, BROKER, "", "message.max.bytes")).configs
    assert (row.name, row.value, row.config_source) == ("message.max.bytes", "100", 3)


async def test_internal_setting_is_listed_where_it_is_set() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    assert (await describe(broker, TOPIC, "t", DECOMPRESSED)).configs == []
    assert (await describe(broker, BROKER, str(ME), DECOMPRESSED)).configs == []
    assert await alter(broker, TOPIC, "t", (DECOMPRESSED, 0, "5")) == (0, None)
    assert await alter(broker, BROKER, "", (DECOMPRESSED, 0, "6")) == (0, None)
    (row,) = (await describe(broker, TOPIC, "t", DECOMPRESSED, include_synonyms=True)).configs
    assert [(s.value, s.source) for s in row.synonyms] == [("5", 1), ("6", 3), ("2147483639", 5)]
    (row,) = (await describe(broker, BROKER, str(ME), DECOMPRESSED)).configs
    assert (row.value, row.config_source) == ("6", 3)


@pytest.mark.parametrize(("static", "value"), [({}, "1"), ({"min_insync_replicas": "2"}, "2")])
async def test_min_insync_replicas_is_a_setting_of_all_brokers(
    static: dict[str, str], value: str
) -> None:
    """As a controller of Kafka 4.1 and newer stores it (KIP-966)."""
    broker = FakeBroker(**static)
    await make(broker, "t")
    (row,) = (await describe(broker, BROKER, "")).configs
    assert (row.name, row.value, row.config_source) == ("min.insync.replicas", value, 3)
    for kind, name in ((BROKER, str(ME)), (TOPIC, "t")):
        (row,) = (await describe(broker, kind, name, "min.insync.replicas")).configs
        assert (row.value, row.config_source) == (value, 3)
    await alter(broker, BROKER, "", ("min.insync.replicas", 0, "3"))
    (row,) = (await describe(broker, BROKER, "")).configs
    assert row.value == "3"
    await alter(broker, BROKER, "", ("min.insync.replicas", 1, None))
    (row,) = (await describe(broker, BROKER, "")).configs
    assert row.value == value


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "b@d", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, str(OTHER), ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER, "1" * 5000, ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
        (LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (METRICS, "", ErrorCode.INVALID_REQUEST),
        (5, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_describe_errors(kind: int, name: str, code: ErrorCode) -> None:
    result = await describe(FakeBroker(), kind, name)
    assert (result.error_code, result.configs) == (code, [])
    assert bool(result.error_message) == bool(code)


async def test_broker_loggers_can_be_described_and_altered() -> None:
    broker, name = FakeBroker(), "kafkawire.test.loggers"
    logging.getLogger(name)
    assert await alter(broker, LOGGER, str(ME), (name, 0, "DEBUG")) == (0, None)
    (row,) = (await describe(broker, LOGGER, str(ME), name)).configs
    assert (row.value, row.config_source) == ("DEBUG", 6)
    assert logging.getLogger(name).level == logging.DEBUG
    assert await alter(broker, LOGGER, str(ME), (name, 1, None)) == (0, None)
    assert logging.getLogger(name).level == logging.NOTSET
    for wish, code in [
        ((name, 0, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("no.such.logger", 0, "INFO"), ErrorCode.INVALID_CONFIG),
        ((name, 2, "INFO"), ErrorCode.INVALID_REQUEST),
        (("root", 1, None), ErrorCode.INVALID_REQUEST),
    ]:
        assert (await alter(broker, LOGGER, str(ME), wish))[0] == code
    assert broker.steps == []  # never stored


# -- ListConfigResources


async def test_list_config_resources_by_type() -> None:
    broker = FakeBroker()
    await make(broker, "t")

    async def listed(*kinds: int) -> set[tuple[int, str]]:
        answer = await call(broker, ListConfigResourcesRequest(list(kinds)), 1)
        assert answer.error_code == 0
        return {(row.resource_type, row.resource_name) for row in answer.config_resources}

    brokers = {(kind, node) for kind in (BROKER, LOGGER) for node in ("1", "2")}
    assert await listed() == {(TOPIC, "t")} | brokers
    assert await listed(TOPIC) == {(TOPIC, "t")}
    assert await listed(GROUP, METRICS) == set()
    answer = await call(broker, ListConfigResourcesRequest([1]), 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (await call(broker, ListConfigResourcesRequest(), 0)).config_resources == []
    assert {kind.value for kind in ResourceType} == {TOPIC, BROKER, LOGGER, METRICS, GROUP}
