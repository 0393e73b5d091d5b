"""The table of settings against Kafka's own, parsing, the typed objects, docs/configs.md.

Covers: kafkawire.codec.configs.*.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.compression import CODEC_NAMES
from kafkawire.codec.configs.features import FinalizedFeatures
from kafkawire.codec.configs.settings import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    BrokerConfig,
    Config,
    ConfigError,
    ConfigType,
    Effect,
    Scope,
    TierLevel,
    TopicConfig,
    append_items,
    broker_names,
    check_broker,
    check_topic,
    find,
    markdown_table,
    parse,
    subtract_items,
    text_of,
    topic_default,
    validate,
)
from tests.kit.configs import OWN_TOPIC_CONFIGS

ROWS = [*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values(), *GROUP_CONFIGS.values()]
# LogConfig of Apache Kafka 4.3.1, printed by its ConfigDef: name -> (type, default, broker name).
# What 4.4.0 adds is from its source.
KAFKA_TOPIC_CONFIGS = """
cleanup.policy LIST delete log.cleanup.policy
compression.gzip.level INT -1 compression.gzip.level
compression.lz4.level INT 9 compression.lz4.level
compression.type STRING producer compression.type
compression.zstd.level INT 3 compression.zstd.level
delete.retention.ms LONG 86400000 log.cleaner.delete.retention.ms
errors.deadletterqueue.group.enable BOOLEAN false -
file.delete.delay.ms LONG 60000 log.segment.delete.delay.ms
flush.messages LONG 9223372036854775807 log.flush.interval.messages
flush.ms LONG 9223372036854775807 log.flush.interval.ms
follower.replication.throttled.replicas LIST - -
index.interval.bytes INT 4096 log.index.interval.bytes
leader.replication.throttled.replicas LIST - -
local.retention.bytes LONG -2 log.local.retention.bytes
local.retention.ms LONG -2 log.local.retention.ms
max.compaction.lag.ms LONG 9223372036854775807 log.cleaner.max.compaction.lag.ms
max.decompressed.message.bytes INT 2147483639 max.decompressed.message.bytes
max.message.bytes INT 1048588 message.max.bytes
message.timestamp.after.max.ms LONG 3600000 log.message.timestamp.after.max.ms
message.timestamp.before.max.ms LONG 9223372036854775807 log.message.timestamp.before.max.ms
message.timestamp.type STRING CreateTime log.message.timestamp.type
min.cleanable.dirty.ratio DOUBLE 0.5 log.cleaner.min.cleanable.ratio
min.compaction.lag.ms LONG 0 log.cleaner.min.compaction.lag.ms
min.insync.replicas INT 1 min.insync.replicas
preallocate BOOLEAN false log.preallocate
remote.copy.lag.bytes LONG -1 log.remote.copy.lag.bytes
remote.copy.lag.ms LONG 0 log.remote.copy.lag.ms
remote.log.copy.disable BOOLEAN false -
remote.log.delete.on.disable BOOLEAN false -
remote.storage.enable BOOLEAN false -
retention.bytes LONG -1 log.retention.bytes
retention.ms LONG 604800000 log.retention.ms
segment.bytes INT 1073741824 log.segment.bytes
segment.index.bytes INT 10485760 log.index.size.max.bytes
segment.jitter.ms LONG 0 log.roll.jitter.ms
segment.ms LONG 604800000 log.roll.ms
unclean.leader.election.enable BOOLEAN false unclean.leader.election.enable
"""


def test_topic_settings_are_kafkas() -> None:
    theirs = sorted(line.split() for line in KAFKA_TOPIC_CONFIGS.strip().splitlines())
    ours = sorted(
        [row.name, row.type.name, text_of(row.default) or "-", row.broker_name or "-"]
        for row in TOPIC_CONFIGS.values()
        if row.name not in OWN_TOPIC_CONFIGS
    )
    assert ours == theirs
    assert set(TOPIC_CONFIGS) >= OWN_TOPIC_CONFIGS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_row_is_complete(row: Config) -> None:
    assert row.about.endswith("."), row.about
    assert row.default is None or validate(row, text_of(row.default) or "") == row.default
    if row.type in (ConfigType.INT, ConfigType.SHORT, ConfigType.LONG):
        unbounded = row.of_topic or row.name == "retention.bytes"  # in Kafka too
        assert row.at_least is not None or unbounded
    fixed = row.scope is Scope.BROKER or row.name in ("durability", "view.source.topic")
    assert row.dynamic or fixed, "settings of topics can be altered"
    for name in broker_names(row):
        assert BROKER_CONFIGS[name].of_topic is (row.name not in GROUP_CONFIGS)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", " 5 ", 5),
        ("retention.ms", "+5", 5),
        ("retention.ms", "-1", -1),
        ("compression.gzip.level", "-1", -1),
        ("compression.gzip.level", "9", 9),
        ("preallocate", "TRUE", True),
        ("cleanup.policy", "compact, delete", ["compact", "delete"]),
        ("cleanup.policy", "compact,compact", ["compact"]),
        ("cleanup.policy", "", []),
        ("compression.type", " gzip ", "gzip"),
        ("min.cleanable.dirty.ratio", "1", 1.0),
        ("leader.replication.throttled.replicas", "*", ["*"]),
        ("leader.replication.throttled.replicas", "1:2,3:4", ["1:2", "3:4"]),
        ("remote.storage.enable", "false", False),
        ("tieredStorageLevel", "NOT_IN_DISK", "not-in-disk"),
        ("tieredStorageLevel", "notInMem", "not-in-mem"),
        ("log.retention.hours", "-1", -1),
        ("broker.rack", "r1", "r1"),
        ("journal.bytes", str(2 << 30), 2 << 30),
    ],
)
def test_texts_are_parsed(name: str, text: str, value: object) -> None:
    assert parse(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("retention.ms", "abc", "it must be a whole number of at least -1"),
        ("retention.ms", "-2", "it must be a whole number of at least -1"),
        ("retention.ms", "1e3", "it must be a whole number of at least -1"),
        ("retention.ms", "1_000", "it must be a whole number of at least -1"),
        ("retention.ms", "", "it must be a whole number of at least -1"),
        ("max.message.bytes", "99999999999", "it must be a whole number from 0 to 2147483647"),
        ("journal.bytes", "1", "it must be a whole number from 1048576 to 2147483648"),
        ("compression.gzip.level", "0", "it must be a whole number from 1 to 9, or -1"),
        ("min.cleanable.dirty.ratio", "nan", "it must be a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "2", "it must be a number from 0 to 1"),
        ("preallocate", "yes", "it must be true or false"),
        ("flush", "never", "it must be commit or os"),
        ("cleanup.policy", "Compact", "it must be a list of compact and delete"),
        ("cleanup.policy", "compact,", "it must be a list of compact and delete"),
        ("tieredStorageLevel", "in-mem", "it must be disable, not-in-disk, not-in-mem or force"),
        ("tier.s3.storage.class", "GLACIER", "it must be empty, STANDARD, INTELLIGENT_TIERING, "
         "STANDARD_IA, ONEZONE_IA, GLACIER_IR or REDUCED_REDUNDANCY"),
        ("offsets.topic.num.partitions", "1000000000", "it must be a whole number from 1 to "
         "10000"),
        ("num.partitions", "10001", "it must be a whole number from 1 to 10000"),
        ("tiering.max.lag.ms", "4999", "it must be a whole number of at least 5000"),
        ("leader.replication.throttled.replicas", "1:2,3", "it must be * or a list of "
         "PARTITION:BROKER"),
    ],
)  # fmt: skip
def test_invalid_value_is_one_sentence(name: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(name, text)
    assert str(caught.value) == f"{name}={text}: {sentence}"
    assert caught.value.name == name


def test_unknown_name_gets_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"^retention\.mss: .*did you mean retention\.ms\?"):
        find("retention.mss", TOPIC_CONFIGS)
    with pytest.raises(ConfigError, match=r"^qqq: unknown setting$"):
        find("qqq", BROKER_CONFIGS)


@given(st.sampled_from(ROWS), st.text(max_size=12) | st.integers().map(str))
def test_any_text_is_parsed_or_refused(row: Config, text: str) -> None:
    try:
        value = validate(row, text)
    except ConfigError:
        return
    shown = text_of(value)
    assert shown is not None
    assert validate(row, shown) == value


NUMBERS = [row for row in ROWS if row.type in (ConfigType.INT, ConfigType.SHORT, ConfigType.LONG)]


@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: row.name)
def test_numbers_have_exactly_their_documented_bounds(row: Config) -> None:
    width = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}[row.type]
    low = -(2**width) if row.at_least is None else int(row.at_least)
    high = 2**width - 1 if row.at_most is None else int(row.at_most)
    for number in (low, high):
        assert validate(row, str(number)) == number
    for number in {low - 1, high + 1, 2**70, -(2**70)} - {row.also}:
        with pytest.raises(ConfigError, match=re.escape(f"{row.name}={number}: it must be")):
            validate(row, str(number))


WRONG_VALUES = [
    "yes please", "1e9x", "0x10", "1_000", "\u0661", "1;2", "\0", "-", "+", "." * 50, "9" * 400,
    "NaN", "inf", "null", "[]", "{}", "1 2", "--1", "1.0.0", "é" * 40,
]  # fmt: skip
"""Values that only settings of any text accept."""
ANY_TEXT = (ConfigType.STRING, ConfigType.PASSWORD, ConfigType.CLASS, ConfigType.LIST)
CHECKED = [r for r in ROWS if r.type not in ANY_TEXT or r.choices or r.item_pattern]


@pytest.mark.parametrize("row", CHECKED, ids=lambda row: row.name)
def test_each_setting_refuses_wrong_values_with_a_sentence(row: Config) -> None:
    """Text settings accept any text; all others refuse these values and name themselves."""
    for text in WRONG_VALUES:
        with pytest.raises(ConfigError) as caught:
            validate(row, text)
        assert str(caught.value).startswith(f"{row.name}={text}: it must be ")


def test_append_and_subtract_of_lists() -> None:
    policy = TOPIC_CONFIGS["cleanup.policy"]
    assert append_items(policy, "delete", "compact, delete") == "delete,compact"
    assert append_items(policy, "", "compact") == "compact"
    assert subtract_items(policy, "compact,delete", "delete") == "compact"
    assert subtract_items(policy, "delete", "delete,compact") == ""
    for change in (append_items, subtract_items):
        with pytest.raises(ConfigError, match="only lists"):
            change(TOPIC_CONFIGS["retention.ms"], "1", "2")


def test_typed_objects_have_an_attribute_per_setting() -> None:
    ours = {field.name for field in dataclasses.fields(BrokerConfig)}
    ours -= {"texts", "_features", "_groups"}
    ours -= {"file_delete_delay_ms", "min_insync_replicas"}  # a topic's, as set at the broker
    assert ours == {row.attribute for row in BROKER_CONFIGS.values() if not row.of_topic}
    defaults = BrokerConfig()
    for row in BROKER_CONFIGS.values():
        if not row.of_topic:
            assert getattr(defaults, row.attribute) == row.default


@pytest.mark.parametrize("typed", [BrokerConfig(), TopicConfig()])
def test_attributes_have_declared_types(typed: BrokerConfig | TopicConfig) -> None:
    names = {"int": int, "float": float, "str": str, "bool": bool, "dict[str, str]": dict}
    names["list[str]"] = list
    names["TierLevel"] = TierLevel
    names["FinalizedFeatures"] = FinalizedFeatures
    names["Mapping[str, Mapping[str, str]]"] = dict
    for field in dataclasses.fields(typed):
        claimed = str(field.type)
        value = getattr(typed, field.name)
        if claimed.endswith(" | None"):
            claimed = claimed.removesuffix(" | None")
            assert value is None or type(value) is names[claimed]
        else:
            assert type(value) is names[claimed], field.name


def test_topic_setting_precedence() -> None:
    topic = TopicConfig()
    assert (topic.retention_ms, topic.max_message_bytes) == (604_800_000, 1_048_588)
    topic.update({}, {"log.retention.hours": "2", "message.max.bytes": "7"})
    assert (topic.retention_ms, topic.max_message_bytes) == (7_200_000, 7)
    topic.update({}, {"log.retention.hours": "2", "log.retention.minutes": "3"})
    assert topic.retention_ms == 180_000
    topic.update({}, {"log.retention.hours": "2", "log.retention.ms": "4"})
    assert topic.retention_ms == 4
    topic.update({}, {"log.retention.hours": "-1"})
    assert topic.retention_ms == -1
    topic.update({"retention.ms": "5"}, {"log.retention.ms": "4"})
    assert topic.retention_ms == 5
    assert topic_default(TOPIC_CONFIGS["segment.ms"], {"log.roll.hours": "1"}) == 3_600_000


def test_settings_that_log_reads_of_a_topic() -> None:
    topic = TopicConfig(
        {
            "cleanup.policy": "compact",
            "compression.type": "zstd",
            "compression.zstd.level": "7",
            "compression.lz4.level": "2",
            "message.timestamp.type": "LogAppendTime",
            "message.timestamp.before.max.ms": "1",
            "message.timestamp.after.max.ms": "2",
        }
    )
    assert (topic.cleanup_compact, topic.cleanup_delete) == (True, False)
    assert (topic.compression, topic.compression_level, topic.timestamp_type) == (4, 7, 1)
    assert (topic.before_max_ms, topic.after_max_ms) == (1, 2)
    topic.update({"compression.type": "gzip"}, {})
    assert (topic.compression, topic.compression_level, topic.timestamp_type) == (1, None, 0)
    topic.update({}, {})
    assert (topic.compression, topic.cleanup_delete) == (-1, True)


def test_refused_update_changes_nothing() -> None:
    topic, broker = TopicConfig({"retention.ms": "5"}), BrokerConfig({"flush": "os"})
    for texts in ({"retention.ms": "x"}, {"nonsense": "1"}, {"retention.ms": "6", "flush.ms": ""}):
        before = dataclasses.asdict(topic)
        with pytest.raises(ConfigError):
            check_topic(texts)
        if "flush.ms" not in texts:  # not one the log reads
            with pytest.raises(ConfigError):
                topic.update(texts, {})
            assert dataclasses.asdict(topic) == before
    for texts in ({"commit.delay.ms": "7", "flush": "x"}, {"nonsense": "1"}):
        with pytest.raises(ConfigError):
            broker.update(texts)
        assert (broker.flush, broker.commit_delay_ms, broker.texts) == ("os", 5, {"flush": "os"})


def test_contradicting_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms=11: .*which is 10"):
        check_topic({"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"})
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms=11"):
        check_topic({"min.compaction.lag.ms": "11"}, {"log.cleaner.max.compaction.lag.ms": "9"})
    with pytest.raises(ConfigError, match=r"group\.min\.session\.timeout\.ms=2000000"):
        check_broker({"group.min.session.timeout.ms": "2000000"})
    with pytest.raises(ConfigError, match=r"log\.retention\.hours=x"):
        check_broker({"log.retention.hours": "x"})
    check_broker({"log.retention.hours": "1", "flush": "os"})


TIER = {"tier.url": "s3://bucket/prefix"}


def test_topics_are_tiered_by_default_where_there_is_a_tier() -> None:
    def of(overrides: dict[str, str], broker: dict[str, str]) -> tuple[bool, bool]:
        config = TopicConfig(overrides, broker)
        return config.tiered, config.copies

    assert of({}, {}) == (False, False)
    assert of({}, TIER) == (True, True)
    assert of({"remote.storage.enable": "false"}, TIER) == (False, False)
    assert of({"remote.log.copy.disable": "true"}, TIER) == (True, False)
    assert of({"remote.storage.enable": "true"}, {}) == (False, False)  # the tier was removed
    assert topic_default(TOPIC_CONFIGS["remote.storage.enable"], TIER) is True
    config = TopicConfig({"tieredStorageLevel": "Force"}, TIER | {"tiering.max.lag.ms": "6000"})
    assert (config.tier_level, config.tier_lag_ms) == (TierLevel.FORCE, 6000)
    assert config.tier_level > TopicConfig().tier_level > TierLevel.DISABLE


@pytest.mark.parametrize(
    ("local", "total", "comes_to"),
    [(-2, 5, 5), (-2, -1, -1), (-1, -1, -1), (-1, 5, 5), (3, 5, 3), (7, 5, 5), (7, -1, 7)],
)
def test_local_retention_is_at_most_total_retention(local: int, total: int, comes_to: int) -> None:
    texts = {"local.retention.ms": str(local), "retention.ms": str(total)}
    assert TopicConfig(texts, TIER).local_retention_ms == comes_to
    texts = {"local.retention.bytes": str(local), "retention.bytes": str(total)}
    assert TopicConfig(texts, TIER).local_retention_bytes == comes_to


def test_local_retention_is_validated_like_kafka() -> None:
    for unit in ("ms", "bytes"):
        retention, local = f"retention.{unit}", f"local.retention.{unit}"
        with pytest.raises(ConfigError, match=rf"{local}=6: it must not be above {retention}"):
            check_topic({retention: "5", local: "6"}, TIER)
        with pytest.raises(ConfigError, match=f"{local}=-1: "):
            check_topic({retention: "5", local: "-1"}, TIER)
        with pytest.raises(ConfigError, match=f"log.{local}|{local}=6"):
            check_broker(TIER | {f"log.{retention}": "5", f"log.{local}": "6"})
        check_topic({retention: "5", local: "6"}, {})  # where nothing is tiered it has no effect
        check_topic({retention: "-1", local: "-1"}, TIER)
        copied_no_more = {"remote.log.copy.disable": "true", retention: "5"}
        with pytest.raises(ConfigError, match=f"{local}=4: with remote.log.copy.disable=true"):
            check_topic({**copied_no_more, local: "4"}, TIER)
        check_topic({**copied_no_more, local: "5"}, TIER)
        check_topic({**copied_no_more, local: "-2"}, TIER)


MIN_BYTES, FOREVER = 8 << 20, (1 << 63) - 1


@pytest.mark.parametrize(
    ("ms", "size", "lag_ms", "min_bytes"),
    [
        (None, 5, 300_000, MIN_BYTES),  # 0, the default: nothing waits
        (0, 5, 300_000, MIN_BYTES),
        (900_000, 0, 300_000, MIN_BYTES),
        (900_000, -1, 900_000, FOREVER),  # no local.retention.bytes: only the time counts
        (900_000, 50 << 20, 900_000, 50 << 20),
        (900_000, 5, 900_000, MIN_BYTES),
        (1, -1, 300_000, FOREVER),  # never longer than tiering.max.lag.ms, nor shorter
        (-1, -1, 4_000_000, FOREVER),  # as long as local.retention.ms
    ],
)
def test_uploads_wait_for_the_copy_lag(
    ms: int | None, size: int, lag_ms: int, min_bytes: int
) -> None:
    own = {"local.retention.ms": "4000000", "remote.copy.lag.bytes": str(size)}
    if ms is not None:
        own["remote.copy.lag.ms"] = str(ms)
    check_topic(own, TIER)
    config = TopicConfig(own, TIER)
    assert (config.tier_lag_ms, config.tier_min_bytes) == (lag_ms, min_bytes)
    if ms is not None:
        del own["remote.copy.lag.ms"]
        config = TopicConfig(own, TIER | {"log.remote.copy.lag.ms": str(ms)})
        assert (config.tier_lag_ms, config.tier_min_bytes) == (lag_ms, min_bytes)


def test_copy_lag_does_not_delay_topics_in_log_objects() -> None:
    config = TopicConfig({"remote.copy.lag.ms": "900000", "durability": "s3"}, TIER)
    assert (config.tier_lag_ms, config.tier_min_bytes) == (300_000, MIN_BYTES)


def test_copy_lag_without_local_retention_changes_nothing() -> None:
    config = TopicConfig({"remote.copy.lag.ms": "-1", "retention.ms": "-1"}, TIER)
    assert (config.tier_lag_ms, config.tier_min_bytes) == (300_000, MIN_BYTES)


def test_copy_lag_is_validated_like_kafka() -> None:
    for unit in ("ms", "bytes"):
        lag, retention = f"remote.copy.lag.{unit}", f"retention.{unit}"
        with pytest.raises(ConfigError, match=rf"{lag}=6: it must not exceed local\.{retention}"):
            check_topic({retention: "5", lag: "6"}, TIER)
        with pytest.raises(ConfigError, match=r"\(effective value: 4\)"):
            check_topic({retention: "5", f"local.{retention}": "4", lag: "5"}, TIER)
        with pytest.raises(ConfigError, match="at least -1"):
            check_topic({lag: "-2"}, TIER)
        check_topic({retention: "5", lag: "5"}, TIER)
        check_topic({retention: "-1", lag: "6"}, TIER)
        check_topic({retention: "5", lag: "6"}, {})  # where nothing is tiered it has no effect


def test_tiering_can_be_changed_only_as_kafka_allows() -> None:
    on, off = {"remote.storage.enable": "true"}, {"remote.storage.enable": "false"}
    with pytest.raises(ConfigError, match=r"remote\.storage\.enable=true: .*no remote tier"):
        check_topic(on, {})
    check_topic(on, {}, on)  # set while there was a tier: its other settings may be changed
    check_topic(off, TIER)  # a new topic
    check_topic(off, TIER, off)
    for before in (on, {}):  # set explicitly, or because the broker has a tier
        with pytest.raises(ConfigError, match=r"enable=false: .*remote\.log\.delete\.on\.disable"):
            check_topic(off, TIER, before)
        check_topic(off | {"remote.log.delete.on.disable": "true"}, TIER, before)
    check_topic(off, {}, on)  # there is no tier any more


def test_document_matches_table() -> None:
    document = Path(__file__).parent.parent.parent / "docs" / "configs.md"
    assert document.read_text(encoding="utf-8").endswith(markdown_table())


def test_document_lists_every_setting_and_those_without_effect() -> None:
    lines = {line.split("`")[1]: line for line in markdown_table().splitlines() if "`" in line}
    for row in (r for r in ROWS if not r.of_topic):
        assert f"| {row.effect.value} |" in lines[row.name]
    aliases = [name for row in TOPIC_CONFIGS.values() for name in broker_names(row)]
    assert all(f"`{name}`" in markdown_table() for name in aliases)
    assert {row.effect for row in ROWS} == set(Effect)


def test_throttled_replicas_are_pairs_or_star() -> None:
    name = "leader.replication.throttled.replicas"
    for text in ("", "*", "0:1", "0:1,1:2"):
        parse(name, text)
    for text in ("*,1:2", "**", "1", "\u0663:1", "1:2:3"):
        with pytest.raises(ConfigError):
            parse(name, text)


def test_each_codec_of_batches_can_be_set() -> None:
    """The settings import no compression, so their names of codecs are the second list."""
    names = ["producer", "uncompressed", *CODEC_NAMES[1:]]
    assert set(TOPIC_CONFIGS["compression.type"].choices) == set(names)
    ids = [TopicConfig({"compression.type": name}).compression for name in names]
    assert ids == list(range(-1, len(CODEC_NAMES)))
