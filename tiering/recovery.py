"""What a start finds of tiering: the tier's own row, and what a crash has left.

Objects that were being uploaded when the last process ended are never adopted: a new try gets a new
uuid. A manifest may name them all the same, so they are removed like any other (tiering.removal),
and only once their offsets are covered by what was uploaded anew.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from offsets.storage import BEING_LEFT, COPY_STARTED, CURRENT, OffsetStorage, TierRow

logger = logging.getLogger(__name__)

PAGE = 100
"""Objects read at a time: each may have the ranges of ten thousand partitions."""


async def enter_tier(storage: OffsetStorage, url: str, now_ms: int) -> int:
    """The number of the tier with this URL, made the current one; the one before is being left:
    objects in it stay readable until they are moved."""
    tiers = await storage.tiers()
    mine = next((row for row in tiers if row.url == url), None)
    for row in tiers:
        if row.state == CURRENT and row is not mine:
            logger.warning("the tier is %s now; objects in %s stay there until moved", url, row.url)
            await storage.save_tier(replace(row, state=BEING_LEFT))
    if mine is None:
        mine = TierRow(max((row.id for row in tiers), default=-1) + 1, url, CURRENT, now_ms)
        await storage.save_tier(mine)
    elif mine.state != CURRENT:
        await storage.save_tier(replace(mine, state=CURRENT))
    return mine.id


async def give_up_uploads(storage: OffsetStorage, node_id: int, delete_after_ms: int) -> int:
    """Objects whose upload a crash ended are DELETE_STARTED; how many. Before any upload begins."""
    count = 0
    while rows := await storage.objects(node_id, (COPY_STARTED,), PAGE):
        await storage.delete_objects([row.uuid for row in rows], delete_after_ms)
        count += len(rows)
    if count:
        logger.info("%d uploads were not finished by the last process; they begin anew", count)
    return count
