"""Decide on a StreamsGroupHeartbeat (Kafka: GroupMetadataManager.streamsGroupHeartbeat).

In the order of Kafka: find the member, merge what it sent, set the topology, compare it with the
topics that exist, raise the epoch of the group, compute the target assignment and refine it, move
the member towards that, answer. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.consumer.subscription import hash_topics
from kafkawire.groups.consumer.target import is_due
from kafkawire.groups.model.changes import (
    AssignmentRefined,
    DelayBegun,
    EndpointsChanged,
    ShutdownRequested,
    TaskOffsetsReported,
    TopicsCompared,
    TopologyConfigured,
)
from kafkawire.groups.model.decision import (
    INITIAL,
    CancelTimer,
    Decision,
    Reply,
    SetTimer,
    rebalance,
    session,
)
from kafkawire.groups.model.events import MemberJoined, MemberReplaced
from kafkawire.groups.model.records import fits
from kafkawire.groups.model.request import Client, GroupRequest, Settings, StreamsHeartbeatResult
from kafkawire.groups.model.streams_topics import ConfiguredTopology, Status
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.streams.group import (
    NOT_VALIDATED,
    STATIC_LEAVE,
    StreamsGroup,
    StreamsState,
    TaskOffsets,
    epoch_record,
    target_epoch_record,
    topology_record,
)
from kafkawire.groups.streams.member import (
    NO_TARGET,
    StreamsMember,
    StreamsMemberState,
    TargetTasks,
    Task,
    current_record,
    list_tasks,
    member_tombstones,
    metadata_record,
    read_tags,
    read_tasks,
    target_record,
)
from kafkawire.groups.streams.reconcile import Holders, reconcile
from kafkawire.groups.streams.refine import refine
from kafkawire.groups.streams.removal import find_member, leave
from kafkawire.groups.streams.target import (
    RACK_TAGS_CONFIG,
    STANDBY_CONFIG,
    add_target,
    gather_input,
)
from kafkawire.groups.streams.topology import check_topology, configure, required_topics
from kafkawire.groups.streams.views import list_endpoints
from kafkawire.messages.stored import StreamsGroupTopologyValue
from kafkawire.messages.streams_group_describe import TaskIds, TaskOffset
from kafkawire.messages.streams_group_heartbeat import Status as StatusOfGroup
from kafkawire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
)

_TRIMMED = "".join(map(chr, range(33)))  # by Java's trim()
MAX_LISTED = 10_000
"""Tasks, offsets of tasks, and client tags of one heartbeat: reading so many takes 5 ms. A stream
thread has some tens of tasks."""

Ask = GroupRequest[StreamsGroupHeartbeatRequest, StreamsHeartbeatResult]


def check_request(request: StreamsGroupHeartbeatRequest) -> None:
    """Check what needs no group, in the order and with the texts of Kafka's
    GroupCoordinatorService. Raises KafkaError."""
    named = {
        "MemberId": request.member_id,
        "GroupId": request.group_id,
        "InstanceId": request.instance_id,
        "RackId": request.rack_id,
    }
    for name, text in named.items():
        if text is not None and not text.strip(_TRIMMED):
            raise _invalid(f"{name} can't be empty.")
    lists = {
        "ActiveTasks": request.active_tasks,
        "StandbyTasks": request.standby_tasks,
        "WarmupTasks": request.warmup_tasks,
    }
    if request.member_epoch == 0:
        _check_join(request, lists)
    elif request.member_epoch == STATIC_LEAVE and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif request.member_epoch < STATIC_LEAVE:
        raise _invalid(
            f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2."
        )
    given = [tasks is not None for tasks in lists.values()]
    if any(given) and not all(given):
        raise _invalid("If one task-type is non-null, all must be non-null.")
    if request.member_epoch != 0 and request.topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")
    listed = sum(len(each.partitions) + 1 for tasks in lists.values() for each in tasks or ())
    more = (request.task_offsets, request.task_end_offsets, request.client_tags)
    if listed + sum(len(each or ()) for each in more) > MAX_LISTED:
        raise _invalid(f"The heartbeat has more than {MAX_LISTED} tasks, offsets and tags.")
    # Keys of records have strings of at most 32,767 bytes, flexible requests longer ones.
    if not fits(request.group_id) or not fits(request.member_id):
        raise _invalid("GroupId or MemberId is too long.")


def _check_join(
    request: StreamsGroupHeartbeatRequest, lists: Mapping[str, list[TaskIds] | None]
) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    for name, tasks in lists.items():
        if tasks is None or tasks:
            raise _invalid(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        raise _invalid("Topology must be non-null when (re-)joining.")
    if request.topology.epoch < 0:
        raise _invalid("Topology epoch must be non-negative.")
    check_topology(request.topology.subtopologies)


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def heartbeat(
    group: StreamsGroup, topics: ClusterTopics, settings: Settings, ask: Ask, now_ms: int
) -> Decision:
    """Decide on a heartbeat of a member, or of a new one with epoch 0. Raises KafkaError."""
    if ask.request.member_epoch < 0:
        return leave(group, ask)
    return StreamsHeartbeat(group, topics, settings, ask, now_ms).decide()


class StreamsHeartbeat:
    """One heartbeat that is being decided. `old` is the member in the group that the sender is or
    replaces; None: it is new. `known` is the sender before this heartbeat, and `member` after it.
    """

    __slots__ = (
        "ask", "configs", "configured", "decision", "epoch", "group", "known", "limits", "member",
        "now_ms", "offsets", "old", "owned", "refined", "settings", "status", "topics", "topology",
    )  # fmt: skip

    def __init__(
        self, group: StreamsGroup, topics: ClusterTopics, settings: Settings, ask: Ask, now_ms: int
    ) -> None:
        self.group = group
        self.topics = topics
        self.settings = settings
        self.limits = settings.streams_group_settings(group.group_id)
        self.ask = ask
        self.now_ms = now_ms
        self.epoch = group.epoch
        self.decision = Decision(group.group_id)
        self.status: list[StatusOfGroup] = []
        self.configs = {STANDBY_CONFIG: str(self.limits.standby_replicas)}
        if self.limits.rack_tags:
            self.configs[RACK_TAGS_CONFIG] = ",".join(self.limits.rack_tags)
        self._check_size()
        self.old, self.known = self._find()
        self.member = _merge(self.known, ask.request, ask.client)
        self.owned = _read_owned(ask.request)
        self.topology = self._choose_topology()
        self.configured = ConfiguredTopology()
        self.offsets: TaskOffsets | None = group.offsets.get(self.member.id)
        self.refined: AssignmentRefined | None = None

    def decide(self) -> Decision:
        replaced = self._record_member()
        bump = self._is_changed()
        if self.topology is not self.group.topology:
            record = topology_record(self.group.group_id, self.topology)
            self.decision.steps.append(record)
        if self.member.topology_epoch < self.topology.epoch and self.group.topology is not None:
            self._add_status(
                Status.STALE_TOPOLOGY,
                f"The member's topology epoch {self.member.topology_epoch} is behind the group's "
                f"topology epoch {self.topology.epoch}.",
            )
        self._raise_epoch(bump)
        target_epoch, targets = self._update_target(replaced)
        target = self._refine(target_epoch, targets)
        self._reconcile(target_epoch, target, recorded=replaced or self.old is None)
        self._answer()
        return self.decision

    def _check_size(self) -> None:
        group, request = self.group, self.ask.request
        # The next process of a static member takes the place of the one before (KAFKA-20601).
        if request.member_epoch != 0 or request.instance_id in group.static:
            return
        limit = self.settings.group_streams_max_size
        if len(group.members) >= limit and request.member_id not in group.members:
            text = f"The streams group has reached its maximum capacity of {limit} members."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def _find(self) -> tuple[StreamsMember | None, StreamsMember]:
        group, request = self.group, self.ask.request
        if request.member_epoch != 0:
            member = find_member(group, request.member_id, request.instance_id)
            _check_epoch(member, request)
            return member, member
        holder = group.static.get(request.instance_id or "")
        if holder is None:
            # A known member joins again, and keeps what is assigned to it.
            old = group.members.get(request.member_id)
            return old, old or StreamsMember(request.member_id)
        old = group.members[holder]
        if old.epoch != STATIC_LEAVE:
            text = (
                f"Static member {request.member_id} with instance id {request.instance_id} cannot "
                f"join the group because the instance id is owned by {old.id} member."
            )
            raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        return old, replace(old, id=request.member_id, epoch=0, previous_epoch=0)

    def _choose_topology(self) -> StreamsGroupTopologyValue:
        """Return the topology of the group: the first member sets it. Raises INVALID_REQUEST for
        another one."""
        given, known = self.ask.request.topology, self.group.topology
        if known is None:
            if given is None:
                # Its record was lost with a damaged part of the log.
                text = f"Streams group {self.group.group_id} has no topology; join again."
                raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
            return StreamsGroupTopologyValue(given.epoch, given.subtopologies)
        if given is None or given.epoch < known.epoch:
            return known
        if given.epoch > known.epoch or _by_id(given.subtopologies) != _by_id(known.subtopologies):
            raise _invalid("Topology updates are not supported yet.")
        return known

    def _record_member(self) -> bool:
        """Record what changed of the member; return whether it replaces another one."""
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
        return replaced

    def _is_changed(self) -> bool:
        """Return whether the assignment depends on what changed of the member."""
        known, member = self.known, self.member
        if self.ask.request.instance_id is None:
            return member is not known
        # A static member that is started again gets what it had.
        return (known.topology_epoch, known.rack_id, known.tags, known.process_id) != (
            member.topology_epoch,
            member.rack_id,
            member.tags,
            member.process_id,
        )

    def _raise_epoch(self, bump: bool) -> None:
        """Compare the topology with the topics; raise the epoch of the group if they, the members
        or the settings have changed."""
        group = self.group
        metadata_hash = self._configure()
        ready = self.configured.fault is None
        validated = self.topology.epoch if ready else NOT_VALIDATED
        if ready:
            self._check_owned()
        self._report_offsets()
        if (
            bump
            or metadata_hash != group.metadata_hash
            or validated != group.validated_epoch
            or self.configs != group.configs
        ):
            self.epoch += 1
            self.decision.steps.append(
                epoch_record(
                    group,
                    self.epoch,
                    metadata_hash=metadata_hash,
                    validated=validated,
                    configs=self.configs,
                )
            )
        elif self._has_next_step():
            self.epoch += 1
            self.decision.steps += [
                epoch_record(group, self.epoch),
                target_epoch_record(group.group_id, self.epoch, group.target_at_ms),
            ]
        if self.configured is not group.configured:
            self.decision.steps.append(TopologyConfigured(self.configured))
        revision = self.topics.topic_revision()
        if group.compared != revision:
            self.decision.steps.append(TopicsCompared(revision))

    def _configure(self) -> int:
        """Set `configured` for the topics as they are; return their hash."""
        group = self.group
        known = group.configured
        if known is not None and group.compared == self.topics.topic_revision():
            self.configured = known
            return group.metadata_hash
        found = hash_topics(required_topics(self.topology), self.topics)
        if known is not None and found == group.metadata_hash:
            self.configured = known
        else:
            self.configured = configure(self.topology, self.topics)
        return found

    def _check_owned(self) -> None:
        """Check that the tasks that the member lists exist. Raises INVALID_REQUEST."""
        request = self.ask.request
        for tasks in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
            for each in tasks or ():
                name = each.subtopology_id
                found = self.configured.subtopologies.get(name)
                if found is None:
                    raise _invalid(f"Subtopology {name} does not exist in the topology.")
                for partition in each.partitions:
                    if not 0 <= partition < found.tasks:
                        raise _invalid(
                            f"Task {partition} for subtopology {name} is invalid. Number of tasks "
                            f"for this subtopology: {found.tasks}"
                        )

    def _report_offsets(self) -> None:
        request = self.ask.request
        offsets, ends = map(self._read_offsets, (request.task_offsets, request.task_end_offsets))
        if offsets is not None or ends is not None:
            report = TaskOffsetsReported(self.member.id, offsets, ends)
            self.decision.steps.append(report)
            self.offsets = self.group.merge_offsets(report)

    def _read_offsets(self, given: Collection[TaskOffset] | None) -> Mapping[Task, int] | None:
        if given is None:
            return None
        named: set[Task] = set()
        for each in given:
            task = (each.subtopology_id, each.partition)
            if task in named:
                text = "Task offsets contain a duplicate entry for subtopology"
                raise _invalid(f"{text} {task[0]} and partition {task[1]}.")
            named.add(task)
        sizes = {name: each.tasks for name, each in self.configured.subtopologies.items()}
        # Not of other tasks: these are kept in memory.
        return {
            (each.subtopology_id, each.partition): each.offset
            for each in given
            if 0 <= each.partition < sizes.get(each.subtopology_id, 0)
        }

    def _has_next_step(self) -> bool:
        """Refine the assignment again if that may be due. Return whether members are to move."""
        group, known = self.group, self.group.refined
        if group.epoch > group.target_epoch or group.computing or not group.members:
            return False
        limits = (self.limits.warmup_replicas, self.limits.acceptable_recovery_lag)
        if known is not None:
            # A group without tasks that wait is not visited member by member.
            if not known.tasks or (known.limits == limits and not self._reports()):
                return False
            if group.state is not StreamsState.STABLE:
                return False
        targets = self._targets()
        found = self._compute(targets)
        if known is not None:
            moves = found != known.tasks
        else:
            # After a load it is not known what members have been given in this epoch.
            moves = any(
                TargetTasks(frozenset(each.assigned.active), *each.assigned[1:])
                != found.get(each.id, targets.get(each.id, NO_TARGET))
                for each in self._members()
                if each.is_at(group.target_epoch)
            )
        settled = not moves and group.state is StreamsState.STABLE
        self.refined = AssignmentRefined(group.epoch + moves, found, limits if settled else None)
        return moves

    def _reports(self) -> bool:
        request = self.ask.request
        return (request.task_offsets, request.task_end_offsets) != (None, None)

    def _members(self) -> list[StreamsMember]:
        """Return the members of the group after this heartbeat."""
        gone = (self.member.id, self.member.id if self.old is None else self.old.id)
        return [*(e for id_, e in self.group.members.items() if id_ not in gone), self.member]

    def _targets(self) -> Mapping[str, TargetTasks]:
        """Return the targets of members after this heartbeat, of a target that is stored."""
        if self.old is None or self.old.id == self.member.id:
            return self.group.target
        targets = dict(self.group.target)
        targets[self.member.id] = targets.pop(self.old.id, NO_TARGET)
        return targets

    def _compute(self, targets: Mapping[str, TargetTasks]) -> dict[str, TargetTasks]:
        offsets = dict(self.group.offsets)
        if self.offsets is not None:
            offsets[self.member.id] = self.offsets
        return refine(
            self._members(),
            targets,
            offsets,
            {name for name, each in self.configured.subtopologies.items() if each.changelogs},
            self.limits.warmup_replicas,
            self.limits.acceptable_recovery_lag,
        )

    def _refine(self, epoch: int, targets: Mapping[str, TargetTasks]) -> TargetTasks:
        """Return the tasks that the member is to have for the target of this epoch."""
        id_, known = self.member.id, self.refined or self.group.refined
        if known is None or known.epoch != epoch:
            self.refined = known = AssignmentRefined(epoch, self._compute(targets), None)
        elif self.old is not None and self.old.id != id_ and self.old.id in known.tasks:
            tasks = {id_ if each == self.old.id else each: t for each, t in known.tasks.items()}
            self.refined = known = replace(known, tasks=tasks)
        if self.refined is not None:
            self.decision.steps.append(self.refined)
        found = known.tasks.get(id_)
        return targets.get(id_, NO_TARGET) if found is None else TargetTasks(*found)

    def _update_target(self, replaced: bool) -> tuple[int, Mapping[str, TargetTasks]]:
        """Compute the target assignment if that is due; return its epoch, and the targets of
        members."""
        group, old, member = self.group, self.old, self.member
        current = self._targets()
        begins = not group.members and self.limits.initial_rebalance_delay_ms > 0
        if begins and not group.delayed:
            at_ms = self.now_ms + self.limits.initial_rebalance_delay_ms
            self.decision.steps.append(DelayBegun())
            self.decision.effects.append(SetTimer(INITIAL, at_ms))
        stepped = self.refined is not None and self.refined.epoch > group.epoch
        waits = group.target_epoch < self.epoch and not stepped
        if begins or group.delayed:
            self._delay("initial rebalance delay")
            due = False
        else:
            interval_ms = self.limits.assignment_interval_ms
            free = waits and not group.computing
            due = free and is_due(group, self.epoch, interval_ms, self.now_ms)
            if free and not due:
                self._delay("assignment interval")
        if due:
            given = gather_input(group, self.epoch, self.configured, self.configs, old, member)
            targets = add_target(self.decision, group, given, self.now_ms)
            if targets is not None:
                return self.epoch, targets
        if replaced:
            target = current.get(member.id, NO_TARGET)
            self.decision.steps.append(target_record(group.group_id, member.id, target))
        return self.epoch if stepped else group.target_epoch, current

    def _delay(self, what: str) -> None:
        self._add_status(
            Status.ASSIGNMENT_DELAYED, f"Assignment delayed due to the configured {what}."
        )

    def _reconcile(self, target_epoch: int, target: TargetTasks, *, recorded: bool) -> None:
        """Move the member; `recorded`: store its assignment in any case."""
        group, member = self.group, self.member
        mine = frozenset({member.id, *(() if self.old is None else (self.old.id,))})
        holders = Holders(group, mine, member.process_id)
        moved = reconcile(member, target_epoch, target, self.owned, holders)
        self.member = moved
        if moved is not member or recorded:
            self.decision.steps.append(current_record(group.group_id, moved))
        if moved is member:
            return
        if moved.state is StreamsMemberState.UNREVOKED:
            at_ms = self.now_ms + max(moved.rebalance_timeout_ms, 0)
            self.decision.effects.append(SetTimer(rebalance(moved.id), at_ms))
        else:
            self.decision.effects.append(CancelTimer(rebalance(moved.id)))

    def _answer(self) -> None:
        member, decision = self.member, self.decision
        at_ms = self.now_ms + self.limits.session_timeout_ms
        decision.effects.append(SetTimer(session(member.id), at_ms))
        answer = StreamsGroupHeartbeatResponse(
            member_id=member.id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self.limits.heartbeat_interval_ms,
            task_offset_interval_ms=self.limits.task_offset_interval_ms,
            acceptable_recovery_lag=self.limits.acceptable_recovery_lag,
            status=self.status,
        )
        before, after = self.known.assigned, member.assigned
        moved = before is not after and (before.active.keys(), *before[1:]) != (
            after.active.keys(),
            *after[1:],
        )
        # A member that joins does not know its tasks.
        if self.ask.request.member_epoch == 0 or moved or self._is_answer_lost():
            answer.active_tasks, answer.standby_tasks, answer.warmup_tasks = map(list_tasks, after)
        self._answer_endpoints(answer, moved)
        if self.configured.fault is not None:
            self._add_status(*self.configured.fault)
        self._answer_shutdown()
        self._answer_tags()
        result = StreamsHeartbeatResult(answer, self.configured.missing)
        decision.effects.append(Reply(self.ask.token, result))

    def _is_answer_lost(self) -> bool:
        """Return whether the member lists its tasks without one that it was given: the answer with
        it was lost. Kafka does not give it again, so that no member runs it."""
        if self.owned is None or self.member.state is StreamsMemberState.UNREVOKED:
            return False
        pairs = zip(self.member.assigned, self.owned, strict=True)
        return any(not frozenset(given) <= listed for given, listed in pairs)

    def _answer_endpoints(self, answer: StreamsGroupHeartbeatResponse, moved: bool) -> None:
        """Add the partitions of each endpoint if the member does not know them as they are."""
        group, member = self.group, self.member
        changed = self.known.endpoint != member.endpoint or (moved and member.endpoint is not None)
        epoch = group.endpoint_epoch
        if changed:
            epoch += 1
            self.decision.steps.append(EndpointsChanged())
        answer.endpoint_information_epoch = epoch
        if epoch == self.ask.request.endpoint_information_epoch:
            return
        gone = None if self.old is None else self.old.id
        members = [each for id_, each in group.members.items() if id_ not in (gone, member.id)]
        answer.partitions_by_user_endpoint = list_endpoints(
            [*members, member], self.configured, self.topics
        )

    def _answer_shutdown(self) -> None:
        requester = self.group.shutdown_by
        if self.ask.request.shutdown_application and requester is None:
            requester = self.member.id
            self.decision.steps.append(ShutdownRequested(requester))
        if requester is not None:
            self._add_status(
                Status.SHUTDOWN_APPLICATION,
                f"Streams group member {requester} encountered a fatal error and requested a "
                "shutdown for the entire application.",
            )

    def _answer_tags(self) -> None:
        keys = {key for key, _ in self.member.tags}
        missing = [tag for tag in self.limits.rack_tags if tag not in keys]
        if missing and self.ask.version >= 1:
            self._add_status(
                Status.MISSING_CLIENT_TAGS,
                "Missing required client tags for rack-aware standby assignment: "
                f"[{', '.join(missing)}]. Configure them via 'client.tag.<tagKey>' in your Streams "
                "config.",
            )

    def _add_status(self, code: Status, text: str) -> None:
        self.status.append(StatusOfGroup(int(code), text))


def _by_id(subtopologies: Iterable[Subtopology]) -> dict[str, Subtopology]:
    return {each.subtopology_id: each for each in subtopologies}


def _read_owned(request: StreamsGroupHeartbeatRequest) -> TargetTasks | None:
    """Return the tasks that a member lists; None: it does not."""
    if request.active_tasks is None:
        return None
    lists = (request.active_tasks, request.standby_tasks or (), request.warmup_tasks or ())
    return TargetTasks(*map(read_tasks, lists))


def _check_epoch(member: StreamsMember, request: StreamsGroupHeartbeatRequest) -> None:
    epoch = request.member_epoch
    if epoch == member.epoch:
        return
    # The answer with the next epoch was lost: the member has no task that it lost meanwhile.
    if epoch < member.epoch and epoch == member.previous_epoch and _has_assigned(member, request):
        return
    side = "greater" if epoch > member.epoch else "smaller"
    text = (
        f"The streams group member has a {side} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({member.epoch}). The member must abandon all its partitions and "
        "rejoin."
    )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)


def _has_assigned(member: StreamsMember, request: StreamsGroupHeartbeatRequest) -> bool:
    """Return whether the tasks of the member are given, and all of them are assigned."""
    lists = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    return all(
        tasks is not None and read_tasks(tasks) <= frozenset(held)
        for tasks, held in zip(lists, member.assigned, strict=True)
    )


def _merge(
    member: StreamsMember, request: StreamsGroupHeartbeatRequest, client: Client
) -> StreamsMember:
    """Return the member with what the heartbeat has; itself if nothing changed."""
    timeout_ms, topology = request.rebalance_timeout_ms, request.topology
    tags, endpoint = request.client_tags, request.user_endpoint
    merged = replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.id or "",
        client_host=client.host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topology_epoch=member.topology_epoch if topology is None else topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        tags=member.tags if tags is None else read_tags(tags),
        # A member that joins without an endpoint has none.
        endpoint=None if request.member_epoch == 0 else member.endpoint,
    )
    if endpoint is not None:
        merged = replace(merged, endpoint=(endpoint.host, endpoint.port))
    return member if merged == member else merged
