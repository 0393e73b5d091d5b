"""The topology of a streams group as configured for the topics that exist: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.messages.streams_group_describe import TopicInfo


class Status(IntEnum):
    """The codes of a status in a StreamsGroupHeartbeat response (Kafka:
    StreamsGroupHeartbeatResponse.Status)."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    """A subtopology whose internal topics have numbers of partitions. `tasks`: how many it has, as
    many as its largest source topic has partitions; `sources`: all topics that it reads."""

    tasks: int
    sources: frozenset[str]
    changelogs: tuple[TopicInfo, ...]
    repartitions: tuple[TopicInfo, ...]


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """The topology of a group for the topics as they are. `fault`: why no tasks can be assigned,
    with a text; `missing`: internal topics to be created. `subtopologies` are empty if the source
    topics do not fit."""

    subtopologies: Mapping[str, ConfiguredSubtopology] = field(default_factory=dict)
    missing: tuple[CreatableTopic, ...] = ()
    fault: tuple[Status, str] | None = None
