"""`kafkawire serve --console`: a console that starts and ends with the broker.

Covers: kafkawire.server.console_process.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from kafkawire.testing import BrokerProcess
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.slow]


def _url(broker: BrokerProcess, starts: int = 1) -> str:
    def found() -> list[str]:
        pattern = r"^kafkawire console: (http://127\.0\.0\.1:\d+/)$"
        return re.findall(pattern, broker.output, re.M)[starts - 1 :]

    return wait_until(found, "its address")[0]


def _console(broker: BrokerProcess) -> psutil.Process:
    (found,) = (
        each for each in psutil.Process(broker.pid).children(True) if "console" in each.cmdline()
    )
    return found


def _is_well(url: str) -> bool:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return "All well." in answer.read().decode()


@pytest.mark.parametrize("workers", [1, 2])
def test_console_starts_again_and_ends_with_the_broker(tmp_path: Path, workers: int) -> None:
    arguments = ["--console", "127.0.0.1:0", "--set", "disk.warn.percent=100"]
    with BrokerProcess(tmp_path / "data", arguments=arguments, workers=workers) as broker:
        url = _url(broker)
        assert _is_well(url)
        first = _console(broker)
        first.kill()
        wait_until(lambda: "it is started again now" in broker.output, "its report")
        assert _is_well(url), "its address stays the same"
        second = _console(broker)
        assert second.pid != first.pid
        broker.kill()
        wait_until(lambda: not second.is_running(), "its end")
        broker.start()
        assert _is_well(_url(broker, 2))
        third = _console(broker)
        broker.stop()
        assert not third.is_running()


def test_console_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for console, listen, sentence in (
            (address, "127.0.0.1:0", f"console={address}: another process listens there"),
            ("127.0.0.1:0", "SASL_PLAINTEXT://127.0.0.1:0", "kafkawire --command-config FILE con"),
            ("0.0.0.0:8080", "127.0.0.1:0", "HOST:PORT of the loopback interface"),
        ):
            words = ["serve", "--data", str(tmp_path), "--listen", listen, "--console", console]
            result = subprocess.run(
                [sys.executable, "-m", "kafkawire", *words], capture_output=True, text=True
            )
            assert result.returncode == 2
            assert sentence in result.stderr
            assert len(result.stderr.splitlines()) == 1
