"""`kafkawire dev` as a process: broker, console, topics with live records, and a clean end.

Covers: kafkawire.cli.dev.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kafkawire.cli.dev import CUSTOMERS, GROUP, ORDERS, SampleTraffic, hints
from kafkawire.codec.batches import records
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture, by name)
from tests.kit.waiting import wait_until


def _start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kafkawire", "dev", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _lines(process: subprocess.Popen[str], end: str) -> str:
    """Return the lines that it prints, up to one with this text."""
    assert process.stdout is not None
    found = ""
    for line in process.stdout:
        found += line
        if end in line:
            return found
    raise AssertionError(process.communicate()[1])


@pytest.mark.real
@pytest.mark.slow
def test_broker_console_and_traffic_until_it_is_stopped() -> None:
    process = _start("--listen", "127.0.0.1:0", "--console", "127.0.0.1:0")
    try:
        text = _lines(process, "groups why")
        address, data = re.findall(r"listens on PLAINTEXT://(\S+); data in (\S+);", text)[0]
        (url,) = re.findall(r"console: (http://\S+)", text)
        assert Path(data).is_dir()
        assert hints(address) in text

        def reads() -> bool:
            typed = Typed(address, "groups", "lag", GROUP, "--json")
            if typed.code:  # it has committed nothing yet
                return False
            (row,) = typed.json
            return bool(row["state"] == "Stable" and row["members"] == 1 and row["lag"] > 0)

        wait_until(reads, "a group that reads with a lag")
        for line in hints(address).splitlines()[1:]:
            command = line.split()[1:-2]  # without the program and the address
            assert Typed(address, *command).code == 0, command
        with urllib.request.urlopen(url, timeout=60) as answer:
            page = answer.read().decode()
        assert "records/s in, " in page
        assert "health broken" not in page
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
        assert not Path(data).exists()
    finally:
        process.kill()
        process.communicate()


def test_address_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for words, option in (
            (("--listen", address, "--console", "127.0.0.1:0"), "listen"),
            (("--listen", "127.0.0.1:0", "--console", address), "console"),
        ):
            process = _start(*words, "--data", str(tmp_path / option))
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 2
            assert errors == f"kafkawire: {option}={address}: another process listens there\n"


def test_records_are_of_the_sample_topics() -> None:
    traffic = SampleTraffic("127.0.0.1:1")
    (topic, partition), batch = traffic.order()
    (record,) = records(batch, 0)
    order = json.loads(record.value or b"")
    assert topic == ORDERS
    assert partition in range(3)
    assert order["order"] == 1
    assert str(order["customer"]).encode() == record.key
    (topic, _), batch = traffic.customer()
    assert topic == CUSTOMERS
    assert set(json.loads(next(iter(records(batch, 0))).value or b"")) == {"name", "points"}
