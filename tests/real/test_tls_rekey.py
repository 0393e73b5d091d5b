"""Changes of keys and renegotiations that a client requests, while other clients are served.

OpenSSL answers them by itself, into the BIO that all connections share.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from struct import pack
from typing import IO

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_ports
from tests.kit.tls import certificates, client_context
from tests.real.conftest import SETTINGS

ROUNDS = 20


def api_versions(correlation: int) -> bytes:
    return pack(">ihhih", 10, 18, 0, correlation, -1)


def read_until(stream: IO[bytes], wanted: bytes) -> None:
    """Read until this has been received."""
    found = b""
    while wanted not in found:
        ready, _, _ = select.select([stream], [], [], 60)
        assert ready, f"it sends nothing, expected {wanted!r}"
        more = os.read(stream.fileno(), 1 << 16)
        assert more, f"it ended before {wanted!r}: {found[-300:]!r}"
        found += more


def correlation_of(client: socket.socket) -> int:
    """Receive a response and return its correlation id."""
    data, left = b"", 8
    while left:
        data += client.recv(left)
        left = (int.from_bytes(data[:4]) + 4 if len(data) >= 4 else 8) - len(data)
    return int.from_bytes(data[4:8])


@contextmanager
def s_client(port: int, version: str) -> Iterator[subprocess.Popen[bytes]]:
    command = ["openssl", "s_client", "-connect", f"localhost:{port}", version,
               "-CAfile", f"{certificates()}/ca.pem"]  # fmt: skip
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, bufsize=0, **pipes) as client:  # type: ignore[call-overload]
        try:
            read_until(client.stdout, b"Verify return code")
            yield client
        finally:
            client.kill()


@pytest.fixture(name="port", scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (tls,) = free_ports(1)
    made = certificates()
    settings = {
        **SETTINGS,
        "ssl.keystore.location": made / "server.pem", "ssl.key.location": made / "server.key",
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("tls")
    with BrokerProcess(folder, settings=settings, listeners=[f"TLS://127.0.0.1:{tls}"]):
        yield tls


@pytest.fixture(name="other")
def connected(port: int) -> Iterator[socket.socket]:
    """Another client."""
    with (
        socket.create_connection(("localhost", port), 30) as plain,
        client_context().wrap_socket(plain, server_hostname="localhost") as other,
    ):
        yield other


def check(other: socket.socket) -> None:
    """Check that the other client is served."""
    for number in range(5):
        other.sendall(api_versions(number))
        assert correlation_of(other) == number


def test_other_clients_are_served_while_one_changes_its_keys(
    port: int, other: socket.socket
) -> None:
    with s_client(port, "-tls1_3") as client:
        stdin, stdout, stderr = client.stdin, client.stdout, client.stderr
        assert stdin
        assert stdout
        assert stderr
        for number in range(ROUNDS):
            stdin.write(b"K\n")
            read_until(stderr, b"KEYUPDATE")
            request = api_versions(1000 + number)
            stdin.write(request[:5])  # with the change of keys, and nothing to respond to
            check(other)
            stdin.write(request[5:])
            read_until(stdout, pack(">i", 1000 + number))


def test_renegotiation_is_refused_and_others_are_served(port: int, other: socket.socket) -> None:
    for _ in range(5):
        with s_client(port, "-tls1_2") as client:
            stdin, stderr = client.stdin, client.stderr
            assert stdin
            assert stderr
            stdin.write(b"R\n")
            read_until(stderr, b"no renegotiation")
            check(other)
