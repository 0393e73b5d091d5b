"""`kafkawire console` as a process: it serves pages and a stream, and ends by a signal.

Covers: kafkawire.cli.console.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from urllib.error import HTTPError

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.cli.console import parse_listen
from kafkawire.testing import InProcessBroker, broker, create_topic


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "localhost", "[::1]"])
def test_loopback_addresses_are_listened_on(host: str) -> None:
    assert parse_listen("--listen", f"{host}:8080") == (host.strip("[]"), 8080)


def test_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(app, ["console", "--listen", address])
    assert result.exit_code == 1
    assert result.stderr == (
        f"kafkawire: --listen={address}: it cannot be listened on (Address already in use)\n"
    )


@pytest.mark.real
@pytest.mark.slow
def test_process_serves_until_it_is_ended() -> None:
    with broker() as running:
        create_topic(running.bootstrap, "orders")
        process = _start(running)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert "All well. 1 topic" in answer.read().decode()
            evil = urllib.request.Request(url, headers={"Host": "evil.example"})
            with pytest.raises(HTTPError, match="421"):
                urllib.request.urlopen(evil, timeout=60)
            with urllib.request.urlopen(f"{url}events/overview", timeout=60) as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                assert stream.readline().startswith(b'data: <p class="health')
                process.send_signal(signal.SIGINT)  # with an open stream
                process.wait(60)
            assert process.returncode in (0, 130, -signal.SIGINT)
        finally:
            process.kill()
            _, errors = process.communicate()
        assert "Traceback" not in errors


def _start(running: InProcessBroker) -> subprocess.Popen[str]:
    command = ["console", "--server", running.bootstrap, "--listen", "127.0.0.1:0"]
    return subprocess.Popen(
        [sys.executable, "-m", "kafkawire", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
