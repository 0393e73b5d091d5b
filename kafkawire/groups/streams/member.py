"""One member of a streams group: an immutable value, and its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from kafkawire.groups.model.records import StreamsGroupRecord, StreamsKind
from kafkawire.messages.stored import (
    CurrentTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
    StreamsGroupTargetAssignmentMemberValue,
)
from kafkawire.messages.streams_group_describe import Endpoint, KeyValue, TaskIds

Task = tuple[str, int]
"""Subtopology and partition."""
Tasks = frozenset[Task]
NO_TASKS: Tasks = frozenset()


class TargetTasks(NamedTuple):
    """The tasks that a member is to have."""

    active: Tasks = NO_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS


class HeldTasks(NamedTuple):
    """The tasks that a member has, and the epoch in which it got each active one."""

    active: Mapping[Task, int] = {}
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS


NO_TARGET = TargetTasks()
NOTHING = HeldTasks()


class StreamsMemberState(IntEnum):
    """How far a member has reached its target assignment (Kafka: streams.MemberState).

    | from | event | to |
    |---|---|---|
    | any | it has something to revoke and has not confirmed that | UNREVOKED |
    | any | nothing to revoke, a task of its target is not free | UNRELEASED |
    | any | nothing to revoke, all of its target is assigned | STABLE |
    | UNREVOKED | its rebalance timeout passes | removed |

    STABLE is left only for a newer target, UNREVOKED only by a heartbeat whose tasks are without
    those to be revoked.
    """

    STABLE = 1
    UNREVOKED = 2
    """The member must close its pending tasks and confirm that."""
    UNRELEASED = 3
    """The member waits for tasks that others have not released."""
    UNKNOWN = 127
    """Written by a later version: the member is fenced, and joins again."""


@dataclass(frozen=True, slots=True)
class StreamsMember:
    """One member. `assigned` and `pending` (to be revoked) are the tasks that it has. `process_id`:
    of its Kafka Streams client. `endpoint`: of interactive queries."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: tuple[str, int] | None = None
    tags: tuple[tuple[str, str], ...] = ()
    epoch: int = 0
    previous_epoch: int = 0
    state: StreamsMemberState = StreamsMemberState.STABLE
    assigned: HeldTasks = field(default_factory=lambda: NOTHING)
    pending: HeldTasks = field(default_factory=lambda: NOTHING)

    @property
    def classic(self) -> None:
        """Return None: no member has the classic protocol."""
        return

    def is_at(self, target_epoch: int) -> bool:
        """Return whether the member has reached the target assignment of this epoch."""
        return self.state is StreamsMemberState.STABLE and self.epoch == target_epoch


def metadata_record(group_id: str, member: StreamsMember) -> StreamsGroupRecord:
    value = StreamsGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if member.endpoint is None else Endpoint(*member.endpoint),
        client_tags=[KeyValue(*tag) for tag in member.tags],
    )
    return StreamsGroupRecord(StreamsKind.MEMBER, group_id, member.id, value)


def current_record(group_id: str, member: StreamsMember) -> StreamsGroupRecord:
    assigned, pending = member.assigned, member.pending
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=int(member.state),
        active_tasks=_store(assigned.active, assigned.active),
        standby_tasks=_store(assigned.standby),
        warmup_tasks=_store(assigned.warmup),
        active_tasks_pending_revocation=_store(pending.active, pending.active),
        standby_tasks_pending_revocation=_store(pending.standby),
        warmup_tasks_pending_revocation=_store(pending.warmup),
    )
    return StreamsGroupRecord(StreamsKind.CURRENT, group_id, member.id, value)


def target_record(group_id: str, member_id: str, target: TargetTasks) -> StreamsGroupRecord:
    value = StreamsGroupTargetAssignmentMemberValue(
        active_tasks=list_tasks(target.active),
        standby_tasks=list_tasks(target.standby),
        warmup_tasks=list_tasks(target.warmup),
    )
    return StreamsGroupRecord(StreamsKind.TARGET_MEMBER, group_id, member_id, value)


def member_tombstones(group_id: str, member_id: str) -> list[StreamsGroupRecord]:
    """Return the records that remove one member, in Kafka's order."""
    kinds = (StreamsKind.CURRENT, StreamsKind.TARGET_MEMBER, StreamsKind.MEMBER)
    return [StreamsGroupRecord(kind, group_id, member_id, None) for kind in kinds]


def with_metadata(member: StreamsMember, value: StreamsGroupMemberMetadataValue) -> StreamsMember:
    endpoint = value.user_endpoint
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch,
        process_id=value.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        tags=read_tags(value.client_tags),
    )


def with_current(
    member: StreamsMember, value: StreamsGroupCurrentMemberAssignmentValue
) -> StreamsMember:
    try:
        state = StreamsMemberState(value.state)
    except ValueError:
        state = StreamsMemberState.UNKNOWN
    epoch = value.member_epoch
    return replace(
        member,
        epoch=epoch,
        previous_epoch=value.previous_member_epoch,
        state=state,
        assigned=HeldTasks(
            _restore_active(value.active_tasks, epoch),
            read_tasks(value.standby_tasks),
            read_tasks(value.warmup_tasks),
        ),
        pending=HeldTasks(
            _restore_active(value.active_tasks_pending_revocation, epoch),
            read_tasks(value.standby_tasks_pending_revocation),
            read_tasks(value.warmup_tasks_pending_revocation),
        ),
    )


def restore_target(value: StreamsGroupTargetAssignmentMemberValue) -> TargetTasks:
    lists = (value.active_tasks, value.standby_tasks, value.warmup_tasks)
    return TargetTasks(*map(read_tasks, lists))


def read_tags(tags: Iterable[KeyValue]) -> tuple[tuple[str, str], ...]:
    # Sorted, each key once: the order of a map has no meaning.
    return tuple(sorted({tag.key: tag.value for tag in tags}.items()))


def read_tasks(stored: Iterable[TaskIds | CurrentTaskIds]) -> Tasks:
    return frozenset((each.subtopology_id, at) for each in stored for at in each.partitions)


def list_tasks(tasks: Iterable[Task]) -> list[TaskIds]:
    """Return tasks as messages have them: partitions by subtopology, in order."""
    return [TaskIds(name, partitions) for name, partitions in _by_subtopology(tasks).items()]


def _by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, partition in sorted(tasks):
        found.setdefault(name, []).append(partition)
    return found


def _store(tasks: Iterable[Task], epochs: Mapping[Task, int] | None = None) -> list[CurrentTaskIds]:
    return [
        CurrentTaskIds(
            name, partitions, None if epochs is None else [epochs[name, at] for at in partitions]
        )
        for name, partitions in _by_subtopology(tasks).items()
    ]


def _restore_active(stored: Iterable[CurrentTaskIds], epoch: int) -> Mapping[Task, int]:
    found: dict[Task, int] = {}
    for each in stored:
        epochs = each.assignment_epochs
        # Without them, as Kafka wrote until 4.2, each task counts as got in the last epoch.
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [max(epoch, 0)] * len(each.partitions)
        names = ((each.subtopology_id, at) for at in each.partitions)
        found.update(zip(names, epochs, strict=True))
    return found
