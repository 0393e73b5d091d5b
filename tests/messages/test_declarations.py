"""Our declarations against Kafka's own message files, as kafka-python ships them.

Covers: kafkawire.messages.*.
"""

from __future__ import annotations

import importlib.resources
import json
import re
from functools import cache
from typing import Any

import pytest

from kafkawire.codec import fetch
from kafkawire.codec.schema import Field, MessageInfo, fields_of, info_of
from kafkawire.messages import headers, registry, stored
from kafkawire.messages.registry import APIS, OWN, request_class, response_class

_RESOURCES = importlib.resources.files("kafka.protocol.schemas.resources")
_ALL = 32767

CLASSES: dict[str, Any] = {
    **{request_class(key).__name__: request_class(key) for key in APIS},
    **{response_class(key).__name__: response_class(key) for key in APIS},
    "RequestHeader": headers.RequestHeader,
    "ResponseHeader": headers.ResponseHeader,
    "ConsumerProtocolSubscription": stored.ConsumerProtocolSubscription,
    "ConsumerProtocolAssignment": stored.ConsumerProtocolAssignment,
}


@cache
def published(name: str) -> dict[str, Any] | None:
    """Kafka's JSON (with comments) for one message."""
    file = _RESOURCES / f"{name}.json"
    if not file.is_file():
        return None
    text = re.sub(r"^\s*//.*$", "", file.read_text("utf-8"), flags=re.MULTILINE)
    loaded: dict[str, Any] = json.loads(re.sub(r"(?<=[,\]}\s])//[^\n\"]*$", "", text, flags=re.M))
    return loaded


PUBLISHED = [name for name in CLASSES if published(name)]


def test_most_messages_can_be_compared() -> None:
    assert len(PUBLISHED) >= 108


def span(text: str | None) -> tuple[int, int]:
    """`3+`, `0-4`, `2` or `none` as first and last version."""
    if text in (None, "none"):
        return (1, 0)
    assert text is not None
    first, _, last = text.rstrip("+").partition("-")
    return int(first), _ALL if text.endswith("+") else int(last or first)


@pytest.mark.parametrize("name", PUBLISHED)
def test_fields_match_kafkas(name: str) -> None:
    theirs = published(name)
    assert theirs is not None
    info = info_of(CLASSES[name])
    first, last = span(theirs["validVersions"])
    common = {struct["name"]: struct["fields"] for struct in theirs.get("commonStructs", ())}
    assert info.min_version >= first
    for version in range(info.min_version, min(info.max_version, last) + 1):
        low, high = span(theirs["flexibleVersions"])
        flexible = low <= version <= high
        assert info.flexible(version) == flexible
        assert ours(CLASSES[name], info, version) == kafkas(theirs["fields"], common, version)


def ours(cls: type, info: MessageInfo, version: int) -> list[Any]:
    """The fields of one version, with nested ones in place of their struct."""
    shown = []
    for field in fields_of(cls):
        if field.present(version):
            inner = ours(field.struct, info, version) if field.struct else field.kind.name
            shape = [inner] if field.is_array else inner
            shown.append((field.name, shape, field.nullable(version), field.tag, default(field)))
    return shown


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.endswith("Request")])
def test_ignorable_fields_match_kafkas(name: str) -> None:
    theirs = published(name)
    assert theirs is not None
    common = {struct["name"]: struct["fields"] for struct in theirs.get("commonStructs", ())}
    compare_ignorable(CLASSES[name], theirs["fields"], common)


def compare_ignorable(cls: type, fields: list[dict[str, Any]], common: dict[str, Any]) -> None:
    by_name = {snake(field["name"]): field for field in fields}
    for field in fields_of(cls):
        theirs = by_name.get(field.name)
        if theirs is None:  # newer than the file of kafka-python
            continue
        limited = field.since > 0 or field.until < _ALL
        if limited and theirs["versions"] != "0+":
            assert field.ignorable == theirs.get("ignorable", False), field.name
        if field.struct:
            inner = theirs.get("fields") or common[theirs["type"].removeprefix("[]")]
            compare_ignorable(field.struct, inner, common)


def default(field: Field) -> Any:
    return None if field.struct and not field.is_array else field.default


def kafkas(fields: list[dict[str, Any]], common: dict[str, Any], version: int) -> list[Any]:
    shown = []
    for field in fields:
        if not within(field["versions"], version):
            continue
        kind = field["type"].removeprefix("[]")
        inner = kind
        if kind[0].isupper():
            inner = kafkas(field.get("fields") or common[kind], common, version)
        is_array = kind != field["type"]
        nullable = within(field.get("nullableVersions"), version)
        tag = int(field["tag"]) if within(field.get("taggedVersions"), version) else None
        shape = [inner] if is_array else inner
        shown.append((snake(field["name"]), shape, nullable, tag, kafka_default(field, is_array)))
    return shown


def within(versions: str | None, version: int) -> bool:
    first, last = span(versions)
    return first <= version <= last


def kafka_default(field: dict[str, Any], is_array: bool) -> Any:
    """The default given in the file, or the one that Kafka implies."""
    text = str(field.get("default", ""))
    if text == "null" or field["type"] == "records":
        return None
    if is_array:
        return []
    match field["type"]:
        case "string":
            return text
        case "bytes":
            return b""
        case "uuid":
            return bytes(16)
        case "bool":
            return text.lower() == "true"
        case "float64":
            return float(text or 0)
    return None if field["type"][0].isupper() else int(text or "0", 0)


def snake(name: str) -> str:
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.replace("2Pc", "2pc"))
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name).lower()


@pytest.mark.parametrize("key", [*APIS, *OWN])
def test_registry_matches_declarations(key: int) -> None:
    spec = registry.spec_of(key)
    assert spec.key == key
    for kind, cls in (("request", request_class(key)), ("response", response_class(key))):
        expected = MessageInfo(kind, key, spec.min_version, spec.max_version, spec.flexible_from)
        assert info_of(cls) == expected
        assert cls.__name__ == spec.name + kind.capitalize()
        assert cls.__module__ == f"kafkawire.messages.{spec.module}"


def test_the_hand_written_codec_of_fetch_is_flexible_from_the_declared_version() -> None:
    assert info_of(request_class(1)).flexible_from == fetch.FLEXIBLE_FROM


def test_own_api_keys_are_not_kafkas() -> None:
    assert not set(OWN) & set(APIS)
    assert min(OWN) > 100 * max(APIS)


def test_every_declared_api_has_a_module() -> None:
    """Every module declares an API, but for those that several of them share."""
    folder = importlib.resources.files("kafkawire.messages")
    names = {
        name.removesuffix(".py") for file in folder.iterdir() if (name := file.name).endswith(".py")
    }
    assert names == {spec.module for spec in (*APIS.values(), *OWN.values())} | {
        "__init__",
        "flat_produce",
        "headers",
        "leaders",
        "registry",
        "stored",
    }
