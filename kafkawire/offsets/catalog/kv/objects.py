"""Objects of the remote tier in the key-value storage: rows, offsets and tiers.

The rules are in `object_rules`; each method collects its changes and applies them in one atomic
write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from kafkawire.offsets.catalog import object_rules
from kafkawire.offsets.catalog.kv import layout
from kafkawire.offsets.catalog.kv.base import KeyValueBase
from kafkawire.offsets.catalog.kv.store import Writes
from kafkawire.offsets.catalog.kv.swap import SwapPlan
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETE_STARTED,
    DELETING,
    LIVE,
    EnteredObject,
    ObjectRow,
    SegmentRange,
    SegmentRow,
    StaleSwap,
    Swap,
    TierRow,
)

SCANNED = 1000
"""Pairs read at a time."""


class KeyValueObjects(KeyValueBase):
    """The part of `kv.storage.KeyValueStorage` for objects."""

    async def start_objects(
        self, rows: Sequence[ObjectRow], dispatched: Mapping[int, int]
    ) -> list[bytes]:
        def work(writes: Writes) -> list[bytes]:
            led = self._led(dispatched, self._node_id)
            segments = self._segments(row.segment_id for row in rows)
            entered = [
                row for row in rows if object_rules.may_start(segments.get(row.segment_id), row)
            ]
            for row in entered:
                _enter(writes, replace(row, state=COPY_STARTED, delete_after_ms=0))
            self._raise(writes, {number: (dispatched[number], 0) for number in led})
            return [row.uuid for row in entered]

        return await self._write("start_objects", work)

    async def finish_objects(
        self, uuids: Sequence[bytes], committed: Mapping[int, int]
    ) -> list[SegmentRow]:
        def work(writes: Writes) -> list[SegmentRow]:
            led = self._led(committed, self._node_id)
            found = self._objects(uuids)
            segments = self._segments(row.segment_id for row in found.values())
            done, replaced = object_rules.finish(uuids, found, segments)
            for row in done:
                _change(writes, row, COPY_FINISHED, 0)
            for row in self._objects(replaced).values():
                _change(writes, row, DELETE_STARTED, 0)
            ids = sorted({row.segment_id for row in done})
            _store_segments(writes, [segments[each] for each in ids])
            if len(done) == len(set(uuids)):
                self._raise(writes, {number: (committed[number],) * 2 for number in led})
            return [segments[each] for each in ids]

        return await self._write("finish_objects", work)

    async def delete_objects(self, uuids: Sequence[bytes], delete_after_ms: int) -> None:
        def work(writes: Writes) -> None:
            found = self._objects(uuids)
            rows = [row for row in found.values() if row.state != DELETE_STARTED]
            segments = self._segments(row.segment_id for row in rows)
            for row in rows:
                segment = segments.get(row.segment_id)
                if segment is not None and segment.object == row.uuid:
                    segment.object, segment.tier = b"", 0
                    _store_segments(writes, [segment])
                _change(writes, row, DELETE_STARTED, delete_after_ms)

        await self._write("delete_objects", work)

    async def schedule_object_deletion(self, rows: Sequence[ObjectRow]) -> None:
        def work(writes: Writes) -> None:
            known = self._objects(row.uuid for row in rows)
            for row in rows:
                if row.uuid not in known:
                    _enter(writes, replace(row, state=DELETE_STARTED))

        await self._write("schedule_object_deletion", work)

    async def drop_objects(self, uuids: Sequence[bytes]) -> None:
        def work(writes: Writes) -> None:
            for row in self._objects(uuids).values():
                if row.state == DELETE_STARTED:
                    writes.delete(layout.object_key(row.uuid))
                    writes.delete(layout.state_key(row.node_id, row.state, row.uuid))

        await self._write("drop_objects", work)

    async def objects(
        self, node_id: int, states: Sequence[int], limit: int, after: bytes = b""
    ) -> list[ObjectRow]:
        def work() -> list[ObjectRow]:
            uuids: list[bytes] = []
            for state in set(states):
                low = layout.state_key(node_id, state, after) + (b"\0" if after else b"")
                high = layout.state_key(node_id, state + 1, b"")
                uuids += [layout.uuid_of(key) for key, _ in self._store.scan(low, high, limit)]
            return list(self._objects(sorted(uuids)[:limit]).values())

        return await self._read(work)

    async def objects_by_uuid(self, uuids: Sequence[bytes]) -> list[ObjectRow]:
        return await self._read(lambda: list(self._objects(uuids).values()))

    async def unneeded_objects(
        self, node_id: int, limit: int, after: bytes = b""
    ) -> list[ObjectRow]:
        def work() -> list[ObjectRow]:
            low = layout.unneeded_key(node_id, after) + (b"\0" if after else b"")
            high = layout.unneeded_key(node_id + 1, b"")
            keys = [key for key, _ in self._store.scan(low, high, limit)]
            return list(self._objects(map(layout.uuid_of, keys)).values())

        return await self._read(work)

    async def set_local(self, ids: Sequence[int], local: bool) -> list[SegmentRow]:
        def work(writes: Writes) -> list[SegmentRow]:
            segments = self._segments(ids)
            _store_segments(writes, object_rules.changed(segments.values(), local))
            return list(segments.values())

        return await self._write("set_local", work)

    async def save_tiering_offsets(self, offsets: Mapping[int, tuple[int, int]]) -> None:
        def work(writes: Writes) -> None:
            led = self._led(offsets, self._node_id)
            self._raise(writes, {number: offsets[number] for number in led})

        await self._write("save_tiering_offsets", work)

    async def uncommitted(self, limit: int, after: int = -1) -> list[int]:
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

    async def claim_tier(self, url: str, own_url: str, now_ms: int) -> TierRow:
        rows = await self.tiers()
        found, new = object_rules.claimed(rows, url, own_url, self._node_id, now_ms)
        if new:
            await self.save_tier(found)
        return found

    async def adopt_tiers(self) -> list[TierRow]:
        return await self.tiers()

    async def save_tier(self, row: TierRow) -> None:
        await self._write(
            "save_tier", lambda writes: writes.put(layout.tier_key(row.id), layout.pack_tier(row))
        )

    async def tiers(self) -> list[TierRow]:
        return await self._read(self._tiers)

    def _tiers(self) -> list[TierRow]:
        """Return the tiers, all of this broker: another one has a storage of its own."""
        found = [layout.unpack_tier(*pair) for pair in self._store.scan(b"t", b"u")]
        return [replace(row, node_id=self._node_id) for row in found]

    async def relocate_objects(self, moved: Mapping[bytes, ObjectRow]) -> list[SegmentRow]:
        def work(writes: Writes) -> list[SegmentRow]:
            old = self._objects(moved)
            segments = self._segments(row.segment_id for row in old.values())
            new, left = object_rules.relocate(moved, old, segments)
            for row in new:
                _enter(writes, row)
            for uuid in left:
                _change(writes, old[uuid], DELETE_STARTED, moved[uuid].delete_after_ms)
            rows = [segments[each] for each in sorted({row.segment_id for row in new})]
            _store_segments(writes, rows)
            return rows

        return await self._write("relocate_objects", work)

    async def enter_remote(self, rows: Sequence[EnteredObject]) -> list[int]:
        def work(writes: Writes) -> list[int]:
            numbers = {each.number for _, _, mappings in rows for each in mappings}
            led = self._led(numbers, self._node_id)
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
                _enter(writes, replace(made, segment_id=segment_id, state=COPY_FINISHED))
            for row in SwapPlan(self._store, Swap(finished), led, self._now_ms()).enter(writes):
                if row.state != LIVE:
                    writes.put(layout.unneeded_key(row.node_id, row.object), b"")
            return ids

        return await self._write("enter_remote", work)

    async def replace_lost(self, swap: Swap, entered: Sequence[EnteredObject]) -> None:
        def work(writes: Writes) -> None:
            added = [rows for _, rows in swap.finished] + [rows for _, _, rows in entered]
            numbers = {each.number for rows in added for each in rows}
            numbers.update(row.number for row in swap.checkpoints)
            led = self._led(numbers, self._node_id)
            again = self._entered_again(writes, entered, led)
            SwapPlan(self._store, swap, led, self._now_ms(), again).collect(writes)

        await self._write("replace_lost", work)

    def _entered_again(
        self, writes: Writes, entered: Sequence[EnteredObject], led: Collection[int]
    ) -> list[tuple[SegmentRow, list[SegmentRange]]]:
        """Return the stored segments of finished objects, or new ones, and their new mappings.
        Raises StaleSwap."""
        found = self._objects(made.uuid for _, made, _ in entered)
        segments = self._segments(row.segment_id for row in found.values())
        following = layout.unpack_number(self._store.get([layout.NEXT_ID_KEY])[0]) or 1
        again = []
        for row, made, mappings in entered:
            stored = found.get(made.uuid)
            segment = None if stored is None else segments.get(stored.segment_id)
            if stored is None or not object_rules.entered(segment, stored, made):
                raise StaleSwap(f"object {made.uuid.hex()} is not a finished one any more")
            kept = [each for each in mappings if each.number in led]
            if not kept:
                continue
            if segment is None:
                segment = replace(
                    row, id=following, state=DELETING, live_bytes=0, delete_after_ms=0,
                    object=stored.uuid, tier=stored.tier,
                )  # fmt: skip
                following += 1
                _enter(writes, replace(stored, segment_id=segment.id))
            writes.delete(layout.unneeded_key(stored.node_id, stored.uuid))
            again.append((segment, [each._replace(segment_id=segment.id) for each in kept]))
        writes.put(layout.NEXT_ID_KEY, layout.pack_number(following))
        return again

    def _objects(self, uuids: Iterable[bytes]) -> dict[bytes, ObjectRow]:
        """Return the objects that exist, by uuid and sorted."""
        keys = [layout.object_key(uuid) for uuid in sorted(set(uuids))]
        found = zip(keys, self._store.get(keys), strict=True)
        rows = [layout.unpack_object(key, value) for key, value in found if value is not None]
        return {row.uuid: row for row in rows}

    def _raise(self, writes: Writes, offsets: Mapping[int, tuple[int, int]]) -> None:
        numbers = list(offsets)
        stored = self._store.get([layout.offsets_key(number) for number in numbers])
        for number, value in zip(numbers, stored, strict=True):
            dispatch, commit = layout.unpack_offsets(value)
            higher, further = offsets[number]
            packed = layout.pack_offsets(
                max(dispatch, higher), max(commit, further), self._now_ms()
            )
            writes.put(layout.offsets_key(number), packed)


def _enter(writes: Writes, row: ObjectRow) -> None:
    writes.put(layout.object_key(row.uuid), layout.pack_object(row))
    writes.put(layout.state_key(row.node_id, row.state, row.uuid), b"")


def _change(writes: Writes, row: ObjectRow, state: int, delete_after_ms: int) -> None:
    writes.delete(layout.state_key(row.node_id, row.state, row.uuid))
    writes.delete(layout.unneeded_key(row.node_id, row.uuid))
    _enter(writes, replace(row, state=state, delete_after_ms=delete_after_ms))


def _store_segments(writes: Writes, rows: Iterable[SegmentRow]) -> None:
    for row in rows:
        writes.put(layout.segment_key(row.id), layout.pack_segment(row))
