"""Partitions, times, durations, sizes and sources as they are written on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.cli.shared.partitions import parse_partition, parse_partitions
from kafkawire.cli.shared.source import SourceKind, parse_source
from kafkawire.cli.shared.times import MAX_TIME_MS, parse_time
from kafkawire.client.notation import (
    OptionError,
    parse_duration,
    plain_value,
    split_setting,
    time_text,
)
from kafkawire.client.offsets import partition_text, partitions_text
from kafkawire.codec.configs.row import ConfigType
from kafkawire.codec.configs.table import BROKER_CONFIGS, TOPIC_CONFIGS
from kafkawire.plural import count
from kafkawire.units import ago, duration, size

NOW_MS = 1_767_225_600_000
HOUR_MS = 3_600_000


def test_partitions_are_parsed_and_printed_in_one_notation() -> None:
    assert parse_partitions("TOPIC", "clicks") == ("clicks", None)
    assert parse_partitions("TOPIC", "clicks:3,1") == ("clicks", [3, 1])
    assert parse_partitions("TOPIC", "clicks:0,1,4-6,5") == ("clicks", [0, 1, 4, 5, 6])
    assert parse_partition("PARTITION", "clicks:7") == ("clicks", 7)
    assert partitions_text([("t", 6), ("t", 0), ("t", 4), ("t", 5), ("t", 1), ("s", 2)]) == [
        "s:2",
        "t:0,1,4-6",
    ]
    assert partition_text(("t", 3)) == "t:3"


@pytest.mark.parametrize(
    "text",
    ["", ":", ":0", "t:", "t:x", "t:0,", "t:-1", "t:1:2", "t:99999999999", "t:2147483648", "t:3-1",
     "t:1-", "t:0-100000", "t:0-2147483647", "t:0--1", "t:\u0661"],
)  # fmt: skip
def test_invalid_partitions_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="it must be TOPIC or TOPIC:0,1,4-6"):
        parse_partitions("TOPIC", text)


@pytest.mark.parametrize("text", ["t", "t:", "t:0,1", "t:0-1", ":1"])
def test_one_partition_is_exactly_one(text: str) -> None:
    with pytest.raises(OptionError, match="it must be TOPIC:0, one partition of a topic"):
        parse_partition("PARTITION", text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-01", NOW_MS),
        ("2026-01-01T01:00:00.5+01:00", NOW_MS + 500),
        ("2026-01-01T00:00Z", NOW_MS),
        ("now", NOW_MS),
        ("-1h", NOW_MS - HOUR_MS),
        ("-1h30m", NOW_MS - HOUR_MS * 3 // 2),
        ("@0", 0),
        ("@1700000000000", 1_700_000_000_000),
    ],
)
def test_times_are_parsed(text: str, ms: int) -> None:
    assert parse_time("--from", text, NOW_MS) == ms


@pytest.mark.parametrize(
    "text",
    ["", "x", "1h", "--1h", "-", "-1", "-1y", "@", "@-1", "@x", "@" + "9" * 15, "-9000w",
     "1969-12-31",
     "@1e3", "2026-13-01", "9" * 40, "@\u0661", "0001-01-01T00:00+23:59", "-1h-1h"],
)  # fmt: skip
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="ISO 8601 such as"):
        parse_time("--from", text, NOW_MS)


def test_times_are_printed_as_they_are_read() -> None:
    assert time_text(NOW_MS + 5) == "2026-01-01T00:00:00.005Z"
    assert parse_time("--from", str(time_text(MAX_TIME_MS)), NOW_MS) == MAX_TIME_MS
    assert time_text(2**62) is None


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("15min", 900_000), ("1h30m", 5_400_000),
        ("2d3h", 183_600_000), ("1w", 604_800_000), ("P1D", 86_400_000), ("PT1H30M", 5_400_000),
        ("P1DT2H", 93_600_000), ("PT0.5S", 500), ("0s", 0),
    ],
)  # fmt: skip
def test_durations_are_parsed(text: str, ms: int) -> None:
    assert parse_duration("--by", text) == ms


@pytest.mark.parametrize("text", ["", "x", "1", "-1h", "P", "PT", "1h ago", "9" * 15 + "w", "1y"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="a duration such as 30s"):
        parse_duration("--by", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.0123, "12 ms"), (0.42, "420 ms"), (1.46, "1.5 s"), (9.96, "10 s"),
        (59.4, "59 s"),
        (60, "1 min"), (320, "5 min 20 s"), (7200, "2 h"), (183_600, "2 d 3 h"),
        (86_400 * 400 + 59, "400 d"), (-90, "-1 min 30 s"),
    ],
)  # fmt: skip
def test_durations_are_printed_in_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sizes_and_counts_are_printed_for_people() -> None:
    sizes = [0, 1023, 1024, 1024**2 - 1, 1_503_238_554, 2**40, 2**60]
    assert [size(each) for each in sizes] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.4 GiB", "1.0 TiB", "1024.0 PiB",
    ]  # fmt: skip
    assert count(1, "group") == "1 group"
    assert count(0, "entry", "entries") == "0 entries"
    assert count(1200, "group") == "1,200 groups"
    assert ago(None, NOW_MS) == "never"
    assert ago(NOW_MS - 90_000, NOW_MS) == "1 min 30 s ago"
    assert ago(NOW_MS + 5, NOW_MS) == "0 s ago"


def test_kinds_of_sources_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "data" / "brokers").mkdir(parents=True)
    (tmp_path / "tier").mkdir()
    for text, kind in [
        ("127.0.0.1:9092", SourceKind.BROKER),
        ("a:1,b:2", SourceKind.BROKER),
        ("s3://bucket/prefix", SourceKind.TIER),
        (str(tmp_path / "data"), SourceKind.DATA_FOLDER),
        (str(tmp_path / "tier"), SourceKind.TIER),
    ]:
        assert parse_source("--source", text).kind is kind
    for wrong in ("", "nowhere", "a:99999", str(tmp_path / "absent"), "x\0y", "mysql://h/d"):
        with pytest.raises(OptionError, match="--source"):
            parse_source("--source", wrong)


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [
        ("retention.ms", "7d", "604800000"),
        ("log.retention.ms", "1h30m", "5400000"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "5000", "5000"),
        ("segment.bytes", "64MiB", "67108864"),
        ("segment.bytes", "1.5 GB", "1500000000"),
        ("segment.bytes", "64", "64"),
        ("segment.bytes", "512B", "512"),
        ("log.retention.hours", "7d", "168"),
        ("offsets.retention.minutes", "1h30m", "90"),
        ("quota.window.size.seconds", "1m", "60"),
        ("log.cleaner.dedupe.buffer.size", "10MB", "10000000"),
        ("worker.bytes.per.second", "10MiB/s", "10485760"),
        ("log.cleaner.io.max.bytes.per.second", "1e9", "1e9"),
        ("socket.listen.backlog.size", "1h", "1h"),
        ("cleanup.policy", "1h", "1h"),
    ],
)
def test_durations_and_sizes_of_settings(name: str, typed: str, value: str) -> None:
    assert split_setting("--config", f"{name}={typed}") == (name, value)


COUNTS = """
backup.keep compression.gzip.level compression.lz4.level compression.zstd.level
controller.quota.window.num default.replication.factor disk.delete.percent disk.refuse.percent
disk.warn.percent flush.messages group.consumer.max.size group.max.size
group.share.delivery.count.limit group.share.max.delivery.count.limit
group.share.max.partition.max.record.locks group.share.max.share.sessions group.share.max.size
group.share.min.delivery.count.limit group.share.min.partition.max.record.locks
group.share.partition.max.record.locks group.streams.max.size
group.streams.acceptable.recovery.lag group.streams.max.standby.replicas
group.streams.max.warmup.replicas group.streams.num.standby.replicas
group.streams.num.warmup.replicas journal.entries
log.cleaner.io.buffer.load.factor
log.cleaner.min.cleanable.ratio log.cleaner.threads log.flush.interval.messages
max.connection.creation.rate max.connections max.connections.per.ip
max.incremental.fetch.session.cache.slots
max.request.partition.size.limit min.cleanable.dirty.ratio min.insync.replicas node.id
num.partitions offsets.topic.num.partitions offsets.topic.replication.factor parked.fetches.max
partitions.loaded.max quota.window.num replica.group.size sasl.login.max.connections
sasl.login.max.connections.per.ip
share.coordinator.snapshot.update.records.per.snapshot
share.coordinator.state.topic.num.partitions share.coordinator.state.topic.replication.factor
socket.listen.backlog.size tier.budget.month
tier.hedge.percentile tier.manifest.fold tier.read.threads tier.upload.threads
transaction.state.log.num.partitions transaction.state.log.replication.factor
"""
"""Settings with a number that is neither a time nor a size."""


def test_every_setting_of_a_time_or_size_has_units() -> None:
    numbers = (ConfigType.SHORT, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)
    for name, row in (BROKER_CONFIGS | TOPIC_CONFIGS).items():
        if row.type in numbers:
            taken = any(_is_taken(name, text) for text in ("2h", "2MB"))
            assert taken != (name in COUNTS.split()), name


def _is_taken(name: str, text: str) -> bool:
    try:
        return plain_value(name, text) != text
    except OptionError:
        return False


@pytest.mark.parametrize(
    ("name", "typed", "allowed"),
    [
        ("retention.ms", "64MiB", "a number of ms, or a duration such as 30s, 15m, 1h30m, 2d"),
        ("log.retention.hours", "90m", "a number of hours, or a duration"),
        ("segment.bytes", "7d", "a number of bytes, or a size such as 64MiB or 10MB"),
        ("segment.bytes", "10MB/s", "a number of bytes, or a size"),
    ],
)
def test_other_units_of_settings_are_refused(name: str, typed: str, allowed: str) -> None:
    with pytest.raises(OptionError, match=f"{name}={typed}: it must be {allowed}"):
        split_setting("--config", f"{name}={typed}")
