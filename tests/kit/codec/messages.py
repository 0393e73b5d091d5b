"""Hypothesis strategies for declared messages, built from the declarations themselves.

A message is generated once with the fields of all versions and then reduced to each of them,
because generating is the expensive part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkawire.codec.schema import Field, fields_in, fields_of

# Strategies that replace the usual one, by (class, field name): for oracles that take fewer values.
Special = Mapping[tuple[type, str], st.SearchStrategy[Any]]


def _integers(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.sampled_from([0, 1, low, high, high - 1, 127, -1 if signed else 128])


_TEXT = st.sampled_from(["", "a", "topic-1", "żółć", "\U0001f600", "x" * 126, "y" * 127, "z" * 300])
_BYTES = st.sampled_from([b"", b"\x00", b"abc", b"\xff" * 126, b"q" * 127, b"r" * 300])
_UUID = st.sampled_from([bytes(16), bytes(range(16)), b"\xff" * 16])
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "uint16": _integers(16, signed=False),
    "int32": _integers(32),
    "uint32": _integers(32, signed=False),
    "int64": _integers(64),
    "float64": st.sampled_from([0.0, 1.5, -1e300]),
    "uuid": _UUID,
    "string": _TEXT,
    "bytes": _BYTES,
    "records": _BYTES,
}
# Past 127 a compact length takes two bytes; past 15 arrays of numbers take another path.
_NUMBER_ARRAY_SIZES = st.sampled_from([0, 1, 3, 15, 16, 130])
_UNKNOWN = st.sampled_from([None, None, {40: b"kept"}, {99: b"", 300: b"x" * 200}])


class Messages:
    """Builds strategies and keeps them; `special` replaces those of single fields."""

    def __init__(self, special: Special | None = None, unknown_tags: bool = False) -> None:
        self._special = special or {}
        self._unknown_tags = unknown_tags
        self._made: dict[type, st.SearchStrategy[Any]] = {}

    def of(self, cls: type) -> st.SearchStrategy[Any]:
        """Instances of `cls` with the fields of all versions: `project` makes one version's."""
        made = self._made.get(cls)
        if made is None:
            fields = {field.name: self._value(cls, field) for field in fields_of(cls)}
            if self._unknown_tags and "unknown_tags" in cls.__slots__:  # type: ignore[attr-defined]
                fields["unknown_tags"] = _UNKNOWN
            made = st.fixed_dictionaries(fields).map(lambda values: cls(**values))
            self._made[cls] = made
        return made

    def _value(self, cls: type, field: Field) -> st.SearchStrategy[Any]:
        item = self._special.get((cls, field.name))
        if item is not None:
            return item
        if field.struct is not None:
            item = self.of(field.struct)
            if field.absent_is_none:
                # None means "not sent", and a struct of defaults is not sent.
                default = field.struct()
                return st.none() | item.map(lambda value: None if value == default else value)
        else:
            item = _SCALARS[field.kind.name]
        if field.is_array and field.struct is None and field.kind.name.startswith("int"):
            many = st.tuples(_NUMBER_ARRAY_SIZES, item).map(lambda pair: [pair[1]] * pair[0])
            item = many | st.lists(item, max_size=3)
        elif field.is_array:
            item = st.lists(item, max_size=2)
        return st.none() | item if field.nullable_from is not None else item


def project(message: Any, version: int, flexible: bool) -> Any:
    """The message as one version can carry it: other fields at their defaults, nulls only where
    allowed."""
    values: dict[str, Any] = {}
    for field in fields_in(type(message), version):
        value = getattr(message, field.name)
        if value is None and not field.nullable(version) and not field.absent_is_none:
            continue
        if field.struct and value is not None:
            if field.is_array:
                value = [project(item, version, flexible) for item in value]
            else:
                value = project(value, version, flexible)
            if field.absent_is_none and value == field.struct():
                value = None
        values[field.name] = value
    if flexible and "unknown_tags" in message.__slots__:
        values["unknown_tags"] = message.unknown_tags
    return type(message)(**values)


def few(strategy: st.SearchStrategy[Any], check: Callable[..., None], *context: Any) -> None:
    """Run `check` on a few generated messages: hundreds of versions share the time there is."""

    @settings(max_examples=settings().max_examples // 4)
    @given(strategy)
    def run(message: Any) -> None:
        check(message, *context)

    run()
