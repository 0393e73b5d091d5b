"""Open transactions, the partitions that they hold back, and the groups that wait; of any Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.lag import known_offsets
from kafkawire.client.offsets import LATEST, READ_COMMITTED, Partition, partitions_text
from kafkawire.client.transaction_admin import (
    Producing,
    TransactionListing,
    describe_listed,
    find_holders,
    list_transactions,
)
from kafkawire.console.views.parts import ListPage, attempt, page_of
from kafkawire.console.views.snapshot import ClusterSnapshot

OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
MAX_DESCRIBED = 1_000
"""Open transactions that a page reads; they are sorted by age after that."""
MAX_HELD = 200
"""Partitions of which a page reads the producers."""


class TransactionRow(NamedTuple):
    """An open transaction. `overdue`: it is open for longer than its timeout."""

    transactional_id: str
    state: str
    started_ms: int | None
    timeout_ms: int
    producer_id: int
    producer_epoch: int
    coordinator: int
    partitions: Sequence[str]
    overdue: bool


class HeldPartition(NamedTuple):
    """A partition whose last stable offset `stable` is before its log end. `opened`: the producer
    of the oldest open transaction there, None with an `error`; `transactional_id`: None if no
    coordinator has one for it; `groups`: those that have read up to the last stable offset."""

    partition: Partition
    stable: int
    log_end: int
    opened: Producing | None
    transactional_id: str | None
    groups: Sequence[str]
    error: str


class HeldTransactions(NamedTuple):
    """Open transactions, the oldest first, and the partitions held back, those with the most
    records first. `total`: all open ones; `more_held`: partitions that are not listed."""

    opened: ListPage[TransactionRow]
    total: int
    held: Sequence[HeldPartition]
    more_held: int
    refused: Sequence[str]


def describe_open(cluster: Cluster, snapshot: ClusterSnapshot, page: int = 1) -> HeldTransactions:
    """Return the open transactions of a cluster, as far as its user may see them. ClientError."""
    refused: list[str] = []
    listed = attempt(refused, lambda: list_transactions(cluster, states=OPEN)) or []
    described = attempt(refused, lambda: list(_describe(cluster, listed[:MAX_DESCRIBED]))) or []
    described.sort(key=lambda row: (row.started_ms or 0, row.transactional_id))
    waiting = _held_back(cluster, snapshot)
    names = {each.producer_id: each.transactional_id for each in listed}
    held = list(_find_holders(cluster, snapshot, waiting[:MAX_HELD], names))
    left = len(waiting) - len(held)
    return HeldTransactions(page_of(described, page), len(listed), held, left, refused)


def _describe(cluster: Cluster, listed: Sequence[TransactionListing]) -> Iterator[TransactionRow]:
    now_ms = time.time_ns() // 1_000_000
    for each, found in describe_listed(cluster, listed):
        if found.error_code or found.transaction_state not in OPEN:
            continue
        started = found.transaction_start_time_ms
        yield TransactionRow(
            each.transactional_id,
            found.transaction_state,
            started if started >= 0 else None,
            found.transaction_timeout_ms,
            found.producer_id,
            found.producer_epoch,
            each.coordinator,
            partitions_text((row.topic, n) for row in found.topics for n in row.partitions),
            0 <= started < now_ms - found.transaction_timeout_ms,
        )


def _held_back(cluster: Cluster, snapshot: ClusterSnapshot) -> list[tuple[Partition, int, int]]:
    """Return partition, last stable offset and log end of those where they differ, the largest
    difference first."""
    led_by = _leaders(snapshot)
    # Read after the ends of the snapshot, so that what is less was held back at that time.
    stables = known_offsets(cluster, led_by, LATEST, led_by, READ_COMMITTED)
    found = [
        ((topic.name, row.partition), stable, row.log_end)
        for topic in snapshot.topics.values()
        for row in topic.partitions
        if row.log_end is not None
        and 0 <= (stable := stables.get((topic.name, row.partition), -1)) < row.log_end
    ]
    return sorted(found, key=lambda row: (row[1] - row[2], row[0]))


def _leaders(snapshot: ClusterSnapshot) -> dict[Partition, int]:
    return {
        (topic.name, row.partition): row.leader
        for topic in snapshot.topics.values()
        for row in topic.partitions
        if row.leader >= 0
    }


def _find_holders(
    cluster: Cluster,
    snapshot: ClusterSnapshot,
    waiting: Sequence[tuple[Partition, int, int]],
    names: Mapping[int, str],
) -> Iterator[HeldPartition]:
    leaders = _leaders(snapshot)
    found, errors = find_holders(cluster, {place: leaders[place] for place, _, _ in waiting})
    for place, stable, end in waiting:
        opened = found.get(place)
        name = None if opened is None else names.get(opened.producer_id)
        groups = sorted(
            each.group
            for each in snapshot.groups.values()
            if each.committed.get(place, -1) >= stable
        )
        yield HeldPartition(place, stable, end, opened, name, groups, str(errors.get(place, "")))
