"""Misbehaving clients that a broker must withstand: they never read, send byte by byte, or stop
half-way.

Plain sockets, no threads, no loop: many fit into one test or trial.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from struct import pack
from typing import Any

from kafkawire.codec.compile import encode
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.registry import APIS

WITHIN_S = 60.0
SENT_AT_ONCE = 64 << 10


def frame_of(key: int, version: int, request: Any, correlation_id: int = 1) -> bytes:
    """A whole request on the wire."""
    flexible_from = APIS[key].flexible_from
    head = pack(">hhih", key, version, correlation_id, 7) + b"hostile"
    if flexible_from is not None and version >= flexible_from:
        head += b"\0"
    body = head + encode(request, version)
    return pack(">i", len(body)) + body


def fetch_of(topic: str, partitions: Sequence[int], max_bytes: int, offset: int = 0) -> bytes:
    """A Fetch of old records that asks each partition for as much as there is."""
    rows = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
        for index in partitions
    ]
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=rows)],
    )  # fmt: skip
    return frame_of(1, 11, request)


class Hostile:
    """One connection. `closed` says whether the broker has closed it."""

    def __init__(self, port: int, host: str = "127.0.0.1", receive_bytes: int = 0) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_bytes:  # the kernel buffers responses for a client that does not read them
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(WITHIN_S)
        self.socket.connect((host, port))

    @property
    def closed(self) -> bool:
        """Whether the broker has closed or reset the connection."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return any(
            events & (select.POLLRDHUP | select.POLLHUP | select.POLLERR)
            for _, events in poll.poll(0)
        )

    def close(self) -> None:
        """Close without reading: unread data makes the kernel reset the connection."""
        self.socket.close()


class NeverReader(Hostile):
    """Sends requests and never reads a response."""

    def __init__(self, port: int, frame: bytes, count: int, host: str = "127.0.0.1") -> None:
        super().__init__(port, host, receive_bytes=4096)
        self.socket.sendall(frame * count)


class SlowSender(Hostile):
    """Announces a Produce of `size` bytes, sends `sent` of them, then as many as each `push` asks
    for."""

    def __init__(self, port: int, size: int, sent: int, host: str = "127.0.0.1") -> None:
        super().__init__(port, host)
        self.left = size
        self.socket.sendall(pack(">ihhih", size, 0, 9, 1, 7) + b"hostile\0")
        self.socket.setblocking(False)
        self.push(sent)

    def push(self, count: int) -> int:
        """Send up to `count` bytes more; return the number the kernel accepted."""
        done = 0
        while done < count:
            try:
                took = self.socket.send(bytes(min(count - done, SENT_AT_ONCE, self.left)))
            except (BlockingIOError, ConnectionError):
                break
            done += took
            self.left -= took
        return done


class HalfOpen(Hostile):
    """Connects and sends nothing, or the beginning of a request's header."""

    def __init__(self, port: int, sent: bytes = b"", host: str = "127.0.0.1") -> None:
        super().__init__(port, host)
        self.socket.sendall(sent)


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is not backed by a file: the memory a broker holds for its
    clients."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon in /proc")
