"""Decide on a ConsumerGroupHeartbeat (Kafka: GroupMetadataManager.consumerGroupHeartbeat).

In the order of Kafka: find the member, merge what it sent, match patterns, raise the epoch of the
group, compute the target assignment, move the member towards it, answer. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.consumer.group import (
    ConsumerGroup,
    Matched,
    epoch_record,
    pattern_record,
    target_epoch_record,
)
from kafkawire.groups.consumer.member import (
    LEAVE,
    NO_TARGET,
    STATIC_LEAVE,
    ConsumerMember,
    MemberState,
    Partitions,
    Target,
    current_record,
    member_tombstones,
    metadata_record,
    target_record,
)
from kafkawire.groups.consumer.reconcile import Owned, reconcile
from kafkawire.groups.consumer.removal import (
    cancel_classic_timers,
    find_member,
    leave_by_heartbeat,
)
from kafkawire.groups.consumer.subscription import hash_topics, subscribed_ids, subscribed_names
from kafkawire.groups.consumer.target import gather_input, is_due, is_large, select_assignor
from kafkawire.groups.model.changes import (
    PatternsRequested,
    PatternsResolved,
    TargetBegun,
    TopicsCompared,
)
from kafkawire.groups.model.decision import (
    CancelTimer,
    ComputeTarget,
    Decision,
    MatchPatterns,
    Reply,
    SetTimer,
    rebalance,
    session,
)
from kafkawire.groups.model.events import MemberJoined, MemberReplaced, TargetComputed
from kafkawire.groups.model.records import ConsumerKind, ConsumerRecord, fits
from kafkawire.groups.model.request import Client, GroupRequest, Settings
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.log.io.slices import run_at_once
from kafkawire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

OWN_ID_FROM = 1
"""From this version of the request members make their ids themselves (KIP-1082)."""
_TRIMMED = "".join(map(chr, range(33)))  # by Java's trim()
MATCH_INTERVAL_MS = 10_000
"""The least time between two matchings of a group's patterns with all topics (as in Kafka)."""

Ask = GroupRequest[ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse]


class PatternChange(Enum):
    """The effect of a heartbeat on the pattern of its member."""

    NONE = auto()
    UNMATCHED = auto()
    """The new pattern has no result yet: the epoch rises when it has one."""
    MATCHED = auto()
    """The new pattern has a result, or there is none any more."""


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, settings: Settings) -> None:
    """Check what needs no group, in the order and with the texts of Kafka's
    GroupCoordinatorService. Raises KafkaError."""
    epoch = request.member_epoch
    if (version >= OWN_ID_FROM or epoch > 0 or epoch == LEAVE) and _is_blank(request.member_id):
        raise _invalid("MemberId can't be empty.")
    named = {
        "GroupId": request.group_id,
        "InstanceId": request.instance_id,
        "RackId": request.rack_id,
    }
    for name, text in named.items():
        if text is not None and _is_blank(text):
            raise _invalid(f"{name} can't be empty.")
    if epoch == 0:
        _check_join(request)
    elif epoch == STATIC_LEAVE and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE:
        raise _invalid("MemberEpoch is invalid.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in settings.group_consumer_assignors:
        known = ", ".join(settings.group_consumer_assignors)
        text = f"ServerAssignor {assignor} is not supported. Supported assignors: {known}."
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, text)
    # Keys of records have strings of at most 32,767 bytes, flexible requests longer ones.
    stored = (request.group_id, request.member_id, request.subscribed_topic_regex or "")
    if not all(map(fits, stored)):
        raise _invalid("GroupId, MemberId or SubscribedTopicRegex is too long.")


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )


def _is_blank(text: str) -> bool:
    """Return whether Java's trim() leaves nothing of a text."""
    return not text.strip(_TRIMMED)


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def heartbeat(
    group: ConsumerGroup, topics: ClusterTopics, settings: Settings, ask: Ask, now_ms: int
) -> Decision:
    """Decide on a heartbeat of a member, or of a new one with epoch 0. Raises KafkaError."""
    if ask.request.member_epoch < 0:
        return leave_by_heartbeat(group, topics, settings, ask, now_ms)
    return ConsumerHeartbeat(group, topics, settings, ask, ask.request, now_ms).decide()


def answer_unchanged(
    group: ConsumerGroup,
    topics: ClusterTopics,
    settings: Settings,
    client: Client,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse | None:
    """Return the answer to a heartbeat that changes nothing; None: decide on it with `heartbeat`,
    whose decision may have steps. Hot: nearly all heartbeats are such, so it has no loop."""
    member = group.members.get(request.member_id)
    if (
        member is None
        # The group has nothing to do: no new target, no topics or patterns to compare.
        or not member.epoch == request.member_epoch == group.target_epoch == group.epoch
        or member.epoch <= 0
        or member.state is not MemberState.STABLE
        or group.patterns
        or group.compared != topics.topic_revision()
        # The request has nothing new.
        or request.topic_partitions is not None
        or request.subscribed_topic_names is not None
        or request.subscribed_topic_regex is not None
        or request.server_assignor is not None
        or request.rebalance_timeout_ms not in (-1, member.rebalance_timeout_ms)
        or request.rack_id not in (None, member.rack_id)
        or request.instance_id != member.instance_id
        or (request.instance_id is not None and group.static[request.instance_id] != member.id)
        or (client.id or "") != member.client_id
        or client.host != member.client_host
        or member.classic is not None
    ):
        return None
    return ConsumerGroupHeartbeatResponse(
        member_id=member.id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=settings.consumer_group_settings(
            group.group_id
        ).heartbeat_interval_ms,
    )


class ConsumerHeartbeat:
    """One heartbeat that is being decided: `request`, which arrived as or with `ask`.

    `old` is the member in the group that the sender is or replaces; None: it is new. `known` is
    the sender before this heartbeat, and `member` after it.
    """

    __slots__ = (
        "ask", "decision", "epoch", "group", "known", "limits", "member", "now_ms", "old",
        "request", "settings", "topics",
    )  # fmt: skip

    def __init__(
        self,
        group: ConsumerGroup,
        topics: ClusterTopics,
        settings: Settings,
        ask: GroupRequest[Any, Any],
        request: ConsumerGroupHeartbeatRequest,
        now_ms: int,
    ) -> None:
        self.group = group
        self.topics = topics
        self.settings = settings
        self.limits = settings.consumer_group_settings(group.group_id)
        self.ask = ask
        self.request = request
        self.now_ms = now_ms
        self.epoch = group.epoch
        self.decision = Decision(group.group_id)
        self._check_size()
        self.old, self.known = self._find()
        self.member = self._merge()

    def decide(self) -> Decision:
        group, old, decision = self.group, self.old, self.decision
        replaced = old is not None and old.id != self.member.id
        if old is not None and replaced:
            decision.steps += member_tombstones(group.group_id, old.id)
            decision.effects += [CancelTimer(session(old.id)), CancelTimer(rebalance(old.id))]
            decision.events.append(MemberReplaced(old.id, self.member))
        elif old is None:
            decision.events.append(MemberJoined(self.member))
        if replaced or old is None or self.member is not self.known:
            decision.steps.append(metadata_record(group.group_id, self.member))
        named = self.member.topics != self.known.topics
        pattern = self._change_pattern()
        self._raise_epoch(named or pattern is PatternChange.MATCHED)
        target_epoch, target = self._update_target(replaced)
        changed = named or pattern is not PatternChange.NONE
        self._reconcile(target_epoch, target, changed=changed, recorded=replaced or old is None)
        self._answer()
        return decision

    def _merge(self) -> ConsumerMember:
        return _merge(self.known, self.request, self.ask.client)

    def _check_size(self) -> None:
        group, request = self.group, self.request
        # The next process of a static member takes the place of the one before (KAFKA-20601).
        if request.instance_id is not None and request.instance_id in group.static:
            return
        limit = self.settings.group_consumer_max_size
        if len(group.members) >= limit and request.member_id not in group.members:
            text = f"The consumer group has reached its maximum capacity of {limit} members."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def _find(self) -> tuple[ConsumerMember | None, ConsumerMember]:
        group, request = self.group, self.request
        if request.member_epoch != 0:
            member = find_member(group, request.member_id, request.instance_id)
            _check_epoch(member, request)
            return member, member
        member_id = request.member_id or self.ask.fresh_id
        if request.instance_id is None:
            # A known member joins again, and keeps what is assigned to it (KAFKA-19233).
            old = group.members.get(member_id)
            return old, old or ConsumerMember(member_id)
        holder = group.static.get(request.instance_id)
        if holder is None:
            old = group.members.get(member_id)
            return old, old or ConsumerMember(member_id)
        old = group.members[holder]
        if old.epoch != STATIC_LEAVE:
            text = (
                f"Static member {member_id} with instance id {request.instance_id} cannot join the "
                f"group because the instance id is owned by {old.id} member."
            )
            raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        return old, replace(old, id=member_id, epoch=0, previous_epoch=0)

    def _change_pattern(self) -> PatternChange:
        """Note a changed pattern, and have the group's patterns matched if that is due."""
        group, old, new = self.group, self.known.pattern, self.member.pattern
        change = PatternChange.NONE
        urgent = False
        if old != new:
            change = PatternChange.UNMATCHED
            if old and group.patterns.get(old) == 1:
                self.decision.steps.append(
                    ConsumerRecord(ConsumerKind.PATTERN, group.group_id, old, None)
                )
            if new and new not in group.patterns:
                _check_pattern(new)
                urgent = True
            elif not new or new in group.matched:
                change = PatternChange.MATCHED
        if new or group.patterns:
            self._match_patterns(urgent=urgent)
        return change

    def _match_patterns(self, *, urgent: bool) -> None:
        group, now_ms = self.group, self.now_ms
        # Constant cost: `matched` has only patterns of `patterns`.
        revision = self.topics.topic_revision()
        last_ms = group.matched_at_ms
        if group.resolving or (last_ms is not None and 0 <= now_ms - last_ms <= MATCH_INTERVAL_MS):
            return
        refresh_ms = self.settings.group_consumer_regex_refresh_interval_ms
        if not (
            urgent
            or last_ms is None
            or len(group.patterns) != len(group.matched)
            or group.matched_revision != revision
            or now_ms - last_ms > refresh_ms
        ):
            return
        _, patterns = subscribed_names(group, self.old, self.member)
        if not patterns:
            return
        self.decision.steps.append(PatternsRequested(revision, now_ms))
        self.decision.effects.append(
            MatchPatterns(tuple(sorted(patterns)), revision[0], self.ask.client.may_describe)
        )

    def _raise_epoch(self, bump: bool) -> None:
        """Raise the epoch of the group if its subscription, its assignor or its topics changed."""
        group = self.group
        # A group whose only member has a pattern without a result yet: 0 would mean to join again.
        bump = bump or group.epoch == 0
        if self.member.assignor != self.known.assignor or self.old is None:
            before = select_assignor(group, self.settings, None, None)
            bump = bump or before != select_assignor(group, self.settings, self.old, self.member)
        revision = self.topics.topic_revision()
        if not bump and group.compared == revision:
            return
        names, _ = subscribed_names(group, self.old, self.member)
        found = hash_topics(names, self.topics)
        if bump or found != group.metadata_hash:
            self.epoch += 1
            self.decision.steps.append(epoch_record(group.group_id, self.epoch, found))
        if group.compared != revision:
            self.decision.steps.append(TopicsCompared(revision))

    def _update_target(self, replaced: bool) -> tuple[int, Target]:
        """Compute the target assignment if that is due; return its epoch, and the target of the
        member."""
        group, old, member = self.group, self.old, self.member
        current = group.target.get(member.id if old is None else old.id, NO_TARGET)
        interval_ms = self.limits.assignment_interval_ms
        due = not group.computing and is_due(group, self.epoch, interval_ms, self.now_ms)
        # The first member gets its epoch in this answer: 0 would have it join again.
        large = (
            due
            and group.target_epoch > 0
            and is_large(group, self.topics, subscribed_names(group, old, member)[0])
        )
        if replaced and (large or not due):
            self.decision.steps.append(target_record(group.group_id, member.id, current))
        if not due:
            return group.target_epoch, current
        if large:
            self.decision.steps.append(TargetBegun())
            self.decision.effects.append(ComputeTarget())
            return group.target_epoch, current
        given = gather_input(group, self.settings, self.topics, self.epoch, old, member)
        targets = run_at_once(given.compute())
        for member_id, target in targets.items():
            if group.target.get(member_id) != target:
                self.decision.steps.append(target_record(group.group_id, member_id, target))
        self.decision.steps.append(target_epoch_record(group.group_id, self.epoch, self.now_ms))
        self.decision.events.append(TargetComputed(self.epoch, len(targets), given.assignor))
        return self.epoch, targets[member.id]

    def _reconcile(
        self, target_epoch: int, target: Target, *, changed: bool, recorded: bool
    ) -> None:
        """Move the member; `recorded`: store its assignment in any case."""
        group, member = self.group, self.member
        reached = member.state is MemberState.STABLE and member.epoch == target_epoch
        if reached and not changed and not recorded:
            return
        mine = {member.id, None if self.old is None else self.old.id}

        def is_free(topic_id: bytes, partition: int) -> bool:
            owner = group.owner(topic_id, partition)
            return owner is None or owner in mine

        moved = reconcile(
            member,
            target_epoch,
            target,
            subscribed_ids(group, member, self.topics),
            _read_owned(self.request),
            is_free,
            changed=changed,
        )
        self.member = moved
        if moved is not member or recorded:
            self.decision.steps.append(current_record(group.group_id, moved))
        # Members with the classic protocol have timers of their own.
        if moved is member or moved.classic is not None:
            return
        if moved.state is MemberState.UNREVOKED:
            at_ms = self.now_ms + max(moved.rebalance_timeout_ms, 0)
            self.decision.effects.append(SetTimer(rebalance(moved.id), at_ms))
        else:
            self.decision.effects.append(CancelTimer(rebalance(moved.id)))

    def _answer(self) -> None:
        effects = self.decision.effects
        at_ms = self.now_ms + self.limits.session_timeout_ms
        effects.append(SetTimer(session(self.member.id), at_ms))
        if self.known.classic is not None:
            effects += cancel_classic_timers(self.member.id)
        effects.append(Reply(self.ask.token, self._build_answer()))

    def _build_answer(self) -> ConsumerGroupHeartbeatResponse:
        request, member = self.request, self.member
        answer = ConsumerGroupHeartbeatResponse(
            member_id=member.id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self.limits.heartbeat_interval_ms,
        )
        # With all that a join has: the client does not know its state.
        full = (
            request.rebalance_timeout_ms != -1
            and request.topic_partitions is not None
            and (
                request.subscribed_topic_names is not None
                or request.subscribed_topic_regex is not None
            )
        )
        before = self.known.assigned
        # First the cheaper comparison: two dicts are always compared entry by entry.
        moved = member.assigned is not before and member.assigned != before
        if request.member_epoch == 0 or full or moved:
            answer.assignment = Assignment(topic_partitions=_list_partitions(member.assigned))
        return answer


def decide_matched(
    group: ConsumerGroup,
    topics: ClusterTopics,
    found: Mapping[str, Iterable[str]],
    version: int,
    now_ms: int,
) -> Decision:
    """Store what the patterns of a group have matched: pattern -> topics. Empty if that failed."""
    decision = Decision(group.group_id)
    bump = False
    results = {pattern: result.topics for pattern, result in group.matched.items()}
    for pattern, names in found.items():
        # Its last subscriber has left meanwhile.
        if pattern not in group.patterns:
            continue
        matched = Matched(frozenset(names), now_ms, version)
        bump = bump or results.get(pattern, frozenset()) != matched.topics
        results[pattern] = matched.topics
        decision.steps.append(pattern_record(group.group_id, pattern, matched))
    subscribed = set(group.names).union(*results.values())
    digest = hash_topics(subscribed, topics)
    if decision.steps and (bump or digest != group.metadata_hash):
        decision.steps.append(epoch_record(group.group_id, group.epoch + 1, digest))
    decision.steps.append(PatternsResolved())
    return decision


def _check_pattern(pattern: str) -> None:
    # Its import takes 20 ms, and few groups have a pattern.
    from kafkawire.codec.patterns import compile_pattern

    compile_pattern(pattern)


def _check_epoch(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
    epoch = request.member_epoch
    if epoch == member.epoch:
        return
    # The answer with the next epoch was lost: the member has no partition that it lost meanwhile.
    if epoch < member.epoch and epoch == member.previous_epoch and _has_assigned(member, request):
        return
    side = "greater" if epoch > member.epoch else "smaller"
    text = (
        f"The consumer group member has a {side} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({member.epoch}). The member must abandon all its partitions and "
        "rejoin."
    )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)


def _has_assigned(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether the owned partitions are given, and all of them are assigned."""
    if request.topic_partitions is None:
        return False
    return all(
        partition in member.assigned.get(topic.topic_id, {})
        for topic in request.topic_partitions
        for partition in topic.partitions
    )


def _merge(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client: Client
) -> ConsumerMember:
    """Return the member with what the heartbeat has; itself if nothing changed."""
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    instance_id, rack_id = request.instance_id, request.rack_id
    merged = replace(
        member,
        classic=None,
        instance_id=member.instance_id if instance_id is None else instance_id,
        rack_id=member.rack_id if rack_id is None else rack_id,
        client_id=client.id or "",
        client_host=client.host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topics=member.topics if names is None else frozenset(names),
        pattern=member.pattern if pattern is None else pattern,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
    )
    return member if merged == member else merged


def _read_owned(request: ConsumerGroupHeartbeatRequest) -> Owned | None:
    if request.topic_partitions is None:
        return None
    return {topic.topic_id: topic.partitions for topic in request.topic_partitions}


def _list_partitions(partitions: Partitions) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id=topic_id, partitions=sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
    ]
