"""Protocol of the Produce handler, for long and repeated requests.

Implemented by kafkawire.handlers.produce.handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkawire.broker.partitions import PartitionTable
    from kafkawire.codec.counts import Counts
    from kafkawire.codec.errors import KafkaError
    from kafkawire.codec.produce import ProduceResult
    from kafkawire.handlers.produce.pending import Item, PendingProduces, Waiting
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.append.long_batch import LongBatches
    from kafkawire.log.io.ports import Env
    from kafkawire.log.partition.partition import Inspected


class ProduceHandler(Protocol):
    """See the methods of kafkawire.handlers.produce.handler.Produce."""

    env: Env
    table: PartitionTable
    log: CommitLog
    counts: Counts
    long_batches: LongBatches

    @property
    def now_ms(self) -> Callable[[], int]: ...

    def pending(self) -> PendingProduces: ...

    def append(
        self, exchange: Waiting, item: Item, inspected: Inspected | None = None
    ) -> ProduceResult: ...

    def refusal(self, acks: int, transactional_id: str | None, /) -> KafkaError | None: ...
