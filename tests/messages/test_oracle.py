"""The compiled codec compared with kio and with the slow reference codec, for every (API, version).

Covers: kafkawire.messages.*.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kafkawire.codec.compile import DecodeError, decode, decoder, encode, encoder
from kafkawire.messages.registry import (
    APIS,
    OWN,
    ApiSpec,
    request_class,
    response_class,
    spec_of,
)
from tests.kit.codec import kio_bridge
from tests.kit.codec import reference_codec as refcodec
from tests.kit.codec.messages import Messages, few, project

MESSAGES = [(key, kind) for key in APIS for kind in ("request", "response")]
OURS = [(key, kind) for key in OWN for kind in ("request", "response")]
# (API key, version) of messages that kio 0.6 does not have: all of them are new in Kafka 4.4.
NOT_IN_KIO = {(18, 5), (28, 6), (42, 3), (88, 1), (89, 1), (93, 0), (94, 0)}


def message_class(key: int, kind: str) -> Any:
    return request_class(key) if kind == "request" else response_class(key)


def versions(key: int) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


def name_of(case: tuple[int, str]) -> str:
    return spec_of(case[0]).name + case[1].capitalize()


@pytest.mark.slow
def test_list_of_messages_missing_in_kio_is_correct() -> None:
    missing = {
        (key, version)
        for key, kind in MESSAGES
        for version in versions(key)
        if kio_bridge.kio_class(key, kind, version) is None
    }
    assert missing == NOT_IN_KIO


@pytest.mark.parametrize("case", MESSAGES, ids=name_of)
def test_encoding_matches_kio_and_reference_codec(case: tuple[int, str]) -> None:
    key, kind = case
    cls = message_class(key, kind)
    kios = {version: kio_bridge.kio_class(key, kind, version) for version in versions(key)}
    special: dict[tuple[type, str], Any] = {}
    for version, kio in kios.items():
        if kio is not None:
            kio_bridge.limits(cls, kio, version, special)
    few(Messages(special).of(cls), equals_both, APIS[key], kios)


def equals_both(message: Any, spec: ApiSpec, kios: dict[int, Any]) -> None:
    for version, kio in kios.items():
        cut = project(message, version, spec.flexible(version))
        if kio is not None:
            entity = kio_bridge.to_kio(cut, kio, version)
            data = kio_bridge.encode(entity)
            assert encode(cut, version) == data
            assert decode(type(cut), version, data) == cut
            assert kio_bridge.decode(kio, data) == entity
        equals_reference(cut, version)


@pytest.mark.parametrize("case", [*MESSAGES, *OURS], ids=name_of)
def test_encoding_with_unknown_tags_matches_reference_codec(case: tuple[int, str]) -> None:
    """Values that kio cannot hold, and unknown tags, in the oldest and the newest version."""
    few(Messages(unknown_tags=True).of(message_class(*case)), equals_at_the_ends, spec_of(case[0]))


def equals_at_the_ends(message: Any, spec: ApiSpec) -> None:
    for version in {spec.min_version, spec.max_version}:
        equals_reference(project(message, version, spec.flexible(version)), version)


def equals_reference(message: Any, version: int) -> None:
    cls = type(message)
    data = refcodec.encode(message, version)
    assert encode(message, version) == data
    assert decode(cls, version, data) == message
    assert decode(cls, version, bytearray(data)) == message
    assert refcodec.decode(cls, version, data) == message
    assert outcome(cls, version, data + b"\0") is None
    for position in range(0, len(data), len(data) // 40 + 1):
        assert outcome(cls, version, data[:position]) is None
    for mutation in mutations_of(data):
        agree(cls, version, mutation)


def outcome(cls: type, version: int, data: bytes) -> Any:
    """The decoded message, or None for DecodeError; any other error fails the test."""
    try:
        return decode(cls, version, data)
    except DecodeError:
        return None


def mutations_of(data: bytes) -> list[bytes]:
    """A few copies with one byte changed, inserted or dropped; the same ones on every run."""
    dice = random.Random(data)
    made = []
    for _ in range(4):
        position = dice.randrange(len(data)) if data else 0
        byte = bytes([dice.choice([0, 1, 127, 128, 255, dice.randrange(256)])])
        cut = data[position + dice.randrange(2) :]
        made.append(data[:position] + byte * dice.randrange(3) + cut)
    return made


def agree(cls: type, version: int, data: bytes) -> None:
    """Check that both codecs read the same from the bytes, or both refuse them."""
    try:
        expected = refcodec.decode(cls, version, data)
    except DecodeError:
        expected = None
    found = outcome(cls, version, data)
    # A NaN equals nothing, a memoryview shows nothing: one of the two comparisons works.
    assert found == expected or repr(found) == repr(expected)


def test_one_codec_is_compiled_per_version() -> None:
    cls = request_class(3)
    assert decoder(cls, 9) is decoder(cls, 9)
    assert encoder(cls, 9) is encoder(cls, 9)
    assert encoder(cls, 9) is not encoder(cls, 8)
