"""Records as JSON, and in the format strings of kcat. Pure.

JSON: `{"topic", "partition", "offset", "timestamp", "key", "value", "headers": [[name, value]]}`.
Keys, values, names and values of headers are text if they are UTF-8, else `{"base64": "..."}`; null
stays null. `record_of` reads what `as_json` writes, byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kafkawire.client.offsets import Partition
from kafkawire.codec.batches import Record, header_bytes
from kafkawire.codec.record_text import text_of

INT32, INT64 = 2**31 - 1, 2**63 - 1
MAX_HEADERS = 10_000
"""Headers per record: Kafka has no limit, real records have a few."""


class RecordError(ValueError):
    """A line or row is no record; the text is one sentence without the place of the line."""


class Parsed(NamedTuple):
    """A record that was read; None: not given."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp: int | None = None


Row = tuple[str, Parsed | RecordError]
"""Where a record is in the file, and the record or why it is none."""


def as_json(partition: Partition, record: Record) -> dict[str, Any]:
    """Return the JSON object of a record."""
    return {
        "topic": partition[0],
        "partition": partition[1],
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text_of(record.key),
        "value": text_of(record.value),
        "headers": headers_text(record),
    }


def headers_text(record: Record) -> list[list[Any]]:
    """Return [name, value] of each header, as `text_of` does."""
    return [[text_of(header_bytes(name)), text_of(value)] for name, value in record.headers]


def record_of(line: str) -> Parsed:
    """Parse a line of JSON. A value that is neither text, null nor {"base64": ...} is taken as
    compact JSON. RecordError."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise RecordError('it must be a JSON object with a "value"')
    if "value" not in found:
        raise RecordError('it has no "value" (null is a tombstone)')
    return Parsed(
        bytes_of("key", found.get("key")),
        bytes_of("value", found["value"]),
        headers_of(found.get("headers")),
        integer("partition", found.get("partition"), 0, INT32),
        integer("timestamp", found.get("timestamp"), -INT64, INT64),
    )


def bytes_of(name: str, value: Any) -> bytes | None:
    """Return the bytes of what `text_of` returned. RecordError."""
    if value is None:
        return None
    if isinstance(value, str):
        return encode_utf8(name, value)
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        return from_base64(name, value["base64"])
    return encode_utf8(name, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def encode_utf8(name: str, text: str) -> bytes:
    """Return a text in UTF-8. RecordError for half of a surrogate pair."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise RecordError(f"its {name} is not valid Unicode") from None


def from_base64(name: str, text: str) -> bytes:
    """Decode base64. RecordError."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RecordError(f"its {name} is not valid base64") from None


def headers_of(value: Any) -> list[tuple[str, bytes | None]]:
    """Return headers from a list of [name, value], or from an object. RecordError."""
    if value is None:
        return []
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and _is_name(pair[0]) for pair in pairs
    ):
        raise RecordError('its "headers" must be a list of [name, value], or an object')
    if len(pairs) > MAX_HEADERS:
        raise RecordError(f"it has {len(pairs)} headers; at most {MAX_HEADERS} are allowed")
    found = []
    for name, data in pairs:
        key = bytes_of("header", name) or b""
        found.append((key.decode("utf-8", "surrogateescape"), bytes_of("header", data)))
    return found


def _is_name(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and set(value) == {"base64"})


def integer(name: str, value: Any, least: int, most: int) -> int | None:
    """Return a whole number from `least` to `most`, or None. RecordError."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise RecordError(f'its "{name}" must be a whole number from {least} to {most}')
    return value


_FORMATS: Mapping[str, Callable[[Partition, Record], bytes]] = {
    "s": lambda partition, record: bytes(record.value or b""),
    "S": lambda partition, record: _length(record.value),
    "k": lambda partition, record: bytes(record.key or b""),
    "K": lambda partition, record: _length(record.key),
    "t": lambda partition, record: partition[0].encode(),
    "p": lambda partition, record: b"%d" % partition[1],
    "o": lambda partition, record: b"%d" % record.offset,
    "T": lambda partition, record: b"%d" % record.timestamp,
    "h": lambda partition, record: b",".join(
        header_bytes(name) + b"=" + (b"NULL" if value is None else bytes(value))
        for name, value in record.headers
    ),
    "%": lambda partition, record: b"%",
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
FORMAT_HELP = (
    "%s value, %S its length, %k key, %K its length, %t topic, %p partition, %o offset, "
    "%T timestamp, %h headers, %%, \\n, \\t, \\0"
)


def _length(value: bytes | None) -> bytes:
    return b"-1" if value is None else b"%d" % len(value)


def format_of(text: str) -> Callable[[Partition, Record], bytes]:
    """Compile a format string, with the letters of kcat's -f. RecordError for an unknown one."""
    parts: list[bytes | Callable[[Partition, Record], bytes]] = []
    for plain, mark, letter in re.findall(r"([^%\\]+)|([%\\])(.|$)", text, re.DOTALL):
        if plain:
            parts.append(encode_utf8("format", plain))
        elif mark == "%" and letter in _FORMATS:
            parts.append(_FORMATS[letter])
        elif mark == "\\" and letter in _ESCAPES:
            parts.append(_ESCAPES[letter])
        else:
            raise RecordError(f"{mark}{letter} is unknown")

    def format_record(partition: Partition, record: Record) -> bytes:
        return b"".join(
            part if isinstance(part, bytes) else part(partition, record) for part in parts
        )

    return format_record
