"""`kafkawire console` as a process: it serves pages and a stream, and ends by a signal.

Covers: kafkawire.cli.console.
"""

from __future__ import annotations

import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import httpx2
import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.cli.console import parse_listen
from kafkawire.testing import InProcessBroker, broker, create_topic
from tests.kit.waiting import wait_until


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


@pytest.mark.real
@pytest.mark.slow
def test_second_interrupt_is_no_error() -> None:
    with broker() as running:
        process = _start(running)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            address = ("127.0.0.1", urlsplit(url).port or 0)
            with urllib.request.urlopen(f"{url}events/overview", timeout=60) as stream:
                assert stream.readline()
                process.send_signal(signal.SIGINT)
                wait_until(lambda: not _is_listened_on(address), "the end of the listener")
                process.send_signal(signal.SIGINT)  # while the stream ends
                process.wait(60)
        finally:
            process.kill()
            _, errors = process.communicate()
        assert errors == ""


@pytest.mark.real
@pytest.mark.slow
def test_users_log_in_over_tls_and_changes_are_logged(tmp_path: Path) -> None:
    """On all interfaces, as `--listen 0.0.0.0:0`; a forged address of the client is ignored."""
    certificates = tmp_path / "certs"
    made = CliRunner().invoke(app, ["certs", "make", str(certificates), "--host", "127.0.0.1"])
    assert made.exit_code == 0, made.output
    certificate, key = certificates / "server.pem", certificates / "server.key"
    words = ("--login", "--allow-changes", "--host", "127.0.0.1",
             "--tls-cert", str(certificate), "--tls-key", str(key))  # fmt: skip
    with broker(users={"ann": "secret"}) as running:
        process = _start(running, *words, server=running.addresses["SECURED"], listen="0.0.0.0:0")
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip().rstrip("/")
            assert url.startswith("https://127.0.0.1:")
            trusted = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
            forged = {"origin": url, "x-forwarded-for": "10.1.1.1", "x-forwarded-proto": "http"}
            with httpx2.Client(base_url=url, verify=trusted, headers=forged) as browser:
                answer = browser.post("/login", data={"user": "ann", "password": "secret"})
                assert answer.status_code == 303
                page = browser.get("/change/create-topic").text
                (token,) = set(re.findall(r'name="csrf" value="(\w+)"', page))
                form = {"csrf": token, "topic": "made", "partitions": "1"}
                page = browser.post("/change/create-topic", data=form).text
                (plan,) = re.findall(r'name="plan" value="([^"]+)"', page)
                answer = browser.post("/apply", data={"csrf": token, "plan": plan})
                assert "Topic made was created." in answer.text
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert "ann logged in from 127.0.0.1" in errors
        assert '"user": "ann", "address": "127.0.0.1", "action": "create-topic"' in errors
        assert "secret" not in errors
        assert "Traceback" not in errors


@pytest.mark.parametrize("wrong", ["certificate", "key"])
def test_files_that_are_no_certificate_are_refused(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "file.pem"
    path.write_text("-----BEGIN NOTHING-----\n" if wrong == "key" else "")
    result = CliRunner().invoke(app, ["console", "--login", "--tls-cert", str(path)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"kafkawire: --tls-cert={path}: it must be a certificate")
    assert result.stderr.count("\n") == 1


def _start(
    running: InProcessBroker, *words: str, server: str = "", listen: str = "127.0.0.1:0"
) -> subprocess.Popen[str]:
    command = ["console", "--server", server or running.bootstrap, "--listen", listen, *words]
    return subprocess.Popen(
        [sys.executable, "-m", "kafkawire", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _is_listened_on(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address).close()
    except ConnectionRefusedError:
        return False
    return True
