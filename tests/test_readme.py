"""The sessions in README.md are run as they stand there, against a broker of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kafkawire.testing.broker import BrokerProcess

pytestmark = pytest.mark.real
TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def _section(title: str, language: str) -> str:
    found = re.search(rf"^## {title}\n.*?```{language}\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None, f"README has no {language} under {title}"
    return found[1]


def test_the_session_with_kcat(kafkawire_broker: BrokerProcess) -> None:
    if shutil.which("kcat") is None:
        assert "CI" not in os.environ, "kcat is not installed, and CI must have it"
        pytest.skip("kcat is not installed")
    commands: list[tuple[str, list[str]]] = []
    for line in _section("A session with kcat", "console").splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    assert len(commands) == 4
    for command, expected in commands:
        here = command.replace("127.0.0.1:9092", kafkawire_broker.bootstrap)
        server = f"--server {kafkawire_broker.bootstrap}"
        here = re.sub(
            r"^\.venv/bin/kafkawire (.*)", rf"{sys.executable} -m kafkawire \1 {server}", here
        )
        done = subprocess.run(
            ["sh", "-c", here], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if expected:
            assert done.stdout.splitlines() == expected, command
        elif "describe" in command:
            assert re.search(r"greetings +0 +3 +3 +0 ", done.stdout), done.stdout


def test_the_session_with_kafka_python(kafkawire_broker: BrokerProcess) -> None:
    code = _section("A session with kafka-python", "python")
    code = code.replace("127.0.0.1:9092", kafkawire_broker.bootstrap)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["orders 0 0", "0 b'7' b'two coffees'"]
