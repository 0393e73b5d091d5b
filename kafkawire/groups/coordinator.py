"""The coordinator of one partition: decides, appends, applies, answers.

The order that makes group state safe:
1. The shard decides; nothing has changed.
2. The records of the decision are appended as one batch. If that fails, the request is answered
   with the error and nothing is applied.
3. All steps are applied in append order, and timers are set, before the next request is decided.
4. Replies are sent after the commit that covers all steps applied before them, also those of
   requests that only read. If everything is committed they are sent immediately. If a commit fails,
   applied steps may be lost: the partition is unloaded, all waiting clients get NOT_COORDINATOR and
   retry, and the partition is loaded again from committed records.

OffsetCommits that arrive in one event-loop iteration share a batch.

One per led partition of `__consumer_offsets`, owned by kafkawire.groups.service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkawire.codec.control import TransactionMarker
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination.appender import RecordAppender
from kafkawire.coordination.batches import batches_of
from kafkawire.coordination.coordinator import (
    DEFECT_RETRY_MS,
    RETRY_MS,
    CoordinatorPhase,
    EncodeSnapshot,
    PartitionCoordinator,
)
from kafkawire.coordination.settling import Effect
from kafkawire.groups.event_log import GroupEventLog
from kafkawire.groups.large_targets import LargeInput, TargetOfMember
from kafkawire.groups.load import GroupLoader, LiveState, encode
from kafkawire.groups.model.changes import DeletionEnded, InitializationEnded
from kafkawire.groups.model.decision import (
    ChangeStates,
    ComputeTarget,
    Decision,
    MatchPatterns,
    Reply,
    SetTimer,
    StatesPurpose,
    Step,
    session,
)
from kafkawire.groups.model.records import Record, encode_record
from kafkawire.groups.model.request import (
    Client,
    GroupRequest,
    Request,
    RequestKind,
    RequestT,
    Response,
    ResponseT,
    Settings,
    append_error,
)
from kafkawire.groups.model.share_states import NoShareStates, ShareStates
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.model.transactional import PendingBatch, TransactionStep, encode_batch
from kafkawire.groups.shard import Shard
from kafkawire.groups.snapshot import group_snapshot
from kafkawire.groups.timers import Timers
from kafkawire.log.io.ports import Env
from kafkawire.log_lines import shorten_for_log
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.offset_commit import OffsetCommitRequest
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.state.machine import StateAnswer

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

ENDS = (InitializationEnded, DeletionEnded)
"""Changes that end a request to share coordinators."""

SNAPSHOT_MAX_AGE_MS = 6 * 3_600_000
"""Age at which a snapshot is replaced even after little log, or a quarter of delete.retention.ms if
that is less. Compaction removes tombstones, and markers of transactions, once that time has passed:
an older snapshot would restore the offsets that they deleted or ended."""
EXPIRY_SLICE = 100
"""Groups checked per event-loop iteration; each may have a thousand offsets."""
MATCH_SLICE = 500
"""Topic names that a pattern is matched with per event-loop iteration: a millisecond."""
TARGETS_AT_ONCE = 100
"""Targets of members that are stored in an event-loop iteration: three milliseconds."""
MAX_CAPTURED_PENDING = 1_000
"""Pending offsets of a snapshot, which are listed at once: a millisecond. While there are more, of
transactions that end within minutes, none is written."""
MARKER_BYTES = 78
"""Size of a control batch with a marker."""

LOGGED_CHARS = 500
"""Maximum length of group names in one log line: a batch may have hundreds of groups."""
_EXPIRY = "expiry"


_ACTIVE = CoordinatorPhase.ACTIVE  # for heartbeats: an enum lookup costs as much as a call


class Appender(RecordAppender[Record]):
    """Appends the records of decisions to one partition of `__consumer_offsets`: all or nothing."""

    def encode(self, records: Sequence[Record], now_ms: int) -> list[bytearray]:
        pairs = [encode_record(record) for record in records]
        return batches_of(pairs, self.partition.config.max_message_bytes, now_ms)

    def names_of(self, records: Sequence[Record]) -> str:
        return names_of(records)

    def error_of(self, code: ErrorCode) -> ErrorCode:
        return append_error(code)

    def append_transactional(self, step: TransactionStep, now_ms: int) -> ErrorCode | None:
        """Append the batch of a transaction's step; like `append`."""
        # The partition, not the shard, checks epoch and state of the producer.
        try:
            if not isinstance(step, PendingBatch):
                self.partition.append_marker(step, now_ms)
                self.log_bytes += MARKER_BYTES
                self.next_offset += 1
                return None
            batch = encode_batch(step, now_ms)
            self.partition.append_offsets(memoryview(batch), step.guard, now_ms)
        except KafkaError as error:
            return self.log_refusal(error)
        self.log_bytes += len(batch)
        self.next_offset += len(step.records)
        return None


def names_of(records: Sequence[Record]) -> str:
    names = sorted({record.group_id for record in records})
    return f"groups {', '.join(names)[:LOGGED_CHARS]}"


class UnansweredRequest(NamedTuple):
    """A request that has no answer yet: `future` gets it."""

    ask: GroupRequest[Any, Any]
    future: asyncio.Future[Any]


class Coordinator(PartitionCoordinator[GroupLoader]):
    """The coordinator of the groups of one partition; call `start` or `begin_empty` once. `states`:
    the share coordinators."""

    contents = "groups"

    def __init__(
        self,
        env: Env,
        config: Settings,
        partition: Partition,
        commit_log: CommitLog,
        folder: str,
        topics: ClusterTopics,
        events: GroupEventLog,
        states: ShareStates | None = None,
    ) -> None:
        place = group_snapshot(folder, partition.topic_id, partition.index)
        self.appender = Appender(partition)
        super().__init__(env, partition, commit_log, place, self.appender)
        self.config = config
        self.topics = topics
        self.events = events
        self.states: ShareStates = states or NoShareStates()
        self.shard = Shard(config, topics)
        self.timers = Timers(env, self._timer_due)
        self._renewal_ms = 0.0  # of the snapshot, on the monotonic clock
        self.owed: dict[str, int] = {}  # deleted topics without durable tombstones -> serial number
        self._deletions = 0
        self._tokens = 0
        self._waiting: dict[int, UnansweredRequest] = {}
        # Decided and not yet appended: the token of each request, and its decision.
        self._commits: list[tuple[int, Decision]] = []

    def handle_request(
        self,
        kind: RequestKind[RequestT, ResponseT],
        request: RequestT,
        version: int,
        client: Client,
        fresh_id: str = "",
    ) -> asyncio.Future[ResponseT]:
        """Decide on a request; the future gets the response once it is due."""
        self._tokens += 1
        token = self._tokens
        ask = GroupRequest(kind, token, version, request, client, fresh_id)
        future: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()
        if self.phase is not _ACTIVE:
            future.set_result(ask.error(self._refusal(request)))
            return future
        self._waiting[token] = UnansweredRequest(ask, future)
        now_ms = self.env.clock.now_ms()
        try:
            if isinstance(request, OffsetCommitRequest):
                decision = self.shard.decide(ask, now_ms)
                # The commits of an event-loop iteration share a batch. They can be decided before
                # they are applied, as neither groups nor other commits depend on offsets.
                if decision.steps:
                    if not self._commits:
                        self.env.call_soon(self._append_commits)
                    self._commits.append((token, decision))
                    return future
            else:
                # The commits that arrived before come before in the log, too. No heartbeat appends
                # or shows offsets.
                if not isinstance(request, HeartbeatRequest):
                    self._append_commits()
                decision = self.shard.decide(ask, now_ms)
            failure = self._carry_out([decision], now_ms)
        # A defect: only this client gets an error.
        except Exception:
            self.appender.log_defect(f"{type(request).__name__} of client {client.id!r}")
            failure = ErrorCode.UNKNOWN_SERVER_ERROR
        if failure is not None:
            self._fail(token, failure)
        return future

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode | None:
        """Answer a Heartbeat immediately, extending its session; None without any effect if
        uncommitted changes precede it: then use `handle_request`. Hot."""
        if self.phase is not _ACTIVE:
            return self._refusal(request)
        # The answer shows the state of the group, which a failed commit would take back.
        if self.commits.unsettled:
            return None
        # Few groups: while they are converted from one protocol to the other.
        if request.group_id in self.shard.consumer_groups:
            return None
        code, member = self.shard.check_heartbeat(request)
        # All that the decision of `handle_request` would contain: this timer and the code.
        if member is not None:
            self.timers.set(request.group_id, session(member.id), member.session_timeout_ms)
        return code

    def consumer_heartbeat(
        self, client: Client, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | None:
        """Answer a heartbeat that only extends its session; None without any effect if it is to be
        decided on, or if uncommitted changes precede it: then use `handle_request`. Hot."""
        if self.phase is not _ACTIVE or self.commits.unsettled:
            return None
        group_id = request.group_id
        answer = self.shard.answer_unchanged(client, request)
        # All that the decision of `handle_request` would contain: this timer and the reply.
        if answer is not None:
            limits = self.config.consumer_group_settings(group_id)
            self.timers.set(group_id, session(request.member_id), limits.session_timeout_ms)
        return answer

    def _refusal(self, request: Request) -> ErrorCode:
        # Its session begins when loading ends. Kafka answers NONE, too.
        if self.phase is CoordinatorPhase.LOADING and isinstance(request, HeartbeatRequest):
            return ErrorCode.NONE
        return self.phase.value

    def _reply(self, token: int, body: Response) -> None:
        """Answer a request. Raises TypeError for a response of another request type."""
        waiting = self._waiting.pop(token, None)
        # The coordinator was unloaded meanwhile, which has answered it.
        if waiting is None:
            return
        if not isinstance(body, waiting.ask.kind.response):
            raise TypeError(f"{type(body).__name__} is no answer to {waiting.ask.request}")
        # Cancelled, if its connection has closed.
        if not waiting.future.done():
            waiting.future.set_result(body)

    def _fail(self, token: int, code: ErrorCode) -> None:
        waiting = self._waiting.get(token)
        if waiting is not None:
            self._reply(token, waiting.ask.error(code))

    def _carry_out(self, decisions: Sequence[Decision], now_ms: int) -> ErrorCode | None:
        """Execute steps 2 to 4. Return the error if the records could not be appended; then nothing
        was changed."""
        records: list[Record] = []
        transactional: TransactionStep | None = None  # then it is the only step
        for decision in decisions:
            for step in decision.steps:
                if isinstance(step, Record):
                    records.append(step)
                elif isinstance(step, PendingBatch | TransactionMarker):
                    transactional = step
        failure: ErrorCode | None = None
        if transactional is not None:
            failure = self.appender.append_transactional(transactional, now_ms)
        elif records:
            failure = self.appender.append(records, now_ms)
        if failure is not None:
            return failure
        # No await since the append: the next request must be decided on what the log has.
        try:
            replies = self._apply(decisions, now_ms)
        except Exception:
            # They may be partly applied: all is loaded again, which answers every waiting client.
            self.appender.log_defect(f"applying {len(decisions)} decisions, {names_of(records)},")
            self.reload(delay_ms=DEFECT_RETRY_MS)
        else:
            appended = bool(records) or transactional is not None
            self.commits.release(replies, appended=appended)
        return None

    def _apply(self, decisions: Sequence[Decision], now_ms: int) -> list[Effect]:
        """Apply the decisions, and return their replies, which wait for the commit."""
        replies: list[Effect] = []
        for decision in decisions:
            for step in decision.steps:
                self.shard.apply(step, decision.group_id)
            for effect in decision.effects:
                if isinstance(effect, Reply):
                    replies.append(partial(self._reply, effect.token, effect.body))
                # Timers do not wait for the commit: they are volatile state, as members are. If it
                # fails they are cleared with it.
                elif isinstance(effect, SetTimer):
                    self.timers.set(decision.group_id, effect.key, effect.at_ms - now_ms)
                elif isinstance(effect, MatchPatterns):
                    matching = self._match_patterns(decision.group_id, effect, self._life)
                    self.env.spawn(matching, f"match patterns of {decision.group_id!r}")
                elif isinstance(effect, ComputeTarget):
                    computing = self._compute_target(decision.group_id, self._life)
                    self.env.spawn(computing, f"compute the assignment of {decision.group_id!r}")
                # After the commit: the group must know after a crash what it has requested.
                elif isinstance(effect, ChangeStates):
                    replies.append(
                        partial(self._begin_change, decision.group_id, effect, self._life)
                    )
                else:
                    self.timers.cancel(decision.group_id, effect.key)
            if decision.events:
                self.events.report(decision.group_id, decision.events)
        return replies

    def _append_commits(self) -> None:
        """Append this event-loop iteration's commits together or, if that fails, individually."""
        commits, self._commits = self._commits, []
        if not commits:
            return
        now_ms = self.env.clock.now_ms()
        if len(commits) > 1:
            together = [decision for _, decision in commits]
            if self._carry_out(together, now_ms) is None:
                return
        # One that is too large must not fail the others.
        for token, decision in commits:
            # The coordinator was unloaded, which answered all clients.
            if token not in self._waiting:
                return
            failure = self._carry_out([decision], now_ms)
            if failure is not None:
                self._fail(token, failure)

    def _timer_due(self, group_id: str, key: str) -> None:
        if key == _EXPIRY:
            self.env.spawn(self._expire(self._life), f"expire {self.place.path}")
            return
        now_ms = self.env.clock.now_ms()
        try:
            decision = self.shard.decide_timer(group_id, key, now_ms)
            failure = self._carry_out([decision], now_ms)
        except Exception:
            self.appender.log_defect(f"timer {key} of group {group_id!r}")
            failure = ErrorCode.UNKNOWN_SERVER_ERROR
        # No client waits for it, so none would repeat it: a dead member would stay forever.
        if failure is not None:
            self.timers.set(group_id, key, RETRY_MS)

    async def _match_patterns(self, group_id: str, effect: MatchPatterns, life: int) -> None:
        """Match a consumer group's patterns with all topics, and store the result."""
        found: dict[str, list[str]] = {}
        try:
            for pattern in effect.patterns:
                found[pattern] = await self._match_pattern(pattern, effect.may_describe)
        except Exception:
            self.appender.log_defect(f"patterns of group {group_id!r}")
            found.clear()
        if life != self._life or self.phase is not _ACTIVE:
            return
        now_ms = self.env.clock.now_ms()
        decision = self.shard.decide_matched(group_id, found, effect.version, now_ms)
        # The names are too long for a record, or the log cannot be written: the group keeps what
        # the pattern matched before, and tries it again after a while.
        if self._carry_out([decision], now_ms) is not None:
            decision = self.shard.decide_matched(group_id, {}, effect.version, now_ms)
            self._carry_out([decision], now_ms)

    async def _compute_target(self, group_id: str, life: int) -> None:
        """Compute the target assignment of a large group, and store it in parts."""
        # As the decision left the group that began this; members come and go while it is computed.
        given = self.shard.gather_target_input(group_id)
        if given is None:
            return
        stored = False
        try:
            targets: dict[str, Any] = await self.env.slices.run(given.compute())
            stored = await self._store_targets(group_id, given, list(targets.items()), life)
        except Exception:
            self.appender.log_defect(f"the assignment of group {group_id!r}")
        if life != self._life or self.phase is not _ACTIVE:
            return
        now_ms = self.env.clock.now_ms()
        decision = self.shard.decide_computed(group_id, given, now_ms, stored=stored)
        # The log cannot be written: the next heartbeat begins again.
        if self._carry_out([decision], now_ms) is not None:
            decision = self.shard.decide_computed(group_id, given, now_ms, stored=False)
            self._carry_out([decision], now_ms)

    async def _store_targets(
        self, group_id: str, given: LargeInput, targets: list[TargetOfMember], life: int
    ) -> bool:
        for start in range(0, len(targets), TARGETS_AT_ONCE):
            await self.env.slices.pause()
            if life != self._life or self.phase is not _ACTIVE:
                return False
            part = targets[start : start + TARGETS_AT_ONCE]
            decision = self.shard.decide_targets(group_id, given, part)
            if self._carry_out([decision], self.env.clock.now_ms()) is not None:
                return False
        return True

    def _begin_change(self, group_id: str, effect: ChangeStates, life: int) -> None:
        changing = self._change_states(group_id, effect, life)
        self.env.spawn(changing, f"share states of {group_id!r}")

    async def _change_states(self, group_id: str, effect: ChangeStates, life: int) -> None:
        """Have share coordinators change states for a share group, and store the result."""
        found: dict[SharePartitionKey, StateAnswer] = {}
        try:
            answers = await self.states.execute_all(effect.requests)
            for request, answer in zip(effect.requests, answers, strict=True):
                found[request.key] = answer
        except Exception:
            self.appender.log_defect(f"share states of group {group_id!r}")
            failed = StateAnswer(ErrorCode.UNKNOWN_SERVER_ERROR)
            found = {request.key: failed for request in effect.requests}
        # Else it was loaded again, which has answered the request.
        if not self.alive(life):
            return
        errors = sorted({answer.code.name for answer in found.values() if answer.code})
        if errors:
            logger.warning(
                "group %s: share coordinators refused to %s states of %d share partitions: %s",
                shorten_for_log(group_id), effect.purpose.value, len(found), ", ".join(errors),
            )  # fmt: skip
        try:
            decision = self.shard.decide_changed(group_id, effect, found)
            if effect.purpose is StatesPurpose.VERIFY and len(decision.steps) > 1:
                logger.warning(
                    "group %s: share coordinators have lost states of share partitions; the group "
                    "begins there again", shorten_for_log(group_id),
                )  # fmt: skip
            now_ms = self.env.clock.now_ms()
            failure = self._carry_out([decision], now_ms)
            if failure is not None:
                # Later requests about the topics need not wait for this one.
                ended: list[Step] = [each for each in decision.steps if isinstance(each, ENDS)]
                self._carry_out([Decision(group_id, ended)], now_ms)
        except Exception:
            self.appender.log_defect(f"share states of group {group_id!r}")
            failure = ErrorCode.UNKNOWN_SERVER_ERROR
        # The group requests its states again after a while; an operator repeats the request.
        if failure is not None and effect.token is not None:
            self._fail(effect.token, failure)

    async def _match_pattern(
        self, pattern: str, may_describe: Callable[[str], bool] | None
    ) -> list[str]:
        from kafkawire.codec.patterns import compile_pattern

        try:
            matches = compile_pattern(pattern)
        # Accepted by an earlier version, or by Kafka.
        except KafkaError:
            return []
        found: list[str] = []
        for number, name in enumerate(list(self.topics.topic_names())):
            if matches(name) and (may_describe is None or may_describe(name)):
                found.append(name)
            if number % MATCH_SLICE == MATCH_SLICE - 1:
                await self.env.slices.pause()
        return found

    async def _expire(self, life: int) -> None:
        """Forget offsets and groups past their retention, and schedule the next check."""
        for number, group_id in enumerate(self.shard.group_ids()):
            if number % EXPIRY_SLICE == EXPIRY_SLICE - 1:
                await self.env.slices.pause()
            if life != self._life or self.phase is not _ACTIVE:
                return
            # A group that has just committed does not expire.
            self._append_commits()
            now_ms = self.env.clock.now_ms()
            try:
                self._carry_out([self.shard.decide_expiry(group_id, now_ms)], now_ms)
            except Exception:
                self.appender.log_defect(f"expiry of group {group_id!r}")
        if self.snapshot_bytes and self.env.clock.monotonic() * 1000 >= self._renewal_ms:
            self.env.spawn(self._store(least_bytes=1), f"store {self.place.path}")
        self.timers.set("", _EXPIRY, self.config.offsets_retention_check_interval_ms)

    def forget_topic(self, topic: str) -> None:
        """Forget the offsets of a topic. Durable with the next commit of the log; if that fails, or
        while loading, it is repeated after the next load."""
        # A number for each deletion: a topic may be created and deleted again while the tombstones
        # of the first deletion wait for their commit.
        self._deletions += 1
        self.owed[topic] = self._deletions
        if self.phase is _ACTIVE:
            self._append_commits()
            self._forget_topics({topic})

    def _forget_topics(self, topics: set[str]) -> None:
        decision = self.shard.decide_topic_deleted(topics)
        failure = self._carry_out([decision], self.env.clock.now_ms())
        # Otherwise a defect was found, and all is loaded again.
        if failure is None and self.phase is _ACTIVE:
            # Owed no longer than until the commit: a later load would also delete the commits of a
            # new topic of that name.
            done = {topic: self.owed[topic] for topic in topics & self.owed.keys()}
            self.commits.release([partial(self._forgive, done)], appended=False)

    def _forgive(self, done: dict[str, int]) -> None:
        for topic, number in done.items():
            if self.owed.get(topic) == number:
                del self.owed[topic]

    def new_loader(self) -> GroupLoader:
        return GroupLoader(
            self.env, self.config, self.partition, self.commit_log, self.place, self.topics
        )

    def activate(self, loaded: GroupLoader) -> None:
        self.shard = loaded.shard
        # The age of a loaded snapshot is not known.
        self._renewal_ms = 0.0
        now_ms = self.env.clock.now_ms()
        # Topics deleted just before a crash, or while their offsets were not loaded.
        topics = self.shard.topics()
        gone = {topic for topic in topics if self.topics.topic_size(topic) is None}
        self._forget_topics(gone | self.owed.keys())
        for decision in self.shard.decide_loaded(now_ms):
            self._carry_out([decision], now_ms)
        self.timers.set("", _EXPIRY, self.config.offsets_retention_check_interval_ms)

    def discard(self) -> None:
        self.timers.clear()
        self.shard = Shard(self.config, self.topics)
        self._commits.clear()
        for token in list(self._waiting):
            self._fail(token, ErrorCode.NOT_COORDINATOR)

    def before_close(self) -> None:
        self._append_commits()

    def capture(self) -> EncodeSnapshot | None:
        offsets = self.shard.offsets
        # A snapshot does not store which commits are damaged: they would be -1 from then on.
        if offsets.lost:
            return None
        if len(offsets.pending) > MAX_CAPTURED_PENDING:
            return None
        pending = list(offsets.pending.records())
        return partial(encode, self.env, LiveState(self.appender.next_offset, self.shard, pending))

    def snapshot_stored(self) -> None:
        age_ms = min(SNAPSHOT_MAX_AGE_MS, self.partition.config.delete_retention_ms // 4)
        self._renewal_ms = self.env.clock.monotonic() * 1000 + age_ms
