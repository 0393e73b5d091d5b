"""Pure decisions of local retention: how long a file is kept, which bytes count, what a full disk
may delete."""

from __future__ import annotations

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.offsets.catalog.port import NEVER, SegmentRange
from kafkawire.tiering.retention.local_files import LocalBytes, by_size, may_be_remote, stays_ms

BROKER = {"tier.url": "s3://b/p"}


def row(number: int, base: int, end: int, newest: int = 1000, segment_id: int = 1) -> SegmentRange:
    length = 10 * (end - base)
    return SegmentRange(number, segment_id, base, end, 64, length, 0, 0, 0, newest, 1, end - base)


def config(**texts: str) -> TopicConfig:
    return TopicConfig({name.replace("_", "."): text for name, text in texts.items()}, BROKER)


def test_file_is_kept_while_one_partition_needs_it() -> None:
    configs = {1: config(local_retention_ms="100"), 2: config(local_retention_ms="500")}
    rows = [row(1, 0, 5), row(2, 0, 5)]
    assert stays_ms(rows, configs.get, {}, 1000) == 501
    assert stays_ms(rows, configs.get, {}, 1500) == 1
    assert stays_ms(rows, configs.get, {}, 1501) == 0
    assert stays_ms([], configs.get, {}, 0) == 0, "nothing is in it"
    assert stays_ms([row(3, 0, 5)], configs.get, {}, 0) == 0, "its topic is deleted"
    assert stays_ms([row(1, 0, 5, newest=-1)], configs.get, {}, 9999) == NEVER
    assert stays_ms([row(1, 5, 5, newest=-1)], configs.get, {}, 9999) == 0, "compacted away"
    configs[2] = TopicConfig({"remote.storage.enable": "false"}, BROKER)
    assert stays_ms(rows, configs.get, {}, NEVER // 2) == NEVER, "it has to be local"


def test_local_retention_defaults_to_retention() -> None:
    plain = config(retention_ms="100", retention_bytes="7")
    assert (plain.local_retention_ms, plain.local_retention_bytes) == (100, 7)
    compacted = config(retention_ms="100", retention_bytes="7", cleanup_policy="compact")
    assert (compacted.local_retention_ms, compacted.local_retention_bytes) == (-1, -1)
    both = config(retention_ms="100", cleanup_policy="compact,delete")
    assert both.local_retention_ms == 100
    asked = config(local_retention_ms="50", cleanup_policy="compact")
    assert asked.local_retention_ms == 50


def test_local_bytes_are_counted_from_the_end() -> None:
    rows = [row(1, 0, 10, segment_id=1), row(1, 10, 20, segment_id=2), row(1, 20, 30, segment_id=3)]
    sizes = LocalBytes(rows, lambda segment_id: segment_id != 2, 7)
    assert [sizes.bytes_after(end) for end in (10, 20, 30, 15, 40)] == [107, 107, 7, 0, 0]
    assert LocalBytes([], lambda _: True, 7).bytes_after(10) == 0
    configs = {1: config(local_retention_bytes="107"), 2: config()}
    assert by_size([row(1, 0, 1), row(2, 0, 1), row(3, 0, 1)], configs.get) == {1}
    assert stays_ms(rows[:1], configs.get, {1: sizes}, 0) == 0
    configs[1] = config(local_retention_bytes="108", retention_ms="-1")
    assert stays_ms(rows[:1], configs.get, {1: sizes}, 0) == NEVER
    configs[1] = config(local_retention_bytes="0")
    assert stays_ms(rows[2:], configs.get, {1: sizes}, 0) == 0


def test_full_disk_deletes_only_files_readable_from_tier() -> None:
    configs = {
        1: config(),
        2: config(tieredStorageLevel="disable"),
        3: TopicConfig({"remote.storage.enable": "false"}, BROKER),
    }
    assert may_be_remote([row(1, 0, 5), row(9, 0, 5)], configs.get)
    assert not may_be_remote([row(1, 0, 5), row(2, 0, 5)], configs.get)
    assert not may_be_remote([row(3, 0, 5)], configs.get)
    assert may_be_remote([row(3, 5, 5)], configs.get)
