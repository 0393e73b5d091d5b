"""Decide on a ShareGroupHeartbeat (Kafka: GroupMetadataManager.shareGroupHeartbeat).

In the order of Kafka: find the member, merge what it sent, raise the epoch of the group, compute
the target assignment, move the member to it, request the states of new partitions, answer. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.consumer.assignors import MemberSubscription
from kafkawire.groups.consumer.member import LEAVE, NO_TARGET, Target
from kafkawire.groups.consumer.subscription import hash_topics
from kafkawire.groups.consumer.target import is_due
from kafkawire.groups.model.changes import SharesSettled, TopicsCompared
from kafkawire.groups.model.decision import (
    CancelTimer,
    Decision,
    Reply,
    SetTimer,
    session,
    session_member,
)
from kafkawire.groups.model.events import (
    Eviction,
    GroupEmpty,
    MemberEvicted,
    MemberJoined,
    MemberLeft,
    TargetComputed,
)
from kafkawire.groups.model.records import fits
from kafkawire.groups.model.request import Client, GroupRequest, Settings
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.share.assignor import assign_simple
from kafkawire.groups.share.group import ShareGroup, epoch_record, target_epoch_record
from kafkawire.groups.share.initialization import (
    find_uninitialized,
    is_initializing,
    list_assignable,
    look_up_states,
    request_states,
)
from kafkawire.groups.share.member import (
    ShareMember,
    current_record,
    member_tombstones,
    metadata_record,
    target_record,
)
from kafkawire.messages.consumer_group_heartbeat import Assignment, TopicPartitions
from kafkawire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

_TRIMMED = "".join(map(chr, range(33)))  # by Java's trim()

Ask = GroupRequest[ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse]


def check_request(request: ShareGroupHeartbeatRequest) -> None:
    """Check what needs no group, in the order and with the texts of Kafka's
    GroupCoordinatorService. Raises KafkaError."""
    named = {
        "MemberId": request.member_id,
        "GroupId": request.group_id,
        "RackId": request.rack_id,
    }
    for name, text in named.items():
        if text is not None and not text.strip(_TRIMMED):
            raise _invalid(f"{name} can't be empty.")
    if request.member_epoch == 0:
        if not request.subscribed_topic_names:
            raise _invalid("SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVE:
        raise _invalid("MemberEpoch is invalid.")
    # Keys of records have strings of at most 32,767 bytes, flexible requests longer ones.
    if not fits(request.group_id):
        raise _invalid("GroupId is too long.")


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def heartbeat(
    group: ShareGroup, topics: ClusterTopics, settings: Settings, ask: Ask, now_ms: int
) -> Decision:
    """Decide on a heartbeat of a member, or of a new one with epoch 0. Raises KafkaError."""
    if ask.request.member_epoch == LEAVE:
        return _leave(group, topics, ask)
    return ShareHeartbeat(group, topics, settings, ask, now_ms).decide()


class ShareHeartbeat:
    """One heartbeat that is being decided. `old` is the member in the group; None: it is new.
    `known` is the member before this heartbeat, `member` after it. `checks`: whether anything but
    the session of the member may change."""

    __slots__ = (
        "ask", "checks", "decision", "epoch", "group", "known", "limits", "member", "names",
        "now_ms", "old", "settings", "topics",
    )  # fmt: skip

    def __init__(
        self, group: ShareGroup, topics: ClusterTopics, settings: Settings, ask: Ask, now_ms: int
    ) -> None:
        self.group = group
        self.topics = topics
        self.settings = settings
        self.limits = settings.share_group_settings(group.group_id)
        self.ask = ask
        self.now_ms = now_ms
        self.epoch = group.epoch
        self.decision = Decision(group.group_id)
        self.old, self.known = self._find()
        self.member = _merge(self.known, ask.request, ask.client)
        self.names: Iterable[str] = group.names
        self.checks = not group.settled

    def decide(self) -> Decision:
        group, decision = self.group, self.decision
        if self.old is None:
            decision.events.append(MemberJoined(self.member))
        if self.old is None or self.member is not self.known:
            decision.steps.append(metadata_record(group.group_id, self.member))
        changed = self._raise_epoch()
        target_epoch, target = self._update_target()
        self._move(target_epoch, target, changed=changed)
        self._request_states()
        self._answer()
        return decision

    def _find(self) -> tuple[ShareMember | None, ShareMember]:
        group, request = self.group, self.ask.request
        old = group.members.get(request.member_id)
        limit = self.settings.group_share_max_size
        if old is None and len(group.members) >= limit:
            text = f"The share group has reached its maximum capacity of {limit} members."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        # A known member may always join again.
        if request.member_epoch == 0:
            return old, old or ShareMember(request.member_id)
        if old is None:
            raise _unknown_member(group, request.member_id)
        _check_epoch(old, request.member_epoch)
        return old, old

    def _raise_epoch(self) -> bool:
        """Raise the epoch of the group if its subscription, its topics, or the partitions with a
        state changed. Return whether it was."""
        group = self.group
        named = self.member.topics != self.known.topics
        revision = self.topics.topic_revision()
        bump = named or group.epoch == 0
        if self.checks and not bump and group.target_epoch >= group.epoch:
            bump = self._is_assignment_pending()
        if not bump and group.compared == revision:
            return False
        self.checks = True
        if named:
            self.names = _subscribe(group, self.old, self.member)
        found = hash_topics(self.names, self.topics)
        if bump or found != group.metadata_hash:
            bump = True
            self.epoch += 1
            self.decision.steps.append(epoch_record(group.group_id, self.epoch, found))
        if group.compared != revision:
            self.decision.steps.append(TopicsCompared(revision))
        return bump

    def _is_assignment_pending(self) -> bool:
        """Return whether subscribed partitions with a state are assigned to no member, or others
        are assigned."""
        group = self.group
        if not group.members:
            return False
        assigned: dict[bytes, set[int]] = {}
        for target in group.target.values():
            for topic_id, partitions in target.items():
                assigned.setdefault(topic_id, set()).update(partitions)
        return any(
            assigned.get(topic_id, set()) != partitions
            for topic_id, partitions in list_assignable(group, self.topics).items()
            if self.topics.topic_name(topic_id) in group.names
        )

    def _update_target(self) -> tuple[int, Target]:
        """Compute the target assignment if that is due; return its epoch, and the target of the
        member."""
        group, member = self.group, self.member
        if not is_due(group, self.epoch, self.limits.assignment_interval_ms, self.now_ms):
            return group.target_epoch, group.target.get(member.id, NO_TARGET)
        members = {**group.members, member.id: member}
        subscribers = [
            MemberSubscription(each.id, None, self._list_ids(each)) for each in members.values()
        ]
        targets = assign_simple(subscribers, list_assignable(group, self.topics), group.target)
        for member_id, target in targets.items():
            if group.target.get(member_id) != target:
                self.decision.steps.append(target_record(group.group_id, member_id, target))
        self.decision.steps.append(target_epoch_record(group.group_id, self.epoch, self.now_ms))
        assignor = self.settings.group_share_assignors[0]
        self.decision.events.append(TargetComputed(self.epoch, len(targets), assignor))
        return self.epoch, targets[member.id]

    def _list_ids(self, member: ShareMember) -> frozenset[bytes]:
        found = (self.topics.topic_id(name) for name in member.topics)
        return frozenset(topic_id for topic_id in found if topic_id is not None)

    def _move(self, target_epoch: int, target: Target, *, changed: bool) -> None:
        """Give the member its target."""
        member = self.member
        if target_epoch == member.epoch and not changed:
            return
        ids = self._list_ids(member)
        assigned = {topic_id: found for topic_id, found in target.items() if topic_id in ids}
        moved = replace(member, assigned=assigned)
        if target_epoch != member.epoch:
            moved = replace(moved, epoch=target_epoch, previous_epoch=member.epoch)
        if moved != member:
            self.member = moved
            self.decision.steps.append(current_record(self.group.group_id, moved))

    def _request_states(self) -> None:
        """Request the states of subscribed partitions that have none."""
        if not self.checks:
            return
        group, decision = self.group, self.decision
        if not group.verified and group.initialized:
            look_up_states(group, decision)
        retry_ms = self.settings.group_share_initialize_retry_interval_ms
        missing = find_uninitialized(group, self.names, self.topics, retry_ms, self.now_ms)
        if missing:
            request_states(group, self.epoch, missing, decision, self.now_ms)
        pending = decision.steps or group.deletions or is_initializing(group)
        if not missing and not pending and group.target_epoch >= group.epoch:
            decision.steps.append(SharesSettled())

    def _answer(self) -> None:
        request, member = self.ask.request, self.member
        answer = ShareGroupHeartbeatResponse(
            member_id=member.id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self.limits.heartbeat_interval_ms,
        )
        # With all that a join has: the client does not know its state. With the previous epoch the
        # last answer was lost, and before a new epoch one could be that took partitions away; Kafka
        # relies on the client to send all then.
        full = request.member_epoch != member.epoch or request.subscribed_topic_names is not None
        if full or member.assigned != self.known.assigned:
            answer.assignment = Assignment(topic_partitions=_list_partitions(member.assigned))
        at_ms = self.now_ms + self.limits.session_timeout_ms
        self.decision.effects.append(SetTimer(session(member.id), at_ms))
        self.decision.effects.append(Reply(self.ask.token, answer))


def _leave(group: ShareGroup, topics: ClusterTopics, ask: Ask) -> Decision:
    request = ask.request
    member = group.members.get(request.member_id)
    if member is None:
        raise _unknown_member(group, request.member_id)
    decision = Decision(group.group_id)
    decision.events.append(MemberLeft(member))
    _remove(decision, group, topics, member)
    answer = ShareGroupHeartbeatResponse(member_id=member.id, member_epoch=request.member_epoch)
    decision.effects.append(Reply(ask.token, answer))
    return decision


def decide_timer(
    group: ShareGroup, topics: ClusterTopics, settings: Settings, key: str, _: int
) -> Decision:
    """Decide on an expired timer; no effect if the member has left since."""
    decision = Decision(group.group_id)
    member = group.members.get(session_member(key) or "")
    if member is not None:
        limit_ms = settings.share_group_settings(group.group_id).session_timeout_ms
        decision.events.append(MemberEvicted(member, Eviction.SESSION_TIMEOUT, limit_ms))
        _remove(decision, group, topics, member)
    return decision


def decide_loaded(group: ShareGroup, settings: Settings, now_ms: int) -> Decision:
    """Decide on a group loaded from the log: sessions begin."""
    until_ms = now_ms + settings.share_group_settings(group.group_id).session_timeout_ms
    timers = [SetTimer(session(member_id), until_ms) for member_id in group.members]
    return Decision(group.group_id, [], [*timers])


def _remove(
    decision: Decision, group: ShareGroup, topics: ClusterTopics, member: ShareMember
) -> None:
    """Add the records that remove a member, and raise the epoch of the group."""
    group_id, epoch = group.group_id, group.epoch + 1
    decision.effects.append(CancelTimer(session(member.id)))
    decision.steps += member_tombstones(group_id, member.id)
    names = _subscribe(group, member, None)
    decision.steps.append(epoch_record(group_id, epoch, hash_topics(names, topics)))
    if len(group.members) == 1:
        # Nothing to assign, and the next member gets its target at once (KAFKA-20442).
        decision.steps.append(target_epoch_record(group_id, epoch, 0))
        decision.events.append(GroupEmpty(epoch, expires=False))


def _subscribe(group: ShareGroup, old: ShareMember | None, new: ShareMember | None) -> set[str]:
    """Return the topics of a group in which `new` has replaced `old`."""
    names = set(group.names)
    if old is not None:
        names.difference_update(name for name in old.topics if group.names[name] == 1)
    return names if new is None else names | new.topics


def _unknown_member(group: ShareGroup, member_id: str) -> KafkaError:
    text = f"Member {member_id} is not a member of group {group.group_id}."
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)


def _check_epoch(member: ShareMember, epoch: int) -> None:
    # The answer with the next epoch may have been lost.
    if epoch in (member.epoch, member.previous_epoch):
        return
    side, more = "greater", ""
    if epoch < member.epoch:
        side = "smaller"
        more = f", and it does not match the previous member epoch ({member.previous_epoch})"
    text = (
        f"The share group member has a {side} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({member.epoch}){more}. The member must abandon all its partitions and "
        "rejoin."
    )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)


def _merge(member: ShareMember, request: ShareGroupHeartbeatRequest, client: Client) -> ShareMember:
    """Return the member with what the heartbeat has; itself if nothing changed."""
    names = request.subscribed_topic_names
    merged = replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.id or "",
        client_host=client.host,
        topics=member.topics if names is None else frozenset(names),
    )
    return member if merged == member else merged


def _list_partitions(partitions: Target) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id=topic_id, partitions=sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
    ]
