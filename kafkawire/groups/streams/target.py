"""The target assignment of a streams group: who is to have which task. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafkawire.groups.model.changes import TargetBegun
from kafkawire.groups.model.decision import ComputeTarget, Decision
from kafkawire.groups.model.events import TargetComputed
from kafkawire.groups.model.records import StreamsGroupRecord
from kafkawire.groups.model.streams_topics import ConfiguredTopology
from kafkawire.groups.streams.assignor import (
    AssignableMember,
    AssignableTasks,
    Targets,
    assign_sticky,
)
from kafkawire.groups.streams.group import Configs, StreamsGroup, target_epoch_record
from kafkawire.groups.streams.member import StreamsMember, TargetTasks, target_record
from kafkawire.log.io.slices import run_at_once

ASSIGNOR = "sticky"
STANDBY_CONFIG = "num.standby.replicas"
RACK_TAGS_CONFIG = "rack.aware.assignment.tags"
"""The names of settings in records of the group."""
LARGE = 300
"""Members and tasks of a group, with standby copies, whose target is computed in slices: fewer take
less than 5 ms, with the records of all members."""


@dataclass(frozen=True, slots=True)
class StreamsTargetInput:
    """The input for the target assignment of a group with this epoch, as of one moment."""

    group: StreamsGroup
    epoch: int
    assignor: str
    members: list[AssignableMember]
    subtopologies: Mapping[str, AssignableTasks]
    standby_replicas: int

    @property
    def is_large(self) -> bool:
        """Whether the target is to be computed in slices."""
        tasks = sum(each.size for each in self.subtopologies.values())
        return len(self.members) + tasks * (1 + self.standby_replicas) > LARGE

    def assignment_record(self, member_id: str, target: TargetTasks) -> StreamsGroupRecord:
        return target_record(self.group.group_id, member_id, target)

    def record_epoch(self, at_ms: int) -> StreamsGroupRecord:
        return target_epoch_record(self.group.group_id, self.epoch, at_ms)

    def compute(self) -> Targets:
        return assign_sticky(self.members, self.subtopologies, self.standby_replicas)


def gather_input(
    group: StreamsGroup,
    epoch: int,
    configured: ConfiguredTopology | None,
    configs: Configs,
    old: StreamsMember | None = None,
    new: StreamsMember | None = None,
) -> StreamsTargetInput:
    """Return the input for the target of this epoch, if `new` replaces `old`. While topics are
    missing there is nothing to assign."""
    members: dict[str, StreamsMember] = dict(group.members)
    if new is not None:
        if old is not None:
            del members[old.id]
        members[new.id] = new
    ready = configured is not None and configured.fault is None
    subtopologies = configured.subtopologies if ready and configured is not None else {}
    return StreamsTargetInput(
        group,
        epoch,
        ASSIGNOR,
        [
            AssignableMember(
                member.id,
                member.process_id,
                frozenset(member.assigned.active),
                member.assigned.standby | member.assigned.warmup,
                group.offsets.get(member.id, ({}, {}))[0],
            )
            for member in members.values()
        ],
        {
            name: AssignableTasks(each.tasks, bool(each.changelogs))
            for name, each in subtopologies.items()
        },
        int(configs.get(STANDBY_CONFIG, 0)),
    )


def add_target(
    decision: Decision, group: StreamsGroup, given: StreamsTargetInput, now_ms: int
) -> dict[str, TargetTasks] | None:
    """Compute a target assignment, store and return it; None: it is large, and will be computed
    after this decision."""
    if given.is_large:
        decision.steps.append(TargetBegun())
        decision.effects.append(ComputeTarget())
        return None
    targets = run_at_once(given.compute())
    for member_id, target in targets.items():
        if group.target.get(member_id) != target:
            decision.steps.append(given.assignment_record(member_id, target))
    decision.steps.append(given.record_epoch(now_ms))
    decision.events.append(TargetComputed(given.epoch, len(targets), ASSIGNOR))
    return targets
