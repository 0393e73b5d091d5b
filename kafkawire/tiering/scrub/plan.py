"""Comparison of bucket, rows and manifest in a scrub, and its findings. Pure.

All three come by rising uuid, a stretch of keys at a time. What differs is *suspect*: things move
during a scrub, so it checks again before it says anything (kafkawire.tiering.scrub.scrub).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kafkawire.codec.segment.format import PartitionEntry
from kafkawire.metadata.catalog import Location
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    ObjectRow,
    SegmentRange,
    SegmentRow,
    unpack_ranges,
)
from kafkawire.tiering.store.object_footer import Tail

AGE_FLOOR_MS = 3_600_000
"""An object younger than this may be one that is being uploaded or moved: it is no orphan yet. Also
more than clocks differ."""
MAX_FINDINGS = 10_000
"""More are only counted: so many have one common cause."""
MAX_RANGES_NAMED = 5
"""Partitions named in one sentence."""


class FindingKind(StrEnum):
    """Kinds of findings."""

    ORPHAN = "orphan"
    """An object without a row: no one will ever read or delete it."""
    DANGLING = "dangling"
    """A row that is finished, and no object: what is in it cannot be read from the tier."""
    SIZE = "size"
    """An object of another size than its row says."""
    FORMAT = "format"
    """An object whose header, trailer, directory or (deep) batches are not as written."""
    UNNAMED = "unnamed"
    """A finished object that the manifest does not name: a restore would miss it."""
    NAMED = "named"
    """An object that the manifest names and no row does: a restore would bring it back."""
    UNREADABLE = "unreadable"
    """What could not be checked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `key`: of the object; `text`: a sentence; `action`: what was done
    about it or, dry, would be ("" where only a person can do something)."""

    kind: FindingKind
    key: str
    text: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """How far a scrub is: `what` is worked on, how many of them are done, how many there are (0:
    not known)."""

    what: str
    done: int
    of: int


@dataclass(slots=True)
class ScrubReport:
    """The end of a scrub. `objects` and `bytes`: in the bucket; `rows`: of objects; `more`: found
    beyond MAX_FINDINGS, and not listed; `young`: objects without a row that may get one, since
    they are younger than `young_ms`."""

    findings: list[Finding] = field(default_factory=list)
    objects: int = 0
    rows: int = 0
    bytes: int = 0
    more: int = 0
    young: int = 0
    young_ms: int = 0
    repaired: bool = False

    def add(self, finding: Finding) -> None:
        """One more."""
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        else:
            self.more += 1


class Seen(NamedTuple):
    """One object of a listing."""

    uuid: bytes
    size_bytes: int
    modified_ms: int


class Suspect(NamedTuple):
    """A possible problem of one object."""

    kind: FindingKind
    uuid: bytes


@dataclass(slots=True)
class Compared:
    """One stretch of keys. `sound`: finished objects with the size of their rows; `young`: how
    many have no row yet."""

    suspects: list[Suspect] = field(default_factory=list)
    sound: list[bytes] = field(default_factory=list)
    young: int = 0


def compare(
    seen: Sequence[Seen], rows: Sequence[ObjectRow], named: set[bytes] | None, before_ms: int
) -> Compared:
    """Hold what one stretch of keys has against each other. `rows`: those of this tier; `named`:
    by the manifest, None: that is not known; objects from `before_ms` on are young."""
    result = Compared()
    by_uuid = {row.uuid: row for row in rows}
    sizes = {each.uuid: each.size_bytes for each in seen}
    for each in seen:
        row = by_uuid.get(each.uuid)
        if row is None and each.modified_ms >= before_ms:
            result.young += 1
        elif row is None:
            result.suspects.append(Suspect(FindingKind.ORPHAN, each.uuid))
        elif row.state == COPY_FINISHED and row.size_bytes != each.size_bytes:
            result.suspects.append(Suspect(FindingKind.SIZE, each.uuid))
        elif row.state == COPY_FINISHED:
            result.sound.append(each.uuid)
    finished = [row.uuid for row in rows if row.state == COPY_FINISHED]
    result.suspects += [
        Suspect(FindingKind.DANGLING, uuid) for uuid in finished if uuid not in sizes
    ]
    if named is not None:
        result.suspects += [
            Suspect(FindingKind.UNNAMED, uuid) for uuid in finished if uuid not in named
        ]
        result.suspects += [
            Suspect(FindingKind.NAMED, uuid) for uuid in sorted(named - by_uuid.keys())
        ]
    return result


def unlike(tail: Tail, segment: SegmentRow, mappings: Iterable[SegmentRange]) -> str:
    """Why an object is not what the rows of its segment say; empty: it is."""
    if tail.header.uuid != segment.uuid:
        return f"it is the segment {tail.header.uuid.hex()}, its row says {segment.uuid.hex()}"
    entries = {entry.number: entry for entry in tail.directory}
    for mapping in mappings:
        entry = entries.get(mapping.number)
        if entry is None:
            return f"it has nothing of partition {mapping.number}, of which it has a row"
        if _of(entry) != _of(mapping):
            return (
                f"of partition {mapping.number} it has other offsets or bytes than the row says: "
                f"offsets {entry.base_offset}-{entry.end_offset - 1} at {entry.start}"
            )
    return ""


def _of(share: PartitionEntry | SegmentRange) -> tuple[int, ...]:
    return (
        share.base_offset, share.end_offset, share.start, share.length, share.index_start,
        share.index_length, share.index_checksum,
    )  # fmt: skip


def ranges_text(packed: bytes, locate: Callable[[int], Location | None]) -> str:
    """The offsets of an object, by the names of their partitions."""
    names = []
    ranges = unpack_ranges(packed)
    for number, base, end in ranges[:MAX_RANGES_NAMED]:
        place = locate(number)
        name = f"{place.topic}-{place.index}" if place is not None else f"partition {number}"
        names.append(f"{base}-{end - 1} of {name}")
    more = len(ranges) - len(names)
    return ", ".join(names) + (f" and of {more} more partitions" if more else "")
