"""The changes of a segment swap in an ordered key-value store. Part of `kv.storage`.

All changes are checked and collected before any is written, so StaleSwap changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from kafkawire.offsets.catalog.kv import layout
from kafkawire.offsets.catalog.kv.store import KeyValueStore, Writes
from kafkawire.offsets.catalog.port import (
    DELETING,
    LIVE,
    NEVER,
    STARTED,
    SegmentRange,
    SegmentRow,
    StaleSwap,
    Swap,
)


class SwapPlan:
    """One swap. `led`: the partitions whose rows may be written; `again`: segments of finished
    objects that are LIVE afterwards, and their new mappings."""

    def __init__(
        self,
        store: KeyValueStore,
        swap: Swap,
        led: Collection[int],
        now_ms: int,
        again: Sequence[tuple[SegmentRow, list[SegmentRange]]] = (),
    ) -> None:
        self._store = store
        self._again = again
        self._swap = swap
        self._now_ms = now_ms
        self._added = [
            (row, [each._replace(segment_id=row.id) for each in rows if each.number in led])
            for row, rows in swap.finished
        ]
        self._checkpoints = [row for row in swap.checkpoints if row.number in led]

    def collect(self, writes: Writes) -> None:
        """Collect all changes. Raises StaleSwap."""
        # All checks first: StaleSwap must change nothing.
        self._check_removed()
        old = removed_from(self._store, self._swap.removed, self._swap.delete_after_ms, writes)
        generation = 1 + max((row.generation for row in old.values()), default=-1)
        for row, added in self._added:
            self._finish(row, added, generation, writes)
        for row, added in self._again:
            _make_live(old.get(row.id, row), added, writes)
        self._put_totals(writes)
        for state in self._checkpoints:
            key = layout.partition_key(state.number, layout.CHECKPOINT)
            writes.put(key, layout.pack_checkpoint(state, self._now_ms))

    def enter(self, writes: Writes) -> list[SegmentRow]:
        """Insert segments without a STARTED row, except for columns computed from their mappings;
        return the stored rows. Raises StaleSwap."""
        self._check_all_free(set())
        rows = []
        for row, added in self._added:
            state = LIVE if added else DELETING
            rows.append(replace(row, state=state, live_bytes=sum(each.length for each in added)))
            writes.put(layout.segment_key(row.id), layout.pack_segment(rows[-1]))
            _put_mappings(added, writes)
        self._put_totals(writes)
        return rows

    def _put_totals(self, writes: Writes) -> None:
        changed: dict[int, tuple[list[SegmentRange], list[SegmentRange]]] = {}
        for at, rows in enumerate((self._all_added(), self._swap.removed)):
            for each in rows:
                changed.setdefault(each.number, ([], []))[at].append(each)
        for number, (added, gone) in changed.items():
            totals = totals_of(self._store, number, added, gone, self._now_ms)
            writes.put(layout.partition_key(number, layout.TOTALS), layout.pack_totals(totals))

    def _all_added(self) -> list[SegmentRange]:
        return [row for _, rows in (*self._added, *self._again) for row in rows]

    def _check_removed(self) -> None:
        removed = self._swap.removed
        keys = [layout.mapping_key(row.number, row.base_offset) for row in removed]
        for key, row, value in zip(keys, removed, self._store.get(keys), strict=True):
            stored = None if value is None else layout.unpack_mapping(key, value)
            same = (row.segment_id, row.end_offset)
            if stored is None or (stored.segment_id, stored.end_offset) != same:
                raise StaleSwap(f"a mapping of partition {row.number} at {row.base_offset} changed")
        self._check_all_free(set(keys))

    def _check_all_free(self, free: Collection[bytes]) -> None:
        rows = self._all_added()
        ranges = sorted((row.number, row.base_offset, row.end_offset) for row in rows)
        for one, other in pairwise(ranges):
            if one[0] == other[0] and one[2] > other[1]:
                raise StaleSwap(f"offsets of partition {other[0]} at {other[1]} are taken")
        for row in rows:
            self._check_free(row, free)

    def _check_free(self, row: SegmentRange, free: Collection[bytes]) -> None:
        """Check that only removed mappings cover the offsets of an added one."""
        first = layout.partition_key(row.number, layout.MAPPING)
        start = layout.mapping_key(row.number, row.base_offset)
        # Keys have base offsets only: the mapping that begins before this one may reach into it.
        below = self._store.floor(first, start)
        taken = self._store.scan(start, layout.mapping_key(row.number, row.end_offset))
        if below is not None and layout.unpack_mapping(*below).end_offset > row.base_offset:
            taken.append(below)
        if any(key not in free for key, _ in taken):
            raise StaleSwap(f"offsets of partition {row.number} at {row.base_offset} are taken")

    def _finish(
        self, row: SegmentRow, added: list[SegmentRange], generation: int, writes: Writes
    ) -> None:
        key = layout.segment_key(row.id)
        value = self._store.get([key])[0]
        stored = None if value is None else layout.unpack_segment(key, value)
        if stored is None or stored.state != STARTED:
            raise StaleSwap(f"segment {row.id} is not being written")
        stored.state = LIVE if added else DELETING
        stored.delete_after_ms = 0 if added else self._swap.delete_after_ms
        stored.size_bytes, stored.max_timestamp = row.size_bytes, row.max_timestamp
        stored.live_bytes = sum(each.length for each in added)
        stored.generation = generation
        writes.put(key, layout.pack_segment(stored))
        _put_mappings(added, writes)


def _make_live(row: SegmentRow, added: Sequence[SegmentRange], writes: Writes) -> None:
    """Add mappings to a segment with a finished object; without a local file, if it was dead."""
    row.local = row.local and row.state == LIVE
    row.state, row.delete_after_ms = LIVE, 0
    row.live_bytes += sum(each.length for each in added)
    writes.put(layout.segment_key(row.id), layout.pack_segment(row))
    writes.delete(layout.unneeded_key(row.node_id, row.object))
    _put_mappings(added, writes)


def _put_mappings(added: Iterable[SegmentRange], writes: Writes) -> None:
    for each in added:
        target = layout.mapping_key(each.number, each.base_offset)
        writes.put(target, layout.pack_mapping(each))
        writes.put(layout.member_key(each), b"")
        if each.due_ms < NEVER:
            writes.put(layout.due_key(each), b"")


def removed_from(
    store: KeyValueStore, removed: Iterable[SegmentRange], delete_after_ms: int, writes: Writes
) -> dict[int, SegmentRow]:
    """Delete mappings; return their segments after the change, by id."""
    of: dict[int, list[SegmentRange]] = {}
    for row in removed:
        target = layout.mapping_key(row.number, row.base_offset)
        stored = store.get([target])[0]
        # By the stored row, whose due time may have changed since the swap was planned.
        if stored is not None:
            writes.delete(layout.due_key(layout.unpack_mapping(target, stored)))
        writes.delete(target)
        writes.delete(layout.member_key(row))
        of.setdefault(row.segment_id, []).append(row)
    touched: dict[int, SegmentRow] = {}
    for segment_id, rows in of.items():
        key = layout.segment_key(segment_id)
        value = store.get([key])[0]
        if value is None:
            continue
        segment = layout.unpack_segment(key, value)
        segment.live_bytes -= sum(row.length for row in rows)
        # All of its mappings are removed: no reader can find the file any more.
        members = store.scan(layout.member_of(segment_id), layout.member_of(segment_id + 1))
        if len(members) == len(rows):
            segment.state, segment.delete_after_ms = DELETING, delete_after_ms
            if segment.object:
                writes.put(layout.unneeded_key(segment.node_id, segment.object), b"")
        writes.put(key, layout.pack_segment(segment))
        touched[segment_id] = segment
    return touched


def totals_of(
    store: KeyValueStore,
    number: int,
    added: Iterable[SegmentRange],
    gone: Iterable[SegmentRange],
    now_ms: int | None = None,
) -> layout.Totals:
    """Return a partition's totals after these changes; `now_ms` if they count as activity."""
    totals = layout.unpack_totals(store.get([layout.partition_key(number, layout.TOTALS)])[0])
    for sign, rows in ((1, added), (-1, gone)):
        for row in rows:
            totals.records += sign * row.records
            totals.size_bytes += sign * row.length
    if now_ms is not None:
        totals.last_activity_ms = now_ms
        if totals.created_ms < 0:
            totals.created_ms = now_ms
    return totals
