"""`pipeline audit --source` compares counts: tables written from hand-built tiers, and later
changes of the table, its accounts or the source.

Covers: kafkawire_spark.audit.counting, kafkawire_spark.cli.audit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafkawire.codec.batches import build
from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import (
    ABORTED,
    COMPACTED,
    CONTROL,
    Account,
    OffsetGap,
    PartitionRange,
    Source,
)
from kafkawire_spark.audit import counting
from kafkawire_spark.audit.counting import FEWER, MORE, claims
from kafkawire_spark.audit.coverage import coverage
from kafkawire_spark.audit.job import audit
from kafkawire_spark.audit.verdict import MISSING, AuditCounts, TableReport, Uncompared
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.job import from_dict
from tests.kit.fake_kafka import FakeKafka, Log, serving
from tests.kit.json_schema import check_document
from tests.kit.spark.files import Files, Share, batch, batches, marker
from tests.kit.spark.inline import Inline, in_process
from tests.kit.spark.pipeline_tables import forge

PRODUCER = 7


class World:
    """orders-0 in segments of 40 offsets, and a table of it."""

    def __init__(self, folder: Path) -> None:
        self.url, self.table = str(folder / "tier"), folder / "table"
        self.dead = folder / "dead"
        self.files = Files(open_place(self.url))
        (self.number,) = self.files.topic("orders")
        self.end = 0

    def grow(self, *segments: list[bytes]) -> None:
        """More segments, of 40 offsets each."""
        for some in segments:
            name = 1 + self.end // 40
            self.files.put(name, Share(self.number, some, self.end, self.end + 40))
            self.end += 40
        self.files.publish()

    def run(self, bootstrap: str = "", **more: Any) -> None:
        """Run the job, with more settings of its source; values that are not UTF-8 become dead
        letters."""
        plain: dict[str, Any] = {
            "job": {"name": "orders"},
            "source": {"url": self.url, "subscribe": "orders", **more},
            "table": {"path": str(self.table)},
            "value": {"format": "text"},
            "dead_letter": {"path": str(self.dead)},
        }
        if bootstrap:
            plain["source"]["bootstrap"] = bootstrap
        job = from_dict(plain)
        job = replace(job, running=replace(job.running, task_bytes=2000))
        Engine(job, Inline()).run()

    def report(self, bootstrap: str = "", *, url: bool = True) -> TableReport:
        source = Source(self.url if url else "", bootstrap)
        return audit(str(self.table), in_process, source)[0]

    def counts(self, bootstrap: str = "") -> AuditCounts:
        """The counts of a clean table."""
        report = self.report(bootstrap)
        assert list(report.sentences()) == []
        (only,) = report.partitions
        assert only.counts is not None
        return only.counts


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.grow(*(batches(base, [10] * 4) for base in (0, 40, 80)))
    made.run()
    return made


def test_whole_segments_are_counted_from_manifest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.reading.read_task.read_task", None)  # nothing is read
    assert world.counts() == AuditCounts(120, 120)
    assert world.counts().verdict == "equal"


def test_recreated_source_topic_is_not_compared(world: World) -> None:
    topics = world.files.topics
    world.files.drop(topics["orders"].id)
    topics["orders"] = topics["orders"]._replace(id=b"another".ljust(16))
    world.files.publish()
    report = world.report()
    (only,) = report.partitions
    assert report.clean
    assert only.source is None
    assert only.counts is None
    assert only.notes == ["the topic was deleted and created again in the source since the run"]


def test_row_removed_with_its_account_is_found_by_count(world: World) -> None:
    forge(world.table, "orders", 53, COMPACTED)
    assert audit(str(world.table), in_process)[0].clean
    report = world.report()
    (only,) = report.partitions
    (problem,) = only.problems
    assert problem.kind == FEWER
    assert (problem.offsets, problem.ranges) == (1, ((53, 54),))
    assert list(report.sentences()) == [
        "orders-0: the source has 40 records in offsets [40, 80), the table 39 rows and dead "
        "letters; there is one at offset 53 where its run saw none"
    ]
    assert only.counts is not None
    assert only.counts.verdict == "differ"
    assert not report.clean


def test_segments_beyond_read_limit_are_counted_from_manifest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(world.table, "orders", 53, COMPACTED)
    monkeypatch.setattr(counting, "READ_IN_ALL", 0)
    (sentence,) = world.report().sentences()
    assert sentence.endswith(
        "has 40 records in offsets [40, 80), the table 39 rows and dead letters (by its manifest: "
        "too many to be read)"
    )


def test_removed_row_is_reported_once(world: World) -> None:
    file = next(world.table.glob("*-p00000-*.parquet"))
    rows = pq.read_table(file)
    pq.write_table(rows.slice(1), file)
    (only,) = world.report().partitions
    assert [problem.kind for problem in only.all_problems()] == ["missing rows"]
    assert only.counts is not None
    assert only.counts.differ


def test_compaction_after_run_is_explained(world: World) -> None:
    left = [batch(40, 3), batch(60, 10)]
    world.files.put(9, Share(world.number, left, 40, 80), generation=1)
    world.files.publish()
    assert world.counts() == AuditCounts(93, 120, cleaned=27)
    (note,) = world.counts().notes()
    assert note == "the source was compacted after the run: the table has 27 records more"
    assert world.counts().verdict == "equal, 27 cleaned since"
    forge(world.table, "orders", 5, COMPACTED)  # of another segment
    assert [problem.ranges for problem in world.report().partitions[0].problems] == [((5, 6),)]


def test_extra_row_in_uncleaned_segment_is_found(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.grow([*batches(0, [10]), *batches(20, [20])])
    world.run()
    forge(world.table, "orders", 15, None)
    (problem,) = world.report().partitions[0].problems
    assert problem.kind == MORE
    assert "30 records in offsets [0, 40), the table 31 rows" in problem.text


def test_retention_after_run_is_reported(world: World) -> None:
    world.files.publish(starts={world.number: 52}, gone=[1])
    counts = world.counts()
    assert (counts.records, counts.offsets, counts.read) == (68, 68, 28)
    assert [tuple(each) for each in counts.uncompared] == [
        (0, 52, "the source has deleted what is below 52")
    ]
    assert counts.verdict == "equal, 52 offsets not compared"
    forge(world.table, "orders", 60, COMPACTED)
    (problem,) = world.report().partitions[0].problems
    assert problem.ranges == ((60, 61),)
    assert "28 records in offsets [52, 80)" in problem.text


def test_dead_letters_count_as_records(tmp_path: Path) -> None:
    world = World(tmp_path)
    pairs = [(None, b"\xff" if n % 4 else b"text") for n in range(40)]
    world.grow([bytes(build(pairs, base_offset=0, timestamp_ms=1_700_000_000_000))])
    world.run()
    assert world.counts() == AuditCounts(40, 40)
    assert world.report().partitions[0].dead == 30


@pytest.fixture
def transactional(tmp_path: Path) -> World:
    """[10, 15) were aborted, [16, 21) committed; markers are at 15 and 21."""
    world = World(tmp_path)
    ours = {"producer_id": PRODUCER, "producer_epoch": 0, "attributes": 0x10}
    some = [batch(0, 10), batch(10, 5, **ours), marker(15, PRODUCER, commits=False)]
    more = [batch(16, 5, **ours), marker(21, PRODUCER, commits=True), batch(22, 18)]
    share = Share(world.number, [*some, *more], 0, 40, [(PRODUCER, 10, 15)])
    world.files.put(1, share)
    world.files.publish()
    world.run()
    return world


def test_markers_and_aborted_records_are_confirmed_by_source(
    transactional: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = transactional
    assert world.report().partitions[0].gaps == {ABORTED: 5, CONTROL: 2}
    assert world.counts() == AuditCounts(40, 40, confirmed=7)
    assert list(world.counts().notes()) == []
    monkeypatch.setattr(counting, "READ_IN_ALL", 0)
    assert world.counts() == AuditCounts(40, 40, trusted=7)
    assert "7 of the source's records are control" in next(world.counts().notes())
    monkeypatch.undo()
    forge(world.table, "orders", 30, COMPACTED)
    (problem,) = world.report().partitions[0].problems
    assert "the table 32 rows and dead letters, and 7 that were control" in problem.text


@pytest.mark.parametrize("offset", [5, 17, 20, 35])
@pytest.mark.parametrize("reason", [ABORTED, CONTROL])
def test_committed_record_that_a_run_has_as_aborted_is_missing(
    offset: int, reason: str, transactional: World
) -> None:
    """The counts are equal: only the source's index of aborted transactions tells them apart."""
    forge(transactional.table, "orders", offset, reason)
    (only,) = transactional.report().partitions
    assert only.counts is not None
    assert only.counts.verdict == "equal"
    (problem,) = only.problems
    assert (problem.kind, problem.ranges) == (MISSING, ((offset, offset + 1),))
    assert f"the source has 1 committed records at offset {offset}" in problem.text


def test_claims_are_read_together_if_they_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = [OffsetGap(5, 9, ABORTED), OffsetGap(9, 10, CONTROL), OffsetGap(400, 401, CONTROL)]
    account = Account(PartitionRange("t", 0, 0, 500), 494, {ABORTED: 4, CONTROL: 2}, gaps)
    known = coverage([account])
    assert list(claims(known, 0, 500)) == [((5, 10), 5), ((400, 401), 1)]
    assert list(claims(known, 7, 400)) == [((7, 10), 3)]
    monkeypatch.setattr(counting, "CLAIMS", 1)
    assert list(claims(known, 0, 10)) == [((5, 9), 4), ((9, 10), 1)]


def test_segment_containing_end_of_table_is_read(world: World) -> None:
    world.grow(batches(120, [10] * 4))
    world.run(ending_offsets={"orders": {0: 133}})
    assert world.counts() == AuditCounts(133, 133, 13)
    forge(world.table, "orders", 125, COMPACTED)
    (problem,) = world.report().partitions[0].problems
    assert "13 records in offsets [120, 133), the table 12 rows" in problem.text


def test_segments_too_large_to_read_are_not_compared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.grow(batches(120, [10] * 4))
    world.run(ending_offsets={"orders": {0: 133}})
    monkeypatch.setattr(counting, "MAX_READ", 100)
    ((base, end, why),) = world.counts().uncompared
    assert (base, end) == (120, 133)
    assert why == "they are no whole segment, and 1 MiB are more than the 0 read to count them"


def test_segment_beginning_below_log_start_is_read(
    tmp_path: Path,
) -> None:
    """Its first batch has 10 records, 4 of which are deleted: reading decides."""
    world = World(tmp_path)
    world.files.put(1, Share(world.number, batches(0, [10] * 4), 4, 40))
    world.files.publish(starts={world.number: 4})
    world.run(fail_on_data_loss=False)
    report = world.report()
    assert report.clean
    (only,) = report.partitions
    assert only.counts == AuditCounts(36, 36)
    assert only.notes == ["its manifest counts 40 records in offsets [4, 40), and there are 36"]


def test_partially_live_segment_is_not_compared(world: World) -> None:
    catalog = open_catalog(Source(world.url))
    assert [column.tolist() for column in catalog.count_segments("orders", 0)] == [
        [0, 40, 80], [40, 80, 120], [40, 40, 40], [0, 0, 0],
    ]  # fmt: skip
    world.files.put(9, Share(world.number, batches(40, [10] * 2), 40, 60), generation=2)
    world.files.put(10, Share(world.number, batches(120, [10] * 4), 120, 160))
    world.files.publish(starts={world.number: 7}, ends={world.number: 130})
    counted = open_catalog(Source(world.url)).count_segments("orders", 0)
    assert [column.tolist() for column in counted] == [
        [7, 40, 60, 80, 120], [40, 60, 80, 120, 130], [-1, 20, -1, 40, -1], [0, 2, 0, 0, 0],
    ]  # fmt: skip


def test_table_without_accounts_is_compared_after_gaps_are_explained(world: World) -> None:
    world.files.put(9, Share(world.number, [batch(40, 3), batch(60, 10)], 40, 80), generation=1)
    world.files.publish()
    other = world.table.with_name("other")
    other.mkdir()
    for file in world.table.glob("*.parquet"):
        pq.write_table(pq.read_table(file), other / file.name)
    world.table = other
    assert world.counts() == AuditCounts(93, 120, cleaned=27)
    file = max(other.glob("*.parquet"))
    pq.write_table(pq.read_table(file).slice(2), file)
    (only,) = world.report().partitions
    assert [problem.kind for problem in only.all_problems()] == ["missing rows"]


@pytest.fixture
def kafka(world: World) -> Any:
    """A broker that has 30 offsets more than the tier."""
    data = [*batches(0, [10] * 15)]
    logs = {("orders", 0): Log(data, end=150)}
    with serving(logs) as made:
        made.ids = {"orders": world.files.topics["orders"].id}
        yield made


def test_tail_is_counted_by_reading_it(world: World, kafka: FakeKafka) -> None:
    world.run(kafka.address)
    assert world.counts(kafka.address) == AuditCounts(150, 150, 30)
    assert world.counts().uncompared == [(120, 150, "the source ends at 120")]  # without a broker
    forge(world.table, "orders", 140, COMPACTED)
    (problem,) = world.report(kafka.address).partitions[0].problems
    assert problem.ranges == ((140, 141),)
    assert "30 records in offsets [120, 150), the table 29 rows" in problem.text


def test_other_kafka_broker_is_read_up_to_a_limit(
    world: World, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(kafka.address)
    monkeypatch.setattr(
        "kafkawire.reading.files.broker_queries.BrokerQueries.segments", lambda self: ("", [])
    )
    (only,) = world.report(kafka.address, url=False).partitions
    assert only.counts == AuditCounts(150, 150, 150)
    kafka.logs["orders", 0].batches = [*batches(0, [10]), *batches(30, [10] * 12)]
    (only,) = world.report(kafka.address, url=False).partitions
    assert only.counts == AuditCounts(130, 150, 150, cleaned=20)
    monkeypatch.setattr(counting, "MAX_READ", 1000)
    (only,) = world.report(kafka.address, url=False).partitions
    assert only.counts is not None
    assert only.counts.verdict == "not compared"


def test_command_shows_counts(
    world: World, command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(str(world.table), source=world.url, verbose=True)
    printed = capsys.readouterr()
    shown = [re.split(r"\s{2,}", line.strip()) for line in printed.out.splitlines()]
    assert [row for row in shown if row[0] in ("topic", "orders")] == [
        [
            "topic", "partition", "first", "last", "rows", "dead letters", "source",
            "records", "counts", "verdict",
        ],
        ["orders", "0", "0", "119", "120", "0", "0..120", "120", "equal", "ok"],
    ]  # fmt: skip
    assert "partitions compared with the source: 1 of 1" in printed.err
    command(str(world.table), source=world.url, as_json=True)
    plain = check_document(capsys.readouterr().out)
    assert plain["partitions"][0]["counts"] == {
        "verdict": "equal", "records": 120, "offsets": 120, "read": 0, "cleaned": 0,
        "trusted": 0, "confirmed": 0, "differ": False, "uncompared": [],
    }  # fmt: skip
    forge(world.table, "orders", 53, COMPACTED)
    with pytest.raises(SystemExit, match="1"):
        command(str(world.table), source=world.url)
    assert "there is one at offset 53" in capsys.readouterr().err


def test_page_documents_every_verdict_and_bounds() -> None:
    page = Path(__file__).parent.parent.parent.parent / "docs" / "pipeline.md"
    audited = page.read_text(encoding="utf-8").partition("\n## Audit\n")[2].partition("\n## ")[0]
    left = [Uncompared(0, 7, "why")]
    every = (
        AuditCounts(9, 9), AuditCounts(9, 9, cleaned=7), AuditCounts(9, 9, uncompared=left),
        AuditCounts(9, 9, differ=True), AuditCounts(uncompared=left),
    )  # fmt: skip
    documented = re.findall(r"^\| `([^`]+)` \|", audited, re.MULTILINE)
    assert documented == ["counts", *(counts.verdict.replace("7", "N") for counts in every)]
    assert f"{counting.MAX_READ >> 20} MiB for a range" in audited
    assert f"{counting.READ_IN_ALL >> 30} GiB in all" in audited


def test_command_accepts_broker_as_source(
    world: World,
    kafka: FakeKafka,
    command: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.run(kafka.address)
    monkeypatch.setattr(
        "kafkawire.reading.files.broker_queries.BrokerQueries.segments", lambda self: ("", [])
    )
    for given in ({"source": kafka.address}, {"server": kafka.address}):
        command(str(world.table), **given, verbose=True)
        assert "0..150" in capsys.readouterr().out
