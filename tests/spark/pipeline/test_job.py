"""A job's TOML, and the error messages for mistakes in it."""

from __future__ import annotations

import pytest

from kafkawire.reading.model.source import Source, SourceError
from kafkawire_spark.pipeline.jobs.job import Job, PartitionColumn, parse

LEAST = """
[job]
name = "orders"
[source]
url = "/data"
subscribe = "orders, payments"
[table]
path = "/tables/orders"
"""


def with_lines(**added: str) -> str:
    """The smallest job plus additional lines, by section."""
    text = LEAST
    for section, lines in added.items():
        if f"[{section}]" in text:
            text = text.replace(f"[{section}]", f"[{section}]\n{lines}")
        else:
            text += f"\n[{section}]\n{lines}\n"
    return text


def test_minimal_job_has_defaults() -> None:
    job = parse(LEAST)
    assert isinstance(job, Job)
    assert job.reading.subscribe == ("orders", "payments")
    assert job.reading.source == Source(url="/data")
    assert (job.table.format, job.table.compression) == ("parquet", "zstd")
    assert (job.running.mode, job.running.every_s, job.dead_letters) == ("batch", 30.0, "")


def test_job_with_every_key() -> None:
    job = parse(
        """
        [job]
        name = "all"
        [source]
        bootstrap = "h:9092"
        assign = { orders = [0, 2] }
        starting_offsets = { orders = { 0 = 5, 2 = 7 } }
        ending_offsets = { orders = { 0 = 50 } }
        isolation_level = "read_uncommitted"
        include_headers = true
        fail_on_data_loss = false
        requests_at_once = 16
        [value]
        format = "json"
        schema = "id BIGINT"
        [key]
        format = "text"
        [table]
        format = "iceberg"
        path = "s3://b/t/"
        partition_by = ["date(timestamp)", "country", "date(seen)"]
        compression = "lz4"
        file_bytes = "32 MiB"
        topic_column = false
        timestamp_type_column = true
        index_column = true
        catalog = { uri = "http://x" }
        [dead_letter]
        path = "s3://b/dead"
        [run]
        mode = "continuous"
        every = "5 min"
        master = "yarn"
        task_bytes = "16m"
        max_offsets_per_run = 1000
        on_damage = "dead_letter"
        [spark]
        "spark.executor.memory" = "4g"
        spark.executor.instances = 8
        spark.ui.enabled = true
        """
    )
    assert job.reading.assign == {"orders": (0, 2)}
    assert job.reading.starting == {"orders": {0: 5, 2: 7}}
    assert job.reading.ending == {"orders": {0: 50}}
    assert job.reading.headers
    assert job.reading.source.requests_at_once == 16
    assert (job.value.format, job.key.format) == ("json", "text")
    assert job.table.path == "s3://b/t"
    assert job.table.partition_by == (
        PartitionColumn("date", "_timestamp", True),
        PartitionColumn("country", "country", False),
        PartitionColumn("seen_date", "seen", True),
    )
    assert (job.table.file_bytes, job.running.task_bytes) == (32 << 20, 16 << 20)
    assert (job.running.every_s, job.running.max_offsets) == (300.0, 1000)
    assert job.running.spark == {
        "spark.executor.memory": "4g",
        "spark.executor.instances": "8",
        "spark.ui.enabled": "true",
    }


@pytest.mark.parametrize(("said", "meant"), [("3", "3"), ("'3'", "3"), ("'latest'", "latest")])
def test_version_may_be_a_number(said: str, meant: str) -> None:
    value = f"format = 'avro'\nregistry = 'http://r'\nversion = {said}"
    assert parse(with_lines(value=value)).value.version == meant


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[job", "the job is not TOML"),
        ("[jobs]\nname = 'x'", "a section 'jobs' that is not known; did you mean job"),
        (LEAST.replace("[job]", "[run]"), r"the job has no section \[job\]"),
        (with_lines(table="pth = 'x'"), r"\[table\] has a key 'pth' that is not known.* path\?"),
        (LEAST.replace('"orders"', '"a/b"'), r"\[job\] name is 'a/b', it must be letters"),
        (LEAST.replace('url = "/data"', ""), r"\[source\] needs url"),
        (with_lines(source="subscribe_pattern = 'o.*'"), "exactly one of subscribe"),
        (with_lines(source="isolation_level = 'none'"), "it must be one of read_committed"),
        (with_lines(source="isolation = 'none'"), "it must be one of read_committed"),
        (
            with_lines(source="isolation = 'read_committed'\nisolation_level = 'read_uncommitted'"),
            "isolation_level=read_uncommitted and isolation=read_committed differ",
        ),
        (with_lines(source="starting_offsets = 'first'"), "'earliest' or 'latest' or offsets"),
        (with_lines(source="starting_offsets = { a = { 0 = -1 } }"), "or offsets, like"),
        (with_lines(source="include_headers = 1"), "it must be true or false"),
        (with_lines(table="format = 'csv'"), r"\[table\] format is 'csv', it must be one of"),
        (with_lines(table="file_bytes = '1 XB'"), "bytes from 65536 to"),
        (with_lines(table="partition_by = 'date(a, b)'"), "columns, or date"),
        (with_lines(run="every = '0 s'"), "a time like '30 s'"),
        (with_lines(source="requests_at_once = 65"), "a whole number from 0 to 64"),
        (with_lines(run="max_offsets_per_run = -1"), "a whole number from 0"),
        (with_lines(run="on_damage = 'dead_letter'"), r"needs a path in \[dead_letter\]"),
        (with_lines(dead_letter="path = '/tables/orders/dead'"), "one in the other.*dead letters"),
        (with_lines(dead_letter="path = '/tables'"), "one in the other.* would read the table"),
        (
            LEAST.replace('subscribe = "orders, payments"', "assign = { orders = [] }"),
            "it must be partitions by topic",
        ),
        (with_lines(source="starting_offsets = { odrers = { 0 = 1 } }"), "the topic 'odrers'"),
        (with_lines(source="ending_offsets = { odrers = { 0 = 1 } }"), "which is not read"),
        (LEAST.replace('"/data"', '"h:9092"'), "of a broker: that is for bootstrap"),
        (LEAST.replace('"/tables/orders"', '"/"'), r"path is '/', it must be a folder"),
        (LEAST.replace('"/tables/orders"', '""'), r"\[table\] needs path"),
        (with_lines(table="catalog = { uri = 'x' }"), "for the format iceberg, not parquet"),
        (with_lines(value="format = 'avro'\nregistry = 'http://r'\nversion = 0"), "version is 0"),
        (with_lines(spark="executor.instances = 8"), "has 'executor.instances'; .* with spark."),
        (with_lines(spark="'spark.jars' = ['a', 'b']"), "must be one value"),
        (with_lines(value="format = 'xml'"), r"value.format is 'xml'"),
        (with_lines(value="resolved = 'x'"), "a key 'resolved' that is not known"),
    ],
)
def test_mistake_in_job_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
