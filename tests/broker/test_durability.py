"""The durability of topics: fixed when they are created, from their own setting or the broker's.

Covers: kafkawire.codec.configs.durability_rules.
"""

from __future__ import annotations

import pytest

from kafkawire.broker.new_topics import (
    GROUP_METADATA_TOPIC,
    SCHEDULE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.alter_configs import AlterableConfig as OldConfig
from kafkawire.messages.alter_configs import AlterConfigsRequest
from kafkawire.messages.alter_configs import AlterConfigsResource as OldResource
from kafkawire.messages.create_topics import CreateTopicsRequest
from tests.kit.admin import FakeBroker, by_name, call
from tests.kit.configs import BROKER, TOPIC, Wish, alter, create, describe, make, wanted

TIER = "s3://bucket/prefix"
SET, DELETE = 0, 1
FROM_TOPIC, FROM_DEFAULT = 1, 5


def s3_by_default() -> FakeBroker:
    return FakeBroker(tier_url=TIER, durability="s3")


async def test_new_topics_of_all_kinds_store_default_of_broker() -> None:
    broker = s3_by_default()
    await make(broker, "asked")
    await make(broker, "own", durability="local")
    await make(broker, "more", retention_ms="5")
    assert await broker.topics.auto_create(["auto"], "client") == {}
    await broker.topics.offsets_partitions()
    await broker.topics.transaction_state_partitions()
    await broker.topics.schedule_state_partitions()
    internal = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SCHEDULE_STATE_TOPIC)
    for name in ("asked", "auto", "more", *internal):
        assert broker.topic(name).configs["durability"] == "s3", name
        assert broker.partition(name).config.in_objects, name
    assert broker.topic("own").configs == {"durability": "local"}
    assert not broker.partition("own").config.in_objects
    assert broker.topic(GROUP_METADATA_TOPIC).configs["cleanup.policy"] == "compact"


async def test_topics_of_local_broker_have_no_override() -> None:
    broker = FakeBroker(tier_url=TIER)
    await make(broker, "asked")
    await make(broker, "own", durability="s3")
    await broker.topics.offsets_partitions()
    assert broker.topic("asked").configs == {}
    assert broker.topic("own").configs == {"durability": "s3"}
    assert "durability" not in broker.topic(GROUP_METADATA_TOPIC).configs
    in_objects = [broker.partition(name).config.in_objects for name in ("asked", "own")]
    assert in_objects == [False, True]


async def test_s3_without_tier_is_refused() -> None:
    broker = FakeBroker()
    request = CreateTopicsRequest([wanted("t", durability="s3")], 9000)
    for request.validate_only in (True, False):
        (row,) = (await call(broker, request, 7)).topics
        assert row.error_code == ErrorCode.INVALID_CONFIG
        assert row.error_message == (
            "durability=s3: it needs a remote tier: start the broker with --tier URL"
        )
    assert list(broker.catalog.by_name) == []


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize(
    ("own", "wish", "code"),
    [
        ("s3", ("durability", SET, "local"), ErrorCode.INVALID_CONFIG),
        ("s3", ("durability", DELETE, None), ErrorCode.INVALID_CONFIG),
        ("s3", ("durability", SET, "s3"), 0),
        ("s3", ("durability", SET, "x"), ErrorCode.INVALID_CONFIG),
        ("s3", ("retention.ms", SET, "5"), 0),
        ("s3", ("remote.log.copy.disable", SET, "true"), ErrorCode.INVALID_CONFIG),
        ("local", ("durability", SET, "s3"), ErrorCode.INVALID_CONFIG),
        ("local", ("durability", DELETE, None), 0),
        ("local", ("durability", SET, "local"), 0),
        ("", ("durability", SET, "s3"), ErrorCode.INVALID_CONFIG),
        ("", ("durability", SET, "local"), 0),
        ("", ("durability", DELETE, None), 0),
    ],
)
async def test_durability_of_existing_topic_cannot_be_changed(
    own: str, wish: Wish, code: int, validate_only: bool
) -> None:
    broker = FakeBroker(tier_url=TIER)
    await create(broker, wanted("t", durability=own) if own else wanted("t"))
    before = dict(broker.topic("t").configs)
    error, message = await alter(broker, TOPIC, "t", wish, validate_only=validate_only)
    assert error == code
    assert broker.partition("t").config.in_objects == (own == "s3")
    if code:
        assert wish[0] in (message or "")
    if code or validate_only:
        assert broker.topic("t").configs == before


async def test_replacing_all_settings_keeps_durability() -> None:
    broker = FakeBroker(tier_url=TIER)
    await make(broker, "t", durability="s3")
    retention, same = OldConfig("retention.ms", "8"), OldConfig("durability", "s3")
    for configs, code in (([retention], ErrorCode.INVALID_CONFIG), ([retention, same], 0)):
        request = AlterConfigsRequest([OldResource(TOPIC, "t", configs)])
        (row,) = (await call(broker, request, 2)).responses
        assert row.error_code == code
        if code:
            assert row.error_message == (
                "durability=local: the durability of a topic is fixed when it is created, and "
                "this one has s3; create another topic with durability=local and copy the records"
            )
    assert broker.topic("t").configs == {"retention.ms": "8", "durability": "s3"}


async def test_durability_is_shown_as_read_only() -> None:
    broker = s3_by_default()
    request = CreateTopicsRequest([wanted("t")], 9000)
    (created,) = (await call(broker, request, 7)).topics
    await make(broker, "own", durability="local")
    for rows in (created.configs, (await describe(broker, TOPIC, "t")).configs):
        row = by_name(rows)["durability"]
        assert (row.value, row.config_source, row.read_only) == ("s3", FROM_TOPIC, True)
    row = by_name((await describe(broker, TOPIC, "own")).configs)["durability"]
    assert (row.value, row.config_source, row.read_only) == ("local", FROM_TOPIC, True)
    error, _ = await alter(broker, BROKER, "1", ("durability", SET, "local"))
    assert error == ErrorCode.INVALID_REQUEST


async def test_topic_of_earlier_version_is_shown_as_local() -> None:
    broker = FakeBroker(tier_url=TIER)
    await create(broker, wanted("old"))
    broker.static["durability"] = "s3"
    await broker.topics.configs.broker_changed(["durability"])
    row = by_name((await describe(broker, TOPIC, "old")).configs)["durability"]
    assert (row.value, row.config_source) == ("local", FROM_DEFAULT)
    await make(broker, "new")
    assert broker.partition("new").config.in_objects
    assert not broker.partition("old").config.in_objects
