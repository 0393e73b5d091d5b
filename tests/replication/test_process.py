"""The follower process: start, end, and what it has acknowledged before it is killed.

Covers: kafkawire.replication.main, kafkawire.replication.options.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.childprocess.frames import pack, read_frame, write_frame
from kafkawire.replication.messages import (
    AckMessage,
    BytesMessage,
    FencedMessage,
    FenceMessage,
    MarkMessage,
    Message,
    Purpose,
)
from kafkawire.replication.options import FollowerOptions, FollowerReady
from tests.kit.waiting import WITHIN_S
from tests.replication.client import Client
from tests.replication.model import ModelLog, at

MODULE = "kafkawire.replication.main"


class Process:
    """A follower process, as its supervisor starts it."""

    def __init__(self, folder: Path, listener: socket.socket, log_format: str = "text") -> None:
        command = (sys.executable, "-P", "-m", MODULE, str(os.getpid()))
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=(listener.fileno(),)
        )
        self.port = int(listener.getsockname()[1])
        self.options = FollowerOptions(
            str(folder), (listener.fileno(),), "c", False, "info", log_format
        )

    def start(self) -> FollowerReady:
        """Send the options; return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        write_frame(self.process.stdin.fileno(), *pack(self.options))
        frame = read_frame(self.process.stdout.fileno())
        assert frame is not None, self.ended()
        ready = pickle.loads(frame)
        assert isinstance(ready, FollowerReady)
        return ready

    def ended(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was printed on standard error."""
        _, errors = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, errors.decode()

    def kill(self) -> None:
        self.process.kill()
        self.ended()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        yield bound


@pytest.mark.real
def test_process_serves_until_its_input_ends(tmp_path: Path, listener: socket.socket) -> None:
    process = Process(tmp_path / "f", listener)
    ready = process.start()
    with Client(process.port) as client:
        challenge = client.hello(ready.key, Purpose.READ, 4)
        assert challenge.replica_id == ready.replica_id
        client.send(FenceMessage())
        assert client.expect(FencedMessage).epoch == 4
    code, errors = process.ended()  # this closes its input
    assert code == 0
    lines = errors.splitlines()
    assert f"serves copies in {tmp_path}/f as replica {ready.replica_id.hex()}" in lines[0]
    assert "INFO    [follower] kafkawire.replication.main: serves" in lines[0]
    assert any("processes of broker 3 with epochs below 4 are fenced" in line for line in lines)


@pytest.mark.real
def test_signals_of_the_process(tmp_path: Path, listener: socket.socket) -> None:
    """SIGTERM ends it; Ctrl-C in the terminal is for the supervisor."""
    process = Process(tmp_path / "f", listener, "json")
    process.start()
    process.process.send_signal(signal.SIGINT)
    process.process.send_signal(signal.SIGHUP)
    with Client(process.port) as client:
        assert client.receive() is not None
    process.process.send_signal(signal.SIGTERM)
    code, errors = process.ended()
    assert code == 0
    assert json.loads(errors.splitlines()[0])["node"] == "follower"


@pytest.mark.real
def test_folder_that_cannot_be_used_is_a_sentence(tmp_path: Path, listener: socket.socket) -> None:
    first = Process(tmp_path / "f", listener)
    first.start()
    second = Process(tmp_path / "f", listener)
    with pytest.raises(AssertionError) as failure:
        second.start()
    assert second.process.returncode == 1
    assert "is used by another process: a folder belongs to one follower" in str(failure.value)
    first.kill()


@pytest.mark.real
def test_process_without_options_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        assert Process(Path("unused"), bound).ended() == (0, "")


def burst(log: ModelLog, rng: random.Random) -> list[Message]:
    """Append to a log, and return the messages with that."""
    end = log.end
    if rng.random() < 0.3:
        log.roll()
        end = log.end
    log.append(rng.choice((1, 100, 5000, 40_000)))
    pieces = log.pieces(end, rng.choice((700, 3000, 1 << 20)))
    return [*(BytesMessage(*each) for each in pieces), MarkMessage(0, log.first)]


def write_until_killed(process: Process, key: bytes, log: ModelLog, rng: random.Random) -> int:
    """Stream a log and kill the follower meanwhile; return the last acknowledged position."""
    acked = 0
    with Client(process.port) as client:
        client.hello(key, Purpose.WRITE, log.epoch)
        end = client.begin(log.first)
        assert end <= log.end
        client.send(*(BytesMessage(*piece) for piece in log.pieces(end, 3000)), MarkMessage(0, 0))
        client.acknowledged(log.end)
        for _ in range(rng.randrange(10)):
            client.send(*burst(log, rng))
            acked = client.expect(AckMessage).end
        for _ in range(10):
            client.send(*burst(log, rng))
        threading.Event().wait(rng.random() * 0.01)  # any moment will do
        process.process.kill()
        with contextlib.suppress(ConnectionError):
            while (message := client.receive()) is not None:
                assert isinstance(message, AckMessage)
                acked = max(acked, message.end)
    process.ended()
    return acked


@pytest.mark.real
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_process_has_what_it_acknowledged(
    tmp_path: Path, listener: socket.socket, seed: int
) -> None:
    rng = random.Random(seed)
    log, acked = ModelLog(1, rng, 5), at(5, 0)
    log.append(10)
    for _ in range(4):
        process = Process(tmp_path / "f", listener)
        ready = process.start()
        acked = max(acked, write_until_killed(process, ready.key, log, rng))
        process = Process(tmp_path / "f", listener)
        assert process.start() == ready
        with Client(process.port) as client:
            client.hello(ready.key, Purpose.READ, 1)
            found = client.copied(1)
        process.kill()
        for number, data in log.journals.items():
            size = min(len(data), max(0, acked - at(number, 0)))
            assert found.get(number, b"")[:size] == data[:size]
