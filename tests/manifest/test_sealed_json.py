"""JSON objects with a checksum: each flipped bit is noticed, older files are read."""

from __future__ import annotations

import json

import pytest

from kafkawire.codec.format_errors import FormatError
from kafkawire.manifest.sealed_json import seal, unseal

SAYS = {"format": 2, "snapshot": 25, "obsolete": [{"first": 1}], "crc of": "x"}


@pytest.mark.parametrize("indent", [None, 1])
def test_sealed_object_stays_json_and_is_read(indent: int | None) -> None:
    data = seal(json.dumps(SAYS, indent=indent))
    assert json.loads(data) == SAYS | {"crc": json.loads(data)["crc"]}
    assert unseal(data, "x", 2) == SAYS


def test_each_flipped_bit_is_noticed() -> None:
    sound = seal(json.dumps(SAYS))
    for bit in range(8 * len(sound)):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError, match=r"^a file "):
            unseal(bytes(data), "a file", 2)


def test_older_and_newer_formats_are_left_to_the_caller() -> None:
    for old in ({"format": 1, "snapshot": 4}, {"snapshot": 4}, {"format": 3, "other": 1}):
        assert unseal(json.dumps(old).encode(), "x", 2) == old


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"format": 2}'])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        unseal(data, "x", 2)
