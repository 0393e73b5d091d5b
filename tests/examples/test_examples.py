"""Every example is run as its first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_port
from tests.kit.spark.session import need_java

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


def run(folder: str, *words: str, cwd: Path | None = None) -> str:
    """Run a command in the folder of an example, with this environment's programs on the path."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        words,
        cwd=cwd or EXAMPLES / folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_example_is_listed_and_tested() -> None:
    listed = re.findall(r"^\| \[(\w+)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(each.name for each in EXAMPLES.iterdir() if each.is_dir())
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in text for name in listed)


@pytest.mark.parametrize("folder", ["pytest_orders", "fastapi_orders"])
def test_examples_with_tests_pass(folder: str, tmp_path: Path) -> None:
    pytest_words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    printed = run(folder, *pytest_words, "--rootdir", str(EXAMPLES / folder), "-c", os.devnull)
    assert re.search(r"\d passed", printed)
    assert "failed" not in printed


def test_orders_that_are_not_paid_time_out(kafkawire_broker: BrokerProcess) -> None:
    printed = run("order_timeout", sys.executable, "order_timeout.py", kafkawire_broker.bootstrap)
    assert printed.splitlines() == ["order-1 not paid in time", "order-3 not paid in time"]


def test_records_come_back_from_the_bucket(tier_url: str) -> None:
    printed = run("s3_log", "sh", "s3_log.sh", tier_url, str(free_port()))
    assert printed.splitlines()[-1].split() == ["1000", "records", "after", "the", "restore"]


@pytest.mark.slow
def test_topic_becomes_a_table(kafkawire_broker: BrokerProcess, tmp_path: Path) -> None:
    need_java()
    text = (EXAMPLES / "spark_job" / "orders.toml").read_text(encoding="utf-8")
    job = tmp_path / "orders.toml"
    job.write_text(text.replace("127.0.0.1:9092", kafkawire_broker.bootstrap), encoding="utf-8")
    commands = re.findall(r"^#   (.+)$", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        here = f"export KAFKAWIRE_SERVER={kafkawire_broker.bootstrap}; {command}"
        run("spark_job", "sh", "-c", here, cwd=tmp_path)
    from deltalake import DeltaTable

    rows = DeltaTable(str(tmp_path / "lake" / "orders")).to_pyarrow_table().to_pylist()
    assert [(row["id"], row["customer"], row["amount"]) for row in rows] == [(1, "anna", 4.5)]
