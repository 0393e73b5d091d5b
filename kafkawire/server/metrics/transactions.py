"""Metric families of transactions: states, the oldest open one, outcomes, late ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import counter, gauge, gauges

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.transactions.coordinator import TransactionCoordinator
    from kafkawire.transactions.machine.transaction import TransactionState

LATE_AFTER_MS = 300_000
"""Time after transaction.max.timeout.ms from which an open transaction is late, as in Kafka
(ProducerStateManager.LATE_TRANSACTION_BUFFER_MS)."""

COUNTED_AT_ONCE = 1_000
"""Transactional ids, or partitions and their open transactions, counted in one step: half a
millisecond."""


def transaction_families(broker: Broker) -> Iterator[Metric | None]:
    """Yield the families; those of the coordinators after a client used transactions. None: other
    tasks may run, for there may be a hundred thousand transactional ids."""
    opened = late = 0
    for counted in _in_partitions(broker):
        if counted is None:
            yield None
        else:
            opened, late = opened + counted[0], late + counted[1]
    yield gauge(
        "transactions_in_partitions",
        "Open transactions of all partitions in memory; each partition of a transaction counts.",
        opened,
    )
    yield gauge(
        "transactions_late",
        "Open transactions without a write for transaction.max.timeout.ms and five minutes: they "
        "may hang (kafkawire transactions hanging).",
        late,
    )
    if "transactions" in broker.__dict__:
        yield from _coordinator_families(broker, broker.transactions.list_led())


def _in_partitions(broker: Broker) -> Iterator[tuple[int, int] | None]:
    """Yield the numbers of open and of late transactions of the partitions, and None after some."""
    limit_ms = broker.config.transaction_max_timeout_ms + LATE_AFTER_MS
    before_ms = broker.env.clock.now_ms() - limit_ms
    counted = 0
    for partition in list(broker.log.commit_log.producing):
        producers = partition.producers
        counted += 1
        if producers.transactions is not None and producers.transactions.open:
            counted += len(producers.transactions.open)
            yield len(producers.transactions.open), producers.open_since(before_ms)
        if counted >= COUNTED_AT_ONCE:
            counted = 0
            yield None


def _coordinator_families(
    broker: Broker, coordinators: list[TransactionCoordinator]
) -> Iterator[Metric | None]:
    states: Counter[TransactionState] = Counter()
    oldest_ms = now_ms = broker.env.clock.now_ms()
    for coordinator in coordinators:
        ids = iter(list(coordinator.shard.transactions.values()))
        while portion := list(islice(ids, COUNTED_AT_ONCE)):
            states.update(each.state for each in portion)
            started = (each.started_ms for each in portion if each.is_open)
            oldest_ms = min(oldest_ms, min(started, default=oldest_ms))
            yield None
    yield gauges(
        "transactions",
        "Transactional ids of this coordinator by state; Ongoing, PrepareCommit and PrepareAbort "
        "have an open transaction.",
        ["state"],
        sorted(([state.label], number) for state, number in states.items()),
    )
    yield gauge(
        "transaction_oldest_open_seconds",
        "Age of the oldest open transaction of this coordinator; 0: none is open.",
        (now_ms - oldest_ms) / 1000,
    )
    counts = [coordinator.counts for coordinator in coordinators]
    yield counter(
        "transactions_committed", "Transactions committed.", sum(one.committed for one in counts)
    )
    yield counter(
        "transactions_aborted",
        "Transactions aborted: by their producer, its successor, or after their timeout.",
        sum(one.aborted for one in counts),
    )
    yield counter(
        "transactions_fenced",
        "Requests refused because a newer producer has their transactional id.",
        sum(one.fenced for one in counts),
    )
