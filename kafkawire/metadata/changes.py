"""Changes of the catalog that other processes made: rows with a version above a known one.

Every change of the catalog raises `cluster.version` and stores it in the rows it changes, deleted
topics included. `read_changes` returns the whole new state of those rows, so applying a change
twice has no effect. Topics are returned in parts, in the order of their changes, because a process
may have missed many. Functions here run inside a transaction (`Transactions.transact`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafkawire.codec.types import uuid_text
from kafkawire.metadata.catalog import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    BrokerInfo,
)
from kafkawire.metadata.directory import LeadGroup
from kafkawire.metadata.rows import BROKERS, broker_of
from kafkawire.metadata.session import Session

TOPICS_AT_ONCE = 500
"""Topics in one part: 2 ms on the event loop."""
PARTITIONS_AT_ONCE = 3_000
"""Partitions of one part, unless its first topic has more: 3 ms."""

Cursor = tuple[int, bytes]
"""Version and id of the last topic of a part."""


class PartitionPlace(NamedTuple):
    """A partition and its lead group. `partition` is Kafka's index; the leader epoch is `base` plus
    the epoch of the group; `target`: the broker it is to be moved to."""

    number: int
    partition: int
    group: int
    base: int
    target: int | None = None


@dataclass(slots=True)
class ChangedTopic:
    """The state of a topic that was created, changed or deleted."""

    id: bytes
    name: str
    internal: bool
    created_ms: int
    deleted: bool
    partitions: list[PartitionPlace] = field(default_factory=list)
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class CatalogChanges:
    """Changes after a version. `version`: of the catalog when they were read; `registered`: the
    node ids of all brokers, None: no change; `broker_settings`, `group_settings` and
    `client_metrics`: all settings of brokers, of groups and of client metrics subscriptions, None
    if none of them was changed; `more`: where the next part of topics begins, None: there is none.
    Only the first part has what is not of topics."""

    version: int
    topics: list[ChangedTopic] = field(default_factory=list)
    groups: list[LeadGroup] = field(default_factory=list)
    brokers: list[BrokerInfo] = field(default_factory=list)
    registered: frozenset[int] | None = None
    broker_settings: Mapping[str, dict[str, str]] | None = None
    group_settings: Mapping[str, dict[str, str]] | None = None
    client_metrics: Mapping[str, dict[str, str]] | None = None
    features: list[tuple[str, int, int]] = field(default_factory=list)
    more: Cursor | None = None


def read_changes(session: Session, since: int, after: Cursor | None = None) -> CatalogChanges:
    """Read the changes after version `since`; `after`: the next part of topics only."""
    ((version, settings_version),) = session.read_checked(
        "cluster", "version, broker_configs_version"
    )
    changes = CatalogChanges(int(version))
    if version <= since:
        return changes
    if after is None:
        newer = "WHERE version > ?"
        groups = session.read_checked("lead_groups", "id, leader, epoch", newer, (since,))
        changes.groups = [LeadGroup._make(row) for row in groups]
        changes.brokers = [
            broker_of(row) for row in session.read_checked(*BROKERS, newer, (since,))
        ]
        found = session.read_checked("brokers", "node_id")
        changes.registered = frozenset(int(node_id) for (node_id,) in found)
        newer = "WHERE epoch > ? ORDER BY epoch"
        features = session.read_checked("features", "name, level, epoch", newer, (since,))
        changes.features = [(name, level, epoch) for name, level, epoch in features]
        if settings_version > since:
            changes.broker_settings = _read_settings(session, BROKER_RESOURCE)
            changes.group_settings = _read_settings(session, GROUP_RESOURCE)
            changes.client_metrics = _read_settings(session, CLIENT_METRICS_RESOURCE)
    _read_topics(session, changes, since, after or (since, b"\xff" * 17))
    return changes


def _read_settings(session: Session, resource_type: int) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    rows = session.read_checked(
        "configs", "resource, name, value", "WHERE resource_type = ?", (resource_type,)
    )
    for resource, name, value in rows:
        found.setdefault(resource, {})[name] = value
    return found


def _read_topics(session: Session, changes: CatalogChanges, since: int, after: Cursor) -> None:
    """Read the next part of topics, deleted ones without partitions and settings."""
    rows = session.read_checked(
        "topics",
        "id, name, internal, created_ms, deleted_ms, version",
        "WHERE version > ? AND (version > ? OR (version = ? AND id > ?))"
        f" ORDER BY version, id LIMIT {TOPICS_AT_ONCE:d}",
        (since, after[0], after[0], after[1]),
    )
    living = [bytes(topic_id) for topic_id, _, _, _, deleted_ms, _ in rows if deleted_ms is None]
    taken = _count_fitting(session, living, rows)
    for topic_id, name, internal, created_ms, deleted_ms, _ in rows[:taken]:
        changes.topics.append(
            ChangedTopic(bytes(topic_id), name, bool(internal), created_ms, deleted_ms is not None)
        )
    if len(rows) == TOPICS_AT_ONCE or taken < len(rows):
        changes.more = int(rows[taken - 1][-1]), bytes(rows[taken - 1][0])
    _complete(session, [topic for topic in changes.topics if not topic.deleted])


def _count_fitting(session: Session, living: Sequence[bytes], rows: Sequence[Sequence[Any]]) -> int:
    """Return how many of the first topics have at most PARTITIONS_AT_ONCE partitions; at least
    one."""
    if not living:
        return len(rows)
    marks = ", ".join("?" * len(living))
    query = f"SELECT topic_id, count(*) FROM partitions WHERE topic_id IN ({marks}) GROUP BY 1"
    sizes = {bytes(topic_id): size for topic_id, size in session.rows(query, tuple(living))}
    total = 0
    for taken, (topic_id, _, _, _, deleted_ms, _) in enumerate(rows):
        total += 0 if deleted_ms is not None else sizes.get(bytes(topic_id), 0)
        if total > PARTITIONS_AT_ONCE and taken:
            return taken
    return len(rows)


def _complete(session: Session, topics: Sequence[ChangedTopic]) -> None:
    """Read the partitions and settings of topics."""
    if not topics:
        return
    marks = ", ".join("?" * len(topics))
    by_id = {topic.id: topic for topic in topics}
    rows = session.read_checked(
        "partitions",
        "topic_id, number, idx, lead_group, epoch_base, target",
        "LEFT JOIN partition_moves ON partition_number = number"
        f" WHERE topic_id IN ({marks}) ORDER BY topic_id, idx",
        tuple(by_id),
    )
    for topic_id, *place in rows:
        by_id[bytes(topic_id)].partitions.append(PartitionPlace(*place))
    by_text = {uuid_text(topic.id): topic for topic in topics}
    rows = session.read_checked(
        "configs",
        "resource, name, value",
        f"WHERE resource_type = {TOPIC_RESOURCE} AND resource IN ({marks})",
        tuple(by_text),
    )
    for resource, name, value in rows:
        by_text[resource].configs[name] = value
