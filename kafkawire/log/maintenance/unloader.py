"""Unloading of idle partitions, when more than the bound are in memory.

A loaded partition costs kilobytes, one in the catalog hundreds of bytes. A partition is idle if its
state is entirely in SQL: all its batches are in segments, its checkpoint is stored, no request
waits for it. The next use loads it again (kafkawire.log.partition.loader). Those loaded first are
unloaded first; their use is not recorded, since a wrong choice costs one small query.
"""

from __future__ import annotations

import logging
from collections.abc import Container

from kafkawire.log.io.ports import Env
from kafkawire.log.maintenance.checkpoints import Checkpoints
from kafkawire.log.partition.loader import Loader
from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

SLICE = 512
"""Partitions checked per event-loop iteration: a fraction of a millisecond."""
LEFT_PERCENT = 90
"""Percent of the bound that remain, so that not every check finds one too many."""


def is_idle(partition: Partition) -> bool:
    """Return whether unloading it loses nothing but the time to load it again."""
    return not (
        partition.dirty
        or partition.frame is not None
        or partition.watchers
        or len(partition.rows)
        or len(partition.journal_extents)
        or partition.producers.states
        or partition.producers.verifying
        or partition.high_watermark != partition.next_offset
        # Offsets are assigned to batches that are not written.
        or partition.offsets.pending != partition.next_offset
        or partition.closed
    )


class Unloader:
    """Unloads idle partitions when more than the limit are in memory. `pinned`: topics whose
    partitions always stay in memory."""

    __slots__ = ("_checkpoints", "_env", "_loader", "_pinned")

    def __init__(
        self, env: Env, loader: Loader, checkpoints: Checkpoints, pinned: Container[str]
    ) -> None:
        self._env = env
        self._loader = loader
        self._checkpoints = checkpoints
        self._pinned = pinned

    async def run(self, at_most: int) -> int:
        """Unload idle partitions while more than `at_most` are in memory; return how many."""
        partitions = self._loader.partitions
        if len(partitions) <= at_most:
            return 0
        left = at_most * LEFT_PERCENT // 100
        gone = 0
        numbers = list(partitions)
        for start in range(0, len(numbers), SLICE):
            # While a checkpoint is being stored, SQL may have less than a clean partition.
            async with self._checkpoints.hold_back():
                for number in numbers[start : start + SLICE]:
                    if len(partitions) <= left:
                        break
                    partition = partitions.get(number)
                    if partition is None or partition.topic in self._pinned:
                        continue
                    if is_idle(partition):
                        self._loader.unload(partition)
                        gone += 1
            if len(partitions) <= left:
                break
            await self._env.slices.pause()
        if gone:
            logger.info("unloaded %d idle partitions, %d remain in memory", gone, len(partitions))
        return gone
