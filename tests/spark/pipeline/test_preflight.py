"""A job is checked before Spark is started: exit code 2, one sentence, and no Java.

Covers: kafkawire_spark.pipeline.preflight, kafkawire_spark.cli.run,
kafkawire_spark.cli.query, kafkawire_spark.cli.audit.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.objectstore import open as stores
from kafkawire.objectstore.errors import SlowDown
from kafkawire.objectstore.folder import FolderProvider
from kafkawire.reading.files.locations import UnreachablePlace
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import (
    DataLoss,
    InvalidInput,
    PartitionRange,
    SourceError,
    TaskFailed,
    Unreachable,
    exit_code,
)
from kafkawire_spark import session
from kafkawire_spark.cli.run import run
from kafkawire_spark.pipeline import submitted
from kafkawire_spark.pipeline.jobs.job import parse
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import DamagedState, Run, TableState
from kafkawire_spark.pipeline.preflight import check_job
from kafkawire_spark.pipeline.tables.commit import Unsettled
from kafkawire_spark.pipeline.tables.ownership import description
from kafkawire_spark.pipeline.values.registry import RegistryUnavailable
from kafkawire_spark.pipeline.values.spec import Format, ValueFormatError
from kafkawire_spark.session import InvalidSetup
from tests.kit.spark.pipeline_topics import Tier, job_text

COLUMNS = {
    "_topic": "string", "_partition": "int32", "_offset": "int64",
    "_timestamp": "timestamp[us, tz=UTC]", "_key": "binary", "id": "int64", "name": "string",
}  # fmt: skip


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    made = Tier(open_place(str(tmp_path / "tier")))
    made.grow(10)
    return made


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections: it is bound, and nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def check(tier: Tier, tmp_path: Path, **sections: Mapping[str, Any]) -> None:
    check_job(parse(job_text(tier.files.place.url, tmp_path / "table", **sections)))


def test_a_job_that_can_run_passes_and_creates_nothing(tier: Tier, tmp_path: Path) -> None:
    check(tier, tmp_path)
    assert not (tmp_path / "table").exists()


def test_missing_topic_is_named_with_the_nearest(tier: Tier, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no topic 'order' in .*; did you mean 'orders'\?"):
        check(tier, tmp_path, source={"subscribe": "order"})


def test_missing_source_is_named(tier: Tier, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=f"{nowhere} has no manifest") as missing:
        check(tier, tmp_path, source={"url": nowhere})
    assert not isinstance(missing.value, DataLoss)


@pytest.mark.parametrize(
    ("section", "what"), [("table", "table location"), ("dead_letter", "dead letter location")]
)
def test_invalid_location_is_named(tier: Tier, tmp_path: Path, section: str, what: str) -> None:
    with pytest.raises(SourceError, match=f"'gs://bucket/x' is no {what} that is known: s3://"):
        check(tier, tmp_path, **{section: {"path": "gs://bucket/x"}})


def test_unreachable_broker_is_named(tier: Tier, tmp_path: Path, closed_port: int) -> None:
    address = f"127.0.0.1:{closed_port}"
    with pytest.raises(Unreachable, match=f"broker at {address}: Connection refused"):
        check(tier, tmp_path, source={"bootstrap": address})


def test_unreachable_catalog_is_named(tier: Tier, tmp_path: Path, closed_port: int) -> None:
    catalog = {"type": "rest", "uri": f"http://127.0.0.1:{closed_port}/catalog"}
    text = job_text(tier.files.place.url, tmp_path / "table", table={"format": "iceberg"})
    text += f'\n[table.catalog]\ntype = "{catalog["type"]}"\nuri = "{catalog["uri"]}"\n'
    with pytest.raises(Unreachable, match=f"catalog at 127.0.0.1:{closed_port}: Connection refu"):
        check_job(parse(text))


def test_unreachable_bucket_is_named(
    tier: Tier, tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    bucket = f"s3://lake/x?endpoint=http://127.0.0.1:{closed_port}&region=eu-west-1"
    sentence = f"cannot connect to the object store at 127.0.0.1:{closed_port}: Connection refu"
    for section, key in (("source", "url"), ("table", "path"), ("dead_letter", "path")):
        with pytest.raises(Unreachable, match=sentence):
            check(tier, tmp_path, **{section: {key: bucket}})


class Busy(FolderProvider):
    """Object storage that asks for fewer requests."""

    def get(self, *_: Any) -> tuple[bytes, str]:
        raise SlowDown("SlowDown", "reduce your request rate")


def test_bucket_that_answers_later_is_a_failure(
    tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "FolderProvider", Busy)
    with pytest.raises(Unreachable, match="reduce your request rate") as caught:
        check(tier, tmp_path)
    assert exit_code(caught.value, started=False) == 1


def json_of(schema: str) -> dict[str, str]:
    return {"format": "json", "schema": schema}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("id BIGINT, name", "the schema 'id BIGINT, name' is not one of Spark: a type is missing"),
        ("id BIGNIT", "there is no type 'BIGNIT'"),
        ("id STRING, name STRING", "the table's column id is int64, the job makes it string"),
        ("name STRING", r"the table has a column id \(int64\), which the job does not have"),
        ("id BIGINT, name STRING, _offset INT", "'_offset': that is reserved"),
    ],
)
def test_schema_that_is_wrong_is_found_before_spark_is_started(
    schema: str, words: str, tier: Tier, tmp_path: Path
) -> None:
    """As the schema of a first run, of a later one, and of one that has begun."""
    state = TableState(open_place(str(tmp_path / "table")))
    known = parse(job_text(tier.files.place.url, tmp_path / "table"))
    for value in (json_of("id BIGINT, name STRING"), json_of("id BIGINT, name STRING, more INT")):
        check(tier, tmp_path, value=value)
        state.write_description(description(known, COLUMNS), new=state.table() is None)
    with pytest.raises(InvalidInput, match=words) as caught:
        check(tier, tmp_path, value=json_of(schema))
    assert exit_code(caught.value, started=False) == exit_code(caught.value, started=True) == 2
    run = Run("orders", 1, ((PartitionRange("orders", 0, 0, 1),),), {}, Format(), Format(), {})
    state.intend(replace(run, value=Format(**json_of(schema), resolved=True)))
    with pytest.raises(InvalidInput, match=words):
        check(tier, tmp_path)


@pytest.mark.parametrize(
    ("problem", "before", "after"),
    [
        (JobError("x"), 2, 2),
        (ValueFormatError("x"), 2, 2),
        (SourceError("there is no such topic"), 2, 1),
        (Unreachable("x"), 1, 1),
        (UnreachablePlace("x"), 1, 1),
        (RegistryUnavailable("x"), 1, 1),
        (Unsettled("x"), 1, 1),
        (DataLoss("x"), 1, 1),
        (DamagedState("x"), 1, 1),
        (TaskFailed("x"), 1, 1),
        (InvalidSetup("x"), 2, 2),
    ],
)
def test_exit_codes(problem: SourceError, before: int, after: int) -> None:
    assert exit_code(problem, started=False) == before
    assert exit_code(problem, started=True) == after


def test_batch_ends_with_1_and_continuous_job_starts_if_the_broker_is_away(
    tier: Tier,
    tmp_path: Path,
    closed_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started: list[str] = []
    monkeypatch.setattr(submitted, "run_batch", lambda *_: started.append("batch"))
    monkeypatch.setattr(submitted, "run_continuous", lambda *_: started.append("continuous"))
    file = tmp_path / "job.toml"
    source = {"bootstrap": f"127.0.0.1:{closed_port}"}
    file.write_text(job_text(tier.files.place.url, tmp_path / "table", source=source))
    with pytest.raises(SystemExit) as ended:
        run(str(file))
    assert (ended.value.code, started) == (1, [])
    run(str(file), continuous=True)
    assert started == ["continuous"]
    assert capsys.readouterr().err.count("Connection refused") == 2


@pytest.mark.parametrize(
    ("command", "code"),
    [(("query", "SELECT 1"), 1), (("audit", "lake"), 2), (("report", "lag", "--out", "out"), 1)],
)
def test_unreachable_source_is_reported_before_spark_is_started(
    command: tuple[str, ...], code: int, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "open_session", None)  # is not called
    address = f"127.0.0.1:{closed_port}"
    option = "--source" if command[0] == "report" else "--server"
    result = CliRunner().invoke(app, ["pipeline", *command, option, address])
    assert (result.exit_code, result.stdout) == (code, "")
    sentence = f"kafkawire: cannot connect to the broker at {address}: Connection refused\n"
    assert result.stderr == sentence


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["query", "SELECT 1", "--source"], 1),
        (["audit"], 2),
        (["replay", "--to", "x"], 1),
        (["report", "lag", "--out", "out", "--source"], 1),
        (["report", "lag", "--source", "127.0.0.1:1", "--out"], 1),
    ],
)
def test_unreachable_bucket_is_reported_before_spark_is_started(
    words: list[str], code: int, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "open_session", None)  # is not called
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    bucket = f"s3://lake/x?endpoint=http://127.0.0.1:{closed_port}&region=eu-west-1"
    result = CliRunner().invoke(app, ["pipeline", *words, bucket])
    assert (result.exit_code, result.stdout) == (code, "")
    store = f"the object store at 127.0.0.1:{closed_port}"
    assert result.stderr == f"kafkawire: cannot connect to {store}: Connection refused\n"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("command", ["run", "audit", "replay", "query", "report"])
def test_damage_is_no_wrong_input(
    command: str, tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the table's state, or of the source's manifest."""
    monkeypatch.setattr(session, "open_session", None)  # is not called
    url, table = tier.files.place.url, tmp_path / "table"
    file = tmp_path / "job.toml"
    file.write_text(job_text(url, table))
    state = TableState(open_place(str(table)))
    state.write_description(description(parse(file.read_text()), COLUMNS), new=True)
    flip(table / "_kafkawire" / "table.json")
    flip(tmp_path / "tier" / "manifest" / "current")
    words = {
        "run": [str(file)],
        "audit": [str(table)],
        "replay": [str(table), "--to", "x"],
        "query": ["SELECT 1", "--source", url],
        "report": ["sizes", "--source", url, "--out", "out"],
    }
    result = CliRunner().invoke(app, ["pipeline", command, *words[command]])
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert re.search(r"(table\.json|manifest/current) is damaged", result.stderr)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("nowhere", "nowhere: there is no table, or it has no Parquet file"),
        ("empty", "empty: there is no table, or it has no Parquet file"),
        ("file", "file: there is no table, or it has no Parquet file"),
        ("s3://", "'' in 's3://' is no bucket"),
        ("gs://bucket/table", "'gs://bucket/table' is no table location that is known:"),
        ("", "TABLE"),
    ],
)
def test_audit_of_a_missing_table_is_reported_before_spark_is_started(
    table: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "open_session", None)  # is not called
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["pipeline", "audit", table])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"subscribe": "order"}, "there is no topic 'order' in "),
        ({"subscrib": "orders"}, "has a key 'subscrib' that is not known"),
        ({"schema": "id BIGNIT"}, "there is no type 'BIGNIT'"),
    ],
)
def test_command_starts_no_java(
    source: dict[str, str], sentence: str, tier: Tier, tmp_path: Path
) -> None:
    flag, home = tmp_path / "java-was-started", tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\ntouch {flag}\nexit 1\n")
    java.chmod(0o755)
    file = tmp_path / "job.toml"
    sections: dict[str, Any] = {"source": source}
    if "schema" in source:
        sections = {"value": {"format": "json", **source}}
    file.write_text(job_text(tier.files.place.url, tmp_path / "table", **sections))
    command = [sys.executable, "-m", "kafkawire", "pipeline", "run", str(file)]
    environ = {**os.environ, "JAVA_HOME": str(home)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120)
    assert (done.returncode, done.stdout, flag.exists()) == (2, "", False), done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
