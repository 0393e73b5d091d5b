"""A job is checked before Spark is started: exit code 2, one sentence, and no Java.

Covers: kafkawire.spark.pipeline.preflight, kafkawire.cli.pipeline.run,
kafkawire.cli.pipeline.query, kafkawire.cli.pipeline.audit.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.cli.pipeline.run import run
from kafkawire.spark import session
from kafkawire.spark.model.source import DataLoss, SourceError
from kafkawire.spark.pipeline import submitted
from kafkawire.spark.pipeline.jobs.job import parse
from kafkawire.spark.pipeline.preflight import Unreachable, check_job
from kafkawire.spark.source.files.open import open_place
from tests.kit.spark.pipeline_topics import Tier, job_text


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


@pytest.mark.parametrize(("command", "code"), [(("query", "SELECT 1"), 1), (("audit", "lake"), 2)])
def test_unreachable_source_is_reported_before_spark_is_started(
    command: tuple[str, ...], code: int, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "open_session", None)  # is not called
    result = CliRunner().invoke(app, ["pipeline", *command, "--server", f"127.0.0.1:{closed_port}"])
    assert (result.exit_code, result.stdout) == (code, "")
    address = f"127.0.0.1:{closed_port}"
    sentence = f"kafkawire: cannot connect to the broker at {address}: Connection refused\n"
    assert result.stderr == sentence


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
    file.write_text(job_text(tier.files.place.url, tmp_path / "table", source=source))
    command = [sys.executable, "-m", "kafkawire", "pipeline", "run", str(file)]
    environ = {**os.environ, "JAVA_HOME": str(home)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120)
    assert (done.returncode, done.stdout, flag.exists()) == (2, "", False), done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
