"""`SegmentCatalog` over an ordered key-value store: the logic of `storage.memory` and of
`kv.rocksdb`. The layout is in `kv.layout`.

Each method computes its changes from the stored rows and applies them in one atomic write.
`kv.store` runs the work and finds partition leaders; `kv.objects` has the objects of the remote
tier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafkawire.metadata.checkpoint import Checkpoint
from kafkawire.offsets.catalog.kv import layout
from kafkawire.offsets.catalog.kv.objects import KeyValueObjects
from kafkawire.offsets.catalog.kv.store import Writes
from kafkawire.offsets.catalog.kv.swap import SwapPlan, removed_from, totals_of
from kafkawire.offsets.catalog.port import (
    DELETING,
    EVERYTHING,
    NEVER,
    PartitionRow,
    SegmentRange,
    SegmentRow,
    StorageMetrics,
    StoredStats,
    Swap,
)

ORPHAN_STEPS = 1_000
"""Partitions checked by one call of `orphans`: some milliseconds."""


class KeyValueStorage(KeyValueObjects):
    """Implementation of `SegmentCatalog`."""

    _orphans_from = 0

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        def work(writes: Writes) -> None:
            led = self._require_leader(
                [row.number for row in checkpoint.partitions], checkpoint.node_id
            )
            now_ms = self._now_ms()
            for row in checkpoint.partitions:
                if row.number in led:
                    key = layout.partition_key(row.number, layout.CHECKPOINT)
                    writes.put(key, layout.pack_checkpoint(row, now_ms))
            writes.put(
                layout.log_position_key(checkpoint.node_id),
                layout.pack_number(checkpoint.log_position),
            )

        await self._write("save_checkpoint", work)

    async def load_log_position(self, node_id: int) -> int:
        key = layout.log_position_key(node_id)
        return await self._read(lambda: layout.unpack_number(self._store.get([key])[0]))

    async def load_partitions(self, numbers: Sequence[int]) -> list[PartitionRow]:
        return await self._read(lambda: [self._partition(number) for number in numbers])

    def _partition(self, number: int) -> PartitionRow:
        row = PartitionRow(number)
        low = layout.partition_key(number, layout.CHECKPOINT)
        for key, value in self._store.scan(low, layout.partition_end(number)):
            kind = layout.partition_of(key)[1]
            if kind == layout.CHECKPOINT:
                row.checkpoint = layout.unpack_checkpoint(number, value)[0]
            elif kind == layout.MAPPING:
                row.mappings.append(layout.unpack_mapping(key, value))
        ends = layout.unpack_offsets(self._store.get([layout.offsets_key(number)])[0])
        row.dispatch_offset, row.commit_offset = ends
        return row

    async def start_segments(self, rows: Sequence[SegmentRow]) -> list[int]:
        def work(writes: Writes) -> list[int]:
            first = layout.unpack_number(self._store.get([layout.NEXT_ID_KEY])[0]) or 1
            ids = list(range(first, first + len(rows)))
            for segment_id, row in zip(ids, rows, strict=True):
                writes.put(layout.segment_key(segment_id), layout.pack_segment(row))
            writes.put(layout.NEXT_ID_KEY, layout.pack_number(first + len(rows)))
            return ids

        return await self._write("start_segments", work)

    async def finish_segments(self, swap: Swap) -> None:
        def work(writes: Writes) -> None:
            numbers = {row.number for _, added in swap.finished for row in added}
            numbers.update(row.number for row in swap.checkpoints)
            led = self._require_leader(numbers, self._node_id)
            SwapPlan(self._store, swap, led, self._now_ms()).collect(writes)

        await self._write("finish_segments", work)

    async def remove_mappings(
        self, below: Mapping[int, int], delete_after_ms: int = 0
    ) -> list[SegmentRow]:
        def work(writes: Writes) -> list[SegmentRow]:
            gone: list[SegmentRange] = []
            for number, log_start in below.items():
                if self._is_led_elsewhere(number):
                    continue
                low = layout.partition_key(number, layout.MAPPING)
                high = layout.partition_end(number)
                # Mappings that begin at the log start or above it also end above it.
                if log_start < EVERYTHING:
                    high = layout.mapping_key(number, max(log_start, 0))
                found = [layout.unpack_mapping(*pair) for pair in self._store.scan(low, high)]
                dropped = [row for row in found if row.end_offset <= log_start]
                gone += dropped
                if log_start == EVERYTHING:
                    writes.delete(layout.partition_key(number, layout.CHECKPOINT))
                    writes.delete(layout.partition_key(number, layout.TOTALS))
                    writes.delete(layout.offsets_key(number))
                elif dropped:
                    key = layout.partition_key(number, layout.TOTALS)
                    totals = totals_of(self._store, number, [], dropped)
                    writes.put(key, layout.pack_totals(totals))
            touched = removed_from(self._store, gone, delete_after_ms, writes)
            return [touched[segment_id] for segment_id in sorted(touched)]

        return await self._write("remove_mappings", work)

    async def drop_segments(self, ids: Sequence[int]) -> None:
        def work(writes: Writes) -> None:
            for segment_id in ids:
                if not self._store.scan(*_members(segment_id), 1):
                    writes.delete(layout.segment_key(segment_id))

        await self._write("drop_segments", work)

    async def segments(
        self, node_id: int, states: Sequence[int], limit: int, after_id: int = 0
    ) -> list[SegmentRow]:
        def work() -> list[SegmentRow]:
            pairs = self._store.scan(layout.segment_key(after_id + 1), b"t")
            rows = (layout.unpack_segment(*pair) for pair in pairs)
            wanted = [row for row in rows if row.node_id == node_id and row.state in states]
            return wanted[:limit]

        return await self._read(work)

    async def segments_by_id(self, ids: Sequence[int]) -> list[SegmentRow]:
        def work() -> list[SegmentRow]:
            keys = [layout.segment_key(segment_id) for segment_id in sorted(set(ids))]
            found = zip(keys, self._store.get(keys), strict=True)
            return [layout.unpack_segment(key, value) for key, value in found if value is not None]

        return await self._read(work)

    async def segment_mappings(self, segment_ids: Sequence[int]) -> list[SegmentRange]:
        def work() -> list[SegmentRange]:
            keys = [
                key
                for segment_id in sorted(set(segment_ids))
                for key, _ in self._store.scan(*_members(segment_id))
            ]
            return self._targets(keys)

        return await self._read(work)

    async def mappings(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[SegmentRange]]:
        return await self._read(lambda: [self._covering(*each) for each in ranges])

    def _covering(self, number: int, start: int, stop: int) -> list[SegmentRange]:
        if start >= stop or stop <= 0:
            return []
        start = max(start, 0)
        first = layout.partition_key(number, layout.MAPPING)
        # The last one that begins at or before `start` is the first that may cover it.
        below = self._store.floor(first, layout.mapping_key(number, start))
        low = layout.mapping_key(number, start) if below is None else below[0]
        high = layout.partition_end(number)
        if stop < NEVER:
            high = layout.mapping_key(number, stop)
        rows = [layout.unpack_mapping(*pair) for pair in self._store.scan(low, high)]
        return [row for row in rows if row.end_offset > start]

    async def expiring(self, before_ms: int, limit: int) -> list[SegmentRange]:
        def work() -> list[SegmentRange]:
            low, high = layout.due_from(0), layout.due_from(max(before_ms, 0))
            found: list[SegmentRange] = []
            while len(found) < limit:
                keys = [key for key, _ in self._store.scan(low, high, limit)]
                rows = self._targets(keys)
                found += [row for row in rows if self._leader_of(row.number) == self._node_id]
                if len(keys) < limit:
                    break
                # The key after the last one: mappings that others lead stay due.
                low = keys[-1] + b"\0"
            return found[:limit]

        return await self._read(work)

    async def set_due(self, numbers: Sequence[int] | None, due_ms: int) -> None:
        def work(writes: Writes) -> None:
            for row in self._all_mappings(numbers):
                if self._is_led_elsewhere(row.number):
                    continue
                writes.delete(layout.due_key(row))
                changed = row._replace(due_ms=due_ms)
                key = layout.mapping_key(row.number, row.base_offset)
                writes.put(key, layout.pack_mapping(changed))
                if due_ms < NEVER:
                    writes.put(layout.due_key(changed), b"")

        await self._write("set_due", work)

    def _all_mappings(self, numbers: Sequence[int] | None) -> Iterable[SegmentRange]:
        if numbers is None:
            ranges = [(b"p", b"q")]
        else:
            ranges = [
                (layout.partition_key(number, layout.MAPPING), layout.partition_end(number))
                for number in numbers
            ]
        for low, high in ranges:
            for key, value in self._store.scan(low, high):
                if layout.partition_of(key)[1] == layout.MAPPING:
                    yield layout.unpack_mapping(key, value)

    async def orphans(self, limit: int) -> list[int]:
        def work() -> list[int]:
            found: list[int] = []
            # The store has no topics, so each partition is checked, some in each call.
            for _ in range(ORPHAN_STEPS):
                low = layout.partition_key(self._orphans_from, layout.CHECKPOINT)
                pairs = self._store.scan(low, b"q", 1)
                if not pairs:
                    self._orphans_from = 0
                    break
                number = layout.partition_of(pairs[0][0])[0]
                self._orphans_from = number + 1
                if self._leader_of(number) is None:
                    found.append(number)
                    if len(found) == limit:
                        break
            return found

        return await self._read(work)

    async def stats(self, numbers: Sequence[int]) -> list[StoredStats]:
        return await self._read(lambda: [self._stats(number) for number in numbers])

    def _stats(self, number: int) -> StoredStats:
        kinds = (layout.CHECKPOINT, layout.TOTALS)
        stored, packed = self._store.get([layout.partition_key(number, kind) for kind in kinds])
        totals = layout.unpack_totals(packed)
        low = layout.partition_key(number, layout.MAPPING)
        count = len(self._store.scan(low, layout.partition_end(number)))
        offset, log_start, updated_ms = -1, 0, -1
        if stored is not None:
            row, updated_ms = layout.unpack_checkpoint(number, stored)
            offset, log_start = row.next_offset, row.log_start
        return StoredStats(
            number,
            offset,
            log_start,
            count,
            totals.records,
            totals.size_bytes,
            totals.created_ms,
            max(updated_ms, totals.last_activity_ms),
        )

    async def metrics(self) -> StorageMetrics:
        def work() -> StorageMetrics:
            kinds = [layout.partition_of(key)[1] for key, _ in self._store.scan(b"p", b"q")]
            rows = [layout.unpack_segment(*pair) for pair in self._store.scan(b"s", b"t")]
            states = {row.state: 0 for row in rows}
            for row in rows:
                states[row.state] += 1
            return StorageMetrics(
                kinds.count(layout.CHECKPOINT),
                kinds.count(layout.MAPPING),
                states,
                sum(row.size_bytes for row in rows if row.state != DELETING),
                sum(row.live_bytes for row in rows),
            )

        return await self._read(work)

    def _targets(self, index_keys: Sequence[bytes]) -> list[SegmentRange]:
        keys = [layout.index_target(key) for key in index_keys]
        values = self._store.get(keys)
        return [
            layout.unpack_mapping(key, value)
            for key, value in zip(keys, values, strict=True)
            if value is not None
        ]


def _members(segment_id: int) -> tuple[bytes, bytes]:
    return layout.member_of(segment_id), layout.member_of(segment_id + 1)
