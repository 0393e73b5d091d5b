"""The topology of a streams group: its validity, its topics, and its number of tasks.

The number of partitions of an internal topic follows from those of source topics (Kafka:
InternalTopicManager): a repartition topic without a number has as many as the largest source topic
of a subtopology that writes to it, topics that are joined (a copartition group) have equally many,
and a changelog topic has one for each task. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.model.streams_topics import ConfiguredSubtopology, ConfiguredTopology, Status
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.messages.create_topics import CreatableTopic, CreatableTopicConfig
from kafkawire.messages.stored import StreamsGroupTopologyValue
from kafkawire.messages.streams_group_describe import TopicInfo
from kafkawire.messages.streams_group_heartbeat import CopartitionGroup, Subtopology

SHOWN = 3
"""Topics that a text names."""
MAX_SUBTOPOLOGIES = 100
"""Each may wait for the partitions of another one, which takes time with their square: 5 ms."""
MAX_ENTRIES = 5_000
"""Topics, settings of topics, and topics of copartition groups of one topology, each counted as
often as it occurs. Checking and configuring so many takes 5 ms; applications have some hundreds."""


class TopicsError(Exception):
    """Topics of a topology do not fit: a status of the group, not an error of the request."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.fault = (status, text)


def list_topics(subtopology: Subtopology) -> list[str]:
    """Return the topics that a subtopology reads, its changelog topics last."""
    infos = [*subtopology.repartition_source_topics, *subtopology.state_changelog_topics]
    return [*subtopology.source_topics, *(info.name for info in infos)]


def required_topics(topology: StreamsGroupTopologyValue) -> set[str]:
    return {name for each in topology.subtopologies for name in list_topics(each)}


def list_sources(subtopology: Subtopology) -> list[str]:
    """Return the topics whose partitions are the tasks of a subtopology."""
    return [
        *subtopology.source_topics,
        *(info.name for info in subtopology.repartition_source_topics),
    ]


def check_topology(subtopologies: Sequence[Subtopology]) -> None:
    """Check what needs no topics. Raises KafkaError."""
    _check_size(subtopologies)
    names: set[str] = set()
    for each in subtopologies:
        if each.source_topic_regex:
            text = "Regular expressions for source topics are not supported yet."
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        for info in each.state_changelog_topics:
            if info.partitions != 0:
                raise _invalid(
                    f"Changelog topic {info.name} must have an undefined partition count, but it "
                    f"is set to {info.partitions}."
                )
        if each.subtopology_id in names:
            raise _invalid(f"Subtopology {each.subtopology_id} occurs twice.")
        names.add(each.subtopology_id)
        if not list_sources(each):
            raise _invalid(f"No source topics found for subtopology {each.subtopology_id}")
        for group in each.copartition_groups:
            _list_copartitioned(each, group)
    _check_repartitions(subtopologies)


def _check_size(subtopologies: Sequence[Subtopology]) -> None:
    """Check how much a topology has, in a time that does not depend on it. Raises KafkaError."""
    if len(subtopologies) > MAX_SUBTOPOLOGIES:
        raise _invalid(f"The topology has more than {MAX_SUBTOPOLOGIES} subtopologies.")
    entries = 0
    for each in subtopologies:
        infos = (each.repartition_source_topics, each.state_changelog_topics)
        entries += len(each.source_topics) + len(each.repartition_sink_topics)
        entries += sum(map(len, infos)) + len(each.copartition_groups)
        if entries <= MAX_ENTRIES:
            entries += sum(len(info.topic_configs) for found in infos for info in found)
            entries += sum(
                len(group.source_topics) + len(group.repartition_source_topics)
                for group in each.copartition_groups
            )
        if entries > MAX_ENTRIES:
            raise _invalid(f"The topology has more than {MAX_ENTRIES} topics and their settings.")


def _check_repartitions(subtopologies: Sequence[Subtopology]) -> None:
    """Check that the partitions of each repartition topic follow from source topics, whatever these
    have. Raises KafkaError."""
    counts = dict.fromkeys((name for each in subtopologies for name in each.source_topics), 1)
    for each in subtopologies:
        counts.update((info.name, 1) for info in each.repartition_source_topics if info.partitions)
    if _follow_sinks(subtopologies, counts):
        raise _invalid(
            "Failed to compute number of partitions for all repartition topics. There may be loops "
            "in the topology that cannot be resolved."
        )
    for each in subtopologies:
        if not all(info.name in counts for info in each.repartition_source_topics):
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics, because a "
                "repartition source topic is never used as a sink topic."
            )


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)


def _list_copartitioned(subtopology: Subtopology, group: CopartitionGroup) -> set[str]:
    """Return the topics of a copartition group. Raises KafkaError."""
    sources, repartitions = subtopology.source_topics, subtopology.repartition_source_topics
    for indexes, size in (
        (group.source_topics, len(sources)),
        (group.repartition_source_topics, len(repartitions)),
    ):
        if not all(0 <= index < size for index in indexes):
            name = subtopology.subtopology_id
            raise _invalid(f"A copartition group of subtopology {name} has no such topic.")
    return {sources[index] for index in group.source_topics} | {
        repartitions[index].name for index in group.repartition_source_topics
    }


def configure(topology: StreamsGroupTopologyValue, topics: ClusterTopics) -> ConfiguredTopology:
    """Configure a valid topology for the topics as they are."""
    try:
        _require_sources(topology, topics)
        counts = _decide_counts(topology, topics)
        configured = {
            each.subtopology_id: _configure_one(each, counts) for each in topology.subtopologies
        }
        missing = _find_missing(configured.values(), topics)
    except TopicsError as error:
        return ConfiguredTopology(fault=error.fault)
    fault = None
    if missing:
        names = _summarize([topic.name for topic in missing])
        fault = (Status.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {names}")
    return ConfiguredTopology(dict(sorted(configured.items())), missing, fault)


def _require_sources(topology: StreamsGroupTopologyValue, topics: ClusterTopics) -> None:
    named = {name for each in topology.subtopologies for name in each.source_topics}
    missing = sorted(name for name in named if topics.topic_size(name) is None)
    if missing:
        text = f"Source topics {_summarize(missing)} are missing."
        raise TopicsError(Status.MISSING_SOURCE_TOPICS, text)


def _summarize(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more} additional topics" if more > 0 else shown


def _decide_counts(topology: StreamsGroupTopologyValue, topics: ClusterTopics) -> dict[str, int]:
    """Return the partitions of all topics of a topology but changelog topics."""
    fixed = {
        info.name: info.partitions
        for each in topology.subtopologies
        for info in each.repartition_source_topics
        if info.partitions
    }
    flexible = {
        info.name
        for each in topology.subtopologies
        for info in each.repartition_source_topics
        if not info.partitions
    }
    counts = dict(fixed)
    for each in topology.subtopologies:
        for name in each.source_topics:
            counts[name] = topics.topic_size(name) or 0
    _follow_sinks(topology.subtopologies, counts)  # all are known: check_topology has seen to it
    for each in topology.subtopologies:
        for group in each.copartition_groups:
            _copartition(_list_copartitioned(each, group), fixed, flexible, counts)
    return counts


def _follow_sinks(
    subtopologies: Sequence[Subtopology], counts: dict[str, int]
) -> list[Subtopology]:
    """Add the partitions of repartition topics: as many as the largest source of a subtopology that
    writes to them. Return the subtopologies whose sources remain unknown."""
    left = [each for each in subtopologies if each.repartition_sink_topics]
    while left:
        waiting: list[Subtopology] = []
        for each in left:
            known = [counts[name] for name in list_sources(each) if name in counts]
            if known:
                for name in each.repartition_sink_topics:
                    counts.setdefault(name, max(known))
            else:
                waiting.append(each)
        if len(waiting) == len(left):
            break
        left = waiting
    return left


def _copartition(
    names: set[str], fixed: dict[str, int], flexible: set[str], counts: dict[str, int]
) -> None:
    """Give the topics of a copartition group equally many partitions. Raises TopicsError."""
    inner = sorted(name for name in names if name in fixed or name in flexible)
    outer = sorted(names.difference(inner))
    # The external topics decide, else repartition topics with a number, else the largest.
    deciding = outer or [name for name in inner if name in fixed]
    sizes = {name: counts[name] for name in deciding or inner}
    if not sizes:
        return
    wanted = max(sizes.values())
    if deciding and len(set(sizes.values())) > 1:
        found = ", ".join(f"{name}={size}" for name, size in sizes.items())
        text = f"Following topics do not have the same number of partitions: [{{{found}}}]"
        raise TopicsError(Status.INCORRECTLY_PARTITIONED_TOPICS, text)
    for name in inner:
        if name in fixed and fixed[name] != wanted:
            text = (
                f"Number of partitions [{fixed[name]}] of repartition topic [{name}] doesn't match "
                f"number of partitions [{wanted}] of the source topic."
            )
            raise TopicsError(Status.INCORRECTLY_PARTITIONED_TOPICS, text)
        counts[name] = wanted


def _configure_one(subtopology: Subtopology, counts: dict[str, int]) -> ConfiguredSubtopology:
    sources = list_sources(subtopology)
    tasks = max(counts[name] for name in sources)
    return ConfiguredSubtopology(
        tasks,
        frozenset(sources),
        tuple(_with_count(info, tasks) for info in subtopology.state_changelog_topics),
        tuple(
            _with_count(info, counts[info.name]) for info in subtopology.repartition_source_topics
        ),
    )


def _with_count(info: TopicInfo, partitions: int) -> TopicInfo:
    return TopicInfo(info.name, partitions, info.replication_factor, info.topic_configs)


def _find_missing(
    configured: Iterable[ConfiguredSubtopology], topics: ClusterTopics
) -> tuple[CreatableTopic, ...]:
    """Return the internal topics that do not exist. Raises TopicsError if one has another number of
    partitions."""
    wanted: dict[str, TopicInfo] = {}
    for each in configured:
        wanted.update((info.name, info) for info in (*each.repartitions, *each.changelogs))
    missing: list[CreatableTopic] = []
    for name, info in sorted(wanted.items()):
        size = topics.topic_size(name)
        if size is None:
            missing.append(_creatable(info))
        elif size != info.partitions:
            text = (
                f"Existing topic {name} has different number of partitions: expected "
                f"{info.partitions}, found {size}"
            )
            raise TopicsError(Status.INCORRECTLY_PARTITIONED_TOPICS, text)
    return tuple(missing)


def _creatable(info: TopicInfo) -> CreatableTopic:
    configs = [CreatableTopicConfig(config.key, config.value) for config in info.topic_configs]
    return CreatableTopic(info.name, info.partitions, info.replication_factor or -1, [], configs)
