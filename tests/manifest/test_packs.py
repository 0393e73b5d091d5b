"""The list of filter packs: read as it was written, and nothing else is believed.

Covers: kafkawire.manifest.packs.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment.filter_pack import MAX_STRIPE_BYTES, MAX_STRIPES, PackShape
from kafkawire.manifest.keys import pack_key, pack_number
from kafkawire.manifest.packs import (
    FilterPack,
    ObsoletePack,
    PackList,
    read_packs,
    write_packs,
)

shapes = st.builds(PackShape, st.integers(1, MAX_STRIPES), st.integers(1, MAX_STRIPE_BYTES))
uuids = st.lists(st.binary(min_size=16, max_size=16), max_size=3).map(b"".join)
packs = st.builds(FilterPack, st.integers(0, 9), shapes, uuids)
obsolete = st.builds(ObsoletePack, st.integers(0, 9), st.integers(0, 1 << 60))


@given(
    st.builds(
        PackList,
        st.integers(10, 1 << 62),
        st.lists(packs, max_size=3).map(tuple),
        st.lists(obsolete, max_size=3).map(tuple),
    )
)
def test_list_is_read_as_written(given_list: PackList) -> None:
    assert read_packs(write_packs(given_list)) == given_list


def written(**changed: Any) -> bytes:
    one = FilterPack(3, PackShape(2, 100), b"u" * 16)
    says = json.loads(write_packs(PackList(4, (one,), (ObsoletePack(2, 9),))))
    for name, value in changed.items():
        if name in says:
            says[name] = value
        else:
            says["packs"][0][name] = value
    return json.dumps(says).encode()


def test_names_that_are_not_known_are_skipped() -> None:
    assert read_packs(written(later="x")).packs[0].number == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"stripes": 0},
        {"stripes": MAX_STRIPES + 1},
        {"stripe_bytes": MAX_STRIPE_BYTES + 1},
        {"stripe_bytes": True},
        {"objects": "00"},
        {"objects": "x" * 32},
        {"objects": ["00" * 16]},
        {"number": -1},
        {"next": 3},
        {"packs": 3},
        {"obsolete": [{}]},
        {"format": "1"},
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="filters/current"):
        read_packs(written(**changed))


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_packs(data)


def test_newer_format_is_named() -> None:
    with pytest.raises(NewerFormatError, match="has format 2"):
        read_packs(written(format=2))


def test_objects_are_sixteen_bytes_each() -> None:
    pack = FilterPack(1, PackShape(1, 9), b"a" * 16 + b"b" * 16)
    assert pack.objects == [b"a" * 16, b"b" * 16]


def test_keys_have_the_numbers_of_packs() -> None:
    assert pack_key(12) == "filters/pack-00000000000000000012"
    assert pack_number(pack_key(12)) == 12
    for key in ("filters/current", "filters/pack-12", "filters/pack-" + "x" * 20):
        assert pack_number(key) is None
