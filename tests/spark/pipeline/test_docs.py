"""docs/pipeline.md and its references, job-file.md and spark-options.md: what they name exists,
their tables are those of the code, and their blocks run, in their order, as written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kafkawire.cli.command import group
from kafkawire.reading.model.columns import NATIVE
from kafkawire.reading.model.source import REASONS
from kafkawire.testing.process import BrokerProcess
from kafkawire_spark.cli import PIPELINE
from kafkawire_spark.pipeline.jobs.job import SECTIONS, from_dict, parse
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.values.spec import FORMATS
from kafkawire_spark.sink import options as sink_options
from kafkawire_spark.source import options
from tests.kit.cli import commands_of
from tests.kit.spark.session import need_java

ROOT = Path(__file__).parent.parent.parent.parent
PAGES = ("pipeline.md", "job-file.md", "spark-options.md")
TEXT = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in PAGES)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = commands_of(group("", PIPELINE))

NOT_RUN = {
    "pip install": "the tests' own environment has it",
    "--master": "test_cluster.py runs a job on a cluster, test_spark.py by spark-submit; "
    "YARN and Kubernetes are nowhere run",
}
"""Console lines that the run leaves out, by a part of their text, with the reason."""


def lines() -> list[str]:
    """Every console line of the page, in order."""
    return [line[2:] for language, body in BLOCKS if language == "console"
            for line in body.splitlines()]  # fmt: skip


def files() -> dict[str, str]:
    """Every block that is a file, by its name."""
    found = {}
    for language, body in BLOCKS:
        if language != "console":
            name = re.match(r"# (\S+\.(?:py|toml))\n", body)
            assert name is not None, f"a block of {language} without a name: {body[:40]}"
            found[name[1]] = body
    return found


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def rows(title: str) -> list[list[str]]:
    """The cells of the table under a title."""
    found = [line.strip("|").split("|") for line in section(title).splitlines()
             if line.startswith("|")]  # fmt: skip
    return [[cell.strip() for cell in row] for row in found[2:]]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_option_of_the_source_is_compared() -> None:
    reported = [
        name for row in rows("Coming from Spark's Kafka connector") for name in named(row[0])
    ]
    assert len(reported) == len(set(reported))
    known = {*options._KNOWN, *options._UNUSED, *options._REFUSED}
    assert set(reported) - {"kafka.security.protocol", "kafka.security.*"} == known


def test_every_option_of_the_sink_is_documented() -> None:
    reported = [name for row in rows("Transactions") for name in named(row[0])]
    assert len(reported) == len(set(reported))
    assert set(reported) == {*sink_options._KNOWN, *sink_options._REFUSED, *sink_options._FIXED}


def keys_of(name: str) -> set[str]:
    """The keys of a section of a job, from the error message for an unknown one."""
    whole: dict[str, Any] = {"job": {"name": "n"}, "source": {"url": "/x", "subscribe": "t"},
                             "table": {"path": "/t"}}  # fmt: skip
    whole[name] = {"qqqqqqqqqqqqqqq": 1}
    with pytest.raises(JobError) as failed:
        from_dict(whole)
    _, known, words = str(failed.value).partition("known are ")
    assert known, failed.value
    return set(words.split(", "))


def test_every_key_of_a_job_is_documented() -> None:
    reported: dict[str, set[str]] = {}
    for row in rows("All keys of a job"):
        for name in named(row[0]):
            reported.setdefault(name, set()).update(named(row[1]))
    assert set(reported) == set(SECTIONS)
    for name in SECTIONS:
        if name != "spark":  # takes any
            assert reported[name] == keys_of(name), name


def test_documented_defaults_of_a_job() -> None:
    """Writing them out changes nothing."""
    bare = {
        "job": {"name": "n"},
        "source": {"url": "/x", "subscribe": "t"},
        "table": {"path": "/t"},
        "dead_letter": {"path": "/d"},
    }
    checked = 0
    for row in rows("All keys of a job"):
        if not row[2].startswith("`"):
            continue
        default = tomllib.loads(f"is = {named(row[2])[0]}")["is"]
        for name in named(row[0]):
            whole: dict[str, Any] = {key: dict(value) for key, value in bare.items()}
            whole.setdefault(name, {})[named(row[1])[0]] = default
            assert from_dict(whole) == from_dict(bare), row
            checked += 1
    assert checked > 12


def test_columns_formats_and_reasons_are_documented() -> None:
    for name in NATIVE.names:
        assert f"`{name}`" in TEXT
    assert [named(row[0])[0] for row in rows("Values")] == list(FORMATS)
    assert [named(row[0])[0] for row in rows("What a gap means")] == list(REASONS)


def test_commands_and_their_options_exist() -> None:
    used = set()
    for line in lines():
        for name, words in re.findall(r"kafkawire pipeline (\w+)([^|]*)", line):
            used.add(name)
            known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
            given = {word for word in shlex.split(words) if word.startswith("--")}
            assert given <= known, line
    assert used == set(COMMANDS)


def test_jobs_in_documents_are_valid() -> None:
    jobs = {name: body for name, body in files().items() if name.endswith(".toml")}
    assert len(jobs) == 5
    names = {parse(body).name for body in jobs.values()}
    assert len(names) == 5


def test_documented_packages_are_those_of_the_repository() -> None:
    """It is cloned as kafkawire; both distributions are installed in one command."""
    (line,) = [line for line in lines() if "pip install" in line]
    folders = re.findall(r" \./kafkawire(\S*)", line)
    found = [(ROOT / f"./{folder}" / "pyproject.toml").read_text("utf-8") for folder in folders]
    names = [tomllib.loads(text)["project"]["name"] for text in found]
    assert names == ["kafkawire", "kafkawire-spark"]


def test_documented_versions_of_spark_are_those_tested() -> None:
    project = "".join(
        (ROOT / folder / "pyproject.toml").read_text(encoding="utf-8") for folder in (".", "spark")
    )
    (default,) = re.findall(r'"pyspark==([\d.]+)\.\*"', project)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (other,) = re.findall(r"^SPARK \?= (\S+)$", makefile, re.MULTILINE)
    assert f'"pyspark>={default}"' in project
    assert f"Spark {default} and {other} are tested" in section("Limits")
    assert f"`make test-spark SPARK={other}`" in section("Limits")


class Round:
    """The page from its beginning to its end, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker: BrokerProcess | None = None
        python = str(Path(sys.executable).parent)  # like in the environment that it is installed in
        self.environ = {**os.environ, "PATH": f"{python}{os.pathsep}{os.environ['PATH']}"}
        self.output: dict[str, str] = {}

    def here(self, text: str) -> str:
        """Replace the address in the page by the broker's own."""
        address = self.broker.bootstrap if self.broker else ""
        return text.replace("127.0.0.1:9092", address)

    def serve(self, line: str) -> None:
        words = shlex.split(line.replace("$PWD", str(self.folder)))[2:]
        assert words[:2] == ["--data", "data"]
        quick = {"cut.interval.ms": "100", "journal.roll.ms": "1000"}
        self.broker = BrokerProcess(self.folder / "data", settings=quick, arguments=words[2:])
        self.broker.start()
        for name, body in files().items():
            (self.folder / name).write_text(self.here(body), encoding="utf-8")

    def run(self, line: str) -> None:
        here = self.here(line)
        python = shlex.quote(sys.executable)
        here = re.sub(r"(^|; |\|\| )kafkawire ", rf"\1{python} -m kafkawire ", here)
        here = re.sub(r"^python ", f"{python} ", here)
        if re.search(r" kafkawire (topics|offsets) ", here):
            assert self.broker is not None
            here += f" --server {self.broker.bootstrap}"
        done = subprocess.run(
            ["sh", "-c", here], cwd=self.folder, capture_output=True, text=True, timeout=600,
            check=False, env=self.environ,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        self.output[line] = done.stdout

    def output_of(self, *words: str) -> str:
        """The output of the one line with these words."""
        (found,) = [out for line, out in self.output.items() if all(w in line for w in words)]
        return found


@pytest.mark.real
@pytest.mark.timeout(3600)  # fourteen commands that start a JVM, each with a limit of its own
def test_commands_of_page_run_in_order(tmp_path: Path) -> None:
    need_java()
    page = Round(tmp_path)
    try:
        for line in lines():
            if any(words in line for words in NOT_RUN):
                continue
            if line.startswith("kafkawire serve"):
                page.serve(line)
            else:
                page.run(line)
    finally:
        if page.broker is not None:
            page.broker.stop()
    check(page)


def check(page: Round) -> None:
    """Check the documented output of its commands."""
    assert re.search(r"20000\D+4\b", page.output_of("pipeline query"))
    assert "20000 records" in page.output_of("read.py")
    assert re.search(r"^20000 records, in \d+ batches", page.output_of("stream.py"), re.MULTILINE)
    assert "40000 records copied" in page.output_of("copy_topic.py")
    assert "19996 orders" in page.output_of("table.py")
    assert "4 dead letters" in page.output_of("table.py")
    assert "killed: run 2 is planned, and not committed" in page.output_of("kill.py")
    assert "run 2, begun before: 19,996 rows" in page.output["kafkawire pipeline run orders.toml"]
    assert "every offset once" in page.output_of("pipeline audit")
    again = re.findall(r"^ *\d+ +0 +(\d+) ", page.output_of("offsets describe"), re.MULTILINE)
    assert sum(map(int, again)) == 40_000
    pictures = {path.name for path in (page.folder / "reports").glob("*.png")}
    assert pictures == {"continuity.png", "sizes.png", "late.png"}  # no client committed
    assert "No group has committed" in page.output_of("report lag")
