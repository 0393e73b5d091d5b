"""The sessions of docs/getting-started.md and docs/security.md are run as they are written, by
brokers of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.documents.pages import block, lines, sections
from tests.kit.ports import free_port

pytestmark = pytest.mark.real
GETTING_STARTED = "docs/getting-started.md"


def _need_kcat() -> None:
    if shutil.which("kcat") is None:
        assert "CI" not in os.environ, "kcat is not installed, and CI must have it"
        pytest.skip("kcat is not installed")


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
            done = _run(words, tmp_path, server=bootstrap)
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


def _environ(**more: str) -> dict[str, str]:
    """An environment in which `kafkawire` is the one under test."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": path} | more


def _run(command: str, folder: Path, server: str = "") -> str:
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True, text=True, timeout=120, check=False, cwd=folder,
        env=_environ(KAFKAWIRE_SERVER=server),
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _until_only_in_s3(broker: BrokerProcess) -> None:
    folder = broker.data / "brokers" / "1" / "segments"

    def uploaded() -> bool:
        shown = _run("kafkawire tier status --json", broker.data, broker.bootstrap)
        rows = json.loads(shown)["partitions"]
        return all(row["commit"] == 100_000 for row in rows if row["topic"] == "clicks")

    _wait(uploaded, "the records did not come into S3")
    _wait(lambda: not list(folder.glob("*.segment")), "the local files stayed")


@contextmanager
def _serving(command: str, folder: Path) -> Iterator[None]:
    """Run a line `kafkawire serve ...` from its first line of output on."""
    words = ["sh", "-c", f"exec {command}"]
    with subprocess.Popen(
        words, cwd=folder, env=_environ(), stdout=subprocess.PIPE, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            assert "listens on" in broker.stdout.readline(), command
            yield
        finally:
            broker.terminate()


def test_ten_minutes_of_security(tmp_path: Path) -> None:
    """Certificates, a broker with TLS, and one that authenticates clients by them."""
    _need_kcat()
    text = "\n".join(
        re.findall(r"```sh\n(.*?)```", sections("docs/security.md")["Ten minutes"], re.DOTALL)
    )
    text = text.replace("\\\n", "").replace("broker.example.org", "localhost")
    for port in ("9092", "9094"):
        text = text.replace(f":{port}", f":{free_port()}")
    before, *parts = re.split(r"^(kafkawire serve .*)\n", text, flags=re.MULTILINE)
    assert len(parts) == 4
    _run(before, tmp_path)
    for command, commands in zip(parts[::2], parts[1::2], strict=True):
        with _serving(command, tmp_path):
            printed = _run(commands, tmp_path)
            assert "created:" in printed if "mutual" in commands else "1 brokers:" in printed
