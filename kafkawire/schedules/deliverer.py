"""Delivery of one schedule partition: follows its records and appends them to their targets.

One task for each partition. A round follows what is new, delivers what is due, or waits for
either. A step of delivery is

1. read the records, find their targets;
2. append the plan of the step to `__schedule_state`, and directly after it the batches;
3. wait for the commit of both.

There is one step at a time. If anything after the plan fails, the batches of the plan are appended
again until all are there: a partition that has one recognizes it by its sequence numbers.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkawire.codec.batches import Record
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.messages.describe_schedules import (
    ScheduleHour,
    SchedulePartition,
    UndeliveredRecord,
)
from kafkawire.plural import count
from kafkawire.schedules.backlog import SAVED_EVERY_S, Backlog
from kafkawire.schedules.feed import RecordFeed
from kafkawire.schedules.headers import Delivery, Invalid
from kafkawire.schedules.progress import Due, Progress
from kafkawire.schedules.states import PlannedBatch, ScheduleKey, ScheduleState
from kafkawire.schedules.step import (
    DueRecord,
    OutgoingBatch,
    Place,
    TargetTopic,
    batches_of,
    fault_of,
    sequence_after,
)
from kafkawire.schedules.waiting import Arrival, WaitingIndex, is_damage

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

STEP_RECORDS = 500
"""Records of a step: its plan takes 8 KB, and 40 steps a second deliver 20,000 records. What is
done for all of them at once takes one or two milliseconds."""
AHEAD_MS = 5_000
"""Records are read so long before they are due: a slow read from the remote tier takes less."""
HELD_MAX = 1_000
"""Records that wait for their target; with more, the partition delivers nothing until one is
there: each is in every state record."""
CORNERS_MAX = 16
"""Corners of the progress from which on nothing new is followed until late records are
delivered."""
HELD_RETRY_S = 5.0
"""How often the targets of held records are looked up again."""
RETRY_S = 1.0
"""Pause after a failure of the log or of a read: disks recover in seconds."""
RELEASED_EVERY_S = 60.0
"""How often it is looked up from where on records wait, a tenth of a second for a million; and how
long the plan of a complete step is kept, far shorter than producer.id.expiration.ms."""
SLEPT_MAX_S = 1.0
"""Longest pause while a record waits: the clock may jump."""
HOURS_SHOWN = 48
"""Hours with waiting records that are counted for operators."""
REASONS_MAX = 100
"""Reasons kept for operators, the newest ones."""


class StateStore(Protocol):
    """Where the states are kept (kafkawire.schedules.states.StateCoordinator)."""

    def get(self, key: ScheduleKey) -> ScheduleState | None:
        """Return the state of a schedule partition, None if it has none."""

    def store(self, key: ScheduleKey, state: ScheduleState | None) -> ErrorCode | None:
        """Append a state and apply it. Return the error if nothing was appended."""


class TargetPort(Protocol):
    """The topics of the broker, as targets."""

    def find_target(self, topic: str) -> TargetTopic:
        """Return a topic that records may be delivered to. Raises KafkaError with the reason."""

    async def partition(self, place: Place) -> Partition:
        """Return a partition, in memory. Raises KafkaError."""

    async def take_producer_id(self) -> int:
        """Return a producer id that no other producer has. Raises KafkaError."""


class DelivererCounts:
    """Counts of a deliverer since the start, in plain integers that the metrics page reads.
    `late_ms`: of the last step, when its oldest record was appended."""

    __slots__ = ("delivered", "invalid", "late_ms")

    def __init__(self) -> None:
        self.delivered = 0
        self.invalid = 0
        self.late_ms = 0


class StepContents(NamedTuple):
    """The contents of a step: `batches` with their partitions, `held` records with the reasons, and
    the records that repeat."""

    batches: list[tuple[OutgoingBatch, Partition]]
    held: dict[Due, str]
    repeating: list[tuple[Record, Delivery]]


class Deliverer:
    """Delivers the records of one schedule partition. `reasons`: why records are held or were not
    delivered, by offset."""

    def __init__(
        self,
        env: Env,
        partition: Partition,
        commit_log: CommitLog,
        states: StateStore,
        index: WaitingIndex,
        targets: TargetPort,
    ) -> None:
        self._env = env
        self._partition = partition
        self._commit_log = commit_log
        self._states = states
        self._targets = targets
        self._key = partition.topic_id, partition.index
        self.topic = partition.topic
        self.name = f"{partition.topic}-{partition.index}"
        feed = RecordFeed(env, partition, commit_log)
        self.backlog = Backlog(env, partition, commit_log, feed, index)
        self._ahead: dict[int, Record] = {}
        self._held_tried_s = 0.0
        self._release_at_s = 0.0
        self._mark = (0, 0)  # an end of the committed records, and when it was
        self._known_ms = 0  # what was committed until then is followed
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.reasons: dict[int, str] = {}
        self.counts = DelivererCounts()

    # -- life -----------------------------------------------------------------------------

    def start(self) -> None:
        self._partition.watch(self._wake_up)
        self._task = self._env.spawn(self._run(), f"deliver {self.name}")

    async def close(self) -> None:
        """End; the next start completes an interrupted step."""
        self._partition.unwatch(self._wake_up)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _wake_up(self, partition: Partition) -> None:
        self._wake.set()

    async def _run(self) -> None:
        opened = False
        while not self._partition.removed:
            try:
                if not opened:
                    await self.backlog.open(self._progress)
                    await self._repeat()
                    opened = True
                await self._round()
            # What was delivered is known from the state and the index, so all else is read again.
            except Exception as failure:
                opened = False
                await self._handle_failure(failure)

    async def _handle_failure(self, failure: Exception) -> None:
        again = "it starts again in a second"
        if isinstance(failure, sqlite3.Error) and is_damage(failure):
            await self.backlog.rebuild_index(str(failure))
        elif isinstance(failure, KafkaError | OSError | sqlite3.OperationalError):
            logger.warning("%s: delivery is interrupted, %s: %s", self.name, again, failure)
        else:
            logger.error("%s: delivery failed, %s", self.name, again, exc_info=failure)
        await self._env.sleep(RETRY_S)

    @property
    def state(self) -> ScheduleState | None:
        """Its state, None before the first delivery."""
        return self._states.get(self._key)

    @property
    def _progress(self) -> Progress:
        state = self.state
        return Progress() if state is None else state.progress

    async def describe(self, *, details: bool) -> SchedulePartition:
        """Return its figures; `details`: also the waiting records by hour, and the records that are
        not delivered, with the reasons. Raises sqlite3.Error."""
        config, state = self._partition.config, self.state
        held = () if state is None else state.held
        first_ms = self.backlog.first_due_ms()
        row = SchedulePartition(
            self.topic,
            self._partition.index,
            config.schedule_topic,
            config.schedule_header,
            config.cleanup_compact,
            self.backlog.followed,
            self._partition.high_watermark,
            self.backlog.waiting,
            len(held),
            -1 if first_ms is None else first_ms,
            self.counts.late_ms,
            self.counts.delivered,
            self.counts.invalid,
        )
        if details:
            row.hours = [ScheduleHour(*hour) for hour in await self.backlog.hours(HOURS_SHOWN)]
            row.undelivered = self._list_undelivered(held)
        return row

    def _list_undelivered(self, held: Collection[Due]) -> list[UndeliveredRecord]:
        waits = "its target did not take it; the reason is looked up within seconds"
        found = [
            UndeliveredRecord(offset, due_ms, True, self.reasons.get(offset, waits))
            for due_ms, offset in held
        ]
        known = {each.offset for each in found}
        for offset, reason in self.reasons.items():
            if offset not in known:
                found.append(UndeliveredRecord(offset, reason=reason))
        return found

    # -- rounds ---------------------------------------------------------------------------

    async def _round(self) -> None:
        # First: what arrives during the round wakes the next one.
        self._wake.clear()
        await self.backlog.finish_saving()
        backlog, progress = self.backlog, self._progress
        # Late records add corners, and every state record has all of them: deliver them first.
        many = len(progress.corners) >= CORNERS_MAX
        if self._behind() and not (many and backlog.next_due(1, self._env.clock.now_ms())):
            for offset, reason in await backlog.follow(progress):
                self._refuse(offset, reason)
        await backlog.fill(progress)
        if self._commit_log.config.broker_read_only:  # nor do producers write to targets
            await self._env.sleep(RETRY_S)
            return
        if await self._retry_held():
            return
        now_ms = self._env.clock.now_ms()
        until_ms = now_ms if many else self._known_until(now_ms)
        entries = backlog.next_due(STEP_RECORDS, until_ms)
        if entries:
            await self._deliver(entries, until_ms)
        elif not self._behind():
            await backlog.save_if_due()
            await self._release()
            await self._read_ahead()
            await self._wait()

    def _behind(self) -> bool:
        """Whether there are committed records that are not followed."""
        return self.backlog.followed < self._partition.last_stable_offset

    def _known_until(self, now_ms: int) -> int:
        """Return up to which due time records may be delivered."""
        # What was committed before that time is followed, so what cancels or replaces a record in
        # time is known.
        followed, end = self.backlog.followed, self._partition.last_stable_offset
        if followed >= end:
            self._known_ms = now_ms
        elif followed >= self._mark[0]:
            self._known_ms, self._mark = self._mark[1], (end, now_ms)
        return min(self._known_ms, now_ms)

    async def _wait(self) -> None:
        delays_s = []
        first_ms = self.backlog.first_due_ms()
        if first_ms is not None:
            delay_ms = first_ms - self._env.clock.now_ms()
            delays_s.append(min(max(delay_ms, 0) / 1000, SLEPT_MAX_S))
        if self.backlog.has_unsaved():
            delays_s.append(SAVED_EVERY_S)
        state = self.state
        if state is not None and state.held:
            delays_s.append(HELD_RETRY_S)
        if (state and state.batches) or self._partition.kept_from < self.backlog.followed:
            delays_s.append(RELEASED_EVERY_S)
        timer = self._env.call_later(min(delays_s), self._wake.set) if delays_s else None
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _release(self) -> None:
        """From time to time, release to retention what is delivered, and remove its plan."""
        now_s = self._env.clock.monotonic()
        if now_s < self._release_at_s:
            return
        self._release_at_s = now_s + RELEASED_EVERY_S
        least = await self.backlog.least_offset()
        state = self.state
        # The step is complete. Its plan must go: the target forgets the producer of an idle
        # schedule, and a repetition could not be recognized then.
        if state and state.batches:
            self._states.store(self._key, state._replace(batches=()))
        held = () if state is None else state.held
        self._partition.keep_from(min([least, *(offset for _, offset in held)]))

    async def _read_ahead(self, after: int = 0) -> None:
        """Read the records that are due next, so that they are not late because of the read; the
        first `after` of them are being delivered."""
        until_ms = self._env.clock.now_ms() + AHEAD_MS
        entries = self.backlog.next_due(after + STEP_RECORDS, until_ms)[after:]
        wanted = {offset for _, offset in entries}
        missing = [each for each in entries if each[1] not in self._ahead]
        found = await self.backlog.records(missing) if missing else {}
        self._ahead = {at: each for at, each in self._ahead.items() if at in wanted} | found

    async def _committed_meanwhile(self, work: Coroutine[None, None, None]) -> None:
        """Wait for the commit of what was appended, and do some work meanwhile."""
        committed = self._env.spawn(
            self._commit_log.wait_until_committed(), f"commit of {self.name}"
        )
        try:
            await work
        finally:
            await committed

    def _refuse(self, offset: int, reason: str) -> None:
        self.counts.invalid += 1
        self._note(offset, reason)
        logger.warning(
            "%s: the record at offset %d is not delivered: %s", self.name, offset, reason
        )

    def _note(self, offset: int, reason: str) -> None:
        self.reasons[offset] = reason
        while len(self.reasons) > REASONS_MAX:
            self.reasons.pop(next(iter(self.reasons)))

    # -- steps ----------------------------------------------------------------------------

    async def _deliver(self, entries: Sequence[Due], until_ms: int) -> None:
        """Deliver the records that are due until then, and advance the progress past them."""
        contents = await self._contents(entries, self._env.clock.now_ms())
        state = self.state
        held = () if state is None else state.held
        if len(held) + len(contents.held) > HELD_MAX:
            reason = next(iter(contents.held.values()))
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{HELD_MAX} records wait for their targets, and another one, because {reason}",
            )
        until = self.backlog.until(entries, STEP_RECORDS, until_ms)
        progress = self._progress.add_corner(self.backlog.followed, until)
        await self._append(contents, progress, (*held, *contents.held))
        # Only now: if the append fails the records still wait.
        again = self._again(contents.repeating, progress)
        await self._env.slices.give_way()
        self.backlog.remove_delivered(entries, again, progress)
        await self._env.slices.give_way()
        self.backlog.save_many()
        self.counts.late_ms = self._env.clock.now_ms() - entries[0][0]
        for _, offset in entries:
            self._ahead.pop(offset, None)

    async def _retry_held(self) -> bool:
        """Deliver held records whose targets exist now; return whether there were any."""
        state, now_s = self.state, self._env.clock.monotonic()
        if state is None or not state.held or now_s - self._held_tried_s < HELD_RETRY_S:
            return False
        self._held_tried_s = now_s
        entries = state.held[:STEP_RECORDS]
        contents = await self._contents(entries, self._env.clock.now_ms())
        kept = tuple(each for each in state.held if each not in entries or each in contents.held)
        if len(kept) == len(state.held):
            return False
        await self._append(contents, state.progress, kept)
        return True

    def _again(
        self, repeating: Sequence[tuple[Record, Delivery]], progress: Progress
    ) -> list[Arrival]:
        found = (self.backlog.again(*each, progress) for each in repeating)
        return [arrival for arrival in found if arrival is not None]

    async def _contents(self, entries: Sequence[Due], now_ms: int) -> StepContents:
        """Read the records of a step and find their targets, without those no more in the log."""
        found = await self._records(entries)
        held: dict[Due, str] = {}
        repeating: list[tuple[Record, Delivery]] = []
        due_records: list[DueRecord] = []
        targets: dict[str, TargetTopic | str] = {}
        for due in entries:
            record = found.get(due[1])
            asked = None if record is None else self.backlog.instruction(record)
            if record is None or not isinstance(asked, Delivery):
                self._refuse(
                    due[1], asked.reason if isinstance(asked, Invalid) else "it is deleted"
                )
                continue
            if asked.repetition is not None:
                repeating.append((record, asked))
            target = self._target(record, asked, targets)
            if isinstance(target, TargetTopic):
                due_records.append(DueRecord(due, record, target))
            else:
                held[due] = target
                self._note(due[1], target)
            await self._env.slices.give_way()
        batches = await self._env.slices.run(batches_of(due_records, self.name, now_ms))
        ready: list[tuple[OutgoingBatch, Partition]] = []
        for batch in batches:
            try:
                ready.append((batch, await self._targets.partition(batch.place)))
            except KafkaError as error:
                held |= dict.fromkeys(batch.entries, str(error))
        return StepContents(ready, held, repeating)

    def _target(
        self, record: Record, delivery: Delivery, known: dict[str, TargetTopic | str]
    ) -> TargetTopic | str:
        """Return a record's target, or why it is not deliverable now. `known`: of the same step."""
        name = delivery.target or self._partition.config.schedule_topic
        target = known.get(name)
        if target is None:
            try:
                target = self._targets.find_target(name)
            except KafkaError as error:
                target = error.message or str(error)
            known[name] = target
        if isinstance(target, str):
            return target
        return fault_of(record, target, self.name) or target

    async def _records(self, entries: Sequence[Due]) -> dict[int, Record]:
        known = {at: self._ahead[at] for _, at in entries if at in self._ahead}
        missing = [each for each in entries if each[1] not in known]
        return known | await self.backlog.records(missing) if missing else known

    async def _append(
        self, contents: StepContents, progress: Progress, held: tuple[Due, ...]
    ) -> None:
        """Append the plan of a step and its batches; return when they are committed. Raises
        KafkaError: then the step is complete, incomplete, or was never begun."""
        state = self.state
        producer_id = -1 if state is None else state.producer_id
        if producer_id < 0:
            producer_id = await self._targets.take_producer_id()
        epoch = 0 if state is None else state.producer_epoch
        planned = _plan_batches(contents.batches, producer_id)
        plan = ScheduleState(producer_id, epoch, progress, held, tuple(planned))
        packed: list[bytearray] = []
        for (batch, _), each in zip(contents.batches, planned, strict=True):
            packed.append(await self._pack(batch, plan, each))
        # What follows has to be appended in one step, without an await.
        await self._env.slices.pause()
        failure = self._states.store(self._key, plan)
        if failure is not None:
            raise KafkaError(failure)
        now_ms = self._env.clock.now_ms()
        for content, (_, partition) in zip(packed, contents.batches, strict=True):
            # No crash may keep the batch without the plan: it would be delivered again with another
            # sequence number.
            partition.begin_frame()
            partition.append(memoryview(content), now_ms)
        await self._committed_meanwhile(self._read_ahead(after=len(planned) and STEP_RECORDS))
        self.counts.delivered += sum(len(each.entries) for each in planned)

    async def _pack(
        self, batch: OutgoingBatch, state: ScheduleState, planned: PlannedBatch
    ) -> bytearray:
        return await self._env.slices.run(
            batch.pack_in_steps(state.producer_id, state.producer_epoch, planned.base_sequence)
        )

    # -- after a failure or a start -------------------------------------------------------

    async def _repeat(self) -> None:
        """Append the batches of the last step that are not in their partitions. Raises KafkaError,
        OSError if that fails."""
        state = self.state
        if state is None:
            return
        for planned in state.batches:
            place = planned.topic_id, planned.partition
            try:
                partition = await self._targets.partition(place)
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_ID:
                    raise
                # They were due before the topic was deleted, and are deleted with it.
                continue
            # Otherwise the partition has the batch already.
            following = partition.producers.next_sequence(state.producer_id)
            if following is None or following == planned.base_sequence:
                await self._append_again(partition, planned, state)
        await self._commit_log.wait_until_committed()

    async def _append_again(
        self, partition: Partition, planned: PlannedBatch, state: ScheduleState
    ) -> None:
        now_ms = self._env.clock.now_ms()
        found = await self._records(planned.entries)
        # The partition is the planned one, however many the topic has by now.
        target = TargetTopic(partition.topic, partition.topic_id, 1, partition.config)
        due_records: list[DueRecord] = []
        for due in planned.entries:
            record = found.get(due[1])
            if record is not None:
                due_records.append(DueRecord(due, record, target))
        for batch in await self._env.slices.run(batches_of(due_records, self.name, now_ms)):
            content = await self._pack(batch, state, planned)
            partition.append(memoryview(content), now_ms)
            logger.info(
                "%s: delivered %s again to %s-%d: the last step was incomplete",
                self.name, count(len(batch.entries), "record"), partition.topic, partition.index,
            )  # fmt: skip


def _plan_batches(
    batches: Sequence[tuple[OutgoingBatch, Partition]], producer_id: int
) -> list[PlannedBatch]:
    """Return the batches of a step with their sequence numbers."""
    following: dict[Place, int] = {}
    planned: list[PlannedBatch] = []
    for batch, partition in batches:
        base = following.get(batch.place)
        if base is None:
            base = partition.producers.next_sequence(producer_id) or 0
        planned.append(PlannedBatch(*batch.place, base, batch.entries))
        following[batch.place] = sequence_after(base, batch.entries)
    return planned
