"""Insert a whole catalog into empty tables: for a restore from the log or from a remote tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkawire.metadata.catalog import ALL_BROKERS, BROKER_RESOURCE, BrokerInfo, TopicInfo
from kafkawire.metadata.directory import local_group
from kafkawire.metadata.rows import (
    Row,
    broker_row,
    config_rows,
    group_row,
    partition_rows,
    topic_row,
)
from kafkawire.metadata.session import Session, insert
from kafkawire.metadata.store import MetadataError


def enter_catalog(
    session: Session,
    node_id: int,
    topics: Sequence[TopicInfo],
    next_partition: int,
    next_producer_id: int,
    now_ms: int,
    cluster_id: str = "",
    broker_configs: Mapping[str, str] | None = None,
    deleted: Sequence[TopicInfo] = (),
) -> None:
    """Insert a broker and all leaders, topics with partitions and settings, and the next numbers.
    The brokers register their addresses when they start. The cluster gets the id `cluster_id`, if
    given, and these dynamic settings of all brokers. `deleted` topics are inserted as deleted,
    because their partition numbers may be in the log. Raises MetadataError if the tables have
    topics."""
    if session.rows("SELECT 1 FROM topics LIMIT 1"):
        raise MetadataError("the metadata holds topics: restore into an empty database")
    leaders = {node_id, *(p.leader for info in [*topics, *deleted] for p in info.partitions)}
    those = [BrokerInfo(node, {}, None) for node in sorted(leaders)]
    _insert(session, "brokers", [broker_row(each, now_ms, 1) for each in those])
    _insert(session, "topics", [_topic_row(info, now_ms) for info in topics])
    gone = [{**_topic_row(info, now_ms), "deleted_ms": now_ms} for info in deleted]
    _insert(session, "topics", gone)
    every = [*topics, *deleted]
    groups = {leader: local_group(leader) for leader in leaders}
    _insert(session, "lead_groups", [group_row(group, 1) for group in groups.values()])
    partitions = [row for info in every for row in partition_rows(info.id, info.partitions, groups)]
    _insert(session, "partitions", partitions)
    _insert(session, "configs", [row for info in topics for row in config_rows(info)])
    settings = (broker_configs or {}).items()
    _insert(session, "configs", [_broker_setting(name, value) for name, value in settings])
    if cluster_id:
        session.run("UPDATE cluster SET cluster_id = ?", (cluster_id,))
    session.run(
        "UPDATE cluster SET version = 1, next_partition = ?, next_producer_id = ?",
        (next_partition, next_producer_id),
    )


def _broker_setting(name: str, value: str) -> Row:
    return {
        "resource_type": BROKER_RESOURCE,
        "resource": ALL_BROKERS,
        "name": name,
        "value": value,
    }


def _topic_row(info: TopicInfo, now_ms: int) -> Row:
    """Return the row of a topic; without a known creation time it is now."""
    row = topic_row(info, 1)
    row["created_ms"] = info.created_ms or now_ms
    return row


def _insert(session: Session, table: str, rows: Sequence[Row]) -> None:
    if rows:
        columns = ", ".join(rows[0])
        values = [tuple(row.values()) for row in rows]
        insert(session, f"INSERT INTO {table} ({columns})", values)
