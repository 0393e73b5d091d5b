"""Which partitions leave the memory again: idle ones, when there are more than the bound.

A touched partition costs kilobytes, one in the catalog hundreds of bytes. Left is one of which
memory knows nothing that SQL does not: all of it lies in segments, its checkpoint is stored, no one
waits for it. The next touch loads it again (kafkawire.log.partition.loader). Those loaded first go
first; there is no note of use, since a wrong choice costs one small question to SQL.
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
"""Of the bound: what stays, so that not every check finds one too many."""


def is_idle(partition: Partition) -> bool:
    """Whether forgetting it loses nothing but the time to load it."""
    return not (
        partition.dirty
        or partition.touched
        or partition.frame is not None
        or partition.watchers
        or len(partition.rows)
        or len(partition.portions)
        or partition.producers.states
        or partition.high_watermark != partition.next_offset
        or partition.offsets.pending != partition.next_offset
        or partition.removed
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
        """Let idle partitions go while more than `at_most` are in memory; how many went."""
        partitions = self._loader.partitions
        if len(partitions) <= at_most:
            return 0
        left = at_most * LEFT_PERCENT // 100
        gone = 0
        numbers = list(partitions)
        for start in range(0, len(numbers), SLICE):
            # While a checkpoint is on its way, SQL may know less than a clean partition does.
            async with self._checkpoints.settled():
                for number in numbers[start : start + SLICE]:
                    if len(partitions) <= left:
                        break
                    partition = partitions.get(number)
                    if partition is None or partition.topic in self._pinned:
                        continue
                    if is_idle(partition):
                        self._loader.forget(partition)
                        gone += 1
            if len(partitions) <= left:
                break
            await self._env.sleep(0)
        if gone:
            logger.info("unloaded %d idle partitions, %d remain in memory", gone, len(partitions))
        return gone
