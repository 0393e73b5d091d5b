"""The changes of objects of the remote tier, for all storages: what is left out, what is changed.

A storage has the rows (`ObjectRows`) and runs each change here as one transaction. Which states an
object may go through is in `object_rules`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    COPY_STARTED,
    CURRENT,
    DELETE_STARTED,
    LIVE,
    EnteredObject,
    ObjectRow,
    SegmentRange,
    SegmentRow,
    StaleSwap,
    TierRow,
)

# The allowed state transitions of an object, shared by all storages. Pure.
#
# A segment has at most one finished object, and only a live segment gets one: a segment that was
# replaced is never restored by a late upload.


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
    """Return whether an object is the finished one of a live segment: a copy may replace it."""
    if row is None or segment is None or row.state != COPY_FINISHED:
        return False
    return segment.state == LIVE and segment.object == row.uuid


def match_finished(
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
        # That of another tier: `may_finish` refuses a second one in the same tier.
        if segment.object:
            replaced.append(segment.object)
        segment.object, segment.tier = row.uuid, row.tier
        done.append(row)
    return done, replaced


def match_moved(
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


def change_local(rows: Iterable[SegmentRow], local: bool) -> list[SegmentRow]:
    """Return the segments whose `local` may have this value and differs, with the new value."""
    found = []
    for row in rows:
        # A segment without an object keeps its file, which is the only copy.
        if row.state == LIVE and row.local != local and (local or row.object):
            row.local = local
            found.append(row)
    return found


def detach_objects(
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


def may_enter(segment: SegmentRow | None, row: ObjectRow | None, made: ObjectRow) -> bool:
    """Return whether mappings may be entered into an object, whose stored rows are given."""
    if row is None or row.state != COPY_FINISHED or row.tier != made.tier:
        return False
    return segment is None or segment.object == row.uuid


def find_adopted_tiers(
    rows: Sequence[TierRow], node_id: int, writers: Callable[[int], Collection[int]]
) -> list[TierRow]:
    """Return the tiers that become those of a broker, see ObjectCatalog.adopt_tiers. `writers`
    returns the brokers that have objects in a tier."""
    return [
        replace(row, node_id=node_id)
        for row in rows
        if row.node_id is None and (node_id in (known := writers(row.id)) or not known)
    ]


def choose_tier(
    rows: Sequence[TierRow], url: str, own_url: str, node_id: int, now_ms: int
) -> tuple[TierRow, bool]:
    """Return the tier of a broker, see ObjectCatalog.claim_tier, and whether it is new."""
    # Not imported by brokers without a tier.
    from kafkawire.objectstore.overlap import same_place

    # Its own, whichever it has: a broker that is started again writes where its objects are.
    for wanted in (url, own_url):
        for row in rows:
            if row.node_id == node_id and (row.url == wanted or same_place(row.url, wanted)):
                return row, False
    taken = any(row.url == url or same_place(row.url, url) for row in rows)
    number = max((row.id for row in rows), default=-1) + 1
    return TierRow(number, own_url if taken else url, CURRENT, now_ms, node_id), True


T = TypeVar("T")


class ObjectRows(Protocol):
    """The rows of a storage in one transaction. Reads may not see what the transaction wrote."""

    def require_leader(self, numbers: Collection[int]) -> Collection[int]:
        """Return those of the partitions that exist. KafkaError if another broker leads one."""

    def objects(self, uuids: Iterable[bytes]) -> dict[bytes, ObjectRow]:
        """Return the objects that exist, by uuid and sorted."""

    def segments(self, ids: Iterable[int]) -> dict[int, SegmentRow]:
        """Return the segments that exist, by id and sorted."""

    def enter_objects(self, rows: Sequence[ObjectRow]) -> None:
        """Insert objects."""

    def change_objects(self, rows: Iterable[ObjectRow], state: int, delete_after_ms: int) -> None:
        """Set the state of stored objects, and the end of their deletion's delay."""

    def remove_objects(self, rows: Iterable[ObjectRow]) -> None:
        """Delete the rows of objects."""

    def store_segments(self, rows: Iterable[SegmentRow]) -> None:
        """Store `object`, `tier` and `local` of segments."""

    def raise_offsets(self, offsets: Mapping[int, tuple[int, int]]) -> None:
        """Raise dispatch and commit offsets; neither ever decreases."""

    def locked_tiers(self) -> list[TierRow]:
        """Return all tiers, which no other broker can change before the transaction ends."""

    def writers(self, tier: int) -> set[int]:
        """Return the brokers that have objects in a tier."""

    def store_tier(self, row: TierRow) -> None:
        """Insert or update a tier."""


class LostReplacement(NamedTuple):
    """A finished object into which mappings are entered. `segment`: the stored one, None if it has
    no row any more; `given`: the one that gets a row then."""

    given: SegmentRow
    stored: ObjectRow
    segment: SegmentRow | None
    mappings: list[SegmentRange]


def find_finished(
    rows: ObjectRows, entered: Sequence[EnteredObject], led: Collection[int]
) -> list[LostReplacement]:
    """Return the objects of `ObjectCatalog.replace_lost` that get mappings, with those of `led`
    partitions. Raises StaleSwap."""
    objects = rows.objects(made.uuid for _, made, _ in entered)
    segments = rows.segments(row.segment_id for row in objects.values())
    found = []
    for given, made, mappings in entered:
        stored = objects.get(made.uuid)
        segment = None if stored is None else segments.get(stored.segment_id)
        if stored is None or not may_enter(segment, stored, made):
            raise StaleSwap(f"object {made.uuid.hex()} is not a finished one any more")
        kept = [each for each in mappings if each.number in led]
        if kept:
            found.append(LostReplacement(given, stored, segment, kept))
    return found


class ObjectChanges(ABC):
    """The part of `ObjectCatalog` that changes objects; see there for the methods."""

    _node_id: int

    @abstractmethod
    async def _change(self, method: str, work: Callable[[ObjectRows], T]) -> T:
        """Run `work` in one transaction. `method`: its name, for tests."""

    async def start_objects(
        self, rows: Sequence[ObjectRow], dispatched: Mapping[int, int]
    ) -> list[bytes]:
        def work(stored: ObjectRows) -> list[bytes]:
            led = stored.require_leader(sorted(dispatched))
            segments = stored.segments(row.segment_id for row in rows)
            entered = [
                replace(row, state=COPY_STARTED, delete_after_ms=0)
                for row in rows
                if may_start(segments.get(row.segment_id), row)
            ]
            stored.enter_objects(entered)
            stored.raise_offsets({number: (dispatched[number], 0) for number in led})
            return [row.uuid for row in entered]

        return await self._change("start_objects", work)

    async def finish_objects(
        self, uuids: Sequence[bytes], committed: Mapping[int, int]
    ) -> list[SegmentRow]:
        def work(stored: ObjectRows) -> list[SegmentRow]:
            led = stored.require_leader(sorted(committed))
            found = stored.objects(uuids)
            segments = stored.segments(row.segment_id for row in found.values())
            done, replaced = match_finished(uuids, found, segments)
            stored.change_objects(done, COPY_FINISHED, 0)
            stored.change_objects(stored.objects(replaced).values(), DELETE_STARTED, 0)
            changed = [segments[each] for each in sorted({row.segment_id for row in done})]
            stored.store_segments(changed)
            # The commit offsets were computed for all of them. If one is left out, a part of its
            # offsets may not be uploaded.
            if len(done) == len(set(uuids)):
                stored.raise_offsets({number: (committed[number],) * 2 for number in led})
            return changed

        return await self._change("finish_objects", work)

    async def delete_objects(self, uuids: Sequence[bytes], delete_after_ms: int) -> None:
        def work(stored: ObjectRows) -> None:
            # Not again: it would delay the deletion of one that is due.
            rows = [row for row in stored.objects(uuids).values() if row.state != DELETE_STARTED]
            segments = stored.segments(row.segment_id for row in rows)
            stored.change_objects(rows, DELETE_STARTED, delete_after_ms)
            stored.store_segments(detach_objects(segments, rows))

        await self._change("delete_objects", work)

    async def schedule_object_deletion(self, rows: Sequence[ObjectRow]) -> None:
        def work(stored: ObjectRows) -> None:
            known = stored.objects(row.uuid for row in rows)
            new = {row.uuid: row for row in rows if row.uuid not in known}
            stored.enter_objects([replace(row, state=DELETE_STARTED) for row in new.values()])

        await self._change("schedule_object_deletion", work)

    async def drop_objects(self, uuids: Sequence[bytes]) -> None:
        def work(stored: ObjectRows) -> None:
            found = stored.objects(uuids).values()
            stored.remove_objects([row for row in found if row.state == DELETE_STARTED])

        await self._change("drop_objects", work)

    async def set_local(self, ids: Sequence[int], local: bool) -> list[SegmentRow]:
        def work(stored: ObjectRows) -> list[SegmentRow]:
            segments = stored.segments(ids)
            stored.store_segments(change_local(segments.values(), local))
            return list(segments.values())

        return await self._change("set_local", work)

    async def save_tiering_offsets(self, offsets: Mapping[int, tuple[int, int]]) -> None:
        def work(stored: ObjectRows) -> None:
            led = stored.require_leader(sorted(offsets))
            stored.raise_offsets({number: offsets[number] for number in led})

        await self._change("save_tiering_offsets", work)

    async def claim_tier(self, url: str, own_url: str, now_ms: int) -> TierRow:
        def work(stored: ObjectRows) -> TierRow:
            tiers = stored.locked_tiers()
            found, new = choose_tier(tiers, url, own_url, self._node_id, now_ms)
            if new:
                stored.store_tier(found)
            return found

        return await self._change("claim_tier", work)

    async def adopt_tiers(self) -> list[TierRow]:
        def work(stored: ObjectRows) -> list[TierRow]:
            tiers = {row.id: row for row in stored.locked_tiers()}
            for row in find_adopted_tiers(list(tiers.values()), self._node_id, stored.writers):
                stored.store_tier(row)
                tiers[row.id] = row
            return list(tiers.values())

        return await self._change("adopt_tiers", work)

    async def save_tier(self, row: TierRow) -> None:
        await self._change("save_tier", lambda stored: stored.store_tier(row))

    async def relocate_objects(self, moved: Mapping[bytes, ObjectRow]) -> list[SegmentRow]:
        def work(stored: ObjectRows) -> list[SegmentRow]:
            old = stored.objects(moved)
            segments = stored.segments(row.segment_id for row in old.values())
            new, left = match_moved(moved, old, segments)
            stored.enter_objects(new)
            for uuid in left:
                stored.change_objects([old[uuid]], DELETE_STARTED, moved[uuid].delete_after_ms)
            changed = [segments[each] for each in sorted({row.segment_id for row in new})]
            stored.store_segments(changed)
            return changed

        return await self._change("relocate_objects", work)
