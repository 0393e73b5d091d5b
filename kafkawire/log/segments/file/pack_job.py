"""The job `pack`: write the filter pack of some segments, in the worker.

Memory: the filters of the pack, at most MAX_FILTER_BYTES, one section, and one stripe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.filter_pack import (
    MAX_ENTRIES,
    PackedObject,
    PackShape,
    WholeFilter,
    shape_of_pack,
    whole_filters,
    write_stripes,
)
from kafkawire.codec.segment.format import KEYS, TAIL_BYTES, read_trailer
from kafkawire.codec.segment.keys import read_keys
from kafkawire.log.io.ports import File, FileSystem
from kafkawire.log.io.worker_jobs import Pace

MAX_OBJECTS = 64
"""Objects in a pack: a search in a thousand segments reads 16 packs, and the filters of at most 63
segments that wait for the next pack."""
MAX_FILTER_BYTES = 32 << 20
"""Filters in a pack: of 26 million keys, 410,000 in each object. More would take more memory in the
worker and, since stripes are not larger, save no request."""
MAX_SECTION_BYTES = 96 << 20
"""The key index of one object: both filters of as many keys, and what else is in it."""


@dataclass(slots=True)
class PackInput:
    """An object of `size_bytes`: the file at `path` has its bytes from `start` on."""

    uuid: bytes
    path: str
    size_bytes: int
    start: int = 0


@dataclass(slots=True)
class PackArguments:
    """The objects to pack, the number of the pack, and the path of its file, which must not
    exist."""

    number: int
    inputs: Sequence[PackInput]
    output: str


@dataclass(slots=True)
class PackResult:
    """`packed`: the objects in the pack; none if too few have a key index, so there is no file.
    `without`: objects that cannot be in a pack: they have no key index, or one that is damaged or
    larger than a pack."""

    shape: PackShape = field(default_factory=lambda: PackShape(0, 0))
    packed: list[bytes] = field(default_factory=list)
    without: list[bytes] = field(default_factory=list)


def run(fs: FileSystem, arguments: PackArguments, pace: Pace) -> PackResult:
    """Run the job. OSError from the disk."""
    result = PackResult()
    chosen: list[PackedObject] = []
    size = entries = 0
    for each in arguments.inputs:
        filters = _filters(fs, each, pace)
        own = sum(len(one.buckets) for one in filters)
        # It could not be in any pack: noted, so that it is not tried again.
        if not filters or own > MAX_FILTER_BYTES or len(filters) > MAX_ENTRIES:
            result.without.append(each.uuid)
            continue
        # The next object would make the pack too large: it begins the next pack.
        size, entries = size + own, entries + len(filters)
        is_full = len(chosen) == MAX_OBJECTS
        if is_full or size > MAX_FILTER_BYTES or entries > MAX_ENTRIES:
            return _write(fs, arguments, chosen, result)
        chosen.append(PackedObject(each.uuid, filters))
    # Only full packs are written; the others wait for more segments.
    return _write(fs, arguments, chosen, result) if len(chosen) == MAX_OBJECTS else result


def _write(
    fs: FileSystem, arguments: PackArguments, chosen: Sequence[PackedObject], result: PackResult
) -> PackResult:
    result.shape = shape_of_pack(chosen)
    result.packed = [each.uuid for each in chosen]
    # Not synced: it is uploaded, and written again if that fails.
    file = fs.open(arguments.output, create=True)
    try:
        _store(file, write_stripes(arguments.number, chosen, result.shape))
    finally:
        file.close()
    return result


def _store(file: File, stripes: Iterator[bytes]) -> None:
    at = 0
    for stripe in stripes:
        left = memoryview(stripe)
        # A write may be short.
        while left:
            wrote = file.pwritev([left], at)
            at, left = at + wrote, left[wrote:]


def _filters(fs: FileSystem, wanted: PackInput, pace: Pace) -> list[WholeFilter]:
    """Return the filters of an object; none if it has none that can be read."""
    try:
        file = fs.open(wanted.path)
    # Removed meanwhile.
    except FileNotFoundError:
        return []
    try:
        size = wanted.size_bytes - wanted.start
        tail = file.pread(min(TAIL_BYTES, size), max(0, size - TAIL_BYTES))
        section = read_trailer(tail, wanted.size_bytes).optional(KEYS)
        # A bound for the worker's memory.
        if section is None or section.length > MAX_SECTION_BYTES:
            return []
        body = file.pread(section.length, section.body_start - wanted.start)
        pace(len(tail) + len(body))
        return whole_filters(body, read_keys(body, section.length))
    except FormatError:
        return []  # which a scrub reports
    finally:
        file.close()
