"""The allowed state transitions of an object, shared by all storages. Pure.

A segment has at most one finished object, and only a live segment gets one: a segment that was
replaced is never restored by a late upload.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    COPY_STARTED,
    CURRENT,
    LIVE,
    ObjectRow,
    SegmentRow,
    TierRow,
)


def may_start(segment: SegmentRow | None, row: ObjectRow) -> bool:
    """Return whether a segment may be uploaded as this object."""
    if segment is None or segment.state != LIVE or not segment.local:
        return False
    return not (segment.object and segment.tier == row.tier)


def may_finish(segment: SegmentRow | None, row: ObjectRow | None) -> bool:
    """Return whether an object may become the finished one of its segment."""
    if row is None or segment is None or row.state != COPY_STARTED or segment.state != LIVE:
        return False
    return not (segment.object and segment.tier == row.tier)


def may_move(segment: SegmentRow | None, row: ObjectRow | None) -> bool:
    """Return whether an object is the finished one of a live segment, so that a copy may replace
    it."""
    if row is None or segment is None or row.state != COPY_FINISHED:
        return False
    return segment.state == LIVE and segment.object == row.uuid


def finish(
    uuids: Sequence[bytes], objects: Mapping[bytes, ObjectRow], segments: Mapping[int, SegmentRow]
) -> tuple[list[ObjectRow], list[bytes]]:
    """Return the objects that may be finished, with their changed segments, and the objects in
    other tiers that they replace."""
    done: list[ObjectRow] = []
    replaced: list[bytes] = []
    for uuid in dict.fromkeys(uuids):
        row = objects.get(uuid)
        segment = None if row is None else segments.get(row.segment_id)
        if row is None or segment is None or not may_finish(segment, row):
            continue
        if segment.object:
            replaced.append(segment.object)
        segment.object, segment.tier = row.uuid, row.tier
        done.append(row)
    return done, replaced


def relocate(
    moved: Mapping[bytes, ObjectRow],
    old: Mapping[bytes, ObjectRow],
    segments: Mapping[int, SegmentRow],
) -> tuple[list[ObjectRow], list[bytes]]:
    """Return the rows of the copies that replace old objects, with their changed segments, and the
    uuids of the old objects."""
    new: list[ObjectRow] = []
    left: list[bytes] = []
    for uuid, row in moved.items():
        found = old.get(uuid)
        segment = None if found is None else segments.get(found.segment_id)
        if segment is None or not may_move(segment, found):
            continue
        copy = replace(row, segment_id=segment.id, state=COPY_FINISHED, delete_after_ms=0)
        segment.object, segment.tier = copy.uuid, copy.tier
        new.append(copy)
        left.append(uuid)
    return new, left


def changed(rows: Iterable[SegmentRow], local: bool) -> list[SegmentRow]:
    """Return the segments whose `local` may be set to this value and differs, with the new
    value."""
    found = []
    for row in rows:
        if row.state == LIVE and row.local != local and (local or row.object):
            row.local = local
            found.append(row)
    return found


def without_objects(
    segments: Mapping[int, SegmentRow], rows: Iterable[ObjectRow]
) -> list[SegmentRow]:
    """Return the segments whose object is one of these that are deleted, without it."""
    found = []
    for row in rows:
        segment = segments.get(row.segment_id)
        if segment is not None and segment.object == row.uuid:
            segment.object, segment.tier = b"", 0
            found.append(segment)
    return found


def entered(segment: SegmentRow | None, row: ObjectRow | None, made: ObjectRow) -> bool:
    """Return whether mappings may be entered into an object, whose stored rows are given."""
    if row is None or row.state != COPY_FINISHED or row.tier != made.tier:
        return False
    return segment is None or segment.object == row.uuid


def adopted(
    rows: Sequence[TierRow], node_id: int, writers: Callable[[int], Collection[int]]
) -> list[TierRow]:
    """Return the tiers that become those of a broker, see ObjectCatalog.adopt_tiers. `writers`
    returns the brokers that have objects in a tier."""
    return [
        replace(row, node_id=node_id)
        for row in rows
        if row.node_id is None and (node_id in (known := writers(row.id)) or not known)
    ]


def claimed(
    rows: Sequence[TierRow], url: str, own_url: str, node_id: int, now_ms: int
) -> tuple[TierRow, bool]:
    """Return the tier of a broker, see ObjectCatalog.claim_tier, and whether it is new."""
    # not imported by brokers without a tier
    from kafkawire.objectstore.overlap import same_place

    for wanted in (url, own_url):
        for row in rows:
            if row.node_id == node_id and (row.url == wanted or same_place(row.url, wanted)):
                return row, False
    taken = any(row.url == url or same_place(row.url, url) for row in rows)
    number = max((row.id for row in rows), default=-1) + 1
    return TierRow(number, own_url if taken else url, CURRENT, now_ms, node_id), True
