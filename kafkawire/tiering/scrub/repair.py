"""Repairs of a scrub in the usual two phases, so that a crash leaves nothing unfinished.

Orphans, and objects that only the manifest names, get a row DELETE_STARTED; the remover removes
them from the manifest, waits for the grace period and deletes them. A lost or damaged object is
discarded in the same way if its segment still has a file, which is then uploaded again. Objects
that the manifest lacks are published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kafkawire.log.io.ports import Env
from kafkawire.log.local_manifest.pending_changes import Added
from kafkawire.log.object_logs import ObjectLogs
from kafkawire.log.segments.skip.skipper import Skipper
from kafkawire.log.segments.store.segment_store import SegmentStore
from kafkawire.log.segments.store.swap import Swapper
from kafkawire.log.segments.strays import Known
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    ObjectRow,
    SegmentCatalog,
    SegmentRange,
    SegmentRow,
)
from kafkawire.tiering.scrub.packs import Drop
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.upload.finisher import Publisher


@dataclass(slots=True)
class Site:
    """The components of a running tier that scrubs and moves need. `folder`: for temporary files;
    `grace_ms`: the grace period for readers of the manifest; `known`: returns which partition
    numbers SQL ever assigned; `wake`: wakes the remover; `refusal`: why nothing may be written to
    the bucket, if so; `bytes_per_second`: rate of a deep scrub, -1: unlimited; `skipper` rewrites
    segments without lost records; `drop_packs` drops filter packs from their list; `logs`: of log
    objects, None: the broker has none."""

    env: Env
    store: ObjectStore
    storage: SegmentCatalog
    catalog: Catalog
    segments: SegmentStore
    swapper: Swapper
    publisher: Publisher
    node_id: int
    cluster_id: str
    tier: int
    folder: str
    grace_ms: Callable[[], int]
    wake: Callable[[], None]
    refusal: Callable[[], str]
    bytes_per_second: Callable[[], int]
    skipper: Skipper
    known: Known
    drop_packs: Drop
    logs: ObjectLogs | None


async def schedule_deletion(site: Site, uuids: Sequence[bytes]) -> None:
    now_ms = site.env.clock.now_ms()
    after_ms = now_ms + max(1, site.grace_ms())
    rows = [
        ObjectRow(each, 0, site.node_id, site.tier, created_ms=now_ms, delete_after_ms=after_ms)
        for each in uuids
    ]
    await site.storage.schedule_object_deletion(rows)
    site.wake()


async def discard_remote_copy(site: Site, uuid: bytes) -> bool:
    """Discard an object whose segment has a file; return False if it has none."""
    done = False

    async def call() -> list[SegmentRow]:
        nonlocal done
        # The lock of all segment changes keeps the file from being removed meanwhile.
        found = await site.storage.objects_by_uuid([uuid])
        ids = [row.segment_id for row in found]
        rows = await site.storage.segments_by_id(ids)
        kept = [row.id for row in rows if row.object == uuid and _has_file(site, row.id)]
        if not kept:
            return rows
        # First: local retention may have marked the file as not needed, and would remove it.
        await site.storage.set_local(kept, True)
        after_ms = site.env.clock.now_ms() + max(1, site.grace_ms())
        await site.storage.delete_objects([uuid], after_ms)
        done = True
        return await site.storage.segments_by_id(ids)

    await site.swapper.update(call)
    site.wake()
    return done


def _has_file(site: Site, segment_id: int) -> bool:
    segment = site.segments.by_id.get(segment_id)
    return segment is not None and segment.has_file


async def publish(site: Site, uuid: bytes) -> None:
    """Publish a finished object in the manifest. Raises StoreError, OSError."""
    await site.publisher.publish(await _load_added(site, uuid), {}, {})


async def _load_added(site: Site, uuid: bytes) -> list[Added]:
    rows = await site.storage.objects_by_uuid([uuid])
    ids = [row.segment_id for row in rows if row.state == COPY_FINISHED]
    mappings: list[SegmentRange] = await site.storage.segment_mappings(ids)
    return [Added(rows[0], segment, mappings) for segment in await site.storage.segments_by_id(ids)]
