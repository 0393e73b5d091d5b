"""Move one member towards its target assignment (Kafka: CurrentAssignmentBuilder). Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.consumer.member import (
    NO_PARTITIONS,
    ConsumerMember,
    MemberState,
    Partitions,
    Target,
)

Owned = Mapping[bytes, Collection[int]]
"""The partitions that a member reports to own: topic id -> partitions."""


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Target,
    subscribed: frozenset[bytes],
    owned: Owned | None,
    is_free: Callable[[bytes, int], bool],
    *,
    changed: bool = False,
) -> ConsumerMember:
    """Return the member after a heartbeat; itself if it cannot move.

    `owned` is None if the heartbeat does not say it. `is_free`: no other member owns the partition.
    `changed`: the subscription has changed with this heartbeat. Raises FENCED_MEMBER_EPOCH for a
    member in an unknown state that owns partitions.
    """
    state = member.state
    if state is MemberState.STABLE and member.epoch == target_epoch:
        return _trim(member, subscribed, owned) if changed else member
    if state is MemberState.UNREVOKED and _shows(owned, member.pending):
        return _trim(member, subscribed, owned) if changed else member
    if state is MemberState.UNKNOWN:
        if owned is None or any(owned.values()):
            text = "The member is in an unknown state. It must abandon its partitions and rejoin."
            raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
        member = replace(member, epoch=target_epoch)
    return _advance(member, target_epoch, target, subscribed, owned, is_free)


def _advance(
    member: ConsumerMember,
    target_epoch: int,
    target: Target,
    subscribed: frozenset[bytes],
    owned: Owned | None,
    is_free: Callable[[bytes, int], bool],
) -> ConsumerMember:
    kept: dict[bytes, dict[int, int]] = {}
    revoked: dict[bytes, dict[int, int]] = {}
    for topic_id, partitions in member.assigned.items():
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        for partition, epoch in partitions.items():
            side = kept if partition in wanted else revoked
            side.setdefault(topic_id, {})[partition] = epoch
    if revoked and _shows(owned, revoked):
        # Its epoch stays: commits of these partitions are accepted until they are revoked.
        return _with(member, member.epoch, MemberState.UNREVOKED, kept, revoked)
    waits = False
    for topic_id, wanted in target.items():
        if topic_id not in subscribed:
            continue
        mine = kept.get(topic_id, {})
        for partition in wanted:
            if partition in mine:
                continue
            if is_free(topic_id, partition):
                kept.setdefault(topic_id, {})[partition] = target_epoch
            else:
                waits = True
    state = MemberState.UNRELEASED if waits else MemberState.STABLE
    return _with(member, target_epoch, state, kept, NO_PARTITIONS)


def _trim(
    member: ConsumerMember, subscribed: frozenset[bytes], owned: Owned | None
) -> ConsumerMember:
    """Take the topics that are no longer subscribed, without waiting for a new target."""
    gone = member.assigned.keys() - subscribed
    if not gone:
        return member
    kept = {topic: found for topic, found in member.assigned.items() if topic not in gone}
    pending = {topic: dict(found) for topic, found in member.pending.items()}
    for topic_id in gone:
        pending.setdefault(topic_id, {}).update(member.assigned[topic_id])
    if _shows(owned, pending):
        return _with(member, member.epoch, MemberState.UNREVOKED, kept, pending)
    # It has stopped using them already.
    return _with(member, member.epoch, member.state, kept, member.pending)


def _with(
    member: ConsumerMember,
    epoch: int,
    state: MemberState,
    assigned: Partitions,
    pending: Partitions,
) -> ConsumerMember:
    # Equal to itself: then no record is written.
    moved = replace(member, epoch=epoch, state=state, assigned=assigned, pending=pending)
    if moved == member:
        return member
    return replace(moved, previous_epoch=member.epoch)


def _shows(owned: Owned | None, revoked: Partitions) -> bool:
    """Return whether the member may still use one of these partitions."""
    if owned is None:
        return True
    return any(
        partition in revoked[topic_id]
        for topic_id, partitions in owned.items()
        if topic_id in revoked
        for partition in partitions
    )
