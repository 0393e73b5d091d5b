"""docs/schema-registry.md: its blocks run in their order, as written, with confluent-kafka's
serializers, a registry of the tests, and the tests' Spark session.

Covers: kafkawire_spark.pipeline.values.avro, kafkawire_spark.pipeline.values.protobuf.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow.dataset
import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.cli.shared.source import source_of
from kafkawire.testing.plugin import Factory
from kafkawire_spark.cli import query
from tests.documents.pages import lines, text_of
from tests.kit.spark.registry import FakeRegistry, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "docs/schema-registry.md"
BLOCK = re.compile(
    r"^```(?:python|toml|protobuf)\n(?:#|//) (\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE
)
NEEDED = ("authlib", "google.type", "grpc_tools")
"""Of the extras of confluent-kafka, and grpcio-tools."""
FIRST, END = 1000, 2000
"""The first record of the second version of the schema, and the end."""


def need_packages() -> None:
    """Skip the test, or fail it where CI is set, if the environment is older than these."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        assert "CI" not in os.environ, missing
        pytest.skip(f"not installed: {', '.join(missing)}: pip install -e '.[dev]'")


class Session:
    """The page in an empty folder. Commands that start Spark run in this process, on its session:
    their paths are absolute, because its workers have another working directory."""

    def __init__(self, folder: Path, bootstrap: str, registry: str, spark: SparkSession) -> None:
        self.folder, self.bootstrap, self.spark = folder, bootstrap, spark
        self.output: dict[str, str] = {}
        self.counts: list[dict[str, Any]] = []
        for name, body in BLOCK.findall(text_of(PAGE)):
            here = body.replace("127.0.0.1:9092", bootstrap)
            here = here.replace("http://127.0.0.1:8081", registry)
            if name.endswith(".toml"):
                here = re.sub(r'^(url|path) = "(?!/)', rf'\1 = "{folder}/', here, flags=re.M)
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(here, encoding="utf-8")

    def run(self, command: str) -> None:
        here = command.replace("127.0.0.1:9092", self.bootstrap).replace("$PWD", str(self.folder))
        words = shlex.split(here)
        if words[:3] == ["kafkawire", "pipeline", "query"]:
            source, server, sql = words[4], words[6], words[7]
            asked = source_of(source, server)
            query.run(self.spark, asked, sql, lambda found: self._counted(found), 100)
        elif words[:2] == ["kafkawire", "pipeline"]:
            job = str(self.folder / words[-1])
            done = CliRunner().invoke(app, [*words[1:-1], job])
            assert done.exit_code == 0, done.output
        else:
            self._shell(command, here)

    def _shell(self, command: str, here: str) -> None:
        python = shlex.quote(sys.executable)
        here = re.sub(r"\bpython ", f"{python} ", here)
        here = re.sub(
            r"^kafkawire (.*)", rf"{python} -m kafkawire \1 --server {self.bootstrap}", here
        )
        done = subprocess.run(
            ["sh", "-c", here], cwd=self.folder, capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        self.output[command] = done.stdout

    def _counted(self, found: Any) -> None:
        self.counts += [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def test_page_has_names_for_all_its_files() -> None:
    blocks = re.findall(r"^```(\w+)$", text_of(PAGE), re.MULTILINE)
    assert len(BLOCK.findall(text_of(PAGE))) == len(blocks) - blocks.count("console") == 8


@pytest.mark.real
def test_commands_of_page_run_in_order(
    spark: SparkSession, kafkawire_broker_factory: Factory, tmp_path: Path
) -> None:
    need_packages()
    broker = kafkawire_broker_factory(
        arguments=["--tier", str(tmp_path / "tier")],
        settings={"cut.interval.ms": "100", "journal.roll.ms": "1000"},
    )
    try:
        with running() as registry:
            registry.serialized = ("schemas",)  # as Karapace; Confluent's returns more
            session = Session(tmp_path, broker.bootstrap, registry.url, spark)
            for line in lines(PAGE):
                if not line.command.startswith(("pip install", "kafkawire serve")):
                    session.run(line.command)
            check_schemas(registry, session)
    finally:
        broker.stop()
    for topic, bad in (("orders", "Avro"), ("invoices", "Protobuf")):
        check_rows(tmp_path, topic)
        check_dead_letters(tmp_path, topic, bad)
        output = session.output[f"python table.py {topic}"]
        assert "2000 rows with the columns" in output
        assert "'city': 'Ulm'}, 'note': 'note 1247'}" in output  # without the nulls the 1234th
        assert "the registry has no schema 999999" in output


def check_schemas(registry: FakeRegistry, session: Session) -> None:
    """Two versions of each, and their ids in the values of `orders`."""
    assert {name: len(each) for name, each in registry.subjects.items()} == {
        "orders-value": 2,
        "invoices-value": 2,
    }
    counts = {int(row["schema_id"]): int(row["records"]) for row in session.counts}
    old, new = registry.subjects["orders-value"]
    assert (sorted((counts[old], counts[new])), counts[999_999]) == ([990, 991], 1)


def check_rows(folder: Path, topic: str) -> None:
    """Every value of every row."""
    table = deltalake.DeltaTable(folder / "lake" / topic).to_pyarrow_table()
    found = {int(row["_key"]): row for row in table.to_pylist()}
    assert table.num_rows == len(found) == END
    for number, row in found.items():
        value = {name: row[name] for name in ("id", "amount", "customer", "note")}
        if number % 100 == 0:
            assert set(value.values()) == {None}
            continue
        city = "Ulm" if number % 2 else None
        note = f"note {number}" if number >= FIRST else None
        customer = {"name": f"c{number % 7}", "city": city}
        assert value == {"id": number, "amount": number / 4, "customer": customer, "note": note}


def check_dead_letters(folder: Path, topic: str, format: str) -> None:
    place = folder / "lake" / f"{topic}-dead"
    dead = pyarrow.dataset.dataset(place, exclude_invalid_files=True).to_table().to_pylist()
    reasons = [row["_reason"] for row in sorted(dead, key=lambda row: int(row["_offset"]))]
    assert len(reasons) == 3
    assert reasons[0] == "value: the registry has no schema 999999"
    assert reasons[1].startswith(f"value: not {format} of its schema")
    assert reasons[2] == "value: begins with byte 110, not with 0 and the number of a schema"
    assert {row["_key"] for row in dead} == {b"bad"}
