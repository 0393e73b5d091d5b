"""Convert our messages to kio's and back: kio has one class per version, timedeltas, UUIDs and
enums.

kio (PyPI, generated from Kafka's own JSON files) is the independent reference for the bytes.
"""

from __future__ import annotations

import datetime
import importlib
import io
import uuid
from dataclasses import fields
from typing import Any, get_args

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records

from kafkawire.codec.schema import Field, fields_in
from kafkawire.messages.registry import APIS
from tests.kit.codec.messages import Special

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS = datetime.timedelta(milliseconds=1)

# The values kio accepts where its types are narrower than the wire's.
_LIMITED: dict[str, st.SearchStrategy[Any]] = {
    "error_code": st.sampled_from([0, -1, 3, 35]),
    "datetime_i64": st.sampled_from([0, 1_000, 1_700_000_000_000]),
    "timedelta_i64": st.sampled_from([0, -1, 86_400_000, 2**45]),
    "float64": st.sampled_from([0.0, 1.5, -1e300]),
}


def kio_class(key: int, kind: str, version: int) -> Any:
    """kio's class for a request or response, or None where kio has none."""
    spec = APIS[key]
    try:
        module = importlib.import_module(f"kio.schema.{spec.module}.v{version}.{kind}")
    except ModuleNotFoundError:
        return None
    return getattr(module, spec.name + kind.capitalize())


def encode(entity: Any) -> bytes:
    with io.BytesIO() as out:
        entity_writer(type(entity))(out, entity)
        return out.getvalue()


def decode(cls: Any, data: bytes) -> Any:
    entity, size = entity_reader(cls)(data, 0)
    assert size == len(data)
    return entity


def limits(cls: type, kio: Any, version: int, found: dict[tuple[type, str], Any]) -> Special:
    """The fields of our classes that must be generated within kio's bounds."""
    for ours, theirs in pairs(cls, kio, version):
        if ours.struct is not None:
            limits(ours.struct, _entity(theirs), version, found)
        elif (kind := theirs.metadata["kafka_type"]) in _LIMITED:
            item = _LIMITED[kind]
            found[cls, ours.name] = st.lists(item, max_size=2) if ours.is_array else item
    return found


def pairs(cls: type, kio: Any, version: int) -> list[tuple[Field, Any]]:
    """Our fields paired with kio's, by name; both sides must have the same ones."""
    ours = {_plain(field.name): field for field in fields_in(cls, version)}
    theirs = {_plain(field.name): field for field in fields(kio)}
    assert ours.keys() == theirs.keys(), (cls, version, ours.keys() ^ theirs.keys())
    return [(ours[name], theirs[name]) for name in ours]


def to_kio(message: Any, kio: Any, version: int) -> Any:
    """Our message as an instance of kio's class."""
    values = {}
    for ours, theirs in pairs(type(message), kio, version):
        value = getattr(message, ours.name)
        if ours.is_array and value is not None:
            value = tuple(_to_kio(ours, theirs, item, version) for item in value)
        else:
            value = _to_kio(ours, theirs, value, version)
        values[theirs.name] = value
    return kio(**values)


def _to_kio(ours: Field, theirs: Any, value: Any, version: int) -> Any:
    if ours.struct is not None:
        if value is None:
            return ours.struct and _absent(ours, theirs, version)
        return to_kio(value, _entity(theirs), version)
    if value is None:
        return None
    match theirs.metadata["kafka_type"]:
        case "error_code":
            return ErrorCode(value)
        case "uuid":
            return uuid.UUID(bytes=value) if any(value) else None
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else _EPOCH + value * _MS
        case "records":
            return Records(value)
    return value


def _absent(ours: Field, theirs: Any, version: int) -> Any:
    """kio writes no tag for a struct of defaults, and None for a nullable struct."""
    if not ours.absent_is_none:
        return None
    assert ours.struct is not None
    return to_kio(ours.struct(), _entity(theirs), version)


def _entity(field: Any) -> Any:
    """The class in kio's annotation: `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    found = [field.type]
    while found:
        hint = found.pop()
        if hasattr(hint, "__version__") and not get_args(hint):
            return hint
        found += [part for part in get_args(hint) if part not in (type(None), Ellipsis)]
    raise AssertionError(f"no entity in {field}")


# Kafka 4.4 renamed the field that only v0 has, to give its name to a wider one.
_RENAMED = {"acceptable_recovery_lag_legacy": "acceptable_recovery_lag"}


def _plain(name: str) -> str:
    """kio drops `_ms` from the names of durations and splits some words elsewhere."""
    return _RENAMED.get(name, name).replace("_", "").removesuffix("ms")
