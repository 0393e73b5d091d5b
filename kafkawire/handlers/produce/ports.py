"""Protocol of the Produce handler, for long and repeated requests.

Implemented by kafkawire.handlers.produce.handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from kafkawire.broker.partitions import PartitionTable
    from kafkawire.broker.verification import TransactionVerifier
    from kafkawire.codec.errors import KafkaError
    from kafkawire.handlers.exchange import Exchange, Peer
    from kafkawire.handlers.hot_rights import TopicRights
    from kafkawire.handlers.leader_hints import LeaderHints
    from kafkawire.handlers.produce.pending import PendingProduces, Waiting
    from kafkawire.handlers.produce.transactional import TransactionalBatches
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.append.long_batch import LongBatches
    from kafkawire.log.io.ports import Env
    from kafkawire.log.partition.partition import Inspected, Partition
    from kafkawire.log.partition.verification import Guard
    from kafkawire.messages.flat_produce import ProduceAsk, ProduceItem, ProduceResult
    from kafkawire.metric_counters import Counts


class ProduceHandler(Protocol):
    """The methods of kafkawire.handlers.produce.handler.Produce that its parts call."""

    env: Env
    table: PartitionTable
    log: CommitLog
    counts: Counts
    long_batches: LongBatches
    rights: TopicRights
    hints: LeaderHints

    @property
    def now_ms(self) -> Callable[[], int]: ...

    def pending(self) -> PendingProduces: ...

    @property
    def verifier(self) -> TransactionVerifier: ...

    def append(
        self,
        exchange: Waiting,
        buf: memoryview,
        item: ProduceItem,
        now_ms: int,
        guard: Guard | None,
        inspected: Inspected | None = None,
    ) -> ProduceResult: ...

    def failure_result(self, item: ProduceItem, failure: Exception) -> ProduceResult: ...

    def collect_transactional(
        self, exchange: Exchange, ask: ProduceAsk, buf: memoryview
    ) -> Generator[None, None, TransactionalBatches | None]: ...

    async def check_schedules(
        self, peer: Peer, partition: Partition, batch: memoryview
    ) -> None: ...

    def refusal(self, acks: int, /) -> KafkaError | None: ...
