"""The reports on a real Spark, over generated records: every figure is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafkawire.codec.compile import encode_versioned
from kafkawire.messages.stored import (
    GroupMetadataKey,
    GroupMetadataValue,
)
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import Source
from kafkawire_spark.reports import lag, sizes
from kafkawire_spark.reports.jobs import prepare_scope
from kafkawire_spark.reports.report import Report, rows_of
from kafkawire_spark.reports.scope import ReportScope, Request
from tests.kit.spark.reports import T0, Record, commit, tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Make = Callable[..., ReportScope]
pytestmark = pytest.mark.real


@pytest.fixture
def scope_of(tmp_path: Path) -> Callable[..., ReportScope]:
    """A tier of these records, and a report's scope of it."""

    def make(records: Sequence[Record], **asked: Any) -> ReportScope:
        tier(str(tmp_path / "tier"), records)
        return prepare_scope("sizes", Request(Source(str(tmp_path / "tier")), **asked))

    return make


def table(report: Report, name: str) -> list[dict[str, Any]]:
    (found,) = [each for each in report.tables if each.name == name]
    return rows_of(found.data)


def group(offset: int, at: int, name: str, there: bool) -> Record:
    value = encode_versioned(GroupMetadataValue(protocol_type="consumer"), 3)
    key = encode_versioned(GroupMetadataKey(name), 2)
    return lag.OFFSETS_TOPIC, 0, offset, at, key, value if there else None


def orders(partition: int, count: int, every_ms: int) -> list[Record]:
    return [
        ("orders", partition, i, i * every_ms, b"k%d" % (i % 4), b"x" * 10) for i in range(count)
    ]


def test_lag_over_time_is_written_minus_committed(spark: SparkSession, scope_of: Make) -> None:
    records = [
        *orders(0, 100, 1000),  # one a second: after s seconds there are s + 1
        *orders(1, 10, 1000),
        group(0, 0, "kitchen", True),
        commit(1, 10_500, "kitchen", 0, 5),
        commit(2, 11_500, "kitchen", 1, 10),
        commit(3, 50_500, "kitchen", 0, 51),
        commit(4, 60_000, "gone", 0, 7),
        commit(5, 70_000, "gone", 0, None),
        group(6, 70_000, "gone", False),
        commit(7, 80_000, "kitchen", 0, 1000),  # above the end: no lag
        (lag.OFFSETS_TOPIC, 0, 8, 80_000, b"\x00\x01garbage", b""),
    ]
    report = lag.run(spark, scope_of(records))
    history = {(row["group_id"], row["partition"], row["at"] - T0): row
               for row in table(report, "lag-history")}  # fmt: skip
    width = 500  # 88.5 s from the first commit to the last record
    step = 1000
    assert {key[2] % width for key in history} == {0}
    assert history["kitchen", 0, 20_000 + step]["lag"] == 21 - 5
    assert history["kitchen", 0, 50_000 + step]["lag"] == 0
    assert history["kitchen", 0, 60_000 + step]["lag"] == 61 - 51
    assert history["kitchen", 1, 20_000 + step]["lag"] == 0
    assert ("kitchen", 0, 10_000) not in history  # nothing was committed yet
    assert history["gone", 0, 65_000 + step]["lag"] == 66 - 7
    assert ("gone", 0, 75_000) not in history  # its tombstone
    groups = {row["group_id"]: row for row in table(report, "lag")}
    assert groups["kitchen"]["lag"] == 0
    assert groups["kitchen"]["commits"] == 4
    assert groups["kitchen"]["peak_lag"] >= 44
    assert (groups["gone"]["removed"], groups["gone"]["deleted_ms"]) == (1, T0 + 70_000)
    assert groups["gone"]["lag"] is None
    assert any("1 records of __consumer_offsets could not be read" in s for s in report.sentences)
    assert any("gone" in s for s in report.sentences)
    assert report.plot[:4] == b"\x89PNG"


def test_lag_since_a_time_includes_earlier_commits(spark: SparkSession, scope_of: Make) -> None:
    records = [*orders(0, 100, 1000), commit(0, 5_000, "kitchen", 0, 5)]
    report = lag.run(spark, scope_of(records, since=T0 + 50_000, until=T0 + 80_000))
    rows = table(report, "lag-groups")
    assert rows[0]["at"] - T0 in range(50_000, 52_000)
    assert rows[0]["lag"] in range(46, 48)
    assert table(report, "lag-partitions")[0] == {
        "group_id": "kitchen", "topic": "orders", "partition": 0, "committed": 5, "log_end": 80,
        "lag": 75,
    }  # fmt: skip


def test_missing_commits_are_reported(spark: SparkSession, scope_of: Make) -> None:
    assert "no __consumer_offsets" in lag.run(spark, scope_of(orders(0, 3, 1))).sentences[0]
    records = [*orders(0, 3, 1), group(0, 0, "kitchen", True)]
    assert "No group has committed" in lag.run(spark, scope_of(records)).sentences[0]


def test_lag_of_partitions_without_records(
    spark: SparkSession, scope_of: Make, tmp_path: Path
) -> None:
    """A group has committed, and no record is in the requested time."""
    records = [*orders(0, 3, 1), group(0, 0, "kitchen", True), commit(1, 10, "kitchen", 0, 2)]
    report = lag.run(spark, scope_of(records, since=1_000_000_000_000))
    assert report.sentences[0].startswith("1 groups, 1 commits")
    assert report.write(open_place(str(tmp_path / "out")))


def test_sizes_rates_and_keys_add_up(spark: SparkSession, scope_of: Make) -> None:
    records: list[Record] = [
        *orders(0, 80, 1000),
        *[("orders", 1, i, 5_000, None, None) for i in range(20)],
        *[("clicks", 0, i, i, b"\xff", b"abc") for i in range(5)],
    ]
    scope = scope_of(records)
    report = sizes.run(spark, scope)
    topics = {row["topic"]: row for row in table(report, "sizes")}
    assert topics["orders"]["records"] == 100
    assert topics["orders"]["bytes"] == 80 * 12
    assert topics["orders"]["stored_bytes"] > 80 * 12
    assert (topics["orders"]["largest_partition"], topics["orders"]["largest_share"]) == (0, 0.8)
    assert (topics["orders"]["keys"], topics["orders"]["keyless"]) == (4, 20)
    assert topics["orders"]["largest_key_share"] == 0.2
    assert topics["orders"]["gini_keys"] == 0
    assert (topics["clicks"]["keys"], topics["clicks"]["gini_keys"]) == (1, 0)
    partitions = {
        (row["topic"], row["partition"]): row for row in table(report, "sizes-partitions")
    }
    assert partitions["orders", 0]["records_per_s"] == pytest.approx(80 / 79, abs=1e-3)
    assert partitions["orders", 1]["records_per_s"] is None  # all at one time
    rates = table(report, "sizes-rates")
    assert sum(row["records"] for row in rates) == 105
    assert sum(row["bytes"] for row in rates if row["topic"] == "clicks") == 20
    keys = table(report, "sizes-keys")
    assert [row["key"] for row in keys[:2]] == ["k0", "k1"]
    assert keys[-1] == {"topic": "clicks", "key": "0xff", "key_hex": "ff", "records": 5,
                        "bytes": 20, "share": 1.0, "records_off": 0, "bytes_off": 0}  # fmt: skip
    assert report.plot[:4] == b"\x89PNG"
    assert "105 records with" in report.sentences[0]
