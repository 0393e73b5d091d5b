"""Settings of client metrics subscriptions through DescribeConfigs, IncrementalAlterConfigs,
AlterConfigs and ListConfigResources.

Covers: kafkawire.handlers.describe_configs, kafkawire.handlers.incremental_alter_configs,
kafkawire.handlers.alter_configs, kafkawire.handlers.list_config_resources,
kafkawire.codec.configs.client_metrics_rows, kafkawire.telemetry.subscriptions.
"""

from __future__ import annotations

import pytest

from kafkawire.broker import overrides
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.alter_configs import AlterableConfig as OldConfig
from kafkawire.messages.alter_configs import AlterConfigsRequest
from kafkawire.messages.alter_configs import AlterConfigsResource as OldResource
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.messages.list_config_resources import ListConfigResourcesRequest
from tests.kit.admin import FakeBroker, call
from tests.kit.configs import METRICS, Wish, alter, describe


async def test_subscription_is_stored_and_described() -> None:
    broker = FakeBroker()
    wishes = ("metrics", 0, "org.apache.kafka.producer., *"), ("match", 0, "client_id=a.*")
    assert await alter(broker, METRICS, "m", *wishes) == (0, None)
    assert broker.metadata.stored[METRICS, "m", "match"] == "client_id=a.*"
    result = await describe(broker, METRICS, "m", include_synonyms=True)
    found = {row.name: (row.value, row.config_source, row.config_type) for row in result.configs}
    assert found == {
        "metrics": ("org.apache.kafka.producer.,*", 7, 7),
        "interval.ms": ("300000", 5, 3),
        "match": ("client_id=a.*", 7, 7),
    }
    synonyms = [[(s.name, s.value, s.source) for s in row.synonyms] for row in result.configs]
    assert synonyms == [
        [("metrics", "org.apache.kafka.producer.,*", 7)],
        [],
        [("match", "client_id=a.*", 7)],
    ]
    assert not any(row.read_only or row.is_sensitive for row in result.configs)


async def test_subscription_that_does_not_exist_has_the_defaults() -> None:
    result = await describe(FakeBroker(), METRICS, "m", "metrics", "match")
    assert [(row.name, row.value, row.config_source) for row in result.configs] == [
        ("metrics", "", 5),
        ("match", "", 5),
    ]


async def test_subscription_ends_with_its_last_setting_and_is_listed_until_then() -> None:
    broker = FakeBroker()

    async def listed(version: int, *kinds: int) -> list[tuple[int, str]]:
        answer = await call(broker, ListConfigResourcesRequest(list(kinds)), version)
        return [(row.resource_type, row.resource_name) for row in answer.config_resources]

    await alter(broker, METRICS, "m", ("metrics", 0, ""), ("interval.ms", 0, "100"))
    await alter(broker, METRICS, "m", ("metrics", 1, None))
    assert await listed(0) == await listed(1, METRICS) == [(METRICS, "m")]
    before = broker.catalog.client_metrics_version
    await alter(broker, METRICS, "m", ("interval.ms", 1, None))
    assert await listed(0) == await listed(1, METRICS) == []
    assert broker.catalog.client_metrics_version > before


async def test_alter_configs_replaces_all_settings_of_a_subscription() -> None:
    broker = FakeBroker()
    await alter(broker, METRICS, "m", ("metrics", 0, "*"), ("interval.ms", 0, "100"))
    resource = OldResource(METRICS, "m", [OldConfig("interval.ms", "200")])
    (row,) = (await call(broker, AlterConfigsRequest([resource]), 2)).responses
    assert row.error_code == 0
    assert broker.catalog.client_metrics == {"m": {"interval.ms": "200"}}


INVALID_REQUEST, INVALID_CONFIG = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("name", "wish", "code", "words"),
    [
        ("", ("metrics", 0, "*"), INVALID_REQUEST, "Subscription name can't be empty"),
        ("m", ("metrics", 0, None), INVALID_REQUEST, "Null value not supported"),
        ("m", ("metric", 0, "*"), INVALID_REQUEST, "Unknown client metrics configuration: metric"),
        ("m", ("interval.ms", 0, "99"), INVALID_REQUEST, "between 100 and 3600000 (1 hour)"),
        ("m", ("interval.ms", 0, "3600001"), INVALID_REQUEST, "between 100 and 3600000 (1 hour)"),
        ("m", ("interval.ms", 0, "soon"), INVALID_CONFIG, "must be a whole number"),
        ("m", ("metrics", 2, "a"), INVALID_CONFIG, "Can't APPEND to key metrics because its type"),
        ("m", ("match", 3, "a"), INVALID_CONFIG, "Can't SUBTRACT to key match because its type"),
        ("m", ("metrics", 0, "a,a"), INVALID_CONFIG, "each can be there once"),
        ("m", ("metrics", 0, "a,,b"), INVALID_CONFIG, "must not be empty"),
        ("m", ("match", 0, "client_id"), INVALID_CONFIG, "Illegal client matching pattern"),
        ("m", ("match", 0, "client_id="), INVALID_CONFIG, "Illegal client matching pattern"),
        ("m", ("match", 0, "client_id=a=b"), INVALID_CONFIG, "Illegal client matching pattern"),
        ("m", ("match", 0, "client=a"), INVALID_CONFIG, "Illegal client matching pattern"),
        ("m", ("match", 0, "client_id=("), INVALID_CONFIG, "Illegal client matching pattern"),
        ("m", ("metrics", 0, "x" * 32_768), INVALID_CONFIG, "more than 32767 bytes"),
        ("é" * 1001, ("metrics", 0, "*"), INVALID_REQUEST, "at most 2000 bytes"),
    ],
)  # fmt: skip
async def test_refused_settings(name: str, wish: Wish, code: ErrorCode, words: str) -> None:
    broker = FakeBroker()
    error, message = await alter(broker, METRICS, name, wish)
    assert error == code
    assert words in (message or "")
    assert broker.steps == []
    assert broker.catalog.client_metrics == {}


async def test_errors_are_those_of_kafkas_order() -> None:
    """An operation on lists first, then the name, unknown names, the type, bounds, patterns."""
    wishes: list[Wish] = [
        ("match", 0, "x"),
        ("interval.ms", 0, "1"),
        ("metrics", 0, "a,a"),
        ("other", 0, "1"),
        ("metric", 2, "1"),
    ]
    words = ["Illegal client", "between 100", "each can be there once", "Unknown client metrics"]
    for count, word in enumerate([*words, "Can't APPEND"], 1):
        error = await alter(FakeBroker(), METRICS, "m", *wishes[:count])
        assert word in (error[1] or "")
    error = await alter(FakeBroker(), METRICS, "", *wishes[:4])
    assert error == (INVALID_REQUEST, "Subscription name can't be empty")


async def test_subscriptions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.broker.config_service.MAX_SUBSCRIPTIONS", 3)
    broker = FakeBroker()
    await alter(broker, METRICS, "a", ("metrics", 0, "*"))
    resources = [
        AlterConfigsResource(METRICS, name, [AlterableConfig("metrics", 0, "b")]) for name in "abcd"
    ]
    rows = (await call(broker, IncrementalAlterConfigsRequest(resources), 1)).responses
    assert [row.error_code for row in rows] == [0, 0, 0, ErrorCode.INVALID_CONFIG]
    assert list(broker.catalog.client_metrics) == ["a", "b", "c"]
    assert overrides.MAX_SUBSCRIPTIONS > 3


async def test_patterns_of_a_subscription_are_bounded() -> None:
    patterns = ",".join(f"client_id={n}" for n in range(21))
    error = await alter(FakeBroker(), METRICS, "m", ("match", 0, patterns))
    assert error == (INVALID_CONFIG, "A subscription can have at most 20 patterns.")
