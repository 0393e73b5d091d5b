"""Convert rows of the metadata tables to objects of the catalog and back.

Pure: rows are plain tuples and dicts here; `sql` and `statements` read and write them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kafkawire.codec.configs.features import is_supported
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
from kafkawire.metadata.directory import Directory, LeadGroup

BROKERS = "brokers", "node_id, listeners, rack, epoch, folder"
"""A table and its columns, for `Session.read_checked`."""

LOCAL_CLASS = 0
"""lead_groups.class: the records are in the commit log of one broker."""

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
    groups: Iterable[Sequence[Any]] = (),
    moves: Iterable[Sequence[Any]] = (),
) -> Catalog:
    """Build the catalog of (node_id, listeners, rack, epoch, folder), parts of (id, name, internal,
    created_ms), parts of (topic_id, number, lead_group, epoch_base) in number order,
    (resource_type, resource, name, value), (name, level, epoch), (group id, leader, epoch) and
    (partition number, target).
    Partitions and settings of unknown topics are left out. Raises NewerFormatError if a feature is
    finalized at a level that is not supported, FormatError if a lead group is missing."""
    directory = Directory()
    for group in groups:
        directory.set_group(LeadGroup(*group))
    for part in topics:
        directory.load_topics(part)
    for part in partitions:
        directory.load_partitions(part)
    made = Catalog(cluster_id, version, directory)
    made.brokers.update((row[0], broker_of(row)) for row in brokers)
    made.set_moves({number: target for number, target in moves})
    for resource_type, resource, name, value in configs:
        if resource_type == TOPIC_RESOURCE:
            directory.load_config(uuid_parse(resource), name, value)
        else:
            made.overrides_of(resource_type).setdefault(resource, {})[name] = value
    for name, level, epoch in features:
        if not is_supported(name, level):
            raise NewerFormatError(
                f"the feature {name} is finalized at level {level}, which this kafkawire does not "
                "support"
            )
        made.features.finalize({name: level}, epoch)
    return made


def group_row(group: LeadGroup, version: int) -> Row:
    """Return the row of a lead group that is led by its first leader."""
    return {
        "id": group.id,
        "class": LOCAL_CLASS,
        "leader": group.leader,
        "preferred": group.leader,
        "epoch": group.epoch,
        "version": version,
    }


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


def broker_of(row: Sequence[Any]) -> BrokerInfo:
    """Return the broker of a row of BROKERS. Raises FormatError."""
    node_id, listeners, rack, epoch, folder = row
    return BrokerInfo(node_id, listeners_of(listeners), rack, epoch, folder)


def broker_row(info: BrokerInfo, now_ms: int, version: int) -> Row:
    return {
        "node_id": info.node_id,
        "rack": info.rack,
        "listeners": listeners_text(info.listeners),
        "registered_ms": now_ms,
        "folder": info.folder,
        "version": version,
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


def partition_rows(
    topic_id: bytes, added: Iterable[PartitionInfo], groups: Mapping[int, LeadGroup]
) -> Iterator[Row]:
    """Return the rows of partitions in local logs; `groups`: the lead group of each leader."""
    for info in added:
        group = groups[info.leader]
        yield {
            "number": info.number,
            "topic_id": topic_id,
            "idx": info.index,
            "lead_group": group.id,
            "epoch_base": info.leader_epoch - group.epoch,
        }


def config_rows(info: TopicInfo) -> list[Row]:
    resource = uuid_text(info.id)
    return [
        {"resource_type": TOPIC_RESOURCE, "resource": resource, "name": name, "value": value}
        for name, value in info.configs.items()
    ]
