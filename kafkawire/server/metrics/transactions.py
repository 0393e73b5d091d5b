"""Metric families of transactions: states, the oldest open one, outcomes, late ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import counter, gauge, gauges

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.transactions.coordinator import TransactionCoordinator

LATE_AFTER_MS = 300_000
"""Time after transaction.max.timeout.ms from which an open transaction is late, as in Kafka
(ProducerStateManager.LATE_TRANSACTION_BUFFER_MS)."""


def transaction_families(broker: Broker) -> Iterator[Metric]:
    """Yield the families; those of the coordinators after a client used transactions."""
    opened, late = _in_partitions(broker)
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
        yield from _coordinator_families(broker, broker.transactions.led())


def _in_partitions(broker: Broker) -> tuple[int, int]:
    """The numbers of open and of late transactions."""
    limit_ms = broker.config.transaction_max_timeout_ms + LATE_AFTER_MS
    before_ms = broker.env.clock.now_ms() - limit_ms
    opened = late = 0
    for partition in broker.log.commit_log.producing:
        producers = partition.producers
        if producers.transactions is not None and producers.transactions.open:
            opened += len(producers.transactions.open)
            late += producers.open_since(before_ms)
    return opened, late


def _coordinator_families(
    broker: Broker, coordinators: list[TransactionCoordinator]
) -> Iterator[Metric]:
    states: Counter[str] = Counter()
    oldest_ms = now_ms = broker.env.clock.now_ms()
    for coordinator in coordinators:
        for each in coordinator.shard.transactions.values():
            states[each.state.label] += 1
            if each.is_open and each.started_ms < oldest_ms:
                oldest_ms = each.started_ms
    yield gauges(
        "transactions",
        "Transactional ids of this coordinator by state; Ongoing, PrepareCommit and PrepareAbort "
        "have an open transaction.",
        ["state"],
        (([name], number) for name, number in sorted(states.items())),
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
