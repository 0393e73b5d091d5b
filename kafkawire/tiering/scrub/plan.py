"""Comparison of bucket, rows and manifest in a scrub, and its findings. Pure.

All three are sorted by uuid and compared one range of keys at a time. Differences are *suspect*:
uploads and deletions continue during a scrub, so it checks again before it reports them
(kafkawire.tiering.scrub.scrub).
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
"""Minimum age of an orphan: a younger object may be one that is being uploaded or moved. It also
exceeds clock differences."""
MAX_FINDINGS = 10_000
"""Maximum number of findings listed; more, which are only counted, have one common cause."""
MAX_RANGES_NAMED = 5
"""Maximum number of partitions named in one sentence."""


class FindingKind(StrEnum):
    """Kinds of findings."""

    ORPHAN = "orphan"
    """An object without a row, which no reader will ever use and no task will delete."""
    DANGLING = "dangling"
    """A finished row without an object: its records cannot be read from the tier."""
    SIZE = "size"
    """An object with another size than in its row."""
    FORMAT = "format"
    """An object with a damaged header, trailer, directory or (deep) batch."""
    UNNAMED = "unnamed"
    """A finished object that the manifest does not name, so a restore would not find it."""
    NAMED = "named"
    """An object without a row that the manifest names, so a restore would bring it back."""
    UNREADABLE = "unreadable"
    """An object that could not be checked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `key`: of the object; `text`: a sentence; `action`: what was done about it or,
    in a dry run, would be done ("" if a person must act)."""

    kind: FindingKind
    key: str
    text: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """Progress of a scrub: `what` is processed, how many are done and are there (0: unknown)."""

    what: str
    done: int
    of: int


@dataclass(slots=True)
class ScrubReport:
    """The result of a scrub. `objects` and `bytes`: in the bucket; `rows`: of objects; `more`:
    findings beyond MAX_FINDINGS, which are not listed; `young`: objects without a row that are
    younger than `young_ms` and may still get one."""

    findings: list[Finding] = field(default_factory=list)
    objects: int = 0
    rows: int = 0
    bytes: int = 0
    more: int = 0
    young: int = 0
    young_ms: int = 0
    repaired: bool = False

    def add(self, finding: Finding) -> None:
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
    """The result for one range of keys. `sound`: finished objects with the size in their rows;
    `young`: number of young objects without a row."""

    suspects: list[Suspect] = field(default_factory=list)
    sound: list[bytes] = field(default_factory=list)
    young: int = 0


def compare(
    seen: Sequence[Seen], rows: Sequence[ObjectRow], named: set[bytes] | None, before_ms: int
) -> Compared:
    """Compare bucket, rows and manifest in one range of keys. `rows`: those of this tier; `named`:
    by the manifest, None if unknown; objects from `before_ms` on are young."""
    result = Compared()
    by_uuid = {row.uuid: row for row in rows}
    sizes = {each.uuid: each.size_bytes for each in seen}
    for each in seen:
        row = by_uuid.get(each.uuid)
        # It may still get a row.
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
    """Return how an object differs from the rows of its segment; empty if it does not."""
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
    names = []
    ranges = unpack_ranges(packed)
    for number, base, end in ranges[:MAX_RANGES_NAMED]:
        place = locate(number)
        name = f"{place.topic}-{place.index}" if place is not None else f"partition {number}"
        names.append(f"{base}-{end - 1} of {name}")
    more = len(ranges) - len(names)
    return ", ".join(names) + (f" and of {more} more partitions" if more else "")
