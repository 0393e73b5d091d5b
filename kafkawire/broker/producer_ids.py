"""Producer ids that are unique across brokers and restarts (KIP-730).

Ids are leased from SQL in blocks. The first id of a block is assigned only after the lease has been
committed, so a crash loses the rest of a block and never repeats an id. Called by InitProducerId.
Epochs are not handled here: an idempotent producer always starts a new id at epoch 0 (Kafka:
TransactionCoordinator.handleInitProducerId).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.metadata.store import Metadata

# Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE: one transaction per thousand producers; a restart
# wastes at most a thousand of 2^63 ids.
BLOCK = 1000


class ProducerIds:
    """Assigns ids of the current block and leases the next one. `leased` is called with the end of
    each new block: ids below it may have been assigned."""

    __slots__ = ("_end", "_leased", "_leasing", "_metadata", "_next")

    def __init__(
        self, metadata: Metadata, leased: Callable[[int], None] = lambda end: None
    ) -> None:
        self._metadata = metadata
        self._next = 0
        self._end = 0
        self._leasing = asyncio.Lock()
        self._leased = leased

    async def next_id(self) -> int:
        """Return a unique producer id. Waits for SQL once in a thousand calls; raises the errors of
        the lease, and the next call retries."""
        while self._next == self._end:
            # All callers that find the block empty wait for one lease.
            async with self._leasing:
                if self._next == self._end:
                    first = await self._metadata.lease_producer_ids(BLOCK)
                    self._next, self._end = first, first + BLOCK
                    self._leased(self._end)
        taken = self._next
        self._next += 1
        return taken
