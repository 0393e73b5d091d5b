"""A streams group: its state, and how a step changes it.

`apply` is the only mutator, the same for a record just appended and for one read at load time. The
decisions are in kafkawire.groups.streams.heartbeat and kafkawire.groups.streams.removal.

| state | when | left by |
|---|---|---|
| Empty | no member | a join |
| NotReady | topics of the topology are missing, or do not fit | a heartbeat once they do |
| Assigning | its epoch is above that of the target | a heartbeat, or the end of a delay |
| Reconciling | a member has not reached the target assignment | heartbeats of members |
| Stable | every member has | a changed member or topic |
| Dead | the group was deleted | - |

Pure: no clock (the caller passes the time), no I/O, no futures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from kafkawire.groups.model.changes import (
    AssignmentRefined,
    DelayBegun,
    DelayEnded,
    EndpointsChanged,
    ShutdownRequested,
    TargetBegun,
    TargetEnded,
    TaskOffsetsReported,
    TopicsCompared,
    TopologyConfigured,
)
from kafkawire.groups.model.decision import Step
from kafkawire.groups.model.records import StreamsGroupRecord, StreamsKind
from kafkawire.groups.model.streams_topics import ConfiguredTopology
from kafkawire.groups.model.topics import ClusterTopics, TopicRevision
from kafkawire.groups.streams.member import (
    NOTHING,
    StreamsMember,
    TargetTasks,
    Task,
    current_record,
    metadata_record,
    restore_target,
    target_record,
    with_current,
    with_metadata,
)
from kafkawire.groups.streams.topology import list_sources
from kafkawire.messages.stored import (
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyValue,
)
from kafkawire.messages.streams_group_describe import KeyValue

LEAVE = -1
STATIC_LEAVE = -2
"""The epoch of a static member that has left for a while: its tasks are kept for it."""
NOT_VALIDATED = -1
FIRST_EPOCH = 1
"""The epoch of a group and of its target before its first record, so that a member that waits for
the first assignment has one (as in Kafka)."""

Configs = Mapping[str, str]
"""The settings that an assignment was made with."""
TaskOffsets = tuple[Mapping[Task, int], Mapping[Task, int]]
"""How many records of tasks a member has, and where their changelogs end."""


class StreamsState(Enum):
    """States of a streams group (Kafka: StreamsGroupState)."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class StreamsGroup:
    """One group. Attributes are public for reading; only `apply` writes them."""

    __slots__ = (
        "_sources",
        "compared",
        "computing",
        "configs",
        "configured",
        "copies",
        "delayed",
        "endpoint_epoch",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "offsets",
        "owners",
        "refined",
        "shutdown_by",
        "static",
        "target",
        "target_at_ms",
        "target_epoch",
        "topology",
        "validated_epoch",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0  # of the topics of the topology when the epoch was written
        self.validated_epoch = NOT_VALIDATED
        self.configs: Configs = {}
        self.topology: StreamsGroupTopologyValue | None = None
        self.members: dict[str, StreamsMember] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self.target_epoch = FIRST_EPOCH
        self.target_at_ms = 0  # when the target was computed; 0: the next one need not wait
        self.target: dict[str, TargetTasks] = {}
        # Which members have a task assigned or pending revocation: one active, and the others.
        self.owners: dict[Task, str] = {}
        self.copies: dict[Task, tuple[str, ...]] = {}
        # Not in records: after a load topics are compared once more, and a delay is over.
        self.compared: TopicRevision | None = None  # the topics that `configured` is of
        self.configured: ConfiguredTopology | None = None
        self.delayed = False  # the first assignment waits for more members
        self.computing = False  # the target of a large group is computed
        self.endpoint_epoch = 0
        self.shutdown_by: str | None = None
        # How far the copies of tasks are, and the ends of their changelogs, by member.
        self.offsets: dict[str, TaskOffsets] = {}
        # What members are to have instead of a target: see kafkawire.groups.streams.refine.
        self.refined: AssignmentRefined | None = None
        self._sources: dict[str, str] = {}  # source topic -> subtopology

    @property
    def state(self) -> StreamsState:
        """The state of the group; takes time with the number of members."""
        if not self.members:
            return StreamsState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return StreamsState.NOT_READY
        if self.epoch > self.target_epoch:
            return StreamsState.ASSIGNING
        if all(member.is_at(self.target_epoch) for member in self.members.values()):
            return StreamsState.STABLE
        return StreamsState.RECONCILING

    def is_subscribed(self, topic: str) -> bool:
        """Return whether the members read a topic."""
        return bool(self.members) and topic in self._sources

    def assigned_since(
        self, member_id: str, topic: str, partition: int, _: ClusterTopics
    ) -> int | None:
        """Return the epoch in which a member got the task that reads a partition; None if it does
        not have it."""
        member = self.members[member_id]
        task = (self._sources.get(topic, ""), partition)
        found = member.assigned.active.get(task)
        return member.pending.active.get(task) if found is None else found

    def records(self) -> Iterator[StreamsGroupRecord]:
        """Yield the live records, which would load the current state; it may change between two of
        them. In Kafka's order."""
        group_id = self.group_id
        for member in list(self.members.values()):
            yield metadata_record(group_id, member)
        if self.topology is not None:
            yield topology_record(group_id, self.topology)
        yield epoch_record(self, self.epoch)
        for member_id, target in list(self.target.items()):
            yield target_record(group_id, member_id, target)
        yield target_epoch_record(group_id, self.target_epoch, self.target_at_ms)
        for member in list(self.members.values()):
            yield current_record(group_id, member)

    def tombstones(self) -> list[StreamsGroupRecord]:
        """Return the records that delete the group, in Kafka's order."""
        named: tuple[tuple[StreamsKind, Iterable[str]], ...] = (
            (StreamsKind.CURRENT, self.members),
            (StreamsKind.TARGET_MEMBER, self.target),
            (StreamsKind.TARGET, [""]),
            (StreamsKind.MEMBER, self.members),
            (StreamsKind.GROUP, [""]),
            (StreamsKind.TOPOLOGY, [""]),
        )
        return [
            StreamsGroupRecord(kind, self.group_id, name, None)
            for kind, names in named
            for name in names
        ]

    def apply(self, step: Step) -> None:
        if isinstance(step, StreamsGroupRecord):
            _APPLY[step.kind](self, step.name, step.value)
        elif isinstance(step, TopicsCompared):
            self.compared = step.revision
        elif isinstance(step, TopologyConfigured):
            self.configured = step.configured
        elif isinstance(step, DelayBegun | DelayEnded):
            self.delayed = isinstance(step, DelayBegun)
        elif isinstance(step, TargetBegun | TargetEnded):
            self.computing = isinstance(step, TargetBegun)
        elif isinstance(step, EndpointsChanged):
            self.endpoint_epoch += 1
        elif isinstance(step, ShutdownRequested):
            self.shutdown_by = step.member_id
        elif isinstance(step, TaskOffsetsReported):
            self.offsets[step.member_id] = self.merge_offsets(step)
        elif isinstance(step, AssignmentRefined):
            self.refined = step
        else:
            raise TypeError(f"{type(step).__name__} is no step of a streams group")

    def merge_offsets(self, report: TaskOffsetsReported) -> TaskOffsets:
        """Return the offsets of tasks of a member after a report."""
        known, ends = self.offsets.get(report.member_id, ({}, {}))
        return (
            known if report.offsets is None else report.offsets,
            ends if report.end_offsets is None else report.end_offsets,
        )

    def _group(self, _: str, value: StreamsGroupMetadataValue | None) -> None:
        assert value is not None, "a tombstone ends the group: see kafkawire.groups.shard"
        self.epoch = value.epoch
        self.metadata_hash = value.metadata_hash
        self.validated_epoch = value.validated_topology_epoch
        self.configs = {each.key: each.value for each in value.last_assignment_configs or ()}

    def _topology(self, _: str, value: StreamsGroupTopologyValue | None) -> None:
        self.topology = value
        self.configured = self.compared = None
        self._sources = {
            topic: each.subtopology_id
            for each in (() if value is None else value.subtopologies)
            for topic in list_sources(each)
        }

    def _member(self, member_id: str, value: Any) -> None:
        old = self.members.get(member_id)
        if value is not None:
            self._replace(old, with_metadata(old or StreamsMember(member_id), value))
        elif old is not None:
            self._replace(old, None)

    def _current(self, member_id: str, value: Any) -> None:
        old = self.members.get(member_id)
        if value is not None:
            self._replace(old, with_current(old or StreamsMember(member_id), value))
        elif old is not None:
            gone = replace(
                old, epoch=LEAVE, previous_epoch=LEAVE, assigned=NOTHING, pending=NOTHING
            )
            self._replace(old, gone)

    def _replace(self, old: StreamsMember | None, new: StreamsMember | None) -> None:
        if old is not None:
            self._release(old)
            # Unless a later process of the static member has replaced it.
            if old.instance_id is not None and self.static.get(old.instance_id) == old.id:
                del self.static[old.instance_id]
            if new is None:
                del self.members[old.id]
                self.offsets.pop(old.id, None)
                if not self.members:
                    self.shutdown_by = None
        if new is None:
            return
        self.members[new.id] = new
        if new.instance_id is not None:
            self.static[new.instance_id] = new.id
        for held in (new.assigned, new.pending):
            for task in held.active:
                self.owners[task] = new.id
            for task in (*held.standby, *held.warmup):
                self.copies[task] = (*self.copies.get(task, ()), new.id)

    def _release(self, member: StreamsMember) -> None:
        for held in (member.assigned, member.pending):
            for task in held.active:
                # Not if another member got it: compaction may leave an older record of this one.
                if self.owners.get(task) == member.id:
                    del self.owners[task]
            for task in (*held.standby, *held.warmup):
                left = tuple(id_ for id_ in self.copies.get(task, ()) if id_ != member.id)
                if left:
                    self.copies[task] = left
                else:
                    self.copies.pop(task, None)

    def _target(self, _: str, value: StreamsGroupTargetAssignmentMetadataValue | None) -> None:
        self.target_epoch = FIRST_EPOCH if value is None else value.assignment_epoch
        self.target_at_ms = 0 if value is None else value.assignment_timestamp

    def _target_member(self, member_id: str, value: Any) -> None:
        if value is None:
            self.target.pop(member_id, None)
        else:
            self.target[member_id] = restore_target(value)


def epoch_record(
    group: StreamsGroup,
    epoch: int,
    *,
    metadata_hash: int | None = None,
    validated: int | None = None,
    configs: Configs | None = None,
) -> StreamsGroupRecord:
    """Return the record of an epoch of the group; None: as before."""
    configs = group.configs if configs is None else configs
    value = StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=group.metadata_hash if metadata_hash is None else metadata_hash,
        validated_topology_epoch=group.validated_epoch if validated is None else validated,
        last_assignment_configs=[KeyValue(*item) for item in sorted(configs.items())],
    )
    return StreamsGroupRecord(StreamsKind.GROUP, group.group_id, "", value)


def topology_record(group_id: str, topology: StreamsGroupTopologyValue) -> StreamsGroupRecord:
    return StreamsGroupRecord(StreamsKind.TOPOLOGY, group_id, "", topology)


def target_epoch_record(group_id: str, epoch: int, at_ms: int) -> StreamsGroupRecord:
    value = StreamsGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=at_ms
    )
    return StreamsGroupRecord(StreamsKind.TARGET, group_id, "", value)


_APPLY: dict[StreamsKind, Callable[[StreamsGroup, str, Any], None]] = {
    StreamsKind.GROUP: StreamsGroup._group,
    StreamsKind.TOPOLOGY: StreamsGroup._topology,
    StreamsKind.MEMBER: StreamsGroup._member,
    StreamsKind.TARGET: StreamsGroup._target,
    StreamsKind.TARGET_MEMBER: StreamsGroup._target_member,
    StreamsKind.CURRENT: StreamsGroup._current,
}
