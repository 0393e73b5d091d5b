"""ListTransactions and DescribeTransactions over one coordinator partition (KIP-664, 994, 1152).

Kafka: TransactionStateManager.listTransactionStates, TransactionCoordinator.
handleDescribeTransactions. Pure.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages import describe_transactions as described
from kafkawire.messages import list_transactions as listed
from kafkawire.transactions.machine.request import ListFilter
from kafkawire.transactions.machine.shard import TransactionShard
from kafkawire.transactions.machine.transaction import Transaction


def list_transactions(
    shard: TransactionShard, wanted: ListFilter, now_ms: int
) -> Iterator[listed.TransactionState | None]:
    """The ids that pass all filters, as of now; None for each of the others."""
    # Copied now: a generator would read the ids when it is first asked, after later changes.
    return _list_transactions(list(shard.transactions.items()), wanted, now_ms)


def _list_transactions(
    items: list[tuple[str, Transaction]], wanted: ListFilter, now_ms: int
) -> Generator[listed.TransactionState | None, None, None]:
    for transactional_id, at in items:
        passes = _passes(at, wanted, now_ms)
        if passes and wanted.matches is not None:
            passes = wanted.matches(transactional_id)
        if passes:
            yield listed.TransactionState(
                transactional_id=transactional_id,
                producer_id=at.producer_id,
                transaction_state=at.state.label,
            )
        # For each of the others, too, so that the caller can let other work run.
        else:
            yield None


def _passes(at: Transaction, wanted: ListFilter, now_ms: int) -> bool:
    if wanted.states and at.state.label not in wanted.states:
        return False
    if wanted.producer_ids and at.producer_id not in wanted.producer_ids:
        return False
    # Without a transaction the start is -1, so that every age is exceeded, as in Kafka.
    return wanted.duration_ms < 0 or now_ms - at.started_ms > wanted.duration_ms


def describe_transaction(
    shard: TransactionShard, transactional_id: str
) -> described.TransactionState:
    at = shard.transactions.get(transactional_id)
    if not transactional_id or at is None:
        code = (
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
        )
        return described.TransactionState(error_code=int(code), transactional_id=transactional_id)
    topics: dict[str, list[int]] = {}
    # Of a decided transaction those still without a marker: what an operator waits for.
    for topic, index in sorted(shard.pending.get(transactional_id, at.partitions)):
        topics.setdefault(topic, []).append(index)
    return described.TransactionState(
        transactional_id=transactional_id,
        transaction_state=at.state.label,
        transaction_timeout_ms=at.timeout_ms,
        transaction_start_time_ms=at.started_ms,
        producer_id=at.producer_id,
        producer_epoch=at.producer_epoch,
        topics=[described.TopicData(topic, indexes) for topic, indexes in topics.items()],
    )
