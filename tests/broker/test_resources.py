"""Layers of settings: which value applies, which source is reported, and the effect of changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.broker.overrides import (
    AlterConfigOp,
    Layers,
    Op,
    broker_overrides,
    check_wishes,
    find_changes,
    new_topic_overrides,
    topic_overrides,
)
from kafkawire.broker.resources import (
    DECOMPRESSED,
    ConfigSource,
    _entry,
    broker_entries,
    cluster_entries,
    topic_entries,
)
from kafkawire.codec.configs.settings import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    Config,
    ConfigType,
    resolve_topic,
    text_of,
)
from kafkawire.codec.errors import ErrorCode, KafkaError

SIZE = "message.max.bytes"


def layers(
    of_broker: str | None = None, of_cluster: str | None = None, static: str | None = None
) -> Layers:
    return Layers(
        *({} if text is None else {SIZE: text} for text in (of_broker, of_cluster, static))
    )


@pytest.mark.parametrize(
    ("given_layers", "text", "source"),
    [
        (layers("1", "2", "3"), "1", ConfigSource.DYNAMIC_BROKER),
        (layers(None, "2", "3"), "2", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (layers(None, None, "3"), "3", ConfigSource.STATIC_BROKER),
        (layers(), "1048588", ConfigSource.DEFAULT),
    ],
)
def test_first_layer_with_a_value_applies(
    given_layers: Layers, text: str, source: ConfigSource
) -> None:
    (of_broker,) = broker_entries(given_layers, {SIZE}, {})
    (of_topic,) = topic_entries({}, given_layers, {"max.message.bytes"})
    for entry in (of_broker, of_topic):
        assert (entry.text, entry.source) == (text, source)
        assert [synonym.name for synonym in entry.synonyms] == [SIZE] * len(entry.synonyms)
    assert of_broker.synonyms == of_topic.synonyms
    (own,) = topic_entries({"max.message.bytes": "9"}, given_layers, {"max.message.bytes"})
    assert (own.text, own.source) == ("9", ConfigSource.TOPIC)
    assert own.synonyms[1:] == of_topic.synonyms
    assert resolve_topic({}, given_layers.merge_settings()).max_message_bytes == int(text)


def test_every_setting_can_be_described() -> None:
    empty = Layers({}, {}, {})
    listed = {entry.name for entry in topic_entries({DECOMPRESSED: "9"}, empty, None)}
    assert listed == set(TOPIC_CONFIGS)
    unset = {entry.name for entry in topic_entries({}, empty, None)}
    assert unset == set(TOPIC_CONFIGS) - {DECOMPRESSED}
    for entry in broker_entries(empty, None, {}):
        row = BROKER_CONFIGS[entry.name]
        secret = row.type is ConfigType.PASSWORD
        shown = None if secret else text_of(row.default)
        assert (entry.text, entry.sensitive) == (shown, secret)
        assert entry.source == ConfigSource.DEFAULT
        assert entry.read_only is not row.dynamic
        assert entry.about
    assert cluster_entries(empty, None) == []


def test_units_of_time_are_synonyms() -> None:
    static = {"log.retention.hours": "2", "log.retention.minutes": "5"}
    (entry,) = topic_entries({}, Layers({}, {}, static), {"retention.ms"})
    assert (entry.text, entry.source) == ("300000", ConfigSource.STATIC_BROKER)
    assert [(s.name, s.source) for s in entry.synonyms] == [
        ("log.retention.minutes", 4),
        ("log.retention.hours", 4),
        ("log.retention.hours", 5),
    ]


def test_passwords_are_not_returned() -> None:
    row = Config("secret", ConfigType.PASSWORD, None, "A secret.")
    entry = _entry(row, "hush", [], read_only=False)
    assert (entry.text, entry.sensitive) == (None, True)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("xyz")),
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("xyz")),
)
def test_stored_changes_lead_from_old_to_new_values(
    before: dict[str, str], after: dict[str, str]
) -> None:
    stored = dict(before)
    changes = find_changes(before, after)
    for name, value in changes.items():
        if value is None:
            del stored[name]
        else:
            assert stored.get(name) != value
            stored[name] = value
    assert stored == after


def test_changes_apply_in_order_and_keep_other_settings() -> None:
    current = {"retention.ms": "5", "max.message.bytes": "6"}
    wishes = [
        AlterConfigOp("retention.ms", Op.DELETE, None),
        AlterConfigOp("segment.ms", Op.SET, "9"),
        AlterConfigOp("cleanup.policy", Op.APPEND, "compact,delete"),
    ]
    after = topic_overrides(current, wishes, False, {"log.cleanup.policy": "delete"})
    assert after == {
        "max.message.bytes": "6",
        "segment.ms": "9",
        "cleanup.policy": "delete,compact",
    }
    assert current == {"retention.ms": "5", "max.message.bytes": "6"}
    assert topic_overrides(current, wishes[1:2], True, {}) == {"segment.ms": "9"}


def test_subtract_from_default_list() -> None:
    wish = AlterConfigOp("cleanup.policy", Op.SUBTRACT, "compact")
    after = topic_overrides({}, [wish], False, {"log.cleanup.policy": "compact,delete"})
    assert after == {"cleanup.policy": "delete"}


def test_unknown_stored_setting_can_be_deleted() -> None:
    gone = AlterConfigOp("message.format.version", Op.DELETE, None)
    assert topic_overrides({"message.format.version": "2.0"}, [gone], False, {}) == {}


def test_broker_layers_are_checked_together() -> None:
    low = Layers({}, {}, {"log.cleaner.max.compaction.lag.ms": "50"})
    wish = AlterConfigOp("log.cleaner.min.compaction.lag.ms", Op.SET, "60")
    with pytest.raises(KafkaError) as refused:
        broker_overrides(low, [wish], False, True)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert "50" in str(refused.value)


@pytest.mark.parametrize(
    "wishes",
    [
        [AlterConfigOp("a", Op.SET, "1"), AlterConfigOp("a", Op.DELETE, None)],
        [AlterConfigOp("a", Op.SET, None)],
        [AlterConfigOp("a", Op.SUBTRACT, None)],
    ],
)
def test_contradicting_changes_are_refused(wishes: list[AlterConfigOp]) -> None:
    with pytest.raises(KafkaError) as refused:
        check_wishes(wishes)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_settings_of_new_topic_are_checked_against_broker() -> None:
    assert new_topic_overrides([("retention.ms", " 5 ")], {}) == {"retention.ms": " 5 "}
    with pytest.raises(KafkaError) as refused:
        new_topic_overrides([("min.compaction.lag.ms", "60")],
                            {"log.cleaner.max.compaction.lag.ms": "50"})  # fmt: skip
    assert refused.value.code is ErrorCode.INVALID_CONFIG
