"""One coordinator partition at work: decides, appends, applies; answers and sends markers later.

1. The shard decides; nothing has changed. A decision that needs a fresh producer id is made again
   when there is one.
2. The records of the decision are appended. If that fails, the request is answered with the error
   and nothing is applied.
3. All steps are applied at once: the next request sees them.
4. The answer leaves, and markers are sent, after the commit that covers everything applied before.
If a commit fails, what was applied may be wrong: the partition is unloaded, every client that waits
is answered NOT_COORDINATOR, and the partition is loaded from what is committed.

One per led partition of `__transaction_state`, held by kafkawire.transactions.service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination.coordinator import (
    DEFECT_RETRY_MS,
    RETRY_MS,
    CoordinatorPhase,
    EncodeSnapshot,
    PartitionCoordinator,
)
from kafkawire.log.io.ports import Env
from kafkawire.transactions.coordinator_log import (
    TransactionAppender,
    TransactionLoader,
    encode,
    snapshot_place,
)
from kafkawire.transactions.machine.decision import (
    DropMarkers,
    Effect,
    SendMarkers,
    TransactionDecision,
)
from kafkawire.transactions.machine.records import TransactionRecord
from kafkawire.transactions.machine.request import (
    AddPartitions,
    Answer,
    Request,
    TransactionConfig,
    VerifyPartitions,
)
from kafkawire.transactions.machine.shard import TransactionShard
from kafkawire.transactions.machine.transaction import (
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TopicPartition,
)
from kafkawire.transactions.marker_sender import MarkerSender, Results

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)


# Requests that wait until the transaction of an id is complete: its markers are written.
#
# A producer may begin its next transaction as soon as the outcome of the last one is durable,
# shortly before that one is complete. Waiting for the completion is faster than asking again at an
# interval.


class CompletionWaiters:
    """The waiting requests by transactional id. Each connection has at most one."""

    __slots__ = ("_by_id", "_env")

    def __init__(self, env: Env) -> None:
        self._env = env
        self._by_id: dict[str, list[asyncio.Future[None]]] = {}

    async def wait(self, transactional_id: str, timeout_s: float) -> None:
        """Return when `wake` is called for the id, or after `timeout_s` seconds."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._by_id.setdefault(transactional_id, [])
        waiting.append(done)
        timer = self._env.call_later(timeout_s, _settle, done)
        try:
            await done
        # Also if the connection has closed, which cancels the request.
        finally:
            timer.cancel()
            waiting.remove(done)
            if not waiting and self._by_id.get(transactional_id) is waiting:
                del self._by_id[transactional_id]

    def wake(self, transactional_id: str) -> None:
        for done in self._by_id.get(transactional_id, ()):
            _settle(done)

    def wake_all(self) -> None:
        """Continue all requests: the coordinator is unloaded."""
        for transactional_id in self._by_id:
            self.wake(transactional_id)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


# Counters of one coordinator, plain integers that the metrics page reads.


class TransactionCounts:
    """Since the start: transactions `committed` and `aborted` (also by timeout, or because a new
    producer took over the id), and requests refused because their producer was `fenced`."""

    __slots__ = ("aborted", "committed", "fenced")

    def __init__(self) -> None:
        self.committed = 0
        self.aborted = 0
        self.fenced = 0

    def add(self, answer: Answer | None, records: Sequence[TransactionRecord]) -> None:
        if answer is not None and answer.code is ErrorCode.PRODUCER_FENCED:
            self.fenced += 1
        for record in records:
            after = record.value
            if after is None:
                continue
            if after.state is PREPARE_COMMIT:
                self.committed += 1
            # An abort without any partition only raises the epoch: there was no transaction.
            elif after.state is PREPARE_ABORT and after.partitions:
                self.aborted += 1


MARKER_RETRY_MS = 100
"""When markers that a partition refused are sent again (Kafka: retry.backoff.ms)."""
CHECKED_AT_ONCE = 500
"""Ids checked for a timeout or expiry between other work: the tombstones of all of them take a few
milliseconds."""

T = TypeVar("T")
Decide = Callable[[int, "int | None"], TransactionDecision]
"""A decision at a time, with a fresh producer id if one was needed."""
Reply = Callable[[Answer], None]
Decided = Callable[[], None]
TakeProducerId = Callable[[], Awaitable[int]]


class TransactionCoordinator(PartitionCoordinator[TransactionLoader]):
    """The coordinator of one partition's transactional ids; `start` or `begin_empty` it once."""

    contents = "transactions"

    def __init__(
        self,
        env: Env,
        config: TransactionConfig,
        partition: Partition,
        commit_log: CommitLog,
        folder: str,
        sender: MarkerSender,
        take_producer_id: TakeProducerId,
    ) -> None:
        self.appender = TransactionAppender(partition, config)
        place = snapshot_place(folder, partition)
        super().__init__(env, partition, commit_log, place, self.appender)
        self.config = config
        self.sender = sender
        self.take_producer_id = take_producer_id
        self.shard = TransactionShard(config, partition.leader_epoch)
        self.counts = TransactionCounts()
        self._completions = CompletionWaiters(env)
        self._waiting: dict[Reply, None] = {}

    # -- requests -------------------------------------------------------------------------

    def request_decision(
        self, request: Request, reply: Reply, decided: Decided | None = None
    ) -> None:
        """Decide a request now; `reply` is called with its answer when it is due, perhaps before
        this returns; `decided` earlier: now, or once a producer id that is needed is taken. Hot."""
        if self.phase is not CoordinatorPhase.ACTIVE:
            reply(Answer(self.phase.value))
            return
        self._waiting[reply] = None
        if isinstance(request, AddPartitions) and self.shard.is_large(request):
            self.env.spawn(self._decide_prepared(request, reply, decided), "encode many partitions")
            return
        decide = partial(self.shard.decide, request)
        if self._decide(decide, request, partial(self._answer, reply)):
            self.env.spawn(self._decide_with_id(decide, request, reply, decided), "take an id")
        elif decided is not None:
            decided()

    def answer_request(self, request: Request) -> asyncio.Future[Answer]:
        future = answer_future()
        self.request_decision(request, partial(settle_answer, future))
        return future

    async def verify(self, request: VerifyPartitions) -> dict[TopicPartition, ErrorCode]:
        """Whether partitions are part of the open transaction, as of what is committed."""
        try:
            return await self.read(partial(self.shard.verify, request))
        except KafkaError as error:
            return dict.fromkeys(request.partitions, error.code)

    def answer_at_once(self, request: AddPartitions | VerifyPartitions) -> bool:
        """Whether partitions belong to the open transaction, added if that is asked for; the record
        need not be committed. False: nothing was done; `answer_request` or `verify` gives the
        reason. For a caller that appends to the same commit log before the event loop runs on."""
        # Without a wait for the commit: a write or a crash that loses the record loses everything
        # that was appended after it, too.
        if self.phase is not CoordinatorPhase.ACTIVE:
            return False
        if isinstance(request, VerifyPartitions):
            return not any(self.shard.verify(request).values())
        # Its record has to be prepared in slices.
        if self.shard.is_large(request):
            return False
        now_ms = self.env.clock.now_ms()
        decision = self.shard.decide(request, now_ms)
        if decision.answer is None or decision.answer.code is not ErrorCode.NONE:
            return False
        return self._carry_out(decision, now_ms, awaited=False) is None

    async def wait_for_completion(self, transactional_id: str, timeout_s: float) -> None:
        """Return when no markers of an id are outstanding, or after `timeout_s` seconds."""
        if transactional_id in self.shard.pending:
            await self._completions.wait(transactional_id, timeout_s)

    async def read(self, query: Callable[[], T]) -> T:
        """The result of a query now, when everything it can have seen is committed. Raises
        NOT_COORDINATOR if that failed, and the error of the phase."""
        if self.phase is not CoordinatorPhase.ACTIVE:
            raise KafkaError(self.phase.value)
        found = query()
        # The result may show a step whose commit fails, after which it was never true.
        if self.commits.unsettled:
            seen = answer_future()
            reply = partial(settle_answer, seen)
            self._waiting[reply] = None
            effect = partial(self._answer, reply, Answer(ErrorCode.NONE))
            self.commits.release([effect], appended=False)
            if code := (await seen).code:
                raise KafkaError(code)
        return found

    def _answer(self, reply: Reply, answer: Answer) -> None:
        # Else the coordinator was unloaded meanwhile, which has answered it.
        if reply in self._waiting:
            del self._waiting[reply]
            reply(answer)

    async def _decide_with_id(
        self, decide: Decide, request: Request, reply: Reply, decided: Decided | None
    ) -> None:
        """Decide again with a fresh producer id, unless the answer was given meanwhile."""
        try:
            fresh_id = await self.take_producer_id()
        except KafkaError as error:
            self._answer(reply, Answer(error.code))
            return
        except Exception:
            self.appender.log_defect(f"a producer id for {_describe_decision(request)}")
            self._answer(reply, Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        if reply in self._waiting:
            self._decide(decide, request, partial(self._answer, reply), fresh_id)
            if decided is not None:
                decided()

    async def _decide_prepared(
        self, request: AddPartitions, reply: Reply, decided: Decided | None
    ) -> None:
        """Decide when the partitions of the record are encoded."""
        # Should the transaction have got others meanwhile, which no client does, the appender does
        # not use these and encodes all at once.
        try:
            partitions = self.shard.partitions_after(request)
            await self.appender.prepare(request.transactional_id, partitions, self.env.slices)
        except Exception:
            self.appender.log_defect(_describe_decision(request))
            self._answer(reply, Answer(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        if reply in self._waiting:
            decide = partial(self.shard.decide, request)
            self._decide(decide, request, partial(self._answer, reply))
            if decided is not None:
                decided()

    async def _prepare_loaded(self, transactional_ids: Iterable[str], life: int) -> None:
        # The record that ends each has all of its partitions, and is encoded in one step otherwise.
        for transactional_id in transactional_ids:
            at = self.shard.transactions.get(transactional_id)
            if life == self._life and at is not None and at.state is ONGOING:
                await self.appender.prepare(transactional_id, at.partitions, self.env.slices)

    # -- decisions ------------------------------------------------------------------------

    def _decide(
        self, decide: Decide, what: Request | str, answer: Reply, fresh_id: int | None = None
    ) -> bool:
        """Decide `what` and carry it out. True: nothing was done, a fresh producer id is needed."""
        now_ms = self.env.clock.now_ms()
        try:
            decision = decide(now_ms, fresh_id)
        except Exception:  # a defect: this client gets an error, all others continue
            self.appender.log_defect(_describe_decision(what))
            answer(Answer(ErrorCode.UNKNOWN_SERVER_ERROR))
            return False
        if decision.needs_producer_id:
            return True
        failure = self._carry_out(decision, now_ms, answer)
        if failure is not None:
            answer(Answer(failure))
        return False

    def _carry_out(
        self,
        decision: TransactionDecision,
        now_ms: int,
        answer: Reply | None = None,
        *,
        awaited: bool = True,
    ) -> ErrorCode | None:
        """Steps 2 to 4. The error, if the records could not be appended: nothing was done. Without
        `awaited` no caller gets the answer. Hot."""
        records = decision.records
        if records:
            failure = self.appender.append(records, now_ms)
            if failure is not None:
                return failure
        self.counts.add(decision.answer, records)
        try:
            for step in decision.steps:
                self.shard.apply(step)
                if step.transactional_id not in self.shard.pending:
                    self._completions.wake(step.transactional_id)
        except Exception:
            self.appender.log_defect(f"applying {decision.steps}")
            self.reload(delay_ms=DEFECT_RETRY_MS)
            return None
        # After the commit: a marker that left before could commit a partition, while a crash takes
        # the record with the outcome, and the transaction is aborted elsewhere.
        effects: list[Callable[[], None]] = []
        for effect in decision.effects:
            effects.append(partial(self._perform, effect))
        if answer is not None and decision.answer is not None:
            effects.append(partial(answer, decision.answer))
        # Without effects, too: answers that show the new state must wait for its commit.
        if effects or (records and not awaited):
            self.commits.release(effects, appended=bool(records))
        # A completion requests no commit: the outcome was fixed by the record before, and if a
        # crash takes this one, the markers are written again.
        elif records:
            self.commits.expect_write()
        return None

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendMarkers):
            appended = self.sender.append_at_once(effect)
            if appended is None:
                self.sender.send(effect, self.markers_done)
            else:
                self.markers_done(effect, appended, durable=False)
            return
        logger.error(
            "%s-%d: transactional id %s: partitions %s have seen a newer producer or coordinator "
            "epoch than %d and %d; no more markers are sent, its state remains until the "
            "coordinator is loaded again",
            self.partition.topic, self.partition.index, effect.work.transactional_id,
            sorted(effect.partitions), effect.work.producer_epoch, effect.work.coordinator_epoch,
        )  # fmt: skip

    # -- markers --------------------------------------------------------------------------

    def markers_done(self, work: SendMarkers, results: Results, *, durable: bool = True) -> None:
        """Take results of markers; those that failed are sent again after a while. `durable`:
        markers that were written are committed."""
        # Unloaded meanwhile: after the load all markers are sent again.
        if self.phase is not CoordinatorPhase.ACTIVE:
            return
        now_ms = self.env.clock.now_ms()
        try:
            decision = self.shard.decide_markers(work, results, now_ms)
        except Exception:
            self.appender.log_defect(f"markers of {work.transactional_id!r}")
            return
        # A frame of its own, after those with the markers: no crash may keep the completion alone.
        if not durable:
            self.partition.begin_frame()
        again = [effect for effect in decision.effects if isinstance(effect, SendMarkers)]
        decision.effects = [each for each in decision.effects if isinstance(each, DropMarkers)]
        if self._carry_out(decision, now_ms, awaited=durable) is not None:
            if durable:
                self._later(RETRY_MS, self.markers_done, work, results)
            # The markers may be lost, too, so they are written again.
            else:
                self._later(RETRY_MS, self._perform, work)
            return
        for effect in again:
            self._later(MARKER_RETRY_MS, self._perform, effect)

    def _later(self, delay_ms: int, fn: Callable[..., None], *args: object) -> None:
        self.env.call_later(delay_ms / 1000, self._if_alive, self._life, fn, *args)

    def _if_alive(self, life: int, fn: Callable[..., None], *args: object) -> None:
        if life == self._life and self.phase is CoordinatorPhase.ACTIVE:
            fn(*args)

    # -- tasks ----------------------------------------------------------------------------

    async def abort_overdue(self) -> None:
        """Abort the transactions that are open for longer than their timeout. Called every
        transaction.abort.timed.out.transaction.cleanup.interval.ms."""
        life = self._life
        if self.phase is not CoordinatorPhase.ACTIVE:
            return
        for transactional_id in await self._overdue():
            if life != self._life:
                return
            decide = partial(self.shard.decide_timeout, transactional_id)
            what = f"timeout of {transactional_id!r}"
            if self._decide(decide, what, _not_answered):
                try:
                    fresh_id = await self.take_producer_id()
                except KafkaError as error:
                    logger.warning("%s: no producer id, tried again later: %s", what, error)
                    continue
                if life != self._life:
                    return
                self._decide(decide, what, _not_answered, fresh_id)
            await self.env.slices.give_way()

    async def _overdue(self) -> list[str]:
        found: list[str] = []
        for part in _portions(self.shard.transactions):
            found += self.shard.timed_out(self.env.clock.now_ms(), part)
            await self.env.slices.give_way()
        return found

    async def expire(self) -> None:
        """Forget the ids without a change for transactional.id.expiration.ms. Called every
        transaction.remove.expired.transaction.cleanup.interval.ms."""
        life = self._life
        if self.phase is not CoordinatorPhase.ACTIVE:
            return
        for part in _portions(self.shard.transactions):
            if life != self._life or self.phase is not CoordinatorPhase.ACTIVE:
                return
            now_ms = self.env.clock.now_ms()
            decision = self.shard.decide_expiry(part, now_ms)
            # The log refuses appends: expiry is not urgent, the next run repeats it.
            if self._carry_out(decision, now_ms) is not None:
                return
            await self.env.slices.pause()

    # -- loading and ending ---------------------------------------------------------------

    def new_loader(self) -> TransactionLoader:
        return TransactionLoader(self.env, self.config, self.partition, self.commit_log, self.place)

    def activate(self, loaded: TransactionLoader) -> None:
        self.shard = loaded.shard
        if loaded.large:
            self.env.spawn(self._prepare_loaded(loaded.large, self._life), "encode many partitions")
        # A copy: requests will add others, which send their markers themselves.
        decided = list(self.shard.pending)
        if decided:
            self.env.spawn(self._resume(decided, self._life), f"resume {self.place.path}")

    async def _resume(self, decided: list[str], life: int) -> None:
        """Send the markers of transactions that were decided before the load."""
        for transactional_id in decided:
            if life != self._life:
                return
            now_ms = self.env.clock.now_ms()
            decision = self.shard.decide_resumed(transactional_id, now_ms)
            # Else the id would stay prepared, with no marker to come.
            if self._carry_out(decision, now_ms) is not None:
                self.reload(RETRY_MS)
            await self.env.slices.give_way()

    def discard(self) -> None:
        self.shard = TransactionShard(self.config, self.partition.leader_epoch)
        # The next load sends them again, with the epoch of then.
        self.sender.clear_queue(self.markers_done)
        for reply in list(self._waiting):
            self._answer(reply, Answer(ErrorCode.NOT_COORDINATOR))
        self._completions.wake_all()

    def capture(self) -> EncodeSnapshot | None:
        version = self.config.transaction_version
        return partial(encode, self.env, self.appender.next_offset, version, self.shard.live())


def answer_future() -> asyncio.Future[Answer]:
    return asyncio.get_running_loop().create_future()


def settle_answer(future: asyncio.Future[Answer], answer: Answer) -> None:
    # Cancelled, if its connection has closed.
    if not future.done():
        future.set_result(answer)


def _describe_decision(what: Request | str) -> str:
    return what if isinstance(what, str) else f"{type(what).__name__} of {what.transactional_id!r}"


def _portions(ids: Iterable[str]) -> Iterator[list[str]]:
    # A copy: the ids change between two portions.
    known = list(ids)
    for start in range(0, len(known), CHECKED_AT_ONCE):
        yield known[start : start + CHECKED_AT_ONCE]


def _not_answered(answer: Answer) -> None:
    """Take the answer of a decision that no client asked for."""
    if answer.code:
        logger.warning("a transaction could not be aborted: %s", answer.code.name)
