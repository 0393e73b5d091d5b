"""Settings of groups through DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and
ListConfigResources.

Covers: kafkawire.handlers.describe_configs, kafkawire.handlers.incremental_alter_configs,
kafkawire.handlers.alter_configs, kafkawire.handlers.list_config_resources.
"""

from __future__ import annotations

import logging

import pytest

from kafkawire.broker import overrides
from kafkawire.broker.config_service import warn_of_clamped
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
from tests.kit.configs import BROKER, GROUP, Wish, alter, describe

SESSION, HEARTBEAT, ASSIGNMENT = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)
OF_BROKER = "group.consumer.assignment.interval.ms"


async def test_group_that_does_not_exist_has_the_settings_of_the_broker() -> None:
    broker = FakeBroker(**{"group_consumer_session_timeout_ms": "46000"})
    result = await describe(broker, GROUP, "g", include_synonyms=True)
    found = {row.name: (row.value, row.config_source, row.config_type) for row in result.configs}
    assert found == {
        SESSION: ("46000", 4, 3),
        HEARTBEAT: ("5000", 5, 3),
        ASSIGNMENT: ("1000", 5, 3),
        "share.session.timeout.ms": ("45000", 5, 3),
        "share.heartbeat.interval.ms": ("5000", 5, 3),
        "share.assignment.interval.ms": ("1000", 5, 3),
        "share.record.lock.duration.ms": ("30000", 5, 3),
        "share.delivery.count.limit": ("5", 5, 3),
        "share.partition.max.record.locks": ("2000", 5, 3),
        "share.auto.offset.reset": ("latest", 5, 2),
        "share.isolation.level": ("read_uncommitted", 5, 2),
        "share.renew.acknowledge.enable": ("true", 5, 1),
        "share.retry.delay.ms": ("0", 5, 3),
        "share.retry.delay.max.ms": ("300000", 5, 3),
        "streams.session.timeout.ms": ("45000", 5, 3),
        "streams.heartbeat.interval.ms": ("5000", 5, 3),
        "streams.assignment.interval.ms": ("1000", 5, 3),
        "streams.initial.rebalance.delay.ms": ("3000", 5, 3),
        "streams.num.standby.replicas": ("0", 5, 3),
        "streams.task.offset.interval.ms": ("60000", 5, 3),
        "streams.num.warmup.replicas": ("2", 5, 3),
        "streams.acceptable.recovery.lag": ("10000", 5, 5),
        "streams.rack.aware.assignment.tags": ("", 5, 7),
        "streams.assignor.name": ("sticky", 5, 2),
        "errors.deadletterqueue.topic.name": ("", 5, 2),
        "errors.deadletterqueue.copy.record.enable": ("false", 5, 1),
    }
    synonyms = [(each.name, each.value, each.source) for each in result.configs[0].synonyms]
    assert synonyms == [
        ("group.consumer.session.timeout.ms", "46000", 4),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    assert not any(row.read_only or row.is_sensitive for row in result.configs)


async def test_group_has_its_own_setting_at_once() -> None:
    broker = FakeBroker()
    await alter(broker, BROKER, "", (OF_BROKER, 0, "700"))
    assert await alter(broker, GROUP, "g", (ASSIGNMENT, 0, "800")) == (0, None)
    assert broker.config.consumer_group_settings("g").assignment_interval_ms == 800
    assert broker.config.consumer_group_settings("other").assignment_interval_ms == 700
    assert broker.metadata.stored[GROUP, "g", ASSIGNMENT] == "800"
    (row,) = (await describe(broker, GROUP, "g", ASSIGNMENT, include_synonyms=True)).configs
    assert (row.value, row.config_source) == ("800", 8)
    synonyms = [(each.name, each.value, each.source) for each in row.synonyms]
    assert synonyms == [(ASSIGNMENT, "800", 8), (OF_BROKER, "700", 3), (OF_BROKER, "1000", 5)]
    assert await alter(broker, GROUP, "g", (ASSIGNMENT, 1, None)) == (0, None)
    assert broker.config.consumer_group_settings("g").assignment_interval_ms == 700
    assert broker.catalog.group_overrides == {}


async def test_list_of_a_group_is_shown_without_spaces() -> None:
    broker = FakeBroker()
    name = "streams.rack.aware.assignment.tags"
    assert await alter(broker, GROUP, "g", (name, 0, "zone, rack")) == (0, None)
    (row,) = (await describe(broker, GROUP, "g", name)).configs
    assert (row.value, row.config_source) == ("zone,rack", 8)


async def test_alter_configs_replaces_all_settings_of_a_group() -> None:
    broker = FakeBroker()
    await alter(broker, GROUP, "g", (SESSION, 0, "50000"), (HEARTBEAT, 0, "6000"))
    resource = OldResource(GROUP, "g", [OldConfig(HEARTBEAT, "7000")])
    (row,) = (await call(broker, AlterConfigsRequest([resource]), 2)).responses
    assert row.error_code == 0
    assert broker.catalog.group_overrides == {"g": {HEARTBEAT: "7000"}}


@pytest.mark.parametrize(
    ("name", "wish", "code", "words"),
    [
        ("", (SESSION, 0, "50000"), ErrorCode.INVALID_REQUEST, "Default group resources are not"),
        ("g", (SESSION, 0, "60001"), ErrorCode.INVALID_CONFIG, "range 45000 to 60000 inclusive"),
        ("g", (SESSION, 0, "x"), ErrorCode.INVALID_CONFIG, "must be a whole number"),
        ("g", (SESSION, 2, "1"), ErrorCode.INVALID_CONFIG, "only lists"),
        ("g", ("no.such", 0, "1"), ErrorCode.INVALID_CONFIG, "Unknown group config name: no.such"),
        ("g", (SESSION, 0, None), ErrorCode.INVALID_REQUEST, "Null value not supported"),
        ("é" * 1001, (SESSION, 0, "50000"), ErrorCode.INVALID_REQUEST, "at most 2000 bytes"),
    ],
)
async def test_refused_settings(name: str, wish: Wish, code: ErrorCode, words: str) -> None:
    broker = FakeBroker()
    error, message = await alter(broker, GROUP, name, wish)
    assert error == code
    assert words in (message or "")
    assert broker.steps == []
    assert broker.catalog.group_overrides == {}


async def test_groups_with_settings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.broker.config_service.MAX_GROUPS", 3)
    broker = FakeBroker()
    await alter(broker, GROUP, "a", (SESSION, 0, "50000"))
    resources = [
        AlterConfigsResource(GROUP, name, [AlterableConfig(SESSION, 0, "51000")]) for name in "abcd"
    ]
    rows = (await call(broker, IncrementalAlterConfigsRequest(resources), 1)).responses
    assert [row.error_code for row in rows] == [0, 0, 0, ErrorCode.INVALID_CONFIG]
    assert list(broker.catalog.group_overrides) == ["a", "b", "c"]
    assert overrides.MAX_GROUPS > 3


async def test_groups_with_settings_are_listed() -> None:
    broker = FakeBroker()
    await alter(broker, GROUP, "g", (SESSION, 0, "50000"))
    answer = await call(broker, ListConfigResourcesRequest([GROUP]), 1)
    assert [(r.resource_type, r.resource_name) for r in answer.config_resources] == [(GROUP, "g")]


async def test_settings_beyond_new_bounds_are_clamped_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = FakeBroker()
    await alter(broker, GROUP, "g", (SESSION, 0, "50000"))
    broker.config.update({"group.consumer.max.session.timeout.ms": "46000"})
    assert broker.config.consumer_group_settings("g").session_timeout_ms == 46_000
    (row,) = (await describe(broker, GROUP, "g", SESSION)).configs
    assert row.value == "50000"
    with caplog.at_level(logging.WARNING):
        warn_of_clamped(broker.catalog, broker.config)
    (line,) = caplog.messages
    assert line == (
        "group g: its consumer.session.timeout.ms=50000 is beyond the bounds of this broker, so "
        "46000 is used"
    )
    broker.catalog.group_overrides.update({str(n): {SESSION: "60000"} for n in range(30)})
    caplog.clear()
    warn_of_clamped(broker.catalog, broker.config)
    assert len(caplog.messages) == 21
    assert caplog.messages[-1].startswith("11 more settings of groups")
