"""IncrementalAlterConfigs and AlterConfigs: the changes, when they take effect, and refusals.

Covers: kafkawire.handlers.alter_configs, kafkawire.handlers.incremental_alter_configs.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.alter_configs import AlterableConfig as OldConfig
from kafkawire.messages.alter_configs import AlterConfigsRequest
from kafkawire.messages.alter_configs import AlterConfigsResource as OldResource
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.metadata.catalog import BrokerInfo
from tests.kit.admin import FakeBroker, by_name, call
from tests.kit.configs import BROKER, GROUP, LOGGER, METRICS, TOPIC, Wish, alter, describe, make


@pytest.mark.parametrize("version", [0, 1])
async def test_topic_setting_takes_effect_at_once(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t", 2)
    assert await alter(broker, TOPIC, "t", ("max.message.bytes", 0, "500"), version=version) == (
        0,
        None,
    )
    config = broker.partition("t", 1).config
    assert config.max_message_bytes == 500
    assert broker.partition("t").config is config
    assert broker.metadata.stored == {(TOPIC, "t", "max.message.bytes"): "500"}
    assert await alter(broker, TOPIC, "t", ("max.message.bytes", 1, None)) == (0, None)
    assert config.max_message_bytes == 1048588
    assert broker.metadata.stored == {(TOPIC, "t", "max.message.bytes"): None}


async def test_append_and_subtract_change_list_settings() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    assert (await alter(broker, TOPIC, "t", ("cleanup.policy", 2, "compact")))[0] == 0
    assert broker.topic("t").configs == {"cleanup.policy": "delete,compact"}
    config = broker.partition("t").config
    assert (config.cleanup_delete, config.cleanup_compact) == (True, True)
    assert (await alter(broker, TOPIC, "t", ("cleanup.policy", 3, "delete")))[0] == 0
    assert (config.cleanup_delete, config.cleanup_compact) == (False, True)


@pytest.mark.parametrize(
    ("kind", "name", "wish", "code"),
    [
        (TOPIC, "t", ("no.such.setting", 0, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 0, "soon"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 0, "-2"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 2, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("cleanup.policy", 2, "burn"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 0, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "", ("retention.ms", 0, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "b@d", ("retention.ms", 0, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "nope", ("retention.ms", 0, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "1", ("node.id", 0, "3"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("message.max.bytes", 0, "many"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("log.dirs", 0, "/d"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("advertised.listeners", 0, "A://b:1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "", ("listeners", 0, "A://b:1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("background.threads", 0, "many"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("background.threads", 0, "0"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("ssl.keystore.type", 0, "JKS"), ErrorCode.INVALID_REQUEST),
        (BROKER, "", ("sasl.kerberos.min.time.before.relogin", 0, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "", ("listener.name.a.ssl.keystore.type", 0, "J"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("listener.name.a.ssl.client.auth", 0, "none"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("no.such.setting", 2, "3"), ErrorCode.INVALID_CONFIG),
        (BROKER, "1", ("no.such.setting", 0, "é" * 16_384), ErrorCode.INVALID_CONFIG),
        (BROKER, "2", ("message.max.bytes", 0, "3"), ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ("message.max.bytes", 0, "3"), ErrorCode.INVALID_REQUEST),
        (GROUP, "g", ("consumer.session.timeout.ms", 0, "3"), ErrorCode.INVALID_CONFIG),
        (METRICS, "", ("metrics", 0, "*"), ErrorCode.INVALID_REQUEST),
        (77, "m", ("metrics", 0, "*"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_alter_errors(kind: int, name: str, wish: Wish, code: ErrorCode) -> None:
    broker = FakeBroker()
    await make(broker, "t")
    del broker.steps[:]
    error, message = await alter(broker, kind, name, wish)
    assert error == code
    assert message
    assert broker.steps == []


async def test_unknown_setting_of_topic_has_the_sentence_of_kafka() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    found = await alter(broker, TOPIC, "t", ("no.such", 0, "1"))
    assert found == (ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such")


async def test_validate_only_changes_nothing() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    wish = ("max.message.bytes", 0, "500")
    assert await alter(broker, TOPIC, "t", wish, validate_only=True) == (0, None)
    assert broker.topic("t").configs == {}
    bad = ("max.message.bytes", 0, "x")
    assert (await alter(broker, TOPIC, "t", bad, validate_only=True))[0] == (
        ErrorCode.INVALID_CONFIG
    )


async def test_setting_or_resource_named_twice_is_refused() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    wish = ("max.message.bytes", 0, "500")
    assert (await alter(broker, TOPIC, "t", wish, wish))[0] == ErrorCode.INVALID_REQUEST
    resource = AlterConfigsResource(TOPIC, "t", [AlterableConfig(*wish)])
    answer = await call(broker, IncrementalAlterConfigsRequest([resource, resource]), 1)
    errors = {(row.error_code, row.error_message) for row in answer.responses}
    assert errors == {(ErrorCode.INVALID_REQUEST, "Duplicate resource.")}


async def test_valid_resources_are_altered_in_one_transaction() -> None:
    broker = FakeBroker()
    for name in ("a", "b"):
        await make(broker, name)
    del broker.steps[:]
    resources = [
        AlterConfigsResource(TOPIC, name, [AlterableConfig("retention.ms", 0, "5")])
        for name in ("a", "nope", "b")
    ]
    answer = await call(broker, IncrementalAlterConfigsRequest(resources), 1)
    assert [row.error_code for row in answer.responses] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        0,
    ]
    assert broker.steps[0] == "sql configs retention.ms retention.ms"
    assert sorted(broker.steps[1:3]) == ["log alter a", "log alter b"]
    assert broker.steps[3:] == ["commit"]


async def test_alter_returns_error_when_sql_fails() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    broker.metadata.fails = OSError("full")
    code, _ = await alter(broker, TOPIC, "t", ("max.message.bytes", 0, "500"))
    assert code == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.partition("t").config.max_message_bytes == 1048588


async def test_broker_setting_is_default_of_topics_without_override() -> None:
    broker = FakeBroker(log_retention_ms="1")
    for index in range(45):
        await make(broker, f"t{index}")
    await make(broker, "own", retention_ms="7")
    assert (await alter(broker, BROKER, "", ("log.retention.ms", 0, "2")))[0] == 0
    assert {broker.partition(f"t{i}").config.retention_ms for i in range(45)} == {2}
    assert (await alter(broker, BROKER, "1", ("log.retention.ms", 0, "3")))[0] == 0
    assert broker.partition("t9").config.retention_ms == 3
    assert broker.partition("own").config.retention_ms == 7
    assert broker.env.pauses
    assert (await alter(broker, BROKER, "1", ("log.retention.ms", 1, None)))[0] == 0
    assert broker.partition("t9").config.retention_ms == 2
    assert (await alter(broker, BROKER, "", ("log.retention.ms", 1, None)))[0] == 0
    assert broker.partition("t9").config.retention_ms == 1
    await make(broker, "later")
    assert broker.partition("later").config.retention_ms == 1


async def test_dynamic_broker_setting_takes_effect_at_once() -> None:
    broker = FakeBroker()
    assert (await alter(broker, BROKER, "1", ("max.connections", 0, "5")))[0] == 0
    assert broker.config.max_connections == 5
    assert broker.metadata.stored == {(BROKER, "1", "max.connections"): "5"}


async def test_settings_of_a_broker_that_is_not_alive_are_taken_by_another_one() -> None:
    broker = FakeBroker()
    broker.catalog.add_broker(BrokerInfo(2, {}, None))
    wish = ("broker.decommissioning", 0, "true")
    assert (await alter(broker, BROKER, "2", wish))[0] == ErrorCode.INVALID_REQUEST
    broker.catalog.set_silent(frozenset({2, 3}))
    assert (await alter(broker, BROKER, "3", wish))[0] == ErrorCode.INVALID_REQUEST
    assert (await alter(broker, BROKER, "2", ("lease.ms", 0, "9000")))[0] != 0  # not dynamic
    assert (await alter(broker, BROKER, "2", wish))[0] == 0
    assert broker.metadata.stored == {(BROKER, "2", "broker.decommissioning"): "true"}
    assert broker.catalog.list_decommissioned() == [2]
    assert not broker.config.broker_decommissioning
    assert (await alter(broker, BROKER, "2", ("broker.decommissioning", 1, None)))[0] == 0
    assert broker.catalog.list_decommissioned() == []


async def test_a_broker_without_any_connection_cannot_be_set() -> None:
    broker = FakeBroker()
    assert (await alter(broker, BROKER, "1", ("max.connections", 0, "0")))[0] == 42
    assert broker.metadata.stored == {}


async def test_kafka_settings_without_effect_are_stored() -> None:
    """librdkafka's test 0081 sets the first two with one that this broker has."""
    broker = FakeBroker()
    wishes = [
        ("background.threads", 0, "20"),
        ("sasl.kerberos.min.time.before.relogin", 0, "58000"),
        ("max.connections", 0, "5"),
        ("listener.name.a.ssl.keystore.password", 0, "secret"),
        ("my.plugin.setting", 0, "x"),
        ("log.dirs", 1, None),  # removing a setting that is not set changes nothing
    ]
    assert await alter(broker, BROKER, "1", *wishes) == (0, None)
    assert broker.config.max_connections == 5
    rows = by_name((await describe(broker, BROKER, "1", include_synonyms=True)).configs)
    threads, unknown = rows["background.threads"], rows["my.plugin.setting"]
    assert (threads.value, threads.config_source, threads.config_type) == ("20", 2, 3)
    assert (unknown.value, unknown.is_sensitive, unknown.config_type) == (None, True, 0)
    assert rows["listener.name.a.ssl.keystore.password"].value is None
    assert await alter(broker, BROKER, "", ("background.threads", 0, "7")) == (0, None)
    assert await alter(broker, BROKER, "1", ("background.threads", 1, None)) == (0, None)
    (row,) = (await describe(broker, BROKER, "1", "background.threads")).configs
    assert (row.value, row.config_source) == ("7", 3)
    (row,) = (await describe(broker, BROKER, "", "background.threads")).configs
    assert (row.value, row.config_source) == ("7", 3)


async def test_number_of_stored_unknown_settings_is_bounded() -> None:
    broker = FakeBroker()
    wishes = [(f"x{index}", 0, "1") for index in range(1001)]
    assert (await alter(broker, BROKER, "1", *wishes))[0] == ErrorCode.INVALID_CONFIG
    assert await alter(broker, BROKER, "1", *wishes[1:]) == (0, None)


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_replaces_all_settings(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t", retention_ms="5", max_message_bytes="6")
    resource = OldResource(TOPIC, "t", [OldConfig("retention.ms", "8")])
    (row,) = (await call(broker, AlterConfigsRequest([resource]), version)).responses
    assert (row.error_code, row.error_message) == (0, None)
    assert broker.topic("t").configs == {"retention.ms": "8"}
    assert broker.partition("t").config.max_message_bytes == 1048588


@pytest.mark.parametrize(
    ("kind", "configs", "code"),
    [
        (TOPIC, [OldConfig("retention.ms", None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, [OldConfig("retention.ms", "x")], ErrorCode.INVALID_CONFIG),
        (LOGGER, [OldConfig("root", "INFO")], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_alter_configs_errors(kind: int, configs: list[OldConfig], code: ErrorCode) -> None:
    broker = FakeBroker()
    await make(broker, "t")
    answer = await call(broker, AlterConfigsRequest([OldResource(kind, "t", configs)]), 2)
    assert answer.responses[0].error_code == code


async def test_pending_settings_are_checked_and_have_no_effect() -> None:
    broker = FakeBroker()
    assert await alter(broker, BROKER, "", ("pending.log.retention.ms", 0, "7")) == (0, None)
    assert broker.config.texts.get("log.retention.ms") is None
    (entry,) = (await describe(broker, BROKER, "", "pending.log.retention.ms")).configs
    assert (entry.value, entry.is_sensitive, entry.read_only) == ("7", False, False)
    lag = "log.cleaner.{}.compaction.lag.ms"
    assert await alter(broker, BROKER, "", (lag.format("min"), 0, "9")) == (0, None)
    below = (f"pending.{lag.format('max')}", 0, "8")  # valid alone
    for wish in (below, ("pending.num.partitions", 0, "2"), ("pending.node.id", 0, "2")):
        code, _ = await alter(broker, BROKER, "", wish)
        assert code == ErrorCode.INVALID_REQUEST, wish
    wishes = ("log.retention.ms", 0, "7"), ("pending.log.retention.ms", 1, None)
    assert await alter(broker, BROKER, "", *wishes) == (0, None)
    assert broker.config.texts["log.retention.ms"] == "7"
    assert broker.catalog.broker_overrides[""] == {
        lag.format("min"): "9",
        "log.retention.ms": "7",
    }
