"""The finished objects of all tiers, by partition: what can replace mappings whose files are lost.

Read from the manifests. A tier whose manifest is lost or damaged is read from the footers of its
objects, as a restore does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import PartitionEntry
from kafkawire.log.io.ports import Env
from kafkawire.manifest.columns import Entry, EntryColumns, ManifestObject, ObjectColumns
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import segment_key
from kafkawire.manifest.state import Snapshot
from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    LEFT,
    LIVE,
    ObjectRow,
    SegmentCatalog,
    SegmentRow,
    TierRow,
    unpack_ranges,
)
from kafkawire.plural import count
from kafkawire.progress import silent
from kafkawire.restore.bucket import read_usable_manifest
from kafkawire.tiering.store.object_footer import Tail, read_tail
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls, side_by_side

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 50
"""Rows of objects read at a time: each may have the ranges of ten thousand partitions."""

Stores = Callable[[int], "ObjectStore | None"]
"""Returns the store of a tier by its number, as `Tiers.find_store`; None if it is not available."""


class StoredPart(NamedTuple):
    """The share of a partition in a finished object, and the row that its segment would have."""

    object: ObjectRow
    segment: SegmentRow
    entry: Entry


class FinishedObjects:
    """The finished objects of all tiers. `open` reads which there are, then `find_parts` finds
    those of some partitions."""

    def __init__(self, env: Env, storage: SegmentCatalog, stores: Stores, node_id: int) -> None:
        self._env = env
        self._storage = storage
        self._stores = stores
        self._node_id = node_id
        self._manifests: list[tuple[TierRow, Manifest]] = []

    async def open(self, numbers: Collection[int]) -> None:
        """Read the manifests of all tiers. `numbers`: the partitions that `find_parts` will be
        called with. Raises StoreError if one cannot be read, NewerFormatError, and the storage's
        errors."""
        self._manifests = []
        for tier in await self._storage.tiers():
            if tier.state == LEFT:
                continue
            store = self._stores(tier.id)
            # Without it an object that is needed could be missed, and deleted later.
            if store is None and tier.node_id in (None, self._node_id):
                raise StoreError("NoSuchTier", f"the tier {tier.url} cannot be opened")
            if store is None:
                logger.warning("objects of broker %d in %s are not used", tier.node_id, tier.url)
                continue
            self._manifests.append((tier, await self._manifest(tier, store, numbers)))

    async def _manifest(
        self, tier: TierRow, store: ObjectStore, numbers: Collection[int]
    ) -> Manifest:
        asking = RetryingCalls(self._env, store)
        manifest = await read_usable_manifest(asking)
        if isinstance(manifest, Manifest):
            return manifest
        rows = await self._rows(tier, numbers)
        if rows:
            logger.warning(
                "the manifest of %s cannot be used (%s): reading the footers of %s instead",
                tier.url, manifest, count(len(rows), "object"),
            )  # fmt: skip
        return await self._from_footers(asking, rows)

    async def _rows(self, tier: TierRow, numbers: Collection[int]) -> list[ObjectRow]:
        """Return the finished objects of a tier that have some of the partitions."""
        found: list[ObjectRow] = []
        after, page, wanted = b"", ROWS_AT_ONCE, set(numbers)
        node = self._node_id if tier.node_id is None else tier.node_id
        while page == ROWS_AT_ONCE:
            rows = await self._storage.objects(node, (COPY_FINISHED,), ROWS_AT_ONCE, after)
            for row in rows:
                ranges, row.ranges = unpack_ranges(row.ranges), b""
                if row.tier == tier.id and any(number in wanted for number, _, _ in ranges):
                    found.append(row)
            page, after = len(rows), rows[-1].uuid if rows else b""
        return found

    async def _from_footers(self, asking: RetryingCalls, rows: Sequence[ObjectRow]) -> Manifest:
        """Return the contents of objects as a manifest has them; unreadable ones are left out."""

        async def read(row: ObjectRow) -> Tail | None:
            key = segment_key(row.uuid)
            try:
                return await read_tail(asking, key, row.size_bytes)
            except (FormatError, NoSuchObject) as failure:
                logger.error("%s cannot be read, its records are not used: %s", key, failure)
                return None

        objects, entries = ObjectColumns(), EntryColumns()
        tails = await side_by_side(rows, read, "objects", silent)
        for row, tail in zip(rows, tails, strict=True):
            if tail is None:
                continue
            header, origin = tail.header, tail.origin
            newest = max((each.max_timestamp for each in tail.directory), default=-1)
            objects.append(
                ManifestObject(
                    row.uuid, header.uuid, 0 if origin is None else origin.generation,
                    header.node_id, row.size_bytes, header.created_ms, newest,
                    objects.class_at("" if origin is None else origin.retention_class),
                    len(tail.directory),
                )
            )  # fmt: skip
            for each in tail.directory:
                entries.append(_entry(each))
        return Manifest(Snapshot(0, "", self._node_id, 0, 0, objects=objects, entries=entries))

    async def find_parts(self, numbers: Iterable[int]) -> dict[int, list[StoredPart]]:
        """Return the parts of these partitions in objects finished now. The storage's errors."""
        found: dict[int, list[StoredPart]] = {number: [] for number in numbers}
        for tier, manifest in self._manifests:
            places = [
                (number, manifest.object_of(at), at)
                for number in found
                for at in manifest.entries_of(number)
            ]
            uuids = sorted({manifest.objects.uuid(row) for _, row, _ in places})
            finished = await self._load_finished(uuids, tier.id)
            for number, row, at in places:
                stored = finished.get(manifest.objects.uuid(row))
                if stored is not None:
                    segment = _segment(stored, manifest.objects, row)
                    found[number].append(StoredPart(stored, segment, manifest.entries[at]))
        return found

    async def _load_finished(self, uuids: Sequence[bytes], tier: int) -> dict[bytes, ObjectRow]:
        found: dict[bytes, ObjectRow] = {}
        for at in range(0, len(uuids), ROWS_AT_ONCE):
            for row in await self._storage.objects_by_uuid(uuids[at : at + ROWS_AT_ONCE]):
                if row.state == COPY_FINISHED and row.tier == tier:
                    row.ranges = b""
                    found[row.uuid] = row
        return found


def _entry(each: PartitionEntry) -> Entry:
    return Entry(
        each.number, each.base_offset, each.end_offset, each.start, each.length, each.index_start,
        each.index_length, each.index_checksum, each.max_timestamp, each.batches, each.records,
    )  # fmt: skip


def _segment(stored: ObjectRow, objects: ObjectColumns, row: int) -> SegmentRow:
    """Return the row that the segment of an object has without a local file."""
    each = objects[row]
    return SegmentRow(
        each.segment, stored.node_id, each.created_ms, state=LIVE, size_bytes=each.size_bytes,
        generation=each.generation, retention_class=objects.retention_class(row),
        max_timestamp=each.max_timestamp, local=False, object=stored.uuid, tier=stored.tier,
    )  # fmt: skip
