"""The types of groups with a protocol of Kafka 4: what the shard needs to know of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from kafkawire.groups.consumer import removal as consumer_removal
from kafkawire.groups.consumer import views as consumer_views
from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.model.decision import Decision
from kafkawire.groups.model.member import CONSUMER
from kafkawire.groups.model.records import (
    ConsumerKind,
    ConsumerRecord,
    ShareGroupRecord,
    ShareKind,
    StreamsGroupRecord,
    StreamsKind,
)
from kafkawire.groups.model.request import Settings
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.share import heartbeat as share_heartbeat
from kafkawire.groups.share import views as share_views
from kafkawire.groups.share.group import ShareGroup
from kafkawire.groups.streams import removal as streams_removal
from kafkawire.groups.streams import views as streams_views
from kafkawire.groups.streams.group import StreamsGroup
from kafkawire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from kafkawire.messages.list_groups import ListedGroup
from kafkawire.messages.share_group_describe import DescribedGroup as DescribedShareGroup
from kafkawire.messages.streams_group_describe import DescribedGroup as DescribedStreamsGroup

KindGroup = ConsumerGroup | ShareGroup | StreamsGroup


class GroupKind(NamedTuple):
    """One type. `name` and `protocol_type`: as ListGroups has them; `end`: the record whose
    tombstone deletes a group. The functions take a group of this type."""

    name: str
    protocol_type: str
    record: type[Any]
    end: IntEnum
    create: Callable[[str], Any]
    described: type[Any]
    describe: Callable[[Any, ClusterTopics, Settings], Any]
    decide_timer: Callable[[Any, ClusterTopics, Settings, str, int], Decision]
    decide_loaded: Callable[[Any, Settings, int], Decision]


CONSUMER_KIND = GroupKind(
    "consumer",
    CONSUMER,
    ConsumerRecord,
    ConsumerKind.GROUP,
    ConsumerGroup,
    DescribedConsumerGroup,
    consumer_views.describe_group,
    consumer_removal.decide_timer,
    consumer_removal.decide_loaded,
)
SHARE_KIND = GroupKind(
    "share",
    "share",
    ShareGroupRecord,
    ShareKind.GROUP,
    ShareGroup,
    DescribedShareGroup,
    share_views.describe_group,
    share_heartbeat.decide_timer,
    share_heartbeat.decide_loaded,
)
STREAMS_KIND = GroupKind(
    "streams",
    "streams",
    StreamsGroupRecord,
    StreamsKind.GROUP,
    StreamsGroup,
    DescribedStreamsGroup,
    streams_views.describe_group,
    streams_removal.decide_timer,
    streams_removal.decide_loaded,
)


def list_kind(
    kind: GroupKind, groups: Iterable[KindGroup], states: Collection[str], types: Collection[str]
) -> list[ListedGroup]:
    """List the groups in one of `states` and of one of `types`; an empty filter matches all."""
    if types and kind.name not in {each.lower() for each in types}:
        return []
    wanted = {state.lower() for state in states}
    listed: list[ListedGroup] = []
    for group in groups:
        state = group.state.value
        if not wanted or state.lower() in wanted:
            listed.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=kind.protocol_type,
                    group_state=state,
                    group_type=kind.name,
                )
            )
    return listed
