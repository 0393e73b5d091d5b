"""Take account of what other brokers upload of this broker's partitions.

A partition that moved has records in segments of the broker that led it before. That broker uploads
them, and the leader raises the partition's commit offset once it finds the objects in SQL, so that
ListOffsets and the manifest have them and local retention continues.
"""

from __future__ import annotations

import logging
from itertools import islice

from kafkawire.log.io.ports import Env
from kafkawire.log.segments.store.segment_store import SegmentStore
from kafkawire.offsets.catalog.port import SegmentCatalog
from kafkawire.tiering.store.warnings import Warnings
from kafkawire.tiering.upload.finisher import Finisher

logger = logging.getLogger(__name__)

POLL_S = 5.0
"""Interval of the checks; nothing is read from SQL while there are no segments of others."""
SLICE = 1000
"""Segments checked per event-loop iteration: a fraction of a millisecond."""
SEGMENTS_AT_ONCE = 10
"""Segments whose mappings are read at a time: each may have ten thousand."""


class OtherUploads:
    """Raises commit offsets of partitions with segments that other brokers upload. One for each
    tier that is uploaded to."""

    def __init__(
        self, env: Env, storage: SegmentCatalog, segments: SegmentStore, finisher: Finisher
    ) -> None:
        self._env = env
        self._storage = storage
        self._segments = segments
        self._finisher = finisher
        self._known: set[int] = set()  # segments with objects that were taken account of
        self._warnings = Warnings(env, logger)

    async def run(self) -> None:
        while True:
            await self._env.sleep(POLL_S)
            try:
                await self.check()
            except Exception as failure:  # retried
                self._warnings.warn("finding uploads of other brokers", failure)

    async def check(self) -> None:
        """Raise the commit offsets. Raises StoreError and the storage's errors."""
        others = self._segments.others
        if not others and not self._known:
            return
        await self._segments.renew_others()
        self._known &= others.keys()
        new: list[int] = []
        for done, segment in enumerate(list(others.values()), 1):
            if segment.row.object and segment.row.id not in self._known:
                new.append(segment.row.id)
            if done % SLICE == 0:
                await self._env.slices.pause()
        rest = iter(sorted(new))
        while ids := list(islice(rest, SEGMENTS_AT_ONCE)):
            mappings = await self._storage.segment_mappings(ids)
            await self._finisher.catch_up({mapping.number for mapping in mappings})
            # Not before: after a failure the next check finds them again.
            self._known.update(ids)
