"""Convert rows of the metadata tables to objects of the catalog and back.

Pure: rows are plain tuples and dicts here; `sql` and `statements` read and write them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kafkawire.codec.configs.features import supported
from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.types import uuid_parse, uuid_text
from kafkawire.metadata.catalog import (
    TOPIC_RESOURCE,
    BrokerInfo,
    Catalog,
    NewTopic,
    PartitionInfo,
    TopicInfo,
)
from kafkawire.metadata.directory import Directory

Row = dict[str, Any]
Parts = Iterable[Sequence[Sequence[Any]]]  # rows, some thousand at a time


ROWS_AT_A_TIME = 10_000
"""Rows of a large table read together: few enough for the processor's cache."""


def catalog(
    cluster_id: str,
    version: int,
    brokers: Iterable[Sequence[Any]],
    topics: Parts,
    partitions: Parts,
    configs: Iterable[Sequence[Any]],
    features: Iterable[Sequence[Any]] = (),
) -> Catalog:
    """Build the catalog of (node_id, listeners, rack), parts of (id, name, internal, created_ms),
    parts of (topic_id, number, leader, leader_epoch) in number order, (resource_type, resource,
    name, value) and (name, level, epoch). Partitions and settings of unknown topics are left out.
    Raises NewerFormatError if a feature is finalized at a level that is not supported."""
    directory = Directory()
    for part in topics:
        directory.load_topics(part)
    for part in partitions:
        directory.load_partitions(part)
    made = Catalog(cluster_id, version, directory)
    for node_id, listeners, rack in brokers:
        made.brokers[node_id] = BrokerInfo(node_id, listeners_of(listeners), rack)
    for resource_type, resource, name, value in configs:
        if resource_type == TOPIC_RESOURCE:
            directory.load_config(uuid_parse(resource), name, value)
        else:
            made.broker_overrides.setdefault(resource, {})[name] = value
    for name, level, epoch in features:
        if not supported(name, level):
            raise NewerFormatError(
                f"the feature {name} is finalized at level {level}, which this kafkawire does not "
                "support"
            )
        made.features.finalize({name: level}, epoch)
    return made


def cluster_row(cluster_id: str, now_ms: int) -> Row:
    """Return the row of a new cluster. Partition numbers begin at 1: 0 marks the log's own
    frames."""
    return {
        "id": 1,
        "cluster_id": cluster_id,
        "version": 0,
        "next_partition": 1,
        "next_producer_id": 0,
        "created_ms": now_ms,
    }


def broker_row(info: BrokerInfo, now_ms: int) -> Row:
    return {
        "node_id": info.node_id,
        "rack": info.rack,
        "listeners": listeners_text(info.listeners),
        "registered_ms": now_ms,
    }


def listeners_text(listeners: Mapping[str, tuple[str, int]]) -> str:
    """Encode addresses for brokers.listeners."""
    return json.dumps({name: list(address) for name, address in listeners.items()})


def listeners_of(text: str) -> dict[str, tuple[str, int]]:
    """Decode brokers.listeners. Raises FormatError."""
    try:
        return {name: (str(host), int(port)) for name, (host, port) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise FormatError(f"the listeners of a broker are stored as {text[:100]!r}") from None


def new_topic(new: NewTopic, topic_id: bytes, first_number: int, created_ms: int = 0) -> TopicInfo:
    """Return the topic of `new`; its partitions get consecutive numbers from the first on."""
    return TopicInfo(
        topic_id,
        new.name,
        new.internal,
        new_partitions(new.leaders, first_number, 0),
        dict(new.configs),
        created_ms,
    )


def new_partitions(
    leaders: Sequence[int], first_number: int, first_index: int
) -> list[PartitionInfo]:
    """Return partitions with these leaders, in leader epoch 0."""
    return [
        PartitionInfo(first_number + i, first_index + i, leader, 0)
        for i, leader in enumerate(leaders)
    ]


def topic_row(info: TopicInfo, version: int) -> Row:
    return {
        "id": info.id,
        "name": info.name,
        "internal": info.internal,
        "created_ms": info.created_ms,
        "version": version,
    }


def partition_rows(topic_id: bytes, added: Iterable[PartitionInfo]) -> Iterator[Row]:
    for info in added:
        yield {
            "number": info.number,
            "topic_id": topic_id,
            "idx": info.index,
            "leader": info.leader,
            "leader_epoch": info.leader_epoch,
        }


def config_rows(info: TopicInfo) -> list[Row]:
    resource = uuid_text(info.id)
    return [
        {"resource_type": TOPIC_RESOURCE, "resource": resource, "name": name, "value": value}
        for name, value in info.configs.items()
    ]
