"""Segments with a key index, and filter packs, for tests of readers."""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.codec.segment.filter_pack import (
    PackedObject,
    shape_of_pack,
    whole_filters,
    write_stripes,
)
from kafkawire.codec.segment.format import KEYS, read_trailer
from kafkawire.codec.segment.keys import read_keys
from kafkawire.log.segments.file.writer import key_collector
from kafkawire.manifest.keys import PACK_LIST, pack_key, segment_key
from kafkawire.manifest.packs import FilterPack, PackList, write_packs
from kafkawire.reading.files.locations import Place
from tests.kit.spark.files import Files, Share


def indexed(*shares: Share) -> bytes:
    """The body of the key index of a segment."""
    collector = key_collector(decompress=True)
    assert collector is not None, "numba is not installed"
    for share in shares:
        collector.start_partition(share.number)
        collector.add(share.batches)
        collector.end_partition()
    body = collector.section()
    collector.close()
    assert body is not None
    return body


def put(files: Files, name: int, *shares: Share) -> str:
    """Store a segment with its key index; return its key."""
    return files.put(name, *shares, keys=indexed(*shares))


def put_packs(place: Place, *groups: Sequence[bytes]) -> None:
    """Store a filter pack of each group of objects, which are stored, and the list of packs."""
    packs = []
    for number, uuids in enumerate(groups, 1):
        objects = [_packed(uuid, place.get(segment_key(uuid))) for uuid in uuids]
        shape = shape_of_pack(objects)
        place.put(pack_key(number), b"".join(write_stripes(number, objects, shape)))
        packs.append(FilterPack(number, shape, b"".join(uuids)))
    place.put(PACK_LIST, write_packs(PackList(len(packs) + 1, packs)))


def _packed(uuid: bytes, data: bytes) -> PackedObject:
    section = read_trailer(data, len(data)).section(KEYS)
    body = memoryview(data)[section.body_start : section.stop]
    return PackedObject(uuid, whole_filters(body, read_keys(body, len(body))))
