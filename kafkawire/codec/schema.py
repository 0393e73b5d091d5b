"""Declaration of messages: decorators, field markers, and the list of fields of one version.

    @request(key=3, versions=(0, 13), flexible_from=9)
    class MetadataRequest:
        topics: Annotated[list[MetadataRequestTopic] | None, nullable(1)] = []
        allow_auto_topic_creation: Annotated[bool, since(4), ignorable] = True
        unknown_tags: UnknownTags = None

A declared class behaves like `@dataclass(slots=True)` (type checkers see one, through
`dataclass_transform`), but takes 20 us to create instead of a millisecond, which shortens the start
of the broker: `__init__` is compiled when the first instance is made. A list as a default means a
fresh list for each instance. Not here: encoding (`codec.compile`), and the meaning of messages.

Versions are Kafka's: a field without `since`/`until` is in every version of its message.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

from kafkawire.codec.types import PLAIN_KINDS, STRUCT, UNKNOWN_TAGS, Kind

T = TypeVar("T")

_ALWAYS = 32767  # versions are int16 on the wire


@dataclass(frozen=True, slots=True)
class Marker:
    """One marker in a field's `Annotated`, made by functions such as `since`."""

    name: str
    value: int


def since(version: int) -> Marker:
    """The field is in this version and later ones."""
    return Marker("since", version)


def until(version: int) -> Marker:
    """The field is in no version after this one."""
    return Marker("until", version)


def nullable(version: int) -> Marker:
    """None is allowed from this version on. `X | None` without it: in every version."""
    return Marker("nullable", version)


def tag(number: int) -> Marker:
    """The field is a tagged one: written only when it differs from its default (KIP-482).

    A tagged struct is declared `X | None = None`, where None means "not sent".
    """
    return Marker("tag", number)


# A request may drop the field in versions that lack it; without this, encoding a request whose
# field is set but cannot be sent raises ValueError, as Kafka's own clients do.
ignorable = Marker("ignorable", 1)
# Written in the old form even in flexible versions (only the request header's client id).
inflexible = Marker("inflexible", 1)


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """Properties of a top-level message given by its decorator."""

    kind: str  # request, response, stored, header
    key: int | None
    min_version: int
    max_version: int
    flexible_from: int | None

    def flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from


@dataclass(frozen=True, slots=True)
class Field:
    """A declared field, for all versions."""

    name: str
    kind: Kind
    struct: type | None  # the class, when kind is STRUCT
    is_array: bool
    nullable_from: int | None
    since: int
    until: int
    tag: int | None
    ignorable: bool
    inflexible: bool
    default: Any  # a list default is always empty; a struct's is None or the class itself

    def present(self, version: int) -> bool:
        return self.since <= version <= self.until

    def nullable(self, version: int) -> bool:
        return self.nullable_from is not None and version >= self.nullable_from

    @property
    def absent_is_none(self) -> bool:
        """A tagged struct that is not nullable on the wire: None stands for "not sent"."""
        return self.tag is not None and self.struct is not None and not self.is_array


def fresh(factory: Callable[[], T]) -> T:
    """A default created for each instance: `assignment: Assignment = fresh(Assignment)`."""
    return typing.cast("T", _Fresh(factory))


class _Fresh:
    __slots__ = ("factory",)

    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory


@dataclass_transform()
def struct(cls: type[T]) -> type[T]:
    """Declare a structure that is part of messages."""
    return _add_slots(cls)


@dataclass_transform()
def request(
    *, key: int, versions: tuple[int, int], flexible_from: int | None
) -> Callable[[type[T]], type[T]]:
    """Declare a request: API key, first and last version, first flexible version or None."""
    return _message(MessageInfo("request", key, *versions, flexible_from))


@dataclass_transform()
def response(
    *, key: int, versions: tuple[int, int], flexible_from: int | None
) -> Callable[[type[T]], type[T]]:
    """Declare a response; arguments as for `request`."""
    return _message(MessageInfo("response", key, *versions, flexible_from))


@dataclass_transform()
def stored_message(
    *, versions: tuple[int, int], flexible_from: int | None = None
) -> Callable[[type[T]], type[T]]:
    """Declare a key or value of an internal topic, or a group protocol's payload."""
    return _message(MessageInfo("stored", None, *versions, flexible_from))


@dataclass_transform()
def header(*, versions: tuple[int, int], flexible_from: int) -> Callable[[type[T]], type[T]]:
    """Declare a request or response header."""
    return _message(MessageInfo("header", None, *versions, flexible_from))


def _message(info: MessageInfo) -> Callable[[type[T]], type[T]]:
    def decorate(cls: type[T]) -> type[T]:
        made = _add_slots(cls)
        made.__message__ = info  # type: ignore[attr-defined]
        return made

    return decorate


def info_of(cls: type) -> MessageInfo:
    """Return the version range of a top-level message."""
    info = cls.__dict__.get("__message__")
    if not isinstance(info, MessageInfo):
        raise TypeError(f"{cls.__name__} is not a top-level message")
    return info


def _add_slots(cls: type[T]) -> type[T]:
    """Return a copy of the class with slots and without its defaults as class attributes."""
    space = dict(cls.__dict__)
    names = tuple(space.get("__annotations__", ()))
    defaults = {name: space.pop(name) for name in names}  # KeyError: every field has a default
    space.pop("__dict__", None)
    space.pop("__weakref__", None)
    space.update(
        __slots__=names,
        __wire_defaults__=defaults,
        __init__=_first_init,
        __eq__=_equal,
        __repr__=_show,
        __hash__=None,
    )
    return typing.cast("type[T]", type(cls.__name__, cls.__bases__, space))


def _first_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Compile the real `__init__` of the class, puts it in its place and calls it."""
    cls = type(self)
    arguments, body, names = [], [], {"_absent": object()}
    for name, default in cls.__wire_defaults__.items():
        if isinstance(default, list | _Fresh):
            arguments.append(f"{name}=_absent")
            made = "[]" if isinstance(default, list) else f"_default_{name}()"
            body.append(f" self.{name} = {made} if {name} is _absent else {name}")
        else:
            arguments.append(f"{name}=_default_{name}")
            body.append(f" self.{name} = {name}")
        names[f"_default_{name}"] = default.factory if isinstance(default, _Fresh) else default
    source = f"def __init__(self, {', '.join(arguments)}):\n" + "\n".join(body)
    exec(compile(source, f"<{cls.__name__}.__init__>", "exec"), names)
    cls.__init__ = names["__init__"]
    cls.__init__(self, *args, **kwargs)


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)


def _show(self: Any) -> str:
    """Return a text with the fields that differ from their defaults."""
    shown = []
    for name, default in self.__wire_defaults__.items():
        value = getattr(self, name, "<unset>")
        if value != default or type(value) is not type(default):
            shown.append(f"{name}={value!r}")
    return f"{type(self).__name__}({', '.join(shown)})"


def fields_of(cls: type) -> list[Field]:
    """Return all declared fields of a message or struct, in wire order, without `unknown_tags`."""
    found: list[Field] | None = cls.__dict__.get("__wire_fields__")
    if found is None:
        hints = typing.get_type_hints(cls, include_extras=True)
        made = [_field(cls, name, hints[name]) for name in cls.__wire_defaults__]  # type: ignore[attr-defined]
        found = [field for field in made if field.kind is not UNKNOWN_TAGS]
        cls.__wire_fields__ = found  # type: ignore[attr-defined]
    return found


def fields_in(cls: type, version: int) -> list[Field]:
    return [field for field in fields_of(cls) if field.present(version)]


def _field(cls: type, name: str, hint: Any) -> Field:
    markers: dict[str, int] = {}
    kind, struct_class, is_array, optional = _resolve(hint, markers)
    default = cls.__wire_defaults__[name]  # type: ignore[attr-defined]
    if isinstance(default, _Fresh):
        default = default.factory
    tag_number = markers.get("tag")
    nullable_from = markers.get("nullable", 0 if optional else None)
    if tag_number is not None and struct_class is not None and not is_array:
        nullable_from = None  # see Field.absent_is_none
    return Field(
        name=sys.intern(name),
        kind=kind,
        struct=struct_class,
        is_array=is_array,
        nullable_from=nullable_from,
        since=markers.get("since", 0),
        until=markers.get("until", _ALWAYS),
        tag=tag_number,
        ignorable="ignorable" in markers,
        inflexible="inflexible" in markers,
        default=default,
    )


def _resolve(hint: Any, markers: dict[str, int]) -> tuple[Kind, type | None, bool, bool]:
    """Return (kind, struct class, is an array, may be None) of a type hint; collects its
    markers."""
    kind: Kind | None = None
    if typing.get_origin(hint) is typing.Annotated:
        for extra in hint.__metadata__:
            if isinstance(extra, Kind):
                kind = extra
            elif isinstance(extra, Marker):
                markers[extra.name] = extra.value
        hint = hint.__origin__
    if kind is not None:
        return kind, None, False, False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (inner,) = [part for part in typing.get_args(hint) if part is not type(None)]
        return *_resolve(inner, markers)[:3], True
    if typing.get_origin(hint) is list:
        kind, struct_class, _, _ = _resolve(typing.get_args(hint)[0], markers)
        return kind, struct_class, True, False
    if hint in PLAIN_KINDS:
        return PLAIN_KINDS[hint], None, False, False
    if isinstance(hint, type) and "__wire_defaults__" in hint.__dict__:
        return STRUCT, hint, False, False
    raise TypeError(f"{hint!r} is not a wire type")
