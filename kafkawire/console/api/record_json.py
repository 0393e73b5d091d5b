"""Records as JSON, in both directions. Pure.

A key, value or header value is a string if its bytes are UTF-8, null if there are none, and base64
under NAME_base64 otherwise. Offsets and timestamps (ms since 1970, UTC) are JSON integers.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from kafkawire.codec.batches import header_bytes
from kafkawire.console.api.declared import INTEGER, TEXT, Schema, fields, list_of, nullable
from kafkawire.console.views.produce import NewRecord, Produced
from kafkawire.console.views.records import FoundRecord
from kafkawire.console.web.queries import INT32, INT64, WrongInput

MAX_PRODUCED = 10_000
"""Records of one request: small ones take a hundred times their bytes as objects."""
MAX_HEADERS = 100
"""Headers of a record; each is an object."""

BINARY = {"key": nullable(TEXT), "key_base64": TEXT, "value": nullable(TEXT), "value_base64": TEXT}
HEADER: Schema = fields({}, BINARY)
RECORD: Schema = fields(
    {"partition": INTEGER, "offset": INTEGER, "timestamp": INTEGER, "headers": list_of(HEADER)},
    BINARY,
)
NEW_RECORD: Schema = fields(
    {}, {**BINARY, "headers": list_of(HEADER), "partition": INTEGER, "timestamp": INTEGER}
)
PRODUCED: Schema = fields(
    {"partition": nullable(INTEGER), "offset": nullable(INTEGER)}, {"error": TEXT}
)


def record_json(found: FoundRecord, base64: bool = False) -> dict[str, Any]:
    """Return a record. `base64`: keys and values are in base64 even if they are UTF-8."""
    shown: dict[str, Any] = {
        "partition": found.partition,
        "offset": found.offset,
        "timestamp": found.timestamp,
    }
    _put(shown, "key", found.key, base64)
    _put(shown, "value", found.value, base64)
    shown["headers"] = headers = []
    for name, value in found.headers:
        header: dict[str, Any] = {}
        _put(header, "key", name, False)
        _put(header, "value", value, base64)
        headers.append(header)
    return shown


def _put(into: dict[str, Any], name: str, data: bytes | None, base64: bool) -> None:
    if data is not None and not base64:
        try:
            into[name] = bytes(data).decode()
            return
        except UnicodeDecodeError:
            pass
    if data is None:
        into[name] = None
    else:
        into[f"{name}_base64"] = b64encode(data).decode()


def produced_json(result: Produced) -> dict[str, Any]:
    """Return the result of a record."""
    found: dict[str, Any] = {"partition": result.partition, "offset": result.offset}
    return {**found, "error": f"{result.error.rstrip('.')}."} if result.error else found


def load_object(text: str | bytes) -> dict[str, Any]:
    """Return a JSON object. WrongInput."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise WrongInput("body", _cut(text), "JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise WrongInput("body", _cut(text), "a JSON object")
    return found


def read_records(body: Mapping[str, Any]) -> list[NewRecord]:
    """Return the records of `{"records": [...]}`. WrongInput."""
    check_names("body", body, ("records",))
    rows = body.get("records")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_PRODUCED:
        raise WrongInput("records", _cut(rows), f"a list of 1 to {MAX_PRODUCED} records")
    return [read_record(row, f"records[{at}]") for at, row in enumerate(rows)]


def read_record(row: Any, name: str) -> NewRecord:
    """Return one record; `name` is for errors. WrongInput."""
    if not isinstance(row, dict):
        raise WrongInput(name, _cut(row), "a JSON object")
    check_names(name, row, NEW_RECORD["properties"])
    if "value" not in row and "value_base64" not in row:
        raise WrongInput(f"{name}.value", "", "a string, or null for a record without a value")
    headers = row.get("headers", [])
    if not isinstance(headers, list) or len(headers) > MAX_HEADERS:
        raise WrongInput(f"{name}.headers", _cut(headers), f"a list of at most {MAX_HEADERS}")
    return NewRecord(
        _bytes(row, name, "key"),
        _bytes(row, name, "value"),
        [_header(each, f"{name}.headers[{at}]") for at, each in enumerate(headers)],
        read_integer(row, "partition", INT32, name),
        read_integer(row, "timestamp", INT64, name),
    )


def read_integer(row: Mapping[str, Any], field: str, high: int, name: str = "body") -> int | None:
    """Return an integer from 0 to `high`, None without the field. WrongInput."""
    value = row.get(field)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= high:
        raise WrongInput(f"{name}.{field}", _cut(value), f"a whole number from 0 to {high}")
    return value


def check_names(name: str, row: Mapping[str, Any], allowed: Any) -> None:
    """Raise WrongInput for a field that is not allowed."""
    for field in row:
        if field not in allowed:
            raise WrongInput(name, _cut(field), "an object with " + ", ".join(allowed))


def _header(row: Any, name: str) -> tuple[str, bytes | None]:
    if not isinstance(row, dict):
        raise WrongInput(name, _cut(row), "a JSON object")
    check_names(name, row, BINARY)
    key = _bytes(row, name, "key")
    if key is None:
        raise WrongInput(f"{name}.key", "", "a string")
    return key.decode("utf-8", "surrogateescape"), _bytes(row, name, "value")


def _bytes(row: Mapping[str, Any], name: str, field: str) -> bytes | None:
    text, encoded = row.get(field), row.get(f"{field}_base64")
    if encoded is not None:
        try:
            if field in row or not isinstance(encoded, str):
                raise ValueError
            return b64decode(encoded, validate=True)
        except ValueError:
            allowed = f"base64 with padding, without {field}"
            raise WrongInput(f"{name}.{field}_base64", _cut(encoded), allowed) from None
    if text is None:
        return None
    try:
        if not isinstance(text, str):
            raise ValueError
        return text.encode()
    except ValueError:  # also half of a surrogate pair, which UTF-8 does not have
        allowed = f"a string or null; bytes are in {field}_base64"
        raise WrongInput(f"{name}.{field}", _cut(text), allowed) from None


def _cut(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)[:100]
    return text[:100].encode("utf-8", "replace").decode()


def found_record(partition: int, record: Any) -> FoundRecord:
    """Return a record of a group's member as a page of records has it."""
    headers = [(header_bytes(name), value) for name, value in record.headers]
    return FoundRecord(
        partition, record.offset, record.timestamp, record.key, record.value, headers,
        (record.offset, record.offset), "", 0, -1,
    )  # fmt: skip
