"""Peers that never read, and how many streams are open at the same time.

Covers: kafkawire.console.web.connections.
"""

from __future__ import annotations

import socket as sockets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest
from websockets.sync.client import connect

from kafkawire.console.web.connections import MAX_HEAD_BYTES
from kafkawire.console.web.live import MAX_STREAMS_OF_CLIENT
from kafkawire.testing import InProcessBroker, TopicProducer
from tests.console.api.conftest import curl
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.slow]
VALUE, VALUES = b"x" * 500_000, 20
MAX_GROWTH = 200 << 20
"""Bytes: the streams together read 240 MB."""


@contextmanager
def deaf_peer(url: str, topic: str, upgrade: bool) -> Iterator[sockets.socket]:
    """A client that asks for a stream of all records, and reads its first bytes only."""
    at = urlsplit(url)
    assert at.port is not None
    kind = "socket" if upgrade else "events"
    head = [f"GET /api/topics/{topic}/{kind}?where=oldest HTTP/1.1", f"Host: {at.netloc}"]
    if upgrade:
        head += ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
                 "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]  # fmt: skip
    with sockets.socket() as raw:
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        raw.settimeout(120)
        raw.connect(("127.0.0.1", at.port))
        raw.sendall("\r\n".join([*head, "", ""]).encode())
        assert raw.recv(12) in (b"HTTP/1.1 101", b"HTTP/1.1 200")
        yield raw


def console_process(url: str) -> psutil.Process:
    port = urlsplit(url).port
    for child in psutil.Process().children(recursive=True):
        if any(each.laddr.port == port for each in child.net_connections(kind="tcp")):
            return child
    raise AssertionError("no process listens")


@pytest.mark.parametrize("upgrade", [True, False], ids=["socket", "events"])
def test_peers_that_never_read_are_closed(
    running: InProcessBroker, url: str, topic: str, upgrade: bool
) -> None:
    producer = TopicProducer(running.bootstrap)
    for _ in range(VALUES):
        producer.send(topic, VALUE, partition=0)
    process = console_process(url)
    before = process.memory_info().rss
    with ExitStack() as stack:
        peers = [
            stack.enter_context(deaf_peer(url, topic, upgrade))
            for _ in range(MAX_STREAMS_OF_CLIENT)
        ]
        path = f"{url}/api/topics/{topic}/events"
        assert "Too many streams" in curl(path, status=503)["error"]

        def is_free() -> bool:
            assert process.memory_info().rss - before < MAX_GROWTH
            with httpx2.stream("GET", path, timeout=60) as answer:
                return answer.status_code == 200

        wait_until(is_free, "room for a stream")
        assert read_rest(peers[0]) < len(VALUE) * VALUES
    address = f"ws{url.removeprefix('http')}/api/topics/{topic}/socket"
    with connect(address, proxy=None):
        pass


def read_rest(peer: sockets.socket) -> int:
    """Return how many bytes a connection has until its end."""
    total = 0
    try:
        while found := peer.recv(1 << 16):
            total += len(found)
    except ConnectionResetError:
        pass
    return total


def test_streams_that_are_closed_are_counted_no_more(url: str, topic: str) -> None:
    path = f"{url}/api/topics/{topic}/events"
    for _ in range(3):
        with ExitStack() as stack:
            for _ in range(MAX_STREAMS_OF_CLIENT):
                answer = stack.enter_context(httpx2.stream("GET", path, timeout=60))
                assert answer.status_code == 200
            curl(path, status=503)

        def is_free() -> bool:
            with httpx2.stream("GET", path, timeout=60) as answer:
                return answer.status_code == 200

        wait_until(is_free, "room for a stream")


@pytest.mark.parametrize("part", [b"x: y\r\n", b"x"], ids=["many headers", "one long header"])
def test_headers_without_end_are_refused(url: str, part: bytes) -> None:
    """The server parses them as they come, and holds a bound of them in memory."""
    at = urlsplit(url)
    with sockets.create_connection((at.hostname or "", at.port or 0), 60) as client:
        client.sendall(b"GET /api/topics HTTP/1.1\r\nHost: %s\r\nx: " % at.netloc.encode())
        with suppress(ConnectionError):
            for _ in range(4 * MAX_HEAD_BYTES // 1024):
                client.sendall(part * (1024 // len(part)))
            # It has closed the connection, perhaps before all was sent.
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
    assert curl(f"{url}/api/topics") is not None


def test_requests_of_one_connection_have_a_bound_each(url: str) -> None:
    at = urlsplit(url)
    filler = b"x: " + b"y" * (MAX_HEAD_BYTES // 4) + b"\r\n"
    request = b"GET /api/topics HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (at.netloc.encode(), filler)
    with sockets.create_connection((at.hostname or "", at.port or 0), 60) as client:
        for _ in range(8):
            client.sendall(request[: len(request) // 2])
            client.sendall(request[len(request) // 2 :])
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200 ")
