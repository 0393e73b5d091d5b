"""Producer ids that are never given twice, by any broker, across any restart (KIP-730).

Ids come out of SQL in blocks: a block is ours once its transaction has committed, and only then
is its first id given out, so a crash loses the rest of a block and never repeats an id. Called
by InitProducerId. Epochs are no business of this module: an idempotent producer always starts
a fresh id at epoch 0 (Kafka: TransactionCoordinator.handleInitProducerId).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.metadata.store import Metadata

# Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE: one transaction for a thousand producers,
# and a restart wastes at most a thousand of 2^63 ids.
BLOCK = 1000


class ProducerIds:
    """The current block and the way to the next one. `leased` is called with the end of each new
    block: ids below it may have been given out."""

    __slots__ = ("_end", "_leased", "_leasing", "_metadata", "_next")

    def __init__(
        self, metadata: Metadata, leased: Callable[[int], None] = lambda end: None
    ) -> None:
        self._metadata = metadata
        self._next = 0
        self._end = 0
        self._leasing = asyncio.Lock()
        self._leased = leased

    async def take(self) -> int:
        """A unique producer id. Waits for SQL once in a thousand calls; raises what
        the lease raises, and the next call tries again."""
        while self._next == self._end:
            # Everybody who finds the block empty waits for one lease, not for one each.
            async with self._leasing:
                if self._next == self._end:
                    first = await self._metadata.lease_producer_ids(BLOCK)
                    self._next, self._end = first, first + BLOCK
                    self._leased(self._end)
        taken = self._next
        self._next += 1
        return taken
