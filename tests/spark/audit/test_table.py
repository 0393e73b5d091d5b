"""`pipeline audit` over correct and over modified tables: everything but Spark, which only
distributes the same functions over tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafkawire.reading.files.locations import PlaceError
from kafkawire.reading.model.source import ABORTED, COMPACTED, CONTROL, DAMAGED, PartitionRange
from kafkawire_spark.audit.job import audit, spread
from kafkawire_spark.audit.listing import AuditError
from kafkawire_spark.audit.scanning import ScanFile
from kafkawire_spark.audit.verdict import TableReport
from tests.kit.json_schema import check_document
from tests.kit.spark.inline import in_process
from tests.kit.spark.pipeline_tables import DEAD, ROW, MadeTable, rows_table


@pytest.fixture
def table(tmp_path: Path) -> MadeTable:
    made = MadeTable(tmp_path / "table")
    fates = [ROW] * 4 + [COMPACTED, ROW, ABORTED, ABORTED, CONTROL] + [ROW] * 11
    made.run({0: fates, 1: [ROW] * 9, 2: [CONTROL]}, files=2)
    made.run({0: [ROW] * 10, 1: []})
    return made


def report_of(table: MadeTable) -> TableReport:
    return audit(str(table.folder), in_process)[0]


def kinds(report: TableReport) -> set[str]:
    return {problem.kind for problem in report.problems} | {
        problem.kind for each in report.partitions for problem in each.all_problems()
    }


def test_unmodified_table_is_clean(table: MadeTable) -> None:
    report = report_of(table)
    assert list(report.sentences()) == []
    assert report.clean
    first, second, third = report.partitions
    assert (first.first, first.last, first.rows, first.next) == (0, 29, 26, 30)
    assert first.gaps == {COMPACTED: 1, ABORTED: 2, CONTROL: 1}
    assert (second.rows, second.gaps) == (9, {})
    assert (third.rows, third.first, third.gaps) == (0, -1, {CONTROL: 1})
    plain = report.plain()
    assert plain["rows"] == 35
    assert plain["partitions"][2]["first"] is None


def test_removed_row_is_unexplained(table: MadeTable) -> None:
    file = table.files[0]
    table.change(file, [offset for offset in table.offsets(file) if offset != 2])
    report = report_of(table)
    assert kinds(report) == {"unexplained", "row count"}
    assert "t-0: 1 offset without a row or a reason: 2" in report.sentences()


def test_repeated_row_is_duplicate(table: MadeTable) -> None:
    file = table.files[0]
    offsets = table.offsets(file)
    table.change(file, [*offsets, offsets[1]])
    assert kinds(report_of(table)) == {"duplicate", "row count"}


def test_replaced_row_is_unexplained_and_duplicate(table: MadeTable) -> None:
    file = table.files[0]
    table.change(file, [3 if offset == 2 else offset for offset in table.offsets(file)])
    assert kinds(report_of(table)) == {"duplicate", "unexplained"}


def test_row_moved_to_other_file_is_misplaced(table: MadeTable) -> None:
    one, other = table.files[0], table.files[1]
    *kept, moved = table.offsets(one)
    table.change(one, kept)
    table.change(other, [moved, *table.offsets(other)])
    assert kinds(report_of(table)) == {"misplaced rows", "row count"}


def test_row_of_other_partition_is_misplaced(table: MadeTable) -> None:
    file = table.files[0]
    rows = rows_table("t", 1, table.offsets(file))
    pq.write_table(rows, table.folder / file.path)
    assert kinds(report_of(table)) >= {"misplaced rows", "unexplained", "duplicate"}


def test_row_at_accounted_gap_is_unexpected(table: MadeTable) -> None:
    file = table.files[0]
    table.change(file, sorted([*table.offsets(file), 4]))
    assert kinds(report_of(table)) == {"unexpected", "row count"}


def test_row_that_no_run_read_is_outside(table: MadeTable) -> None:
    file = table.files[-2]
    table.change(file, [*table.offsets(file), 99])
    report = report_of(table)
    assert kinds(report) == {"outside", "row count", "misplaced rows"}


def test_dead_letters_count_as_their_rows(table: MadeTable, tmp_path: Path) -> None:
    fates = [ROW, DEAD, DEAD, DAMAGED, DAMAGED, ROW, DEAD]
    table.run({0: fates}, dead=tmp_path / "dead")
    report = report_of(table)
    assert list(report.sentences()) == []
    assert (report.partitions[0].dead, report.partitions[0].gaps[DAMAGED]) == (3, 2)
    (letters,) = (tmp_path / "dead").rglob("*.parquet")
    pq.write_table(pq.read_table(letters).slice(1), letters)
    assert kinds(report_of(table)) == {"row count", "unexplained"}
    letters.unlink()
    assert kinds(report_of(table)) == {"missing file", "unexplained"}


def test_removed_file_is_missing(table: MadeTable) -> None:
    file = table.files[1]
    (table.folder / file.path).unlink()
    report = report_of(table)
    assert kinds(report) == {"missing file", "unexplained"}
    assert any(file.path in sentence for sentence in report.sentences())


def test_truncated_file_is_unreadable(table: MadeTable) -> None:
    path = table.folder / table.files[1].path
    path.write_bytes(path.read_bytes()[:-20])
    assert kinds(report_of(table)) == {"unreadable file", "unexplained"}


def test_unlisted_file_is_foreign(table: MadeTable) -> None:
    pq.write_table(rows_table("t", 0, [1, 2]), table.folder / "part-0000.parquet")
    report = report_of(table)
    assert kinds(report) == {"foreign file"}
    assert "part-0000.parquet" in next(report.sentences())


def test_file_of_run_in_progress_is_a_note(table: MadeTable) -> None:
    table.runs += 1
    table.write(PartitionRange("t", 0, 30, 40), range(30, 40))
    report = report_of(table)
    assert report.clean
    assert "a run in progress" in report.notes[0]


def test_missing_commit_leaves_offsets_uncovered(table: MadeTable) -> None:
    record = table.folder / "_kafkawire" / "commits" / f"{2:020}.json"
    record.unlink()
    report = report_of(table)
    # the files of the run look like those of one that is not committed yet, which is what they are
    assert report.runs == 1
    assert report.notes


def test_foreign_table_is_checked_for_consistency(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    (folder / "day=1").mkdir(parents=True)
    rows = rows_table("t", 0, [5, 6, 9, 7]).rename_columns(
        ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    )
    pq.write_table(rows, folder / "day=1" / "part-0.parquet")
    pq.write_table(rows_table("u", 3, [1, 1]), folder / "part-1.parquet")
    report = audit(str(folder), in_process)[0]
    assert list(report.sentences()) == [
        "t-0: 1 offset without a row or a reason: 8",
        "u-3: 1 offset more than once: 1",
    ]
    assert "no run" in report.notes[0]


def test_path_without_table_is_reported(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="there is no table"):
        audit(str(tmp_path), in_process)
    with pytest.raises(PlaceError):
        audit("ftp://x", in_process)
    pq.write_table(rows_table("t", 0, [1]).drop(["_offset"]), tmp_path / "a.parquet")
    assert kinds(audit(str(tmp_path), in_process)[0]) == {"unreadable file"}


def test_files_are_distributed_by_size() -> None:
    files = [ScanFile(0, f"f{i}", size) for i, size in enumerate([100, 1, 1, 1, 50, 48])]
    piles = spread(files, 2)
    assert sorted(sum(file.size_bytes for file in pile) for pile in piles) == [100, 101]
    assert spread(files[:1], 8) == [files[:1]]


def test_report_of_clean_table(
    table: MadeTable, command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(str(table.folder), verbose=True)
    printed = capsys.readouterr().out
    assert "every offset once" in printed
    heads = next(line.split() for line in printed.splitlines() if "partition" in line)
    assert heads[:8] == [
        "topic", "partition", "first", "last", "rows", "aborted", "compacted", "control",
    ]  # fmt: skip
    first = next(line.split() for line in printed.splitlines() if line.strip().startswith("t "))
    assert first == ["t", "0", "0", "29", "26", "2", "1", "1", "0", "ok"]
    command(str(table.folder), as_json=True)
    assert check_document(capsys.readouterr().out)["clean"] is True


def test_audit_with_findings_exits_with_1(
    table: MadeTable, command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    table.change(table.files[0], table.offsets(table.files[0])[1:])
    with pytest.raises(SystemExit, match="1"):
        command(str(table.folder))
    printed = capsys.readouterr()
    assert "NOT CLEAN" in printed.out
    assert "t-0: 1 offset without a row or a reason: 0" in printed.err
    with pytest.raises(SystemExit, match="1"):
        command(str(table.folder), as_json=True)
    plain = check_document(capsys.readouterr().out)
    assert plain["partitions"][0]["problems"][0]["ranges"] == [[0, 1]]
    with pytest.raises(SystemExit, match="2"):
        command(str(table.folder / "nothing"))
    assert "there is no table" in capsys.readouterr().err
