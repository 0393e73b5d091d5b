"""Requests with arrays as long as allowed, built from the declarations of the messages.

For every array of a request there are cases with that array long and everything else as short as
possible: entries that are empty, entries that are all the same, entries that all differ, and for
nested arrays one long inner array or many short ones. The topics, groups and partitions that are
named exist (TOPIC, GROUP) or do not, so that both paths of a handler are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import pack
from typing import Any

from kafkawire.codec.compile import DecodeError, decoder, encode
from kafkawire.codec.schema import Field, fields_in
from kafkawire.codec.types import RECORDS, STRING, STRUCT, UUID
from kafkawire.handlers.table import ROWS, ApiRow
from kafkawire.messages.registry import APIS, request_class
from tests.kit.client import batch

TOPIC, GROUP = "extreme", "extreme-group"
STYLES = ("empty", "same", "distinct")
SCALARS: dict[str, Any] = {
    "acks": -1, "timeout_ms": 1000, "replica_id": -1, "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20, "max_wait_ms": 0, "session_id": 0, "session_epoch": -1,
    "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer",
    "generation_id": -1, "generation_id_or_member_epoch": -1, "retention_time_ms": -1,
    "current_leader_epoch": -1, "leader_epoch": 0, "timestamp": -1, "offset": 0,
    "num_partitions": -1, "replication_factor": -1, "count": 2, "validate_only": True,
    "resource_type": 2, "response_partition_limit": 1 << 30, "transactional_id": None,
    "last_fetched_epoch": -1, "log_start_offset": -1, "producer_id": -1, "producer_epoch": -1,
    "include_synonyms": True, "include_documentation": True, "config_operation": 0,
    "committed_metadata": "", "cursor": None, "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": True, "include_authorized_operations": True,
}  # fmt: skip
TOPIC_FIELDS = ("topic", "name", "resource_name", "topic_name")
GROUP_FIELDS = ("group_id", "key")


@dataclass(frozen=True)
class Case:
    """One request: its readable name and its frame for the socket, which is sent `count` times."""

    name: str
    api: str
    version: int
    frame: bytes
    count: int = 1


class Filler:
    """Fills one message: `long` is the path of the array that has `count` entries."""

    def __init__(self, version: int, style: str, long: tuple[str, ...], count: int,
                 topic_id: bytes) -> None:  # fmt: skip
        self.version = version
        self.style = style
        self.long = long
        self.count = count
        self.topic_id = topic_id

    def message(self, cls: type, path: tuple[str, ...] = (), number: int = 0) -> Any:
        made = cls()
        for field in fields_in(cls, self.version):
            if field.tag is None:
                setattr(made, field.name, self.value(field, (*path, field.name), number))
        return made

    def value(self, field: Field, path: tuple[str, ...], number: int) -> Any:
        if field.is_array:
            if path == self.long:
                return [self.item(field, path, index) for index in range(self.count)]
            if path == self.long[: len(path)]:
                return [self.item(field, path, number)]
            if self.style == "empty" or field.kind is not STRUCT:
                return []
            return [self.item(field, path, number)]
        if field.kind is STRUCT:
            assert field.struct is not None
            if field.nullable(self.version):
                return None
            return self.message(field.struct, path, number)
        return self.item(field, path, number)

    def item(self, field: Field, path: tuple[str, ...], number: int) -> Any:
        """One value of a field, or of an array of it."""
        name = field.name
        within = path[: len(self.long)] == self.long
        differs = within and self.style == "distinct"
        if field.kind is STRUCT:
            assert field.struct is not None
            return self.message(field.struct, path, number)
        if field.kind is STRING:
            return self.text(field, differs, number)
        if field.kind is UUID:
            return number.to_bytes(16, "big") if differs else self.topic_id
        if field.kind is RECORDS:
            return None if self.style == "empty" else batch(b"x")
        if field.kind.name == "bytes":
            return b""
        if name in ("partition_index", "partition", "partitions", "partition_indexes", "index"):
            return number if differs else 0
        if name in SCALARS:
            return SCALARS[name]
        return False if field.kind.name == "bool" else 0

    def text(self, field: Field, differs: bool, number: int) -> str | None:
        name = field.name
        value = SCALARS.get(name, "")
        if (value is None and field.nullable(self.version)) or (isinstance(value, str) and value):
            return value
        if self.style == "empty" and not differs:
            return ""
        if differs:
            return f"n{number}"
        if field.nullable(self.version) and not field.is_array and name not in TOPIC_FIELDS:
            return None
        return GROUP if name in GROUP_FIELDS or "group" in name else TOPIC


def arrays(cls: type, version: int, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all arrays in a request."""
    for field in fields_in(cls, version):
        if field.tag is not None:
            continue
        if field.is_array:
            yield (*path, field.name)
        if field.kind is STRUCT and field.struct is not None:
            yield from arrays(field.struct, version, (*path, field.name))


def cases(
    row: ApiRow, version: int, count: int, topic_id: bytes, styles: tuple[str, ...] = STYLES
) -> Iterator[Case]:
    """The extreme requests of one API and version, with `count` entries in the long array."""
    for path in arrays(request_class(row.key), version):
        for style in styles:
            yield case_of(row, version, count, topic_id, path, style)


def case_of(
    row: ApiRow, version: int, count: int, topic_id: bytes, path: tuple[str, ...], style: str
) -> Case:
    """The extreme request with `count` entries of one style in the array at `path`."""
    cls = request_class(row.key)
    many, body = _largest(cls, version, Filler(version, style, path, count, topic_id))
    name = f"{APIS[row.key].name} v{version}: {many} {style} {'.'.join(path)}"
    return Case(name, APIS[row.key].name, version, frame(row.key, version, body))


def _largest(cls: type, version: int, filler: Filler) -> tuple[int, bytes]:
    """The message with as many entries as its size allows, up to `filler.count`; and their
    number."""
    while True:
        body = encode(filler.message(cls), version)
        try:
            decoder(cls, version)(body, 0, len(body))
        except DecodeError:  # more elements than its size allows
            filler.count = filler.count * 3 // 4
        else:
            return filler.count, body


def frame(key: int, version: int, body: bytes, client_id: bytes = b"extreme") -> bytes:
    """A request as it is sent on the wire."""
    flexible_from = APIS[key].flexible_from
    head = pack(">hhih", key, version, 1, len(client_id)) + client_id
    if flexible_from is not None and version >= flexible_from:
        head += b"\0"
    return pack(">i", len(head) + len(body)) + head + body


def served() -> Iterator[tuple[ApiRow, int]]:
    """Every API and every version that the broker serves."""
    for row in ROWS:
        for version in range(row.min_version, row.max_version + 1):
            yield row, version
