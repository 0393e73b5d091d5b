"""A streams group as described by StreamsGroupDescribe and heartbeats. Pure.

The handler adds authorized operations, and hides groups whose topics the sender may not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkawire.groups.model.request import Settings
from kafkawire.groups.model.streams_topics import ConfiguredTopology
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.streams.group import StreamsGroup
from kafkawire.groups.streams.member import (
    NO_TARGET,
    HeldTasks,
    StreamsMember,
    TargetTasks,
    Task,
    list_tasks,
)
from kafkawire.messages.streams_group_describe import (
    Assignment,
    DescribedGroup,
    Endpoint,
    KeyValue,
    Member,
    Subtopology,
    TaskOffset,
    TopicInfo,
    Topology,
)
from kafkawire.messages.streams_group_heartbeat import EndpointToPartitions, TopicPartition


def describe_group(group: StreamsGroup, _: ClusterTopics, settings: Settings) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        topology=_describe_topology(group),
        members=[_describe_member(group, member) for member in group.members.values()],
        assignor_name=settings.group_streams_assignors[0],
    )


def _describe_topology(group: StreamsGroup) -> Topology | None:
    if group.topology is None:
        return None
    configured = group.configured
    ready = {} if configured is None or configured.fault else configured.subtopologies
    described: list[Subtopology] = []
    for each in sorted(group.topology.subtopologies, key=lambda each: each.subtopology_id):
        # With numbers of partitions, once the topics exist.
        found = ready.get(each.subtopology_id)
        changelogs = each.state_changelog_topics if found is None else found.changelogs
        repartitions = each.repartition_source_topics if found is None else found.repartitions
        described.append(
            Subtopology(
                each.subtopology_id,
                sorted(each.source_topics),
                sorted(each.repartition_sink_topics),
                _sort_topics(changelogs),
                _sort_topics(repartitions),
            )
        )
    return Topology(group.topology.epoch, described)


def _sort_topics(infos: Iterable[TopicInfo]) -> list[TopicInfo]:
    return sorted(infos, key=lambda info: info.name)


def _describe_member(group: StreamsGroup, member: StreamsMember) -> Member:
    offsets, ends = group.offsets.get(member.id, ({}, {}))
    return Member(
        member_id=member.id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if member.endpoint is None else Endpoint(*member.endpoint),
        client_tags=[KeyValue(*tag) for tag in member.tags],
        task_offsets=_list_offsets(offsets),
        task_end_offsets=_list_offsets(ends),
        assignment=_list_assignment(member.assigned),
        target_assignment=_list_assignment(group.target.get(member.id, NO_TARGET)),
    )


def _list_offsets(offsets: Mapping[Task, int]) -> list[TaskOffset]:
    return [TaskOffset(*task, offsets[task]) for task in sorted(offsets)]


def _list_assignment(tasks: HeldTasks | TargetTasks) -> Assignment:
    return Assignment(list_tasks(tasks.active), list_tasks(tasks.standby), list_tasks(tasks.warmup))


def list_endpoints(
    members: Iterable[StreamsMember], configured: ConfiguredTopology, topics: ClusterTopics
) -> list[EndpointToPartitions]:
    """Return the partitions of source topics that each member with an endpoint serves."""
    return [
        EndpointToPartitions(
            Endpoint(*member.endpoint),
            _list_partitions(member.assigned.active, configured, topics),
            _list_partitions(member.assigned.standby | member.assigned.warmup, configured, topics),
        )
        for member in members
        if member.endpoint is not None
    ]


def _list_partitions(
    tasks: Iterable[Task], configured: ConfiguredTopology, topics: ClusterTopics
) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for each in list_tasks(tasks):
        subtopology = configured.subtopologies.get(each.subtopology_id)
        for topic in sorted(() if subtopology is None else subtopology.sources):
            # A smaller topic has no partition for the last tasks.
            size = topics.topic_size(topic) or 0
            partitions = [partition for partition in each.partitions if partition < size]
            if partitions:
                found.append(TopicPartition(topic, partitions))
    return found
