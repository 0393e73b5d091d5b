"""The list of filter packs of a bucket, `filters/current`, and which objects each of them covers.

It is not part of the manifest: a pack states facts about objects, which never change, so the two
need not agree at any moment, and only a search by key reads it. A pack that is named here may be
gone, and an object may be gone that it covers. JSON. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment.filter_pack import (
    MAX_STRIPE_BYTES,
    MAX_STRIPES,
    UUID_BYTES,
    PackShape,
)
from kafkawire.manifest.keys import PACK_LIST

FORMAT = 1


class FilterPack(NamedTuple):
    """A pack, and the uuids of the objects it covers."""

    number: int
    shape: PackShape
    # Back to back: a list of a hundred thousand objects is read in 16 ms, where it takes 50 with a
    # text for each.
    uuids: bytes

    @property
    def objects(self) -> list[bytes]:
        return [self.uuids[at : at + UUID_BYTES] for at in range(0, len(self.uuids), UUID_BYTES)]


class ObsoletePack(NamedTuple):
    """A pack that readers may still use until a time (ms)."""

    number: int
    delete_after_ms: int


@dataclass(frozen=True, slots=True)
class PackList:
    """The contents of `filters/current`."""

    # The number of the next pack. A crash may leave an object with that key, which the next attempt
    # replaces, so that nothing is left over.
    next: int = 1
    packs: Sequence[FilterPack] = ()
    obsolete: Sequence[ObsoletePack] = ()


def write_packs(packs: PackList) -> bytes:
    packed = (
        {
            "number": each.number,
            "stripes": each.shape.stripes,
            "stripe_bytes": each.shape.stripe_bytes,
            "objects": each.uuids.hex(),
        }
        for each in packs.packs
    )
    obsolete = (
        {"number": each.number, "delete_after_ms": each.delete_after_ms} for each in packs.obsolete
    )
    # Each by itself: encoding a list of thousands would hold the interpreter lock for 20 ms.
    return (
        f'{{"format":{FORMAT},"next":{packs.next},"packs":[{_join(packed)}],'
        f'"obsolete":[{_join(obsolete)}]}}\n'
    ).encode()


def _join(values: Iterable[dict[str, Any]]) -> str:
    return ",\n".join(json.dumps(each, separators=(",", ":")) for each in values)


def read_packs(data: bytes) -> PackList:
    """Decode the list. Raises FormatError if it is malformed, NewerFormatError if a newer program
    wrote it."""
    try:
        says: Any = json.loads(data)
        if says["format"] > FORMAT:
            raise NewerFormatError(
                f"{PACK_LIST} has format {says['format']}, this kafkawire reads up to {FORMAT}"
            )
        packs = tuple(map(_pack, says["packs"]))
        obsolete = tuple(
            ObsoletePack(_natural(each["number"]), _natural(each["delete_after_ms"]))
            for each in says.get("obsolete", [])
        )
        following = _natural(says["next"])
    except NewerFormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError(f"{PACK_LIST} is not what kafkawire writes") from None
    numbers = [each.number for each in packs] + [each.number for each in obsolete]
    if any(number >= following for number in numbers):
        raise FormatError(f"{PACK_LIST} has a pack with a number that was not given")
    return PackList(following, packs, obsolete)


def _pack(says: Any) -> FilterPack:
    stripes, size = _natural(says["stripes"]), _natural(says["stripe_bytes"])
    uuids = bytes.fromhex(says["objects"])
    if not 0 < stripes <= MAX_STRIPES or not 0 < size <= MAX_STRIPE_BYTES:
        raise ValueError(stripes, size)
    if len(uuids) % UUID_BYTES:
        raise ValueError(uuids)
    return FilterPack(_natural(says["number"]), PackShape(stripes, size), uuids)


def _natural(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(value)
    return value
