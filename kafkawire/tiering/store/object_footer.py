"""Header and trailing sections of an object, read with two requests.

Used by scrubs, and by restores without a manifest. Unreadable data raises FormatError with a
sentence without the object's name; batches and indexes are not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import (
    DIRECTORY,
    HEADER_BYTES,
    ORIGIN,
    STATE,
    Header,
    Origin,
    PartitionEntry,
    PartitionState,
    Section,
    Trailer,
    check_directory,
    read_directory,
    read_header,
    read_origin,
    read_state,
    read_trailer,
    section_body,
)

FIRST_BYTES = 64 << 10
"""First read from the end: covers the sections of most objects, which then need one request."""
MAX_SECTIONS_BYTES = 256 << 20
"""Maximum size of directory, state and origin: those of ten thousand partitions have a few MiB. A
trailer with a larger size is damaged."""


@dataclass(slots=True)
class Tail:
    """The footer of one object. `origin` None: written by an older program."""

    header: Header
    trailer: Trailer
    directory: list[PartitionEntry]
    states: dict[int, PartitionState]
    origin: Origin | None


class Reads(Protocol):
    """The part of the store port that this module needs."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        """Return (bytes, ETag) of a small object or a range of it. A negative start counts from the
        end; a range is cut at the end."""


async def read_tail(store: Reads, key: str, size_bytes: int) -> Tail:
    """Read the footer of the object `key` with `size_bytes`. Raises FormatError, StoreError."""
    if size_bytes <= HEADER_BYTES:
        raise FormatError(f"it has {size_bytes} bytes, too few for a segment")
    first, _ = await store.get(key, 0, HEADER_BYTES)
    # From its end, without knowing how long the sections are: usually this read has all of them.
    at = max(0, size_bytes - FIRST_BYTES)
    tail, _ = await store.get(key, at, size_bytes - at)
    if len(tail) != size_bytes - at:
        raise FormatError(f"it has {at + len(tail)} bytes and was listed with {size_bytes}")
    header, trailer = read_header(first), read_trailer(tail, size_bytes)
    if header.uuid != trailer.uuid:
        raise FormatError("its header and its trailer are of two segments")
    directory, state = trailer.section(DIRECTORY), trailer.section(STATE)
    origin = trailer.optional(ORIGIN)
    start = min(section.start for section in (directory, state, origin) if section is not None)
    if size_bytes - start > MAX_SECTIONS_BYTES:
        raise FormatError(f"its sections take {size_bytes - start} bytes, which cannot be")
    if start < at:
        more, _ = await store.get(key, start, at - start)
        tail, at = more + tail, start
        if len(tail) != size_bytes - at:
            raise FormatError(f"bytes {start} to {at} of it cannot be read")

    def body(section: Section) -> memoryview:
        return section_body(section, memoryview(tail)[section.start - at : section.stop - at])

    entries = read_directory(body(directory))
    check_directory(entries, trailer)
    said = None if origin is None else read_origin(body(origin))
    return Tail(header, trailer, entries, read_state(body(state)), said)
