"""Topics with aborted and open transactions, exported and audited without Spark: from the broker,
from its folder and from S3, every offset has a row or the right reason for none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.commits import COMMIT
from kafkawire.reading.model.source import (
    ABORTED,
    CONTROL,
    READ_UNCOMMITTED,
    REASONS,
    PartitionRange,
    Source,
    SourceError,
)
from kafkawire.reading.plan import plan_tasks
from kafkawire.testing.plugin import Factory
from kafkawire.testing.process import BrokerProcess
from kafkawire_spark.audit.job import audit
from kafkawire_spark.audit.verdict import TableReport
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.job import from_dict
from kafkawire_spark.reports import lag
from kafkawire_spark.reports.continuity import check_part
from tests.kit.minio import Minio
from tests.kit.spark.inline import Inline, in_process
from tests.kit.spark.topics import QUICK, Topics
from tests.kit.spark.transactions import TransactionalTopic
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture
def broker(
    kafkawire_broker_factory: Factory, minio: Minio, tier_url: str
) -> Iterator[BrokerProcess]:
    made = kafkawire_broker_factory(settings={**QUICK, "tier.url": tier_url})
    yield made
    made.stop()


def fill(topic: TransactionalTopic, turn: int) -> None:
    """Interleaved transactions of two producers: of 90 records 40 are committed. Each has 20
    records, but for one of 10, and ends with a marker in both partitions."""

    def values(name: str, count: int = 20) -> list[bytes]:
        return [f"{turn}-{name}-{n}".encode() for n in range(count)]

    topic.write("a", values("a1"))
    topic.write("b", values("b1"))
    topic.end("b", commits=False)
    topic.write("a", values("a2", 10))
    topic.write("b", values("b2"))
    topic.end("a", commits=False)
    topic.end("b", commits=True)
    topic.write("a", values("a3"))
    topic.end("a", commits=True)


def end_of(source: Source, partition: int) -> int:
    """The end of the readable offsets; -1 while there is nothing."""
    try:
        catalog = open_catalog(source)
    except SourceError:
        return -1
    try:
        return catalog.bounds("t", partition).end if "t" in catalog.topics else -1
    finally:
        catalog.close()


def ends_of(source: Source) -> list[int]:
    """The ends of both partitions, once the markers of all ended transactions are written."""
    everything = replace(source, isolation=READ_UNCOMMITTED)
    ends: list[int] = []

    def settled() -> bool:
        ends[:] = [end_of(source, partition) for partition in range(2)]
        return ends == [end_of(everything, partition) for partition in range(2)]

    wait_until(settled, "no transaction is open")
    return ends


def until_cut(source: Source, ends: list[int]) -> None:
    """Wait until everything up to these ends is in segments."""
    wait_until(lambda: [end_of(source, at) for at in range(2)] == ends, f"in {source.url}")


def export(source: Source, table: Path) -> TableReport:
    """Write a table of the topic, or more of it, and audit it against the same source."""
    reading = {
        "url": source.url, "bootstrap": source.bootstrap, "subscribe": "t",
        "isolation_level": source.isolation,
    }  # fmt: skip
    job = {
        "job": {"name": "t"},
        "source": {key: value for key, value in reading.items() if value},
        "table": {"path": str(table)},
        "value": {"format": "text"},
    }
    Engine(from_dict(job), Inline()).run()
    return audited(source, table)


def audited(source: Source, table: Path) -> TableReport:
    report = audit(str(table), in_process, source)[0]
    assert list(report.sentences()) == []
    assert report.clean
    return report


def rows(table: Path) -> list[tuple[int, bytes]]:
    found = pq.read_table(table, columns=["_partition", "_offset", "_value"]).to_pylist()
    found.sort(key=lambda row: (row["_partition"], row["_offset"]))
    return [(row["_partition"], row["_value"].encode()) for row in found]


def by_partition(records: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return sorted(records, key=lambda record: record[0])  # stable: keeps the order


def gaps(report: TableReport) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in report.partitions:
        found.update(each.gaps)
        assert each.counts is not None
        assert each.counts.verdict == "equal"
        assert each.counts.confirmed == sum(each.gaps.values())
        assert each.counts.trusted == 0
    return found


def test_every_offset_is_explained_in_each_tier(
    broker: BrokerProcess, tier_url: str, minio: Minio, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    for name, text in minio.environ.items():
        monkeypatch.setenv(name, text)
    Topics(broker).make("t", 2)
    topic = TransactionalTopic(broker.bootstrap, "t")
    here, folder, bucket = (
        Source("", broker.bootstrap), Source(str(broker.data)), Source(tier_url)
    )  # fmt: skip
    both = Source(tier_url, broker.bootstrap)
    for turn in range(3):
        fill(topic, turn)
        ends = ends_of(here)
        assert gaps(export(here, tmp_path / "hot")) == {
            ABORTED: 50 * (turn + 1), CONTROL: 8 * (turn + 1),
        }  # fmt: skip
        assert rows(tmp_path / "hot") == by_partition(topic.committed)
        export(both, tmp_path / "mixed")
        assert rows(tmp_path / "mixed") == by_partition(topic.committed)
    # An open transaction: what is after its first record is not readable yet.
    done = list(topic.committed)
    topic.write("c", [b"open-%d" % n for n in range(20)])
    topic.write("a", [b"after-%d" % n for n in range(20)])
    topic.end("a", commits=True)
    assert [end_of(here, partition) for partition in range(2)] == ends
    export(here, tmp_path / "hot")
    assert rows(tmp_path / "hot") == by_partition(done)
    dirty = replace(here, isolation=READ_UNCOMMITTED)
    assert gaps(export(dirty, tmp_path / "dirty")) == {CONTROL: 26}
    assert len(rows(tmp_path / "dirty")) == 3 * 90 + 40
    (problem, _) = audit(str(tmp_path / "dirty"), in_process, here)[0].sentences()
    assert f"and the source ends at {ends[0]}" in problem
    for source in (folder, bucket):
        until_cut(source, ends)
    for name, source in (("warm", folder), ("cold", bucket)):
        assert gaps(export(source, tmp_path / name)) == {ABORTED: 150, CONTROL: 24}
        assert rows(tmp_path / name) == by_partition(done)
    # It is aborted; then everything is in segments, and the broker is gone.
    topic.end("c", commits=False)
    ends = ends_of(here)
    export(both, tmp_path / "mixed")
    for source in (folder, bucket):
        until_cut(source, ends)
    broker.stop()
    for name, source in (("warm", folder), ("cold", bucket)):
        report = export(source, tmp_path / name)
        assert gaps(report) == {ABORTED: 170, CONTROL: 28}
        assert [each.source.end for each in report.partitions if each.source] == ends
    for name in ("warm", "cold", "mixed"):
        assert rows(tmp_path / name) == by_partition(topic.committed)
        for source in (folder, bucket):
            audited(source, tmp_path / name)
            assert continuity_of(source) == {"records": 140, ABORTED: 170, CONTROL: 28}


def continuity_of(source: Source) -> Counter[str]:
    """Return the counts of the report on continuity for the topic."""
    catalog = open_catalog(source)
    found: Counter[str] = Counter()
    for partition in range(2):
        start, _, end = catalog.bounds("t", partition)
        part = catalog.part(PartitionRange("t", partition, start, end))
        row = check_part(source, catalog.places, part, start, end)
        names = ("records", "duplicates", "unexplained", *REASONS)
        found.update({name: row[name] for name in names if row[name]})
    catalog.close()
    return found


def commits(source: Source) -> list[int]:
    """The offsets that the report on lag finds in `__consumer_offsets`, in their order."""
    catalog = open_catalog(source)
    try:
        parts = [
            catalog.part(PartitionRange(lag.OFFSETS_TOPIC, index, start, end))
            for index in range(catalog.topics[lag.OFFSETS_TOPIC])
            for start, _, end in [catalog.bounds(lag.OFFSETS_TOPIC, index)]
            if end > start
        ]
        events = [
            row
            for task in plan_tasks(parts)
            for batch in lag.decode_events(catalog.source, catalog.places, task)
            for row in batch.to_pylist()
        ]
    finally:
        catalog.close()
    mine = [row for row in events if row["kind"] == COMMIT and row["group_id"] == "g"]
    return [row["committed"] for row in sorted(mine, key=lambda row: row["place"])]


def test_offsets_of_a_transaction_are_commits_after_its_marker(broker: BrokerProcess) -> None:
    Topics(broker).make("t", 1)
    topic = TransactionalTopic(broker.bootstrap, "t")
    source = Source("", broker.bootstrap)
    topic.offsets("a", "g", 5)
    topic.end("a", commits=True)
    wait_until(lambda: commits(source) == [5], "the marker is written")
    topic.offsets("a", "g", 77)
    assert commits(source) == [5]
    topic.end("a", commits=False)
    topic.offsets("b", "g", 9)
    assert commits(source) == [5]
    topic.end("b", commits=True)
    wait_until(lambda: commits(source) == [5, 9], "the marker is written")
