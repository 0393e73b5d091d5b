"""The setting `durability` of topics and brokers, and the settings of log objects."""

from __future__ import annotations

import pytest

from kafkawire.codec.configs.durability_rules import new_topic_durability
from kafkawire.codec.configs.settings import (
    BrokerConfig,
    ConfigError,
    TopicConfig,
    check_broker,
    check_topic,
)

TIER = {"tier.url": "s3://bucket/prefix"}
OBJECTS, LOCAL = {"durability": "s3"}, {"durability": "local"}


def test_only_topic_with_override_is_stored_in_log_objects() -> None:
    assert TopicConfig({}, TIER).in_objects is False
    assert TopicConfig(LOCAL, TIER).in_objects is False
    assert TopicConfig(OBJECTS, TIER).in_objects is True
    assert TopicConfig({"durability": " s3 "}, TIER).in_objects is True


def test_default_of_broker_does_not_change_existing_topics() -> None:
    assert TopicConfig({}, TIER | OBJECTS).in_objects is False
    assert TopicConfig(OBJECTS, TIER | LOCAL).in_objects is True


def test_lost_tier_does_not_weaken_durability() -> None:
    """A broker that is started without its tier must not acknowledge records as of a local
    topic."""
    assert TopicConfig(OBJECTS, {}).in_objects is True
    check_topic(OBJECTS | {"retention.ms": "5"}, {}, OBJECTS)


def test_new_topic_gets_default_of_broker() -> None:
    assert new_topic_durability({}, TIER | OBJECTS) == OBJECTS
    assert new_topic_durability({"retention.ms": "5"}, TIER | OBJECTS) == OBJECTS
    assert new_topic_durability(LOCAL, TIER | OBJECTS) == {}
    assert new_topic_durability({}, TIER) == {}
    assert new_topic_durability({}, TIER | LOCAL) == {}


def test_s3_needs_tier() -> None:
    sentence = "durability=s3: it needs a remote tier: start the broker with --tier"
    with pytest.raises(ConfigError, match=sentence):
        check_topic(OBJECTS, {})
    with pytest.raises(ConfigError, match=sentence):
        check_broker(OBJECTS)
    check_topic(OBJECTS, TIER)
    check_broker(TIER | OBJECTS)


@pytest.mark.parametrize("broker", [TIER, {}, TIER | OBJECTS])
def test_durability_of_existing_topic_is_fixed(broker: dict[str, str]) -> None:
    cases: list[tuple[dict[str, str], dict[str, str], str]] = [
        ({}, OBJECTS, "durability=s3: .*this one has local; create another topic"),
        (LOCAL, OBJECTS, "durability=s3: .*this one has local; create another topic"),
        (OBJECTS, LOCAL, "durability=local: .*this one has s3; create another topic"),
        (OBJECTS, {}, "durability=local: .*this one has s3; create another topic"),
    ]
    for before, after, sentence in cases:
        with pytest.raises(ConfigError, match=sentence):
            check_topic(after, broker, before)
    check_topic(OBJECTS, broker, OBJECTS)
    check_topic(LOCAL, broker, {})
    check_topic({}, broker, LOCAL)


def test_topic_in_log_objects_is_copied_to_tier() -> None:
    for name, value in (("remote.storage.enable", "false"), ("remote.log.copy.disable", "true")):
        change = {name: value, "remote.log.delete.on.disable": "true"}
        for before in (None, OBJECTS):
            with pytest.raises(ConfigError, match=f"{name}={value}: a topic with durability=s3"):
                check_topic(OBJECTS | change, TIER, before)
        check_topic(change, TIER)


def test_object_is_not_larger_than_all_unreleased_ones() -> None:
    settings = {"log.object.bytes": str(32 << 20), "log.unreleased.max.bytes": str(16 << 20)}
    with pytest.raises(ConfigError, match=r"log\.object\.bytes=33554432: it must not be above"):
        check_broker(settings)
    settings["log.object.bytes"] = str(16 << 20)
    config = BrokerConfig(settings | {"log.object.linger.ms": "0"})
    assert (config.log_object_linger_ms, config.log_object_bytes) == (0, 16 << 20)
    assert (config.log_unreleased_max_bytes, config.durability) == (16 << 20, "local")
