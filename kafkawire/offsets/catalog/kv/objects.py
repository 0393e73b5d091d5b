"""Objects of the remote tier in the key-value storage: rows, offsets and tiers.

The changes are in `catalog.objects`; each is applied in one atomic write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from kafkawire.offsets.catalog.kv import layout
from kafkawire.offsets.catalog.kv.store import KeyValueBase, KeyValueStore, Writes
from kafkawire.offsets.catalog.kv.swap import SwapPlan
from kafkawire.offsets.catalog.objects import ObjectChanges, ObjectRows, find_finished
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    DELETING,
    LIVE,
    EnteredObject,
    ObjectRow,
    SegmentRange,
    SegmentRow,
    Swap,
    TierRow,
)

T = TypeVar("T")

SCANNED = 1000
"""Pairs read at a time."""


class KeyValueRows:
    """`ObjectRows` in a key-value store; the changes are collected in `writes`."""

    def __init__(
        self,
        store: KeyValueStore,
        writes: Writes,
        node_id: int,
        led: Callable[[Collection[int]], Collection[int]],
        now_ms: int,
    ) -> None:
        self._store = store
        self._writes = writes
        self._node_id = node_id
        self._now_ms = now_ms
        self.require_leader = led

    def objects(self, uuids: Iterable[bytes]) -> dict[bytes, ObjectRow]:
        keys = [layout.object_key(uuid) for uuid in sorted(set(uuids))]
        found = zip(keys, self._store.get(keys), strict=True)
        rows = [layout.unpack_object(key, value) for key, value in found if value is not None]
        return {row.uuid: row for row in rows}

    def segments(self, ids: Iterable[int]) -> dict[int, SegmentRow]:
        keys = [layout.segment_key(segment_id) for segment_id in sorted(set(ids))]
        found = zip(keys, self._store.get(keys), strict=True)
        rows = [layout.unpack_segment(key, value) for key, value in found if value is not None]
        return {row.id: row for row in rows}

    def enter_objects(self, rows: Iterable[ObjectRow]) -> None:
        for row in rows:
            self._writes.put(layout.object_key(row.uuid), layout.pack_object(row))
            self._writes.put(layout.state_key(row.node_id, row.state, row.uuid), b"")

    def change_objects(self, rows: Iterable[ObjectRow], state: int, delete_after_ms: int) -> None:
        for row in rows:
            self._writes.delete(layout.state_key(row.node_id, row.state, row.uuid))
            self._writes.delete(layout.unneeded_key(row.node_id, row.uuid))
            self.enter_objects([replace(row, state=state, delete_after_ms=delete_after_ms)])

    def remove_objects(self, rows: Iterable[ObjectRow]) -> None:
        for row in rows:
            self._writes.delete(layout.object_key(row.uuid))
            self._writes.delete(layout.state_key(row.node_id, row.state, row.uuid))

    def store_segments(self, rows: Iterable[SegmentRow]) -> None:
        for row in rows:
            self._writes.put(layout.segment_key(row.id), layout.pack_segment(row))

    def raise_offsets(self, offsets: Mapping[int, tuple[int, int]]) -> None:
        numbers = list(offsets)
        stored = self._store.get([layout.offsets_key(number) for number in numbers])
        for number, value in zip(numbers, stored, strict=True):
            dispatch, commit = layout.unpack_offsets(value)
            higher, further = offsets[number]
            packed = layout.pack_offsets(max(dispatch, higher), max(commit, further), self._now_ms)
            self._writes.put(layout.offsets_key(number), packed)

    def locked_tiers(self) -> list[TierRow]:
        """Return the tiers, all of this broker: another one has a storage of its own."""
        found = [layout.unpack_tier(*pair) for pair in self._store.scan(b"t", b"u")]
        return [replace(row, node_id=self._node_id) for row in found]

    def writers(self, tier: int) -> set[int]:
        return {self._node_id}

    def store_tier(self, row: TierRow) -> None:
        self._writes.put(layout.tier_key(row.id), layout.pack_tier(row))


class KeyValueObjects(KeyValueBase, ObjectChanges):
    """The part of `kv.storage.KeyValueStorage` for objects."""

    async def _change(self, method: str, work: Callable[[ObjectRows], T]) -> T:
        return await self._write(method, lambda writes: work(self._rows(writes)))

    def _rows(self, writes: Writes) -> KeyValueRows:
        led = partial(self._require_leader, node_id=self._node_id)
        return KeyValueRows(self._store, writes, self._node_id, led, self._now_ms())

    async def objects(
        self, node_id: int, states: Sequence[int], limit: int, after: bytes = b""
    ) -> list[ObjectRow]:
        def work() -> list[ObjectRow]:
            uuids: list[bytes] = []
            for state in set(states):
                # With a zero byte the key after that of `after`.
                low = layout.state_key(node_id, state, after) + (b"\0" if after else b"")
                high = layout.state_key(node_id, state + 1, b"")
                uuids += [layout.uuid_of(key) for key, _ in self._store.scan(low, high, limit)]
            return list(self._rows(Writes()).objects(sorted(uuids)[:limit]).values())

        return await self._read(work)

    async def objects_by_uuid(self, uuids: Sequence[bytes]) -> list[ObjectRow]:
        return await self._read(lambda: list(self._rows(Writes()).objects(uuids).values()))

    async def unneeded_objects(
        self, node_id: int, limit: int, after: bytes = b""
    ) -> list[ObjectRow]:
        def work() -> list[ObjectRow]:
            low = layout.unneeded_key(node_id, after) + (b"\0" if after else b"")
            high = layout.unneeded_key(node_id + 1, b"")
            keys = [key for key, _ in self._store.scan(low, high, limit)]
            return list(self._rows(Writes()).objects(map(layout.uuid_of, keys)).values())

        return await self._read(work)

    async def list_uncommitted(self, limit: int, after: int = -1) -> list[int]:
        def work() -> list[int]:
            found: list[int] = []
            number = after
            while len(found) < limit:
                pairs = self._store.scan(
                    layout.offsets_key(number + 1), layout.OFFSETS_END, SCANNED
                )
                for key, value in pairs:
                    number = layout.offsets_number(key)
                    dispatch, commit = layout.unpack_offsets(value)
                    if commit < dispatch and self._leader_of(number) == self._node_id:
                        found.append(number)
                if len(pairs) < SCANNED:
                    break
            return found[:limit]

        return await self._read(work)

    async def tiers(self) -> list[TierRow]:
        return await self._read(self._rows(Writes()).locked_tiers)

    async def enter_remote(self, rows: Sequence[EnteredObject]) -> list[int]:
        def work(writes: Writes) -> list[int]:
            numbers = {each.number for _, _, mappings in rows for each in mappings}
            stored = self._rows(writes)
            led = stored.require_leader(numbers)
            first = layout.unpack_number(self._store.get([layout.NEXT_ID_KEY])[0]) or 1
            writes.put(layout.NEXT_ID_KEY, layout.pack_number(first + len(rows)))
            ids = list(range(first, first + len(rows)))
            finished = []
            for segment_id, (row, made, mappings) in zip(ids, rows, strict=True):
                entered = replace(
                    row, id=segment_id, delete_after_ms=0, local=False, object=made.uuid,
                    tier=made.tier,
                )  # fmt: skip
                finished.append((entered, list(mappings)))
                object_row = replace(made, segment_id=segment_id, state=COPY_FINISHED)
                stored.enter_objects([object_row])
            for row in SwapPlan(self._store, Swap(finished), led, self._now_ms()).enter(writes):
                # None of its partitions exists any more.
                if row.state != LIVE:
                    writes.put(layout.unneeded_key(row.node_id, row.object), b"")
            return ids

        return await self._write("enter_remote", work)

    async def replace_lost(self, swap: Swap, entered: Sequence[EnteredObject]) -> None:
        def work(writes: Writes) -> None:
            added = [rows for _, rows in swap.finished] + [rows for _, _, rows in entered]
            numbers = {each.number for rows in added for each in rows}
            numbers.update(row.number for row in swap.checkpoints)
            led = self._require_leader(numbers, self._node_id)
            again = self._entered_again(writes, entered, led)
            SwapPlan(self._store, swap, led, self._now_ms(), again).collect(writes)

        await self._write("replace_lost", work)

    def _entered_again(
        self, writes: Writes, entered: Sequence[EnteredObject], led: Collection[int]
    ) -> list[tuple[SegmentRow, list[SegmentRange]]]:
        """Return the stored segments of finished objects, or new ones, and their new mappings.
        Raises StaleSwap."""
        rows = self._rows(writes)
        following = layout.unpack_number(self._store.get([layout.NEXT_ID_KEY])[0]) or 1
        again = []
        for given, stored, segment, mappings in find_finished(rows, entered, led):
            # As if all its mappings had been removed: the swap makes it LIVE, without a local file.
            if segment is None:
                segment = replace(
                    given, id=following, state=DELETING, live_bytes=0, delete_after_ms=0,
                    object=stored.uuid, tier=stored.tier,
                )  # fmt: skip
                following += 1
                rows.enter_objects([replace(stored, segment_id=segment.id)])
            writes.delete(layout.unneeded_key(stored.node_id, stored.uuid))
            again.append((segment, [each._replace(segment_id=segment.id) for each in mappings]))
        writes.put(layout.NEXT_ID_KEY, layout.pack_number(following))
        return again
