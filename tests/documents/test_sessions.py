"""The sessions of README.md and docs/getting-started.md are run as they are written, against
brokers of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.documents.pages import block, lines

pytestmark = pytest.mark.real
GETTING_STARTED = "docs/getting-started.md"


def _need_kcat() -> None:
    if shutil.which("kcat") is None:
        assert "CI" not in os.environ, "kcat is not installed, and CI must have it"
        pytest.skip("kcat is not installed")


def test_session_with_kcat(kafkawire_broker: BrokerProcess) -> None:
    _need_kcat()
    session = lines("README.md", "Try it in 60 seconds")
    assert session[0].command == "make run"
    assert len(session) == 5
    for line in session[1:]:
        here = line.command.replace("127.0.0.1:9092", kafkawire_broker.bootstrap)
        server = f"--server {kafkawire_broker.bootstrap}"
        here = re.sub(
            r"^\.venv/bin/kafkawire (.*)", rf"{sys.executable} -m kafkawire \1 {server}", here
        )
        done = subprocess.run(
            ["sh", "-c", here], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{line.command}\n{done.stderr}"
        if line.output:
            assert tuple(done.stdout.splitlines()) == line.output, line.command
        elif "describe" in line.command:
            assert re.search(r"greetings +0 +0 +3 +3 ", done.stdout), done.stdout


def test_session_with_kafka_python(kafkawire_broker: BrokerProcess) -> None:
    code = block(GETTING_STARTED, "A session with kafka-python", "python")
    code = code.replace("127.0.0.1:9092", kafkawire_broker.bootstrap)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["orders 0 0", "0 b'7' b'two coffees'"]


def _wait(until: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 90
    while not until():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def test_session_with_s3(tmp_path: Path, tier_url: str) -> None:
    """Produce, wait for objects, local files are deleted, consume from S3, restore into an empty
    folder."""
    _need_kcat()
    brokers: list[BrokerProcess] = []
    try:
        for line in lines(GETTING_STARTED, "Cold records in S3"):
            command, expected = line.command, list(line.output)
            words = command.replace("s3://kafkawire/cluster", tier_url).replace("new-data", "new")
            if words.startswith("kafkawire serve"):
                brokers.append(_serve(words, tmp_path))
                continue
            bootstrap = brokers[-1].bootstrap if brokers else ""
            words = re.sub(r"127\.0\.0\.1:909[23]", bootstrap, words)
            if "restore" in words and brokers[0].running:
                brokers[0].kill()
                shutil.rmtree(brokers[0].data)
            server = "" if "restore" in words else f" --server {bootstrap}"
            here = re.sub(r"^kafkawire (.*)", rf"{sys.executable} -m kafkawire \1{server}", words)
            done = _run(here, tmp_path)
            if expected:
                assert done.splitlines() == expected, command
            if command == "kafkawire tier status":
                _until_only_in_s3(brokers[0])
    finally:
        for broker in brokers:
            if broker.running:
                broker.stop()


def _serve(words: str, folder: Path) -> BrokerProcess:
    arguments = [word for word in words.split()[2:] if word not in ("--data", "new")]
    if "--listen" in arguments:
        at = arguments.index("--listen")
        del arguments[at : at + 2]
    data = folder / ("new" if " new" in words else "data")
    quick = {"log.segment.delete.delay.ms": "100", "cut.interval.ms": "100"}
    broker = BrokerProcess(data, settings=quick, arguments=arguments)
    broker.start()
    return broker


def _run(command: str, folder: Path) -> str:
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True, text=True, timeout=120, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _until_only_in_s3(broker: BrokerProcess) -> None:
    folder = broker.data / "brokers" / "1" / "segments"
    ask = f"{sys.executable} -m kafkawire tier status --json --server {broker.bootstrap}"

    def uploaded() -> bool:
        rows = json.loads(_run(ask, broker.data))["partitions"]
        return all(row["commit"] == 100_000 for row in rows if row["topic"] == "clicks")

    _wait(uploaded, "the records did not come into S3")
    _wait(lambda: not list(folder.glob("*.segment")), "the local files stayed")
