"""List the files of a table and its run reports.

Tables written by `pipeline run` have both in `_kafkawire/`. Of others only the files are known:
those under a Parquet table's path, or of the newest version of a Delta or Iceberg table, if they
have columns of partition and offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import unquote, urlsplit

from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import SourceError
from kafkawire_spark.audit.coverage import Coverage, coverage
from kafkawire_spark.audit.judging import Boundaries, Where
from kafkawire_spark.audit.scanning import ScanFile
from kafkawire_spark.audit.verdict import AuditProblem, TableReport
from kafkawire_spark.pipeline.dead_letters import open_dead_letters
from kafkawire_spark.pipeline.jobs.job import DELTA, ICEBERG, PARQUET
from kafkawire_spark.pipeline.jobs.layout import written_by
from kafkawire_spark.pipeline.jobs.state import FOLDER, FileFacts, Share, TableState
from kafkawire_spark.pipeline.tables.port import LOCATION, Table, open_table_at

UNREADABLE_FEATURES = {"deletionVectors", "columnMapping"}
"""Delta features with which the files' rows or columns differ from the table's."""


def files_of(place: Place, kind: str) -> list[ScanFile]:
    """Return the files of the table's newest version. Raises SourceError."""
    if kind == DELTA:
        return [ScanFile(0, path, size) for path, size in _delta(place)]
    if kind == ICEBERG:
        return [ScanFile(0, path, size) for path, size in _iceberg(place)]
    return [ScanFile(0, key, place.size(key)) for key in place.list() if _is_data(key)]


def _is_data(key: str) -> bool:
    """Return True for a data file by Spark's rule: names that begin with _ or . are hidden, except
    for `_x=...`."""
    hidden = any(part.startswith("_") and "=" not in part for part in key.split("/"))
    return key.endswith(".parquet") and not hidden


def _delta(place: Place) -> list[tuple[str, int]]:
    import pyarrow as pa
    from deltalake import DeltaTable

    from kafkawire_spark.pipeline.tables.locations import delta_location

    url, options = delta_location(place)
    table = DeltaTable(url, storage_options=options)
    features = set(table.protocol().reader_features or ())
    if features & UNREADABLE_FEATURES:
        names = ", ".join(sorted(features & UNREADABLE_FEATURES))
        raise SourceError(f"{place.url} is a Delta table with {names}, which cannot be audited")
    rows: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [(unquote(row["path"]), int(row["size_bytes"])) for row in rows]


def _iceberg(place: Place) -> list[tuple[str, int]]:
    from pyiceberg.table import StaticTable

    from kafkawire_spark.pipeline.tables.locations import iceberg_properties

    newest = max(key for key in place.list("metadata/") if key.endswith(".metadata.json"))
    table = StaticTable.from_metadata(place.where(newest), iceberg_properties(place))
    found = []
    for task in table.scan().plan_files():
        if task.delete_files:
            raise SourceError(f"{place.url} is an Iceberg table with delete files, which cannot "
                              "be audited")  # fmt: skip
        found.append((_relative(place, task.file.file_path), task.file.file_size_in_bytes))
    return found


def _relative(place: Place, path: str) -> str:
    """Return a file's key from the full path in an Iceberg manifest."""
    root = urlsplit(place.where("")).path.rstrip("/") + "/"
    whole = urlsplit(path).path
    if not whole.startswith(root):
        raise SourceError(f"the file {path} is not under {place.url}: it cannot be audited")
    return whole[len(root) :]


FOREIGN, SKIPPED = "foreign file", "missing run"
MAX_ATTEMPTS = 5
"""Attempts to list a table whose files change concurrently; listing takes at most a second."""
_NAMED = 5
"""Maximum number of files named in a sentence."""


class AuditError(SourceError):
    """The table cannot be audited; the message is one sentence."""


@dataclass(slots=True)
class ListedTable:
    """The content of a table by its own metadata. `coverages`, `nexts`: None, {} for a table
    without run reports; `nexts`: the offsets at which the next run begins; `merged`: whether files
    were replaced since; `boundaries`: offsets between which rows are counted, set by the caller;
    `ids`: of its topics, as of the last run."""

    report: TableReport
    places: list[Place]
    files: list[ScanFile]
    coverages: dict[Where, Coverage] | None = None
    nexts: dict[Where, int] = field(default_factory=dict)
    merged: Callable[[], bool] = lambda: False
    boundaries: Boundaries = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)


def scan(url: str) -> ListedTable:
    """List the files to audit at a table's path or URL. Raises SourceError."""
    place = open_place(url, LOCATION)
    kind = format_of(place)
    state = TableState(place)
    if state.table() is not None:
        return _ours(place, kind, state)
    from kafkawire_spark.audit.listing import files_of

    files = files_of(place, kind)
    if not files:
        raise AuditError(f"{place.url}: there is no table, or it has no Parquet file")
    report = TableReport(place.url, kind, 0, len(files), _bytes(files), [])
    report.notes.append(
        "no run of `kafkawire pipeline run` has written this table: only the rows say which "
        "offsets there should be"
    )
    return ListedTable(report, [place], files)


def format_of(place: Place) -> str:
    """Detect the format from the metadata folders of Delta and Iceberg."""
    if next(place.list("_delta_log/"), None) is not None:
        return DELTA
    if any(key.endswith(".metadata.json") for key in place.list("metadata/")):
        return ICEBERG
    return PARQUET


def _ours(place: Place, kind: str, state: TableState) -> ListedTable:
    table = open_table_at(place.url)
    facts, (committed, compacted) = _steady(table)
    records = list(islice(state.read_records(), committed))
    adopted = bool((state.table() or {}).get("adopted"))
    files = [scan_of(0, file, adopted=adopted) for file in facts]
    report = TableReport(place.url, kind, len(records), len(files), _bytes(files), [])
    if committed > len(records):
        text = f"the table has run {committed}, and no account of run {len(records) + 1} is there"
        report.problems.append(AuditProblem(SKIPPED, text))
    places = [place]
    for url in sorted({record.dead_letters for record in records if record.dead}):
        places.append(open_dead_letters(url))
        files += [
            scan_of(len(places) - 1, file, dead=True)
            for record in records
            if record.dead_letters == url
            for file in record.dead
        ]
    settled = {"r": committed, "c": compacted}
    for key in _report_unlisted_files(
        report, table, {file.path for file in facts}, settled, adopted=adopted
    ):
        files.append(ScanFile(0, key, place.size(key), adopted=True))
    coverages = coverages_of(share for record in records for share in record.shares)
    ends = records[-1].ends if records else {}
    nexts = {(topic, part): at for topic, parts in ends.items() for part, at in parts.items()}
    made = ListedTable(
        report, places, files, coverages, nexts, lambda: table.read_last_replacement() != compacted
    )
    made.ids = records[-1].ids if records else {}
    return made


def _steady(table: Table) -> tuple[list[FileFacts], tuple[int, int]]:
    """List the files once no concurrent run or compaction has changed them."""
    for _ in range(MAX_ATTEMPTS):
        before = table.read_last_run(), table.read_last_replacement()
        files = table.files()
        if (table.read_last_run(), table.read_last_replacement()) == before:
            return files, before
    raise AuditError(f"{table.place.url} changes faster than it can be listed: audit it later")


def coverages_of(shares: Iterable[Share]) -> dict[Where, Coverage]:
    """Return the coverage of each partition."""
    by_where: dict[Where, list[Share]] = {}
    for share in shares:
        by_where.setdefault((share.range.topic, share.range.partition), []).append(share)
    return {where: coverage(some) for where, some in by_where.items()}


def scan_of(place: int, file: FileFacts, *, dead: bool = False, adopted: bool = False) -> ScanFile:
    """Return the file to scan from its commit entry."""
    if file.partition < 0:  # of another tool, or merged by one: its content is unknown
        whole = (file.path, file.size_bytes)
        return ScanFile(place, *whole, rows=file.rows, dead=dead, adopted=adopted)
    where = (file.topic, file.partition, file.base, file.end)
    return ScanFile(place, file.path, file.size_bytes, *where, file.rows, dead)


def _report_unlisted_files(
    report: TableReport,
    table: Table,
    listed: set[str],
    settled: Mapping[str, int],
    *,
    adopted: bool,
) -> list[str]:
    """Report Parquet files that are in no commit, a fault if readers see them; return those of
    others in an adopted folder, which readers may see."""
    begun: list[str] = []
    foreign: list[str] = []
    theirs: list[str] = []
    for key in table.place.list():
        own = key.startswith((f"{FOLDER}/", "_delta_log/", "metadata/"))
        if own or not key.endswith(".parquet") or key in listed:
            continue
        writer = written_by(key)
        if writer and writer[1] > settled[writer[0]]:
            begun.append(key)
        elif adopted and not writer and not table.hides:
            theirs.append(key)
        else:
            foreign.append(key)
    if begun:
        report.notes.append(
            f"{describe_files(begun)} of a run in progress, or one that `run` will finish"
        )
    if foreign and table.hides:
        report.notes.append(f"{describe_files(foreign)} that no commit lists; no reader sees them")
    elif foreign:
        text = f"{describe_files(foreign)} that no commit lists, and who reads the folder sees them"
        report.problems.append(AuditProblem(FOREIGN, text))
    return theirs


def describe_files(keys: list[str]) -> str:
    shown = ", ".join(keys[:_NAMED]) + (", ..." if len(keys) > _NAMED else "")
    return f"{len(keys)} file{'s' if len(keys) > 1 else ''} ({shown})"


def _bytes(files: Iterable[ScanFile]) -> int:
    return sum(file.size_bytes for file in files)
