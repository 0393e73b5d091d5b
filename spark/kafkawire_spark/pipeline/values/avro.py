"""Convert Avro values to columns: fastavro decodes each with its writer's schema, resolved to the
schema of the table (Avro's schema resolution: promotions, defaults, aliases).

With a registry a value is 0, the id of its schema in four bytes, and the datum (Confluent's wire
format); without one it is only the datum, written with the schema of the job.

Schemas become one self-contained text, and columns (a tree of shred.SchemaNode). The types are
those of Spark's from_avro: times of day stay numbers, unions of several types besides null become a
struct member0, member1, ...; times finer than microseconds are truncated.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import fastavro
import pyarrow as pa

from kafkawire_spark.pipeline.values import registry as schema_registry
from kafkawire_spark.pipeline.values import shred
from kafkawire_spark.pipeline.values.framing import NUMBER_END, BadValue, number_of
from kafkawire_spark.pipeline.values.registry import Registry
from kafkawire_spark.pipeline.values.spec import ValueFormatError

UTC = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")
DECIMAL_DIGITS_MAX = 38  # Spark's, Delta's, Iceberg's
NAMED = ("record", "error", "enum", "fixed")

_PLAIN = {
    "null": pa.string(),  # Delta has no type for columns that are always null
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): (pa.date32(), pa.int32()),
    ("long", "timestamp-millis"): (UTC, pa.timestamp("ms", tz="UTC")),
    ("long", "timestamp-micros"): (UTC, pa.int64()),
    ("long", "timestamp-nanos"): (UTC, pa.timestamp("ns", tz="UTC")),
    ("long", "local-timestamp-millis"): (LOCAL, pa.timestamp("ms")),
    ("long", "local-timestamp-micros"): (LOCAL, pa.int64()),
    ("long", "local-timestamp-nanos"): (LOCAL, pa.timestamp("ns")),
}
# Python types of the values of a union's branches, with times as numbers.
_PYTHON: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float,),
    "double": (float,),
    "bytes": (bytes,),
    "string": (str,),
    "array": (list,),
    "map": (dict,),
}


def self_contained(text: str, needed: Iterable[str] = ()) -> str:
    """Return the schema as JSON with every referenced name defined; `needed`: the referenced
    schemas, each after those it references. Raises ValueFormatError."""
    named: dict[str, Any] = {}
    try:
        for other in needed:
            fastavro.parse_schema(json.loads(other), named_schemas=named)
        parsed = fastavro.parse_schema(json.loads(text), named_schemas=named)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise ValueFormatError(f"the Avro schema {text[:80]!r} is not one: {reason}") from None
    except fastavro.schema.SchemaParseException as error:
        raise ValueFormatError(f"the Avro schema {text[:80]!r} is not one: {error}"[:300]) from None
    return json.dumps(_inline(parsed, named, set()), separators=(",", ":"))


def _inline(schema: Any, named: dict[str, Any], done: set[str]) -> Any:
    """Replace the first use of each name by its definition. Names are full ones after parsing."""
    if isinstance(schema, str):
        if schema in done or schema not in named:
            return schema
        return _inline(named[schema], named, done)
    if isinstance(schema, list):
        return [_inline(branch, named, done) for branch in schema]
    plain = {key: value for key, value in schema.items() if not key.startswith("__")}
    if plain["type"] in NAMED:
        if plain["name"] in done:
            return plain["name"]
        done.add(plain["name"])
    for key in ("items", "values"):
        if key in plain:
            plain[key] = _inline(plain[key], named, done)
    if "fields" in plain:
        plain["fields"] = [
            {**one, "type": _inline(one["type"], named, done)} for one in plain["fields"]
        ]
    if plain["type"] not in _PLAIN and plain["type"] not in (*NAMED, "array", "map"):
        plain["type"] = _inline(plain["type"], named, done)
    return plain


def plain_numbers(schema: Any) -> Any:
    """Return the schema without logical types except decimal; Arrow converts numbers to dates and
    times by column."""
    if isinstance(schema, list):
        return [plain_numbers(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if not key.startswith("__")}
    if kept.get("logicalType") != "decimal":
        kept.pop("logicalType", None)
    for key in ("items", "values", "type"):
        if key in kept:
            kept[key] = plain_numbers(kept[key])
    if "fields" in kept:
        kept["fields"] = [plain_numbers(one) for one in kept["fields"]]
    return kept


class AvroColumns:
    """The columns of one parsed schema. `root`: its SchemaNode; `unions`: whether it has unions
    whose branch must be known, so that named types are read as (name, value)."""

    def __init__(self, schema: Any) -> None:
        """`schema`: self-contained, from fastavro.parse_schema. Raises ValueFormatError."""
        self._named: dict[str, Any] = {}
        self._open: list[str] = []  # names of the records around the current one
        self.unions = _has_unions(schema)
        self.root = self._node(schema, "the value")

    def _node(self, schema: Any, path: str) -> shred.SchemaNode:
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return shred.leaf(_PLAIN[schema])
            schema = self._named[schema]
        kind = schema["type"]
        if kind in NAMED:
            self._named[schema["name"]] = schema
        if kind in ("record", "error"):
            return self._record(schema, path)
        if kind == "array":
            if schema["items"] == "null":  # a length alone could allocate a billion of them
                raise ValueFormatError(f"{path} of the Avro schema is an array of nulls")
            return shred.array(self._node(schema["items"], f"{path}[]"))
        if kind == "map":
            value = self._node(schema["values"], f"{path}{{}}")
            return shred.mapping(shred.leaf(pa.string()), value)
        return _single(schema, path) or self._node(kind, path)

    def _record(self, schema: Any, path: str) -> shred.SchemaNode:
        if schema["name"] in self._open:
            raise ValueFormatError(
                f"{path} of the Avro schema is a {schema['name']} inside of one: "
                "a table has no recursive types"
            )
        self._open.append(schema["name"])
        members = [
            shred.RecordField(
                field["name"],
                self._node(field["type"], f"{path}.{field['name']}"),
                _getter(field["name"]),
            )
            for field in schema["fields"]
        ]
        self._open.pop()
        return shred.struct(members)

    def _union(self, branches: list[Any], path: str) -> shred.SchemaNode:
        rest = [branch for branch in branches if branch != "null"]
        if not rest:
            return shred.leaf(_PLAIN["null"])
        nodes = [self._node(branch, path) for branch in rest]
        if len(rest) == 1:
            return _named_value(nodes[0]) if self.unions else nodes[0]
        if {branch if isinstance(branch, str) else None for branch in rest} in _WIDENED:
            return shred.leaf(pa.int64() if "int" in rest else pa.float64())
        chosen = [self._is_branch(branch) for branch in rest]
        members = [
            shred.RecordField(f"member{number}", node, _branch_getter(chosen, number))
            for number, node in enumerate(nodes)
        ]
        return shred.struct(members)

    def _is_branch(self, branch: Any) -> Callable[[Any], bool]:
        """Return True if a value is of this branch; those of named types come as (name, value)."""
        schema = self._named.get(branch, branch) if isinstance(branch, str) else branch
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in NAMED:
            name = schema["name"]
            return lambda value: isinstance(value, tuple) and value[0] == name
        if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
            return lambda value: type(value).__name__ == "Decimal"
        types = _PYTHON[kind]
        small = kind == "int"
        return lambda value: type(value) in types and not (small and not -(2**31) <= value < 2**31)


_NANOS = (pa.timestamp("ns", tz="UTC"), pa.timestamp("ns"))
_WIDENED = ({"int", "long"}, {"float", "double"})


def _single(schema: Any, path: str) -> shred.SchemaNode | None:
    """Return a primitive type by its name; None for {"type": OTHER}."""
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return _decimal(schema, path)
    if (kind, logical) in _LOGICAL:
        type, raw = _LOGICAL[kind, logical]
        return shred.leaf(type, raw, safe=raw not in _NANOS)
    if kind in ("enum", "fixed"):
        return shred.leaf(pa.string() if kind == "enum" else pa.binary())
    return None


def _decimal(schema: Any, path: str) -> shred.SchemaNode:
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(digits, int) or not 0 <= scale <= digits <= DECIMAL_DIGITS_MAX:
        raise ValueFormatError(
            f"{path} of the Avro schema is a decimal({digits}, {scale}): "
            f"at most {DECIMAL_DIGITS_MAX} digits can be in a table"
        )
    return shred.leaf(pa.decimal128(digits, scale))


def _getter(name: str) -> shred.Getter:
    get = itemgetter(name)
    return lambda records: list(map(get, records))


def _named_value(node: shred.SchemaNode) -> shred.SchemaNode:
    """Return [null, named type] if names are read as well."""

    def build(values: list[Any]) -> pa.Array:
        return node.build([value[1] if isinstance(value, tuple) else value for value in values])

    return shred.SchemaNode(node.type, build)


def _branch_getter(chosen: list[Callable[[Any], bool]], number: int) -> shred.Getter:
    def get(values: list[Any]) -> list[Any]:
        found = []
        for value in values:
            first = next((at for at, is_branch in enumerate(chosen) if is_branch(value)), -1)
            plain = value[1] if isinstance(value, tuple) else value
            found.append(plain if first == number else None)
        return found

    return get


def _has_unions(schema: Any) -> bool:
    if isinstance(schema, list):
        rest = [branch for branch in schema if branch != "null"]
        return len(rest) > 1 or any(map(_has_unions, rest))
    if not isinstance(schema, dict):
        return False
    inner = [schema.get("items"), schema.get("values"), *schema.get("fields", ())]
    return any(map(_has_unions, inner)) or _has_unions(schema["type"])


Read = Callable[[bytes], Any]


def parse_schema(text: str) -> Any:
    """Return a self-contained schema for fastavro, with times as numbers."""
    return fastavro.parse_schema(plain_numbers(json.loads(text)))


def columns_of(text: str) -> AvroColumns:
    """Return the columns of a self-contained schema. Raises ValueFormatError."""
    return AvroColumns(fastavro.parse_schema(json.loads(text)))


def registered_text(registry: Registry, schema: schema_registry.Schema) -> str:
    """Return a registered schema including all it references. Raises RegistryError,
    ValueFormatError."""
    if schema.type != schema_registry.AVRO:
        raise ValueFormatError(f"the schema in the registry is {schema.type}, not AVRO")
    return self_contained(
        schema.text, [other.text for other in registry.fetch_references(schema).values()]
    )


class AvroDecoder:
    """Decodes values to rows, None for undecodable ones."""

    def __init__(self, text: str, registry: Registry | None) -> None:
        """`text`: the table's schema, self-contained."""
        self.columns = columns_of(text)
        self._schema = parse_schema(text)
        self._registry = registry
        self._start = NUMBER_END if registry else 0
        self._readers: dict[int, Read | BadValue] = {}
        self._plain = self._reader(self._schema)

    def decode(self, payloads: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
        """Return a value for each payload, and the errors by row. Raises RegistryError."""
        rows: list[Any] = [None] * len(payloads)
        bad: dict[int, str] = {}
        plain = None if self._registry else self._plain
        for row, payload in enumerate(payloads):
            if payload is None:
                continue
            try:
                rows[row] = (plain or self._by_number(payload))(payload)
            except BadValue as reason:
                bad[row] = str(reason)
            except RecursionError:
                bad[row] = "not Avro of its schema: nested too deep"
            except _GARBAGE as error:
                reason_ = str(error) or type(error).__name__
                bad[row] = f"not Avro of its schema: {reason_}"[:300]
        return rows, bad

    def _by_number(self, payload: bytes) -> Read:
        number = number_of(payload)
        found = self._readers.get(number)
        if found is None:
            found = self._look_up(number)
        if isinstance(found, BadValue):
            raise found
        return found

    def _look_up(self, number: int) -> Read | BadValue:
        assert self._registry is not None
        schema = self._registry.schema(number)
        if schema is None:  # not cached: garbage has millions of ids
            return BadValue(f"the registry has no schema {number}")
        found: Read | BadValue
        try:
            found = self._reader(parse_schema(registered_text(self._registry, schema)))
        except ValueFormatError as error:
            found = BadValue(f"schema {number}: {error}")
        return self._readers.setdefault(number, found)

    def _reader(self, writer: Any) -> Read:
        """Return the decoder of a payload written with the schema `writer`."""
        read, start, stream = fastavro.schemaless_reader, self._start, io.BytesIO
        schema = None if writer == self._schema else self._schema
        names = self.columns.unions

        def value(payload: bytes) -> Any:
            data = stream(payload)
            data.seek(start)
            found = read(data, writer, schema, return_named_type=names)
            if data.tell() != len(payload):
                raise BadValue(f"{len(payload) - data.tell()} bytes after the value")
            return found

        return value


# Errors of fastavro for bytes that do not match the schema, or for schemas that cannot be resolved.
_GARBAGE = (
    EOFError, ValueError, LookupError, TypeError, OverflowError, ArithmeticError, MemoryError,
    AttributeError, fastavro.read.SchemaResolutionError,
)  # fmt: skip


def build(decoder: AvroDecoder, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return the values as one Arrow array, and the errors by row."""
    rows, bad = decoder.decode(payloads.to_pylist())
    column, misfits = shred.build_all(decoder.columns.root, rows)
    return column, bad | misfits
