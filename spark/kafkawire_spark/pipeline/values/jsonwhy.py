"""Find why a value is not JSON of a schema, for invalid values only: Spark gives no reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_WHOLE = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_SHOWN = 60


def why(payload: bytes, schema: DataType) -> str:
    """Return the reason as text; `schema` is that of the whole value."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    if not text.strip():
        return "empty"
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    except RecursionError:
        return "not JSON: nested too deep"
    if not isinstance(value, dict):
        return f"not a JSON object: {text[:_SHOWN]}"
    return mismatch(value, schema, "") or "does not fit the schema"


def mismatch(value: Any, type: DataType, path: str) -> str:
    """Return the first field with a wrong type, or ""."""
    kind = type.typeName()
    if value is None:
        return ""
    if kind == "struct" and isinstance(value, dict):
        inner = ((value.get(one.name), one.dataType, one.name) for one in _parts(type, "fields"))
        return _first((part, of, f"{path}.{name}" if path else name) for part, of, name in inner)
    if kind == "array" and isinstance(value, list):
        item = _parts(type, "elementType")
        return _first((part, item, f"{path}[{at}]") for at, part in enumerate(value))
    if kind == "map" and isinstance(value, dict):
        item = _parts(type, "valueType")
        return _first((part, item, f"{path}.{name}") for name, part in value.items())
    if _fits(value, type.simpleString()):
        return ""
    return f"{path} is {json.dumps(value)[:_SHOWN]}, not {type.simpleString()}"


def _parts(type: DataType, name: str) -> Any:
    return getattr(type, name)


def _first(parts: Any) -> str:
    return next(filter(None, (mismatch(*part) for part in parts)), "")


def _fits(value: Any, kind: str) -> bool:
    if kind == "string":
        return True  # Spark accepts anything, as text
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in _WHOLE:
        bound = 1 << (_WHOLE[kind] - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
    if kind in ("float", "double") or kind.startswith("decimal"):
        words = isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity", "INF", "-INF")
        return words or (isinstance(value, int | float) and not isinstance(value, bool))
    return not isinstance(value, dict | list) and not kind.startswith(("struct", "array", "map"))
