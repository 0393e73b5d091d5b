"""Replaces damaged copies of segments by sound ones in the background.

A read that finds one copy of a segment damaged is served from the other and reports it here. Every
byte of the other copy is verified first. Then a damaged file is replaced by a download of the
object, and a damaged object by a new upload of the file. If both are damaged nothing is done;
`kafkawire tier scrub --deep` lists the lost offsets. Created by kafkawire.tiering.service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kafkawire.log.io.ports import Env, WorkerError
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore
from kafkawire.objectstore.errors import StoreError
from kafkawire.tiering.read.cold_reader import Copy
from kafkawire.tiering.scrub.local_copy import local_copy, scrub_file, upload_again
from kafkawire.tiering.scrub.repair import Site
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls

logger = logging.getLogger(__name__)

MAX_QUEUED = 1000
"""Maximum length of the queue: a disk that damages more must be replaced, and a deep scrub finds
the rest."""
AGAIN_S = 600.0
"""Time until a copy that could not be repaired is tried again."""

Key = tuple[int, Copy]


class Repairer:
    """Repairs damaged copies of segments in the background. `repaired`: copies since the start."""

    def __init__(
        self,
        env: Env,
        store: SegmentStore,
        site: Callable[[], Site],
        store_of: Callable[[int], ObjectStore | None],
    ) -> None:
        self._env = env
        self._store = store
        self._site = site
        self._store_of = store_of
        self._queue: dict[Key, None] = {}
        self._tried: dict[Key, float] = {}
        self._task: asyncio.Task[None] | None = None
        self.repaired = 0

    def report(self, segment: Segment, copy: Copy) -> None:
        """Report a copy of a segment that is damaged, short or missing."""
        key = segment.row.id, copy
        now = self._env.clock.monotonic()
        if len(self._queue) >= MAX_QUEUED or now < self._tried.get(key, now):
            return
        self._queue[key] = None
        if self._task is None or self._task.done():
            self._task = self._env.spawn(self._run(), "repair segments")

    async def close(self) -> None:
        """Drop the queue; the next read reports its copies again."""
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._queue:
            key = next(iter(self._queue))
            del self._queue[key]
            now = self._env.clock.monotonic()
            # Noted before the attempt: reads report the copy again while it is repaired.
            self._tried = {each: at for each, at in self._tried.items() if at > now}
            self._tried[key] = now + AGAIN_S
            segment = self._store.by_id.get(key[0])
            if segment is None or not (segment.row.local and segment.row.object):
                continue
            try:
                await self._repair(segment, key[1])
            except (StoreError, OSError, WorkerError) as failure:
                what = f"the {key[1]} of segment {segment.name}"
                logger.warning("%s is damaged and cannot be repaired: %s", what, failure)

    async def _repair(self, segment: Segment, copy: Copy) -> None:
        site = self._site()
        if copy is Copy.FILE:
            done = await self._replace_file(site, segment)
        else:
            rows = await site.storage.objects_by_uuid([segment.row.object])
            done = bool(rows) and await upload_again(site, rows[0])
        if not done:
            logger.critical(
                "both copies of segment %s are damaged: `kafkawire tier scrub --deep` lists what "
                "is lost",
                segment.name,
            )
            return
        self.repaired += 1
        source = "its object" if copy is Copy.FILE else "its file, which is uploaded again"
        logger.warning("repaired the %s of segment %s from %s", copy, segment.name, source)

    async def _replace_file(self, site: Site, segment: Segment) -> bool:
        """Replace the segment's file by its object; return False if the object is damaged, too."""
        row = segment.row
        store = self._store_of(row.tier)
        if store is None:
            raise OSError(f"tier {row.tier} cannot be reached from here")
        asking = RetryingCalls(self._env, store)
        segment.pins += 1
        try:
            async with local_copy(site, asking, row.object, row.size_bytes) as path:
                # Before the file goes, of which most batches may still be sound.
                if (await scrub_file(site, path, row.uuid)).problems:
                    return False
                await self._store.replace_file(segment, path)
        finally:
            segment.pins -= 1
        return True
