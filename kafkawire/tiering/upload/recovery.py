"""Cleanup at start of uploads and deletions left by a crash.

Objects that were being uploaded when the last process ended are never completed: a new attempt gets
a new uuid.
"""

from __future__ import annotations

import logging

from kafkawire.offsets.catalog.port import COPY_STARTED, SegmentCatalog

logger = logging.getLogger(__name__)

PAGE = 100
"""Objects read at a time: each may have the ranges of ten thousand partitions."""


async def give_up_uploads(storage: SegmentCatalog, node_id: int, delete_after_ms: int) -> int:
    """Mark objects whose upload was interrupted by a crash as DELETE_STARTED; return how many.
    Called before any upload begins."""
    count = 0
    while rows := await storage.objects(node_id, (COPY_STARTED,), PAGE):
        # With a time, although they are incomplete: a manifest may name them, so they are removed
        # like any other, once new uploads cover their offsets.
        await storage.delete_objects([row.uuid for row in rows], delete_after_ms)
        count += len(rows)
    if count:
        logger.info("restarting %d uploads that the last process did not finish", count)
    return count
