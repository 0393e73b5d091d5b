"""The target assignment of a large group, which is computed in slices and stored in parts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.consumer.target import TargetInput
from kafkawire.groups.model.changes import TargetEnded
from kafkawire.groups.model.decision import Decision
from kafkawire.groups.model.events import TargetComputed
from kafkawire.groups.streams.group import StreamsGroup
from kafkawire.groups.streams.target import StreamsTargetInput

LargeInput = TargetInput | StreamsTargetInput
TargetOfMember = tuple[str, Any]
"""A member, and what its kind of group calls a target."""


def is_current(group: ConsumerGroup | StreamsGroup, given: LargeInput) -> bool:
    """Return whether a result is of use. Not if all members have left meanwhile, which ends their
    assignment, or if the group was deleted, even if there is one of its name again."""
    return group is given.group and group.target_epoch < given.epoch


def decide_targets(
    group: ConsumerGroup | StreamsGroup, given: LargeInput, targets: Iterable[TargetOfMember]
) -> Decision:
    """Store the targets of some members of a large group. The epoch of the target assignment stays
    until all are stored."""
    # Members that reconcile meanwhile move towards the one or the other target, and get only what
    # is free.
    decision = Decision(group.group_id)
    known: Mapping[str, Any] = group.target
    for member_id, target in targets if is_current(group, given) else ():
        # It may have left meanwhile.
        if member_id in group.members and known.get(member_id) != target:
            decision.steps.append(given.assignment_record(member_id, target))
    return decision


def decide_computed(
    group: ConsumerGroup | StreamsGroup, given: LargeInput, now_ms: int, *, stored: bool
) -> Decision:
    """End the computation of a large group's target; `stored`: all its parts are."""
    decision = Decision(group.group_id, [TargetEnded()] if group is given.group else [])
    # A static member may have come back with another id, and none would have its part: then a
    # heartbeat begins a new computation.
    same = group.members.keys() == {member.id for member in given.members}
    if stored and same and is_current(group, given):
        decision.steps.append(given.record_epoch(now_ms))
        event = TargetComputed(given.epoch, len(given.members), given.assignor)
        decision.events.append(event)
    return decision
