"""The list of topics, and one topic with the places of its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkawire.client.admin import topic_settings
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError, check
from kafkawire.client.lag import known_offsets
from kafkawire.client.offsets import LATEST, READ_COMMITTED
from kafkawire.codec.types import uuid_text
from kafkawire.console.views.offset_map import (
    PartitionMap,
    RecordPlace,
    share_in,
    spans_of_bounds,
    spans_of_segments,
)
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.parts import ListPage, page_of
from kafkawire.console.views.snapshot import Known, PartitionSnapshot, TopicSnapshot, read_topics

MAX_MAPPED = 50
"""Partitions of one page of a topic."""
SORTS = ("name", "partitions", "records", "rate", "tier", "lag")


class TopicRow(NamedTuple):
    """A row of the list of topics. `tier_share`: see TopicSnapshot; `worst`: the group with the
    largest lag and that lag."""

    name: str
    internal: bool
    partitions: int
    without_leader: int
    out_of_sync: int
    records: int
    rate: float | None
    tier_share: float | None
    groups: int
    worst: tuple[str, int] | None


def list_topics(
    known: Known, text: str = "", sort: str = "name", page: int = 1, internal: bool = False
) -> ListPage[TopicRow]:
    """Return the topics whose names contain `text`, in any case. Pure. `sort`: one of SORTS; all
    but "name" have the largest first. A page after the last is the last."""
    snapshot = known.snapshot
    topics = () if snapshot is None else tuple(snapshot.topics.values())
    wanted = text.strip().casefold()
    found = [
        topic
        for topic in topics
        if (internal or not topic.internal) and (not wanted or wanted in topic.name.casefold())
    ]
    readers = {} if snapshot is None else snapshot.readers
    _sort(found, sort, known.rates, readers)
    shown = page_of(found, page, len(topics))
    rows = [
        _row(topic, known.rates.get(topic.name), readers.get(topic.name, []))
        for topic in shown.rows
    ]
    return ListPage(rows, *shown[1:])


def _sort(
    topics: list[TopicSnapshot],
    sort: str,
    rates: Mapping[str, float],
    readers: Mapping[str, list[tuple[str, int]]],
) -> None:
    """Sort in place; topics are already in order of their names, and stay so if they are equal."""
    if sort == "partitions":
        topics.sort(key=lambda topic: -len(topic.partitions))
    elif sort == "records":
        topics.sort(key=lambda topic: -topic.records)
    elif sort == "rate":
        topics.sort(key=lambda topic: -rates.get(topic.name, 0.0))
    elif sort == "tier":
        topics.sort(key=lambda topic: -(topic.tier_share or 0.0))
    elif sort == "lag":
        topics.sort(
            key=lambda topic: -max((lag for _, lag in readers.get(topic.name, ())), default=-1)
        )


def _row(topic: TopicSnapshot, rate: float | None, readers: list[tuple[str, int]]) -> TopicRow:
    return TopicRow(
        topic.name,
        topic.internal,
        len(topic.partitions),
        topic.without_leader,
        topic.out_of_sync,
        topic.records,
        rate,
        topic.tier_share,
        len(readers),
        readers[0] if readers else None,
    )


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """A topic with the maps of some of its partitions. `configs`: those set on the topic itself;
    `refused`: sentences on what could not be read."""

    name: str
    topic_id: str
    internal: bool
    partitions: int
    records: int
    maps: Sequence[PartitionMap]
    first: int
    configs: Mapping[str, str | None]
    refused: Sequence[str] = field(default=())

    @property
    def places(self) -> Sequence[RecordPlace]:
        """Return the places on the maps, in the order of the legend."""
        found = {span.place for each in self.maps for span in each.spans}
        return [place for place in RecordPlace if place in found]

    @property
    def remote_share(self) -> float:
        """Return the share of the mapped offsets that are only in the remote tier."""
        return share_in((s for each in self.maps for s in each.spans), RecordPlace.REMOTE)


def describe_topic(cluster: Cluster, own: OwnBroker, name: str, first: int = 0) -> TopicDetail:
    """Return a topic, with the maps of MAX_MAPPED partitions from `first` on. BrokerError for an
    unknown topic."""
    (row,) = cluster.metadata([name]).topics
    check(f"topic {name}", row.error_code)
    state = read_topics(cluster, [row])[name]
    refused: list[str] = []
    configs: Mapping[str, str | None] = {}
    try:
        configs = topic_settings(cluster, name)
    except BrokerError as error:
        refused.append(str(error))
    shown = [each for each in state.partitions if each.partition >= first][:MAX_MAPPED]
    led_by = {(name, each.partition): each.leader for each in shown}
    stables = known_offsets(cluster, led_by, LATEST, led_by, READ_COMMITTED)
    exact: Mapping[int, Mapping[str, object]] = {}
    leaders = sorted({each.leader for each in shown if each.leader >= 0})
    try:
        exact = own.read_offset_maps(cluster, leaders, name, [each.partition for each in shown])
    except ClientError as error:
        refused.append(str(error))
    compacted = "compact" in (configs.get("cleanup.policy") or "")
    maps = [
        _map(each, stables.get((name, each.partition)), exact.get(each.partition), compacted)
        for each in shown
    ]
    return TopicDetail(
        name,
        uuid_text(state.topic_id),
        state.internal,
        len(state.partitions),
        state.records,
        maps,
        first,
        configs,
        refused,
    )


def _map(
    state: PartitionSnapshot,
    stable: int | None,
    exact: Mapping[str, object] | None,
    compacted: bool,
) -> PartitionMap:
    spans = (
        spans_of_bounds(state.log_start, state.log_end, state.local_start, state.tiered_end)
        if exact is None
        else spans_of_segments(exact, compacted)
    )
    return PartitionMap(
        state.partition,
        state.leader,
        state.replicas,
        state.in_sync,
        state.log_start,
        state.log_end,
        stable,
        spans,
        exact is not None,
    )
