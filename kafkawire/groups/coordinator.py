"""The coordinator of one partition: decides, appends, applies, answers.

The order that makes group state safe :
1. The shard decides; nothing has changed.
2. The records of the decision are appended as one batch. If that fails, the request is answered
   with the error and nothing is applied.
3. All steps are applied in append order, and timers are set, before the next request is decided.
4. Replies are sent after the commit that covers all steps applied before them, also those of
   requests that only read. If everything is committed they are sent immediately. If a commit fails,
   applied steps may be lost: the partition is unloaded, all waiting clients get NOT_COORDINATOR and
   retry, and the partition is loaded again from committed records.

OffsetCommits that arrive in one event-loop iteration share a batch. Decisions about groups never
depend on offsets, so only requests that read or delete offsets append the batch first. So do those
of transactions: a TxnOffsetCommit and a marker are batches of their own, in order of arrival.

One per led partition of `__consumer_offsets`, owned by kafkawire.groups.service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination.settling import CommitQueue
from kafkawire.groups import load
from kafkawire.groups.append import Appender, names_of
from kafkawire.groups.decision import CancelTimer, Decision, Reply, SetTimer, session
from kafkawire.groups.event_log import GroupEventLog
from kafkawire.groups.load import LiveState, Loaded
from kafkawire.groups.replies import UnansweredRequest
from kafkawire.groups.request import (
    Client,
    GroupRequest,
    Request,
    RequestKind,
    RequestT,
    Response,
    ResponseT,
    Settings,
)
from kafkawire.groups.shard import Shard
from kafkawire.groups.snapshot import group_snapshot
from kafkawire.groups.timers import Timers
from kafkawire.log.io.ports import Env
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.offset_commit import OffsetCommitRequest

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

RETRY_MS = 1000
"""Retry delay if a timer's decision could not be appended or a load failed: disks recover in
seconds."""
DEFECT_RETRY_MS = 10_000
"""Retry delay of a load after an unexpected exception: a load may read a hundred megabytes, and
usually the same bytes fail again."""
SNAPSHOT_LOG_BYTES = 512 * 1024
"""Log bytes to read before a snapshot is worth its write: some 8,000 commits, a tenth of a second
of a start, five seconds if all fifty partitions have as many. A large partition waits for twice its
snapshot size, so that snapshots are not written more than the log."""
SNAPSHOT_MAX_AGE_MS = 6 * 3_600_000
"""Age at which a snapshot is replaced even after little log, or a quarter of delete.retention.ms if
that is less. Compaction removes tombstones, and markers of transactions, once that time has passed:
an older snapshot would restore the offsets that they deleted or ended."""
EXPIRY_SLICE = 100
"""Groups checked per event-loop iteration; each may have a thousand offsets."""
_EXPIRY = "expiry"


class Phase(Enum):
    """Whether the coordinator can decide on requests."""

    LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ACTIVE = ErrorCode.NONE
    CLOSED = ErrorCode.COORDINATOR_NOT_AVAILABLE


_ACTIVE = Phase.ACTIVE  # for heartbeats: an enum lookup costs as much as a call


class Coordinator:
    """The coordinator of the groups of one partition; call `start` or `begin_empty` once."""

    def __init__(
        self,
        env: Env,
        config: Settings,
        partition: Partition,
        commit_log: CommitLog,
        folder: str,
        topics: Container[str],
        events: GroupEventLog,
    ) -> None:
        self.env = env
        self.config = config
        self.partition = partition
        self.commit_log = commit_log
        self.place = group_snapshot(folder, partition.topic_id, partition.index)
        self.topics = topics  # names of existing topics, kept current
        self.events = events
        self.shard = Shard(config)
        self.phase = Phase.LOADING
        self.timers = Timers(env, self._timer_due)
        self.settling = CommitQueue(commit_log, self._settled, self._commit_failed)
        self.appender = Appender(partition)
        self.snapshot_bytes = 0
        self._renewal_ms = 0.0  # of the snapshot, on the monotonic clock
        self.owed: dict[str, int] = {}  # deleted topics without durable tombstones -> serial number
        self._deletions = 0
        self._tokens = 0
        self._waiting: dict[int, UnansweredRequest[Any, Any]] = {}
        self._commits: list[tuple[int, Decision]] = []
        self._life = 0  # incremented by each unload: tasks of an earlier load have no effect
        self._storing = False
        self._loading: asyncio.Task[None] | None = None

    def ask(
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
        waiting = UnansweredRequest(ask)
        if self.phase is not Phase.ACTIVE:
            waiting.fail(self._refusal(request))
            return waiting.future
        self._waiting[token] = waiting
        try:
            self._decide(ask, self.env.clock.now_ms())
        except Exception:  # a defect: only this client gets an error
            self.appender.log_defect(f"{type(request).__name__} of client {client.id!r}")
            self._fail(token, ErrorCode.UNKNOWN_SERVER_ERROR)
        return waiting.future

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode | None:
        """Answer a Heartbeat immediately, extending its session; None without any effect if
        uncommitted changes precede it: then use `ask`. Hot.

        Equivalent to executing its decision, which consists of a timer and a code.
        """
        if self.phase is not _ACTIVE:
            return self._refusal(request)
        if self.settling.unsettled:
            return None
        code, member = self.shard.check_heartbeat(request)
        if member is not None:
            self.timers.set(request.group_id, session(member.id), member.session_timeout_ms)
        return code

    def _decide(self, ask: GroupRequest[Request, Response], now_ms: int) -> None:
        if isinstance(ask.request, OffsetCommitRequest):
            self._queue_commit(ask.token, self.shard.decide(ask, now_ms))
            return
        if not isinstance(ask.request, HeartbeatRequest):
            self._append_commits()
        failure = self._carry_out(self.shard.decide(ask, now_ms), now_ms)
        if failure is not None:
            self._fail(ask.token, failure)

    def _refusal(self, request: Request) -> ErrorCode:
        if self.phase is Phase.LOADING and isinstance(request, HeartbeatRequest):
            return ErrorCode.NONE  # its session has not begun; Kafka answers NONE, too
        return self.phase.value

    def _reply(self, reply: Reply) -> None:
        waiting = self._waiting.pop(reply.token, None)
        if waiting is not None:
            waiting.answer(reply.body)

    def _fail(self, token: int, code: ErrorCode) -> None:
        waiting = self._waiting.pop(token, None)
        if waiting is not None:
            waiting.fail(code)

    def _carry_out(self, decision: Decision, now_ms: int) -> ErrorCode | None:
        """Execute steps 2 to 4. Return the error if the records could not be appended; then nothing
        was changed."""
        records, transactional = decision.records, decision.transactional
        failure: ErrorCode | None = None
        if transactional is not None:
            failure = self.appender.append_transactional(transactional, now_ms)
        elif records:
            failure = self.appender.append(records, now_ms)
        if failure is not None:
            return failure
        if self._apply([decision], now_ms):
            appended = bool(records) or transactional is not None
            self._release([decision], appended=appended)
        return None

    def _release(self, decisions: Sequence[Decision], *, appended: bool) -> None:
        replies = [partial(self._reply, reply) for each in decisions for reply in each.replies]
        self.settling.release([*replies], appended=appended)

    def _apply(self, decisions: Sequence[Decision], now_ms: int) -> bool:
        """Apply the decisions. Return False after a defect: they may be partly applied, so
        everything is loaded again and every waiting client has been answered."""
        try:
            for decision in decisions:
                for step in decision.steps:
                    self.shard.apply(decision.group_id, step)
                for effect in decision.effects:
                    if isinstance(effect, SetTimer):
                        self.timers.set(decision.group_id, effect.key, effect.at_ms - now_ms)
                    elif isinstance(effect, CancelTimer):
                        self.timers.cancel(decision.group_id, effect.key)
                if decision.events:
                    self.events.report(decision.group_id, decision.events)
        except Exception:
            records = [record for decision in decisions for record in decision.records]
            self.appender.log_defect(f"applying {len(decisions)} decisions, {names_of(records)},")
            self._reload(delay_ms=DEFECT_RETRY_MS)
            return False
        return True

    def _commit_failed(self, failure: BaseException) -> None:
        where = f"{self.partition.topic}-{self.partition.index}"
        logger.error(
            "%s: appending to the log failed, loading the groups again: %s", where, failure
        )
        self._reload()

    def _settled(self) -> None:
        if not self.settling.unsettled:
            self._consider_snapshot()

    def _queue_commit(self, token: int, decision: Decision) -> None:
        if not decision.steps:
            self._carry_out(decision, self.env.clock.now_ms())
            return
        if not self._commits:
            self.env.call_soon(self._append_commits)
        self._commits.append((token, decision))

    def _append_commits(self) -> None:
        """Append the commits of this event-loop iteration together or, if that fails, individually:
        one that is too large must not fail the others."""
        commits, self._commits = self._commits, []
        if not commits:
            return
        now_ms = self.env.clock.now_ms()
        if len(commits) > 1:
            together = [record for _, decision in commits for record in decision.records]
            if self.appender.append(together, now_ms) is None:
                if self._apply([decision for _, decision in commits], now_ms):
                    self._release([decision for _, decision in commits], appended=True)
                return
        for token, decision in commits:
            if token not in self._waiting:
                return  # the coordinator was unloaded, which answered all clients
            failure = self._carry_out(decision, now_ms)
            if failure is not None:
                self._fail(token, failure)

    def _timer_due(self, group_id: str, key: str) -> None:
        if key == _EXPIRY:
            self.env.spawn(self._expire(self._life), f"expire {self.place.path}")
            return
        now_ms = self.env.clock.now_ms()
        try:
            failure = self._carry_out(self.shard.decide_timer(group_id, key, now_ms), now_ms)
        except Exception:
            self.appender.log_defect(f"timer {key} of group {group_id!r}")
            failure = ErrorCode.UNKNOWN_SERVER_ERROR
        if failure is not None:
            self.timers.set(group_id, key, RETRY_MS)

    async def _expire(self, life: int) -> None:
        """Forget offsets and groups past their retention, and schedule the next check."""
        for number, group_id in enumerate(list(self.shard.groups)):
            if number % EXPIRY_SLICE == EXPIRY_SLICE - 1:
                await self.env.slices.pause()
            if life != self._life or self.phase is not Phase.ACTIVE:
                return
            self._append_commits()
            now_ms = self.env.clock.now_ms()
            try:
                self._carry_out(self.shard.decide_expiry(group_id, now_ms), now_ms)
            except Exception:
                self.appender.log_defect(f"expiry of group {group_id!r}")
        if self.snapshot_bytes and self.env.clock.monotonic() * 1000 >= self._renewal_ms:
            self.env.spawn(self._store(least_bytes=1), f"store {self.place.path}")
        self.timers.set("", _EXPIRY, self.config.offsets_retention_check_interval_ms)

    def topic_deleted(self, topic: str) -> None:
        """Forget the offsets of a topic. Durable with the next commit of the log; if that fails, or
        while loading, it is repeated after the next load."""
        self._deletions += 1
        self.owed[topic] = self._deletions
        if self.phase is Phase.ACTIVE:
            self._append_commits()
            self._forget_topics({topic})

    def _forget_topics(self, topics: set[str]) -> None:
        """Only uncommitted tombstones are repeated by a later load, which would otherwise delete
        new commits, too."""
        decision = self.shard.decide_topic_deleted(topics)
        failure = self._carry_out(decision, self.env.clock.now_ms())
        if failure is None and self.phase is Phase.ACTIVE:  # else a defect: all is loaded again
            done = {topic: self.owed[topic] for topic in topics & self.owed.keys()}
            self.settling.release([partial(self._forgive, done)], appended=False)

    def _forgive(self, done: dict[str, int]) -> None:
        """Forget deletions whose tombstones are durable; a topic deleted again since is kept."""
        for topic, number in done.items():
            if self.owed.get(topic) == number:
                del self.owed[topic]

    def start(self, delay_ms: int = 0) -> None:
        """Load in the background, after a delay."""
        self._loading = self.env.spawn(self.load(delay_ms), f"load {self.place.path}")

    def _reload(self, delay_ms: int = 0) -> None:
        self._unload()
        self.start(delay_ms)

    async def load(self, delay_ms: int = 0) -> None:
        """Fill the shard and begin to answer; retry while the log cannot be read."""
        life = self._life
        logged = False
        while life == self._life and self.phase is Phase.LOADING:
            if delay_ms:
                await self.env.sleep(delay_ms / 1000)
            try:
                loaded = await load.load(
                    self.env, self.config, self.partition, self.commit_log, self.place
                )
                if life == self._life and self.phase is Phase.LOADING:
                    self._begin(loaded)
            except (KafkaError, OSError) as failure:
                if not logged:  # the disk or the remote tier may be unavailable for hours
                    logger.error(
                        "loading groups from %s failed, the next request retries: %s",
                        self.place.path,
                        failure,
                    )
                logged = True
                delay_ms = RETRY_MS
            except Exception:
                self.appender.log_defect(f"loading {self.place.path}")
                if life == self._life:
                    self._reload(DEFECT_RETRY_MS)

    def begin_empty(self) -> None:
        """Begin without loading: the partition is new."""
        self._begin(Loaded(Shard(self.config), 0, 0, 0))

    def _begin(self, loaded: Loaded) -> None:
        self.shard = loaded.shard
        self.appender.begin(loaded.next_offset, loaded.log_bytes)
        self.snapshot_bytes = loaded.snapshot_bytes
        self._renewal_ms = 0.0  # the age of a loaded snapshot is not known
        self.phase = Phase.ACTIVE
        now_ms = self.env.clock.now_ms()
        # Topics deleted just before a crash, or while their offsets were not loaded.
        gone = {topic for topic in self.shard.topics() if topic not in self.topics}
        self._forget_topics(gone | self.owed.keys())
        for decision in self.shard.decide_loaded(now_ms):
            self._carry_out(decision, now_ms)
        self.timers.set("", _EXPIRY, self.config.offsets_retention_check_interval_ms)

    def _unload(self) -> None:
        """Discard the state and answer all waiting clients with NOT_COORDINATOR."""
        self._life += 1
        self.phase = Phase.LOADING
        self.timers.clear()
        self.shard = Shard(self.config)
        self.settling.clear()
        self._commits.clear()
        for token in list(self._waiting):
            self._fail(token, ErrorCode.NOT_COORDINATOR)

    async def close(self) -> None:
        """Answer what can be answered, reject parked requests, and write a snapshot if that saves
        time at the next start."""
        if self.phase is Phase.ACTIVE:
            self._append_commits()
            try:
                await self.commit_log.committed()
            except KafkaError as error:
                logger.warning(
                    "committed offsets were not written to the log at shutdown: %s", error
                )
            else:
                await self._store(least_bytes=SNAPSHOT_LOG_BYTES // 8)
        if self._loading is not None:
            self._loading.cancel()
        self._unload()
        self.phase = Phase.CLOSED

    def _consider_snapshot(self) -> None:
        least = max(SNAPSHOT_LOG_BYTES, 2 * self.snapshot_bytes)
        if self.appender.log_bytes >= least and not self._storing:
            self.env.spawn(self._store(least), f"store {self.place.path}")

    async def _store(self, least_bytes: int) -> None:
        """Write a snapshot of the current state once that is committed."""
        if self.appender.log_bytes < least_bytes or self._storing or self.shard.offsets.lost:
            return  # a snapshot would lose the damaged commits, which would be -1 from then on
        self._storing = True
        life, covered = self._life, self.appender.log_bytes
        live = LiveState(
            self.appender.next_offset,
            list(self.shard.records()),
            list(self.shard.offsets.pending.records()),
        )
        try:
            await self.commit_log.committed()
            if life == self._life:
                self.snapshot_bytes = await load.store(self.env, self.place, live)
                self.appender.snapshot_stored(covered)
                age_ms = min(SNAPSHOT_MAX_AGE_MS, self.partition.config.delete_retention_ms // 4)
                self._renewal_ms = self.env.clock.monotonic() * 1000 + age_ms
        except (KafkaError, OSError) as error:
            logger.warning("cannot write group snapshot %s: %s", self.place.path, error)
        finally:
            self._storing = False
