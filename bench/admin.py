"""A few admin calls over a blocking socket: create and delete topics, ask for API versions.

Not a client library: fixed, non-flexible API versions that every broker measured here serves, and
nothing of kafkawire's own codec, so that a fault in the codec cannot hide itself. Called by the
runner.
"""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, METADATA, API_VERSIONS = 19, 20, 37, 3, 18
LIST_OFFSETS = 2
ALTER_CLIENT_QUOTAS = 49
UNKNOWN_TOPIC = 3
LEADER_NOT_AVAILABLE = 5
TOPIC_ALREADY_EXISTS = 36
# Kafka's controller refuses more than 10,000 records in one change.
PARTITIONS_AT_ONCE = 5000
ANSWER_MAX_BYTES = 64 << 20  # metadata of 10,000 partitions is under 1 MB


class AdminError(Exception):
    """The broker answered with an error, or did not answer."""


def text(value: str | None) -> bytes:
    """A nullable string of the non-flexible encoding."""
    if value is None:
        return struct.pack(">h", -1)
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


class Reader:
    """Fields of one response, in order; struct.error where it ends too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0

    def fields(self, layout: str) -> tuple[int, ...]:
        """Big-endian integers by struct letters."""
        form = struct.Struct(">" + layout)
        values: tuple[int, ...] = form.unpack_from(self.data, self.pos)
        self.pos += form.size
        return values

    def one(self, layout: str) -> int:
        """A single integer."""
        return self.fields(layout)[0]

    def text(self) -> str | None:
        """A nullable string."""
        size = self.one("h")
        if size < 0:
            return None
        raw = self.data[self.pos : self.pos + size]
        self.pos += size
        return raw.decode()


class Admin:
    """One connection; use as a context manager."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout_s: float = 60.0) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout_s)
        self.next_id = 0

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def call(self, key: int, version: int, body: bytes) -> Reader:
        """Send one request; return its response after the correlation id."""
        self.next_id += 1
        head = struct.pack(">hhi", key, version, self.next_id) + text("bench-admin")
        self.socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        size = struct.unpack(">i", self._exactly(4))[0]
        if not 4 <= size <= ANSWER_MAX_BYTES:
            raise AdminError(f"an answer of {size} bytes")
        reader = Reader(self._exactly(size))
        if reader.one("i") != self.next_id:
            raise AdminError("an answer to another request")
        return reader

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise AdminError("the broker closed the connection")
            parts += part
        return bytes(parts)

    def versions(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest version of each API."""
        reader = self.call(API_VERSIONS, 0, b"")
        if reader.one("h"):
            raise AdminError("ApiVersions was refused")
        rows = [reader.fields("hhh") for _ in range(reader.one("i"))]
        return {key: (low, high) for key, low, high in rows}

    def create_topic(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> None:
        """Create a topic (CreateTopics v4) and return once every partition has a leader.

        Above PARTITIONS_AT_ONCE the number of partitions must be a multiple of it.
        """
        pairs = (configs or {}).items()
        first = min(partitions, PARTITIONS_AT_ONCE)
        body = struct.pack(">i", 1) + text(name) + struct.pack(">ihi", first, 1, 0)
        body += struct.pack(">i", len(pairs)) + b"".join(text(k) + text(v) for k, v in pairs)
        reader = self.call(CREATE_TOPICS, 4, body + struct.pack(">ib", 30_000, 0))
        reader.fields("ii")
        reader.text()
        code, message = reader.one("h"), reader.text()
        if code not in (0, TOPIC_ALREADY_EXISTS):
            raise AdminError(f"CreateTopics {name}: error {code} {message or ''}")
        self._until(name, first)
        for total in range(first + PARTITIONS_AT_ONCE, partitions + 1, PARTITIONS_AT_ONCE):
            self._grow(name, total)

    def _grow(self, name: str, total: int) -> None:
        """Add partitions (CreatePartitions v1)."""
        body = struct.pack(">i", 1) + text(name) + struct.pack(">ii", total, -1)
        reader = self.call(CREATE_PARTITIONS, 1, body + struct.pack(">ib", 30_000, 0))
        reader.fields("ii")
        reader.text()
        code, message = reader.one("h"), reader.text()
        if code:
            raise AdminError(f"CreatePartitions {name}: error {code} {message or ''}")
        self._until(name, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic (DeleteTopics v3); a missing one is not an error."""
        body = struct.pack(">i", 1) + text(name) + struct.pack(">i", 30_000)
        reader = self.call(DELETE_TOPICS, 3, body)
        reader.fields("ii")
        reader.text()
        code = reader.one("h")
        if code not in (0, UNKNOWN_TOPIC):
            raise AdminError(f"DeleteTopics {name}: error {code}")

    def set_quotas(self, client_id: str, quotas: dict[str, float]) -> None:
        """Set quotas of a client id (AlterClientQuotas v0)."""
        body = struct.pack(">ii", 1, 1) + text("client-id") + text(client_id)
        body += struct.pack(">i", len(quotas))
        for key, value in quotas.items():
            body += text(key) + struct.pack(">d?", value, False)
        reader = self.call(ALTER_CLIENT_QUOTAS, 0, body + b"\0")
        reader.fields("ii")
        code, message = reader.one("h"), reader.text()
        if code:
            raise AdminError(f"AlterClientQuotas of {client_id}: error {code} {message or ''}")

    def end_offset(self, name: str, partition: int = 0) -> int:
        """The offset of the next record of a partition (ListOffsets v1)."""
        body = struct.pack(">ii", -1, 1) + text(name) + struct.pack(">iiq", 1, partition, -1)
        reader = self.call(LIST_OFFSETS, 1, body)
        reader.one("i"), reader.text(), reader.one("i")
        _, code, _, offset = reader.fields("ihqq")
        if code:
            raise AdminError(f"ListOffsets of {name}: error {code}")
        return offset

    def leaders(self, name: str) -> list[int]:
        """The leader of each partition by Metadata v5; -1 where there is none yet."""
        reader = self.call(METADATA, 5, struct.pack(">i", 1) + text(name) + b"\0")
        reader.one("i")
        for _ in range(reader.one("i")):
            reader.one("i"), reader.text(), reader.one("i"), reader.text()
        reader.text(), reader.one("i")
        found: list[int] = []
        for _ in range(reader.one("i")):
            code = reader.one("h")
            reader.text(), reader.one("b")
            if code not in (0, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE):
                raise AdminError(f"Metadata of {name}: error {code}")
            for _ in range(reader.one("i")):
                failed, _, leader = reader.fields("hii")
                for _ in range(3):  # replicas, in sync, offline
                    reader.fields("i" * reader.one("i"))
                found.append(-1 if failed else leader)
        return found

    def _until(self, name: str, partitions: int) -> None:
        limit = time.monotonic() + 60
        while (found := self.leaders(name)).count(-1) or len(found) != partitions:
            if time.monotonic() > limit:
                raise AdminError(f"{name}: {len(found)} of {partitions} partitions after 60 s")
            time.sleep(0.02)
