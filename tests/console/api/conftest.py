"""A console process that allows changes, on a broker in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kafkawire.testing import InProcessBroker, broker, create_topic

PARTITIONS = 3


@contextmanager
def console(server: str, *options: str) -> Iterator[str]:
    """Run a console during a `with` statement; return its URL, without a slash at its end."""
    command = [sys.executable, "-m", "kafkawire", "console", "--server", server,
               "--listen", "127.0.0.1:0", *options]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().rstrip("/")
        finally:
            process.terminate()


def curl(url: str, *arguments: str, data: Any = None, status: int = 200) -> Any:
    """Return the JSON that curl receives; `data`: JSON to send. Check the status."""
    more = [] if data is None else ["-H", "Content-Type: application/json", "--data", "@-"]
    ran = subprocess.run(
        ["curl", "-sS", "--max-time", "60", "-w", "\n%{http_code}", *more, *arguments, url],
        input=None if data is None else json.dumps(data).encode(),
        capture_output=True,
        check=True,
        timeout=90,
    )
    text, _, code = ran.stdout.decode().rpartition("\n")
    assert int(code) == status, text
    return json.loads(text) if text else None


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessBroker]:
    """A broker with an empty topic for each test that names one."""
    with broker() as started:
        yield started


@pytest.fixture(scope="module")
def url(running: InProcessBroker) -> Iterator[str]:
    """The URL of a console that allows changes."""
    with console(running.bootstrap, "--allow-changes") as found:
        yield found


@pytest.fixture
def topic(running: InProcessBroker, request: pytest.FixtureRequest) -> str:
    """A new topic with PARTITIONS partitions."""
    name = str(request.node.name).replace("[", "-").replace("]", "")[:200]
    create_topic(running.bootstrap, name, partitions=PARTITIONS)
    return name


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder for a broker that is started again."""
    return tmp_path / "kept"
