"""A job as defined by its TOML file: source, value formats, table. Pure.

Every mistake raises a JobError with one sentence that names the key, its value and what is allowed.
docs/job-file.md lists the keys.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafkawire.client.address import split_address
from kafkawire.reading.model.source import MAX_REQUESTS, READ_COMMITTED, READ_UNCOMMITTED, Source
from kafkawire_spark.pipeline.jobs.section import JobError, JobSection
from kafkawire_spark.pipeline.values.spec import Format

EARLIEST, LATEST = "earliest", "latest"
PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"
FAIL, DEAD_LETTER = "fail", "dead_letter"
BATCH, CONTINUOUS = "batch", "continuous"
COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "lz4")
SECTIONS = ("job", "source", "value", "key", "table", "dead_letter", "run", "spark")

Offsets = str | Mapping[str, Mapping[int, int]]
"""`earliest`, `latest`, or topic -> partition -> offset."""


@dataclass(frozen=True, slots=True)
class SourceSection:
    """[source]. Exactly one of `subscribe`, `pattern`, `assign` selects the partitions."""

    source: Source
    subscribe: tuple[str, ...] = ()
    pattern: str = ""
    assign: Mapping[str, tuple[int, ...]] | None = None
    starting: Offsets = EARLIEST
    ending: Offsets = LATEST
    headers: bool = False


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """One folder level of the table: the column `name`, or the day (UTC) of a timestamp column.

    `column`: the source of its value; `by_date`: as yyyy-mm-dd, under the name `name`.
    """

    name: str
    column: str
    by_date: bool = False


@dataclass(frozen=True, slots=True)
class TableSpec:
    """[table]. `file_bytes`: approximate bytes of a topic's batches per file; `catalog`: properties
    of an Iceberg catalog, with `name` as the table's name there; `history_s`: how long older states
    of an Iceberg or Delta table are kept, 0 for the format's default; `adopt`: the job may add its
    rows to a table or folder that it has not made."""

    format: str
    path: str
    partition_by: tuple[PartitionColumn, ...] = ()
    compression: str = "zstd"
    file_bytes: int = 64 << 20
    topic_column: bool = True
    timestamp_type_column: bool = False
    catalog: Mapping[str, Any] | None = None
    history_s: float = 0.0
    index_column: bool = False
    adopt: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """[run] and [spark]. `every_s`: seconds between the starts of two runs of continuous mode;
    `max_offsets`: of one run, over all partitions, 0 for no limit; `spark`: settings of Spark."""

    mode: str = BATCH
    every_s: float = 30.0
    master: str = ""
    task_bytes: int = 64 << 20
    max_offsets: int = 0
    on_damage: str = FAIL
    spark: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A whole job. `dead_letters`: location of records that cannot be converted, "" for none: then
    the first such record fails the run."""

    name: str
    reading: SourceSection
    value: Format
    key: Format
    table: TableSpec
    dead_letters: str = ""
    running: Running = Running()


def parse(text: str) -> Job:
    """Parse the job of a TOML document. Raises JobError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"the job is not TOML: {error}") from None
    return from_dict(document)


def from_dict(document: Mapping[str, Any]) -> Job:
    """Build the job of a parsed document. Raises JobError."""
    root = JobSection("", document)
    root.only(SECTIONS)
    job = root.section("job", needed=True)
    job.only(("name",))
    name = job.get_name("name")
    dead = root.section("dead_letter")
    dead.only(("path",))
    done = Job(
        name,
        _reading(root.section("source", needed=True)),
        _format(root.section("value"), "value"),
        _format(root.section("key"), "key"),
        _table(root.section("table", needed=True)),
        dead.get_text("path", needed=bool(dead.values)).rstrip("/"),
        _running(root.section("run"), root.section("spark")),
    )
    dead_path, path = f"{done.dead_letters}/", f"{done.table.path}/"
    if dead_path.startswith(path) or (done.dead_letters and path.startswith(dead_path)):
        inner, outer = (
            ("dead letters", "table")
            if dead_path.startswith(path)
            else ("the table", "dead letters")
        )
        raise JobError(
            f"[dead_letter] path is {done.dead_letters!r} and the table's {done.table.path!r}, one "
            f"in the other: who reads the {outer} would read {inner} as well"
        )
    if done.running.on_damage == DEAD_LETTER and not done.dead_letters:
        raise JobError("[run] on_damage is 'dead_letter', which needs a path in [dead_letter]")
    return done


def _isolation(section: JobSection) -> str:
    """Return the isolation level, by Kafka's name or by the older one."""
    levels = (READ_COMMITTED, READ_UNCOMMITTED)
    older = section.one_of("isolation", levels, READ_COMMITTED)
    level = section.one_of("isolation_level", levels, older)
    if "isolation" in section.values and older != level:
        raise JobError(f"[source] isolation_level={level} and isolation={older} differ")
    return level


def _reading(section: JobSection) -> SourceSection:
    section.only(
        (
            "url", "bootstrap", "subscribe", "subscribe_pattern", "assign", "starting_offsets",
            "ending_offsets", "isolation_level", "isolation", "include_headers",
            "fail_on_data_loss", "requests_at_once",
        )
    )  # fmt: skip
    url, bootstrap = section.get_text("url"), section.get_text("bootstrap")
    if split_address(url):
        raise JobError(f"[source] url is {url!r}, the address of a broker: that is for bootstrap")
    if not url and not bootstrap:
        raise JobError("[source] needs url (s3://BUCKET/PREFIX or a folder), bootstrap, or both")
    isolation = _isolation(section)
    at_once = section.whole("requests_at_once", 0, 0, MAX_REQUESTS)
    strict = section.flag("fail_on_data_loss", True)
    source = Source(url, bootstrap, isolation, strict, at_once)
    subscribe = section.texts("subscribe")
    pattern, assign = section.pattern("subscribe_pattern"), section.get_partitions("assign")
    if sum(map(bool, (subscribe, pattern, assign))) != 1:
        raise JobError("[source] needs exactly one of subscribe, subscribe_pattern and assign")
    starting = section.offsets("starting_offsets", (EARLIEST, LATEST), EARLIEST)
    ending = section.offsets("ending_offsets", (LATEST,), LATEST)
    for key, offsets in (("starting_offsets", starting), ("ending_offsets", ending)):
        _only_read(key, offsets, subscribe or tuple(assign or ()), pattern)
    headers = section.flag("include_headers", False)
    return SourceSection(source, subscribe, pattern, assign, starting, ending, headers)


def _only_read(key: str, offsets: Offsets, names: tuple[str, ...], pattern: str) -> None:
    """Reject offsets of a topic that is not read; with a typing error it would start elsewhere."""
    if isinstance(offsets, str):
        return
    for topic in offsets:
        if topic not in names and not (pattern and re.fullmatch(pattern, topic)):
            raise JobError(f"[source] {key} has the topic {topic!r}, which is not read")


def _format(section: JobSection, where: str) -> Format:
    section.only([name for name in Format.__dataclass_fields__ if name != "resolved"])
    given: dict[str, Any] = {
        name: str(section.whole(name, 0, 1, 1 << 31))
        if name == "version" and not isinstance(section.values[name], str)
        else section.get_text(name)
        for name in section.values
    }
    return Format(**given).validate(where)


def _table(section: JobSection) -> TableSpec:
    section.only(
        (
            "format", "path", "partition_by", "compression", "file_bytes", "topic_column",
            "timestamp_type_column", "index_column", "catalog", "history", "adopt",
        )
    )  # fmt: skip
    form = section.one_of("format", (PARQUET, DELTA, ICEBERG), PARQUET)
    if form != ICEBERG and "catalog" in section.values:
        raise JobError(f"[table] has a catalog, which is for the format iceberg, not {form}")
    if form == PARQUET and "history" in section.values:
        raise JobError("[table] has a history, which a table of the format parquet has not")
    path = section.get_text("path", needed=True).rstrip("/")
    if not path:
        raise section.wrong("path", "a folder, or s3://BUCKET/PREFIX")
    return TableSpec(
        form,
        path,
        section.partition_columns("partition_by", PartitionColumn),
        section.one_of("compression", COMPRESSIONS, "zstd"),
        section.get_size("file_bytes", 64 << 20, 1 << 16, 4 << 30),
        section.flag("topic_column", True),
        section.flag("timestamp_type_column", False),
        section.properties("catalog"),
        section.seconds("history", 0.0) if "history" in section.values else 0.0,
        section.flag("index_column", False),
        section.flag("adopt", False),
    )


def _running(section: JobSection, spark: JobSection) -> Running:
    section.only(("mode", "every", "master", "task_bytes", "max_offsets_per_run", "on_damage"))
    return Running(
        section.one_of("mode", (BATCH, CONTINUOUS), BATCH),
        section.seconds("every", 30.0),
        section.get_text("master"),
        section.get_size("task_bytes", 64 << 20, 1 << 16, 4 << 30),
        section.whole("max_offsets_per_run", 0, 0, 1 << 62),
        section.one_of("on_damage", (FAIL, DEAD_LETTER), FAIL),
        spark.settings(),
    )
