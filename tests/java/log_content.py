"""The content of a log, for comparisons: batches, and the records of `__transaction_state`.

The decoder of those records shares no code with the coordinator.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, iter_batches, records

STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)


class Batch(NamedTuple):
    first: int
    last: int
    kind: str
    """plain, transactional, commit or abort."""
    producer: str
    epoch: int
    sequence: int
    values: list[bytes]
    """Of a marker: none."""
    size: int


class StateRecord(NamedTuple):
    """One record of `__transaction_state`; `tags`: the tagged fields by number."""

    version: int
    pid: int
    epoch: int
    timeout: int
    state: str
    parts: set[tuple[str, int]] | None
    updated_ms: int
    started: bool
    tags: set[int]
    protocol: int
    next_pid: int


def read_batches(data: Any, aliases: dict[int, str]) -> list[Batch]:
    """Return the whole batches of `data`, with the names of producers in place of their ids."""
    found = []
    for pos, head in iter_batches(memoryview(data)):
        inside = list(records(data, pos))
        kind = "transactional" if head.attributes & TRANSACTIONAL else "plain"
        values = [record.value or b"" for record in inside]
        if head.attributes & CONTROL:
            kind = ("abort", "commit")[struct.unpack(">hh", inside[0].key or b"")[1]]
            values = []
        producer = aliases.get(head.producer_id, "other") if head.producer_id >= 0 else ""
        found.append(
            Batch(
                head.base_offset,
                head.last_offset,
                kind,
                producer,
                head.producer_epoch,
                head.base_sequence,
                values,
                head.size_bytes,
            )
        )
    return found


def read_states(data: Any, id: str) -> list[StateRecord]:
    """Return the records of one transactional id, tombstones left out."""
    key = struct.pack(">hh", 0, len(id)) + id.encode()
    return [
        read_state(bytes(record.value))
        for pos, _ in iter_batches(memoryview(data))
        for record in records(data, pos)
        if record.key == key and record.value is not None
    ]


def read_state(value: bytes) -> StateRecord:
    version, pid, epoch, timeout, state = struct.unpack_from(">hqhib", value)
    reader = Reader(value, 17, compact=version > 0)
    count = reader.length()
    parts: set[tuple[str, int]] | None = None if count < 0 else set()
    for _ in range(count):
        topic = reader.take(reader.length(short=True)).decode()
        partitions = [reader.number(">i") for _ in range(reader.length())]
        parts |= {(topic, partition) for partition in partitions}  # type: ignore[operator]
        if version:
            assert reader.tags() == {}
    updated_ms, started_ms = reader.number(">q"), reader.number(">q")
    tags = reader.tags() if version else {}
    assert reader.pos == len(value)
    return StateRecord(
        version,
        pid,
        epoch,
        timeout,
        STATES[state],
        parts,
        updated_ms,
        started_ms != -1,
        set(tags),
        struct.unpack(">h", tags[2])[0] if 2 in tags else 0,
        struct.unpack(">q", tags[1])[0] if 1 in tags else -1,
    )


class Reader:
    """Reads lengths and numbers in order; `compact`: the flexible encoding of KIP-482."""

    def __init__(self, data: bytes, pos: int, *, compact: bool) -> None:
        self.data = data
        self.pos = pos
        self.compact = compact

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.pos)
        self.pos += struct.calcsize(form)
        return int(value)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(">B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def length(self, *, short: bool = False) -> int:
        """Return the length of an array, or of a string if `short`; -1 if it is null."""
        if self.compact:
            return self.varint() - 1
        return self.number(">h" if short else ">i")

    def take(self, size: int) -> bytes:
        self.pos += size
        return self.data[self.pos - size : self.pos]

    def tags(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self.varint()):
            number = self.varint()
            found[number] = self.take(self.varint())
        return found
