"""A process that runs out of file descriptors continues to serve its clients, and reports it."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from struct import pack
from unittest.mock import MagicMock

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.metric_counters import Counts
from kafkawire.server import descriptors
from kafkawire.server.descriptors import DescriptorCheck, for_connections
from kafkawire.server.host import TICKS_BETWEEN_REPORTS, Host
from kafkawire.server.slow import Sweeper

API_VERSIONS = pack(">ihhih1s", 11, 18, 0, 1, 1, b"x")


def test_descriptors_are_reserved_for_files() -> None:
    assert for_connections(20_000) == 20_000 - descriptors.RESERVED_FOR_FILES
    assert for_connections(100) == 50


def test_descriptor_shortage_and_its_end_are_reported_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check = DescriptorCheck(100)

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        for second in range(125):
            check.check(1000.0 + second)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    assert "the limit is 100" in caplog.text
    caplog.clear()
    check.check(1200.0)
    check.check(1201.0)
    assert [record.getMessage() for record in caplog.records] == [
        "file descriptors are available again"
    ]


async def test_refused_connections_are_reported_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = MagicMock(config=BrokerConfig({"max.connections": "100"}), counts=Counts())
    host = Host(broker, 3)
    monkeypatch.setattr(Sweeper, "make_room", lambda _: False)  # all are in use
    for one in range(3):
        assert host.admit()
        host.connections.add(one)  # type: ignore[arg-type]
    for _ in range(10):
        assert not host.admit()
    host.tick += TICKS_BETWEEN_REPORTS
    assert not host.admit()
    assert [record.getMessage() for record in caplog.records] == [
        "3 connections are open, the most that the file descriptor limit allows: closed 1 new "
        "connection; raise the limit (ulimit -n)",
        "3 connections are open, the most that the file descriptor limit allows: closed 10 new "
        "connections; raise the limit (ulimit -n)",
    ]
    assert host.counts.connections_refused == 11


def answered(client: socket.socket) -> bool:
    try:
        client.sendall(API_VERSIONS)
        return bool(client.recv(65536))
    except OSError:
        return False


@pytest.mark.slow
def test_connections_beyond_descriptor_limit_are_closed(tmp_path: Path) -> None:
    """Half of 128 descriptors are for files: 64 clients are served, others are closed and that is
    logged, and when some leave others are taken."""
    log = tmp_path / "log"
    with log.open("wb") as err:
        broker = subprocess.Popen(
            [sys.executable, "-P", "-m", "kafkawire", "serve", "--listen=127.0.0.1:0",
             f"--data={tmp_path / 'data'}"],
            stdout=subprocess.PIPE, stderr=err,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)),
        )  # fmt: skip
    clients = []
    try:
        assert broker.stdout is not None
        line = broker.stdout.readline().decode()
        port = int(line.split("listens on PLAINTEXT://127.0.0.1:")[1].split(";")[0])
        address = "127.0.0.1", port
        clients = [socket.create_connection(address, timeout=90) for _ in range(100)]
        served = [client for client in clients if answered(client)]
        assert len(served) == 64
        assert "the most that the file descriptor limit allows" in log.read_text()
        for client in served[:10]:
            client.close()
        for _ in range(100):  # until the broker has seen them leave
            late = socket.create_connection(address, timeout=90)
            clients.append(late)
            if answered(late):
                break
        else:
            pytest.fail("nobody was served after ten had left")
        assert all(answered(client) for client in served[10:])
    finally:
        for client in clients:
            client.close()
        broker.terminate()
        broker.wait(timeout=90)
        if broker.stdout is not None:
            broker.stdout.close()
