"""The commit log: write batches of appends become one write, writes become durable by one fsync.

Partitions queue frames in the current write batch; the first frame schedules the flush. The flush
writes all of them with one gathered write at the tracked position and only then applies them to the
state in memory. A write that fails, or is short, leaves everything as before: all batches of the
write batch fail and the next write starts at the same position, under the next run number, so that
remains of the failed write are never taken for data. kafkawire.log.append.disk_sink makes the bytes
durable; kafkawire.log.recovery.recover reads them after a restart.

One CommitLog per broker process, made by kafkawire.log.manager.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kafkawire.codec.configs.settings import BrokerConfig, TopicConfig
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.segment.stored import add_step
from kafkawire.log.append.disk_sink import DiskSink
from kafkawire.log.append.follower_sink import FollowerSink
from kafkawire.log.append.object_sink import ObjectSink
from kafkawire.log.io.callbacks import Callback, await_callbacks, call_all
from kafkawire.log.io.ports import Buffer, Env
from kafkawire.log.journal.directory import Journals
from kafkawire.log.journal.file import Journal
from kafkawire.log.journal.format import KIND_ROLL, write_catalog
from kafkawire.log.journal.ledger import Ledger
from kafkawire.log.journal.losses import Loss
from kafkawire.log.journal.write_batch import Write, WriteBatch, lay_out, write_all
from kafkawire.log.partition.hooks import Hooks
from kafkawire.log.partition.hot_index import MAX_TAIL_BYTES, pack_row
from kafkawire.log.partition.reader import PartitionReader, SegmentReads
from kafkawire.log.partition.state import (
    AppendLog,
    Frame,
    HotRead,
    LoadedPartition,
    Plan,
    SaveLogStarts,
    Sink,
)
from kafkawire.log.partition.waiting_queue import (
    WITHOUT_BOUND,
    after_calls,
    unless_for_others,
)
from kafkawire.log_lines import reason_of
from kafkawire.metric_counters import Histogram

logger = logging.getLogger(__name__)

MANY_REQUESTS = 128
"""Requests received together that are written together: a millisecond or two of work, to which one
more write adds as much as one more request."""


BY_CHOICE: Final = "read-only"
"""The source of the refusal that an operator has chosen: broker.read.only."""


class JournalWriter:
    """Writes write batches to the journals, one at a time: on the event loop, or in the writer
    thread while writes are slow. `seconds`: the durations of the writes."""

    __slots__ = ("_env", "_idle", "_since", "flying", "seconds", "slow", "slow_s")

    def __init__(self, env: Env, slow_s: float) -> None:
        self._env = env
        self._since = 0.0
        self._idle: asyncio.Future[None] | None = None
        self.slow_s = slow_s
        # The last write took more than `slow_s`: the next one is done in the thread.
        self.slow = False
        self.flying = False
        self.seconds = Histogram()

    def write(self, writes: list[Write], landed: Callback) -> bool:
        """Do the writes here and return True; or return False, and call `landed` when the thread
        has done them. Raises OSError."""
        monotonic = self._env.clock.monotonic
        if not self.slow:
            self._took(write_all(writes, monotonic))
            return True
        future = self._env.offload.submit("write", write_all, writes, monotonic)
        self.flying = True
        self._since = monotonic()

        def on_done(_: object) -> None:
            failure = asyncio.CancelledError() if future.cancelled() else future.exception()
            if failure is None:
                # The whole backlog was in this write: if it was fast, the disk has caught up.
                self._took(future.result())
            landed(failure)

        future.add_done_callback(on_done)
        return False

    def note_applied(self) -> None:
        """Note that what the thread has written is applied: the next one may be written."""
        self.flying = False
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    async def idle(self) -> None:
        """Return when no write is in flight."""
        # Only then may its journal be closed: the thread would fail, or write to the file that got
        # the descriptor meanwhile.
        while self.flying:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def busy_s(self) -> float:
        """Return how many seconds the write in the thread has been running; 0: none is."""
        return self._env.clock.monotonic() - self._since if self.flying else 0.0

    def _took(self, seconds: float) -> None:
        self.slow = seconds > self.slow_s
        self.seconds.add(seconds)


class CommitLog(AppendLog):
    """Appends, commits and reads of all partitions.

    `broken`: writing has failed because of the disk, or a defect. `refusal` is the error for all
    Produce requests, if they are refused. `run` is the run number of new frames. `hooks`: the
    listeners (kafkawire.log.partition.hooks). `write_batches`, `appended_bytes`,
    `appended_records`: what was written since the start.
    """

    __slots__ = (
        "_durable", "_refusals", "_requests", "_written", "appended_bytes", "appended_records",
        "batch_number", "broken", "disk_sink", "failing", "follower_sink", "hooks", "object_sink",
        "reader", "refusal", "run", "sinks", "waiting_for_room", "write_batches", "writer",
    )  # fmt: skip

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        journals: Journals,
        segments: SegmentReads,
        hooks: Hooks,
        save_log_starts: SaveLogStarts,
    ) -> None:
        ledger = Ledger(env, os.path.dirname(journals.folder))
        super().__init__(env, config, journals, ledger, save_log_starts)
        self.run = 0
        self.broken = False
        self.refusal: KafkaError | None = None
        self._refusals: dict[str, KafkaError | None] = {}  # by what refuses
        # Changes as soon as appends go to another write batch.
        self.batch_number = 0
        self.waiting_for_room: list[Callable[[], None]] = []
        # Callbacks of the current write batch.
        self._written: list[Callback] = []
        self._durable: dict[Sink, list[Callback]] = {}
        self._requests: Sequence[object] = ()
        # The last write failed: the log line about it is written once, not for each attempt.
        self.failing = False
        self.write_batches = self.appended_bytes = self.appended_records = 0
        self.writer = JournalWriter(env, config.slow_write_ms / 1000)
        self.disk_sink = DiskSink(self)
        self.object_sink = ObjectSink(self)
        self.follower_sink = FollowerSink(self, self.disk_sink)
        # What is stored in objects needs no fsync, and followers may write while the own disk does.
        self.sinks = (self.object_sink, self.disk_sink, self.follower_sink)
        self.reader = PartitionReader(env, journals, lambda: self.scheduled, segments)
        self.hooks = hooks

    def start(self, run: int, written: int, losses: Sequence[Loss] = ()) -> None:
        """Continue after what recovery found, all of which is durable except for the losses."""
        self.run = run
        self.losses = losses
        self.written = written
        self.disk_sink.start(written)
        self.measure_room()

    def after_write(self, fn: Callback, requests: Sequence[object] | None = None) -> None:
        if requests is not None:
            self._requests = requests
        self._written.append(fn)
        if not self.scheduled:
            self.schedule_flush()

    def call_when_durable(self, sinks: tuple[Sink, ...], fn: Callback) -> None:
        if len(sinks) > 1:
            fn = after_calls(len(sinks), fn)
        durable = self._durable
        for sink in sinks:
            if sink in durable:
                durable[sink].append(fn)
            else:
                durable[sink] = [fn]
        if not self.scheduled:
            self.schedule_flush()

    def after_commit(self, fn: Callback) -> None:
        """Call `fn` when everything appended so far is on the disk; a commit starts at once.

        With flush=os: when it is written, as for acks=all on a single Kafka broker.
        """
        self.call_when_durable((self.disk_sink,), fn)

    def sink_of(self, config: TopicConfig) -> Sink:
        if config.in_objects:
            return self.object_sink
        if config.replicated:
            self.follower_sink.need()
            return self.follower_sink
        return self.disk_sink

    async def wait_until_committed(self) -> None:
        await await_callbacks(lambda fn: self.call_when_durable(self.sinks, unless_for_others(fn)))

    async def wait_until_durable(self) -> None:
        """Return when everything appended so far is on the disk, with any setting of `flush`, and
        in the sinks of all partitions; followers have the whole log. Raises as `committed`."""
        await await_callbacks(
            self.disk_sink.when_durable,
            lambda fn: self.call_when_durable(
                (self.object_sink, self.follower_sink), unless_for_others(fn)
            ),
        )
        # Frames of the catalog and of other partitions have no waiter in this sink, but followers
        # must have them too.
        if self.follower_sink.began:
            await await_callbacks(self.follower_sink.when_all)

    def want_commit(self) -> None:
        """Commit at once: a reader waits for what is written and not committed."""
        self.disk_sink.want()

    def when_room(self, fn: Callable[[], None]) -> None:
        """Call `fn` once `full` is false again."""
        if self.full:
            self.waiting_for_room.append(fn)
        else:
            self.env.call_soon(fn)

    def views(self, plan: HotRead) -> tuple[list[memoryview], Callable[[], None]]:
        return self.reader.views(plan)

    async def read(
        self, plan: Plan, patience_s: float | None = None, aborted: list[Aborted] | None = None
    ) -> list[Buffer]:
        return await self.reader.read(plan, patience_s, aborted)

    async def first_since(self, partition: LoadedPartition, at: int, timestamp: int) -> int:
        return await self.reader.segments.first_offset_since(partition, at, timestamp)

    def append_catalog(self, kind: int, payload: bytes) -> Frame:
        """Queue a catalog frame; once it is written the Frame knows its log position."""
        part = memoryview(payload)
        frame = Frame(None, [part], 0, 0, len(part), -1, kind)
        self.frames.append(frame)
        self.batch_bytes += len(part)
        if not self.scheduled:
            self.schedule_flush()
        return frame

    def drop_resigned(self) -> None:
        """Drop what is queued, and not being written, for partitions that were resigned."""
        self.frames = [
            each for each in self.frames if not (each.partition and each.partition.resigned)
        ]
        self.batch_bytes = sum(frame.length for frame in self.frames)

    def roll(self) -> None:
        """Continue in the next journal although the active one is not full; one must be ready."""
        # An empty active journal needs no roll; a rolling one has its frame queued already.
        if self.journals.active.entries and not self.journals.rolling:
            assert self.journals.ready, (
                "a write batch must not fail because of the age of a journal"
            )
            self.journals.roll()
            # The roll happens when a frame is laid out; without traffic this is the only one.
            self.append_catalog(KIND_ROLL, write_catalog({}))

    def schedule_flush(self) -> None:
        if self.batch_bytes > self.room_bytes:
            self.full = True
        if not self.scheduled:
            self.scheduled = True
            # Else _apply_landed writes what gathers meanwhile.
            if not self.writer.flying:
                self.env.call_soon(self._write_queued)

    def measure_room(self) -> None:
        room_bytes = WITHOUT_BOUND
        for sink in self.sinks:
            # While batches of its partitions are refused, those of others need not wait for them.
            if sink.refusal is None:
                room_bytes = min(room_bytes, sink.queue.room_bytes())
        # After a failure nothing waits: everything is refused.
        self.room_bytes = room_bytes if self.failed is None else WITHOUT_BOUND
        self.full = self.batch_bytes > self.room_bytes or self.refusal is not None
        if not self.full and self.waiting_for_room:
            waiting, self.waiting_for_room = self.waiting_for_room, []
            for fn in waiting:
                self.env.call_soon(fn)

    def stop_writing(self, why: str, *, broken: bool = False) -> None:
        self.failed, self.broken = why, broken

    def refuse_appends(self, source: str, why: KafkaError | None) -> None:
        """Refuse Produce requests with this error at once, also those that wait for room; None:
        accept them again, unless another source refuses them."""
        self._refusals[source] = why
        # At the end: what an operator has chosen hides no trouble.
        self._refusals[BY_CHOICE] = self._refusals.pop(BY_CHOICE, None)
        self.refusal = next(filter(None, self._refusals.values()), None)
        self.measure_room()
        if why is not None:
            # They will get the error instead of waiting for room that may not come.
            waiting, self.waiting_for_room = self.waiting_for_room, []
            for fn in waiting:
                self.env.call_soon(fn)

    def busy_s(self) -> float:
        """Return how many seconds the current write or fsync has been running."""
        return max(self.writer.busy_s(), self.disk_sink.running_s())

    def write_many(self) -> None:
        """Write the current write batch now if many requests wait for it."""
        # At the end of the iteration the processor's caches would not hold thousands of them any
        # more. Those that wait for an fsync are left to share one.
        if len(self._requests) >= MANY_REQUESTS and (self.disk_sink.os_mode or not self._durable):
            self._write_queued()

    def _write_queued(self) -> None:
        # It may have been written by `write_many`, or wait for the thread: one write batch is
        # written at a time.
        if not self.scheduled or self.writer.flying:
            return
        write_batch = self._take_queued()
        self.scheduled = False
        # Only callbacks: what they wait for is written, or has failed with its write batch.
        if not write_batch.frames:
            self._finish(write_batch, None)
            return
        for frame in write_batch.frames:
            # Batches from here on belong to the next write batch: they need a frame and state of
            # their own.
            if (partition := frame.partition) is not None:
                partition.frame = None
                if partition.producers.fresh:
                    partition.producers.depart()
        try:
            if self.failed is not None:
                # As a failed write: everything queued is rolled back, and its callers get the
                # error.
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.failed)
            # With followers not the own committed end: a follower may lose what it has not synced.
            committed = self.follower_sink.position_to_state(self.disk_sink.committed)
            now_ms, entries = self.env.clock.now_ms(), self.config.journal_entries
            lay_out(write_batch, self.journals, self.run, committed, entries, now_ms)
            landed = partial(self._apply_landed, write_batch)
            if not self.writer.write(write_batch.writes, landed):
                return
        # Nothing in memory has changed so far, so any failure can be treated as a failed write.
        except Exception as failure:
            self._fail(write_batch, failure)
            return
        self._apply_written(write_batch)

    def _take_queued(self) -> WriteBatch:
        queued = WriteBatch(self.frames, self.batch_bytes, self._written, self._durable)
        self.frames, self._written, self._durable = [], [], {}
        self._requests = ()
        self.batch_bytes = 0
        self.batch_number += 1
        return queued

    def _apply_landed(self, write_batch: WriteBatch, failure: BaseException | None) -> None:
        try:
            if failure is None:
                self._apply_written(write_batch)
            else:
                self._fail(write_batch, failure)
        finally:
            self.writer.note_applied()  # only now: what the callbacks queue goes with the rest
            self._write_queued()

    def _apply_written(self, write_batch: WriteBatch) -> None:
        try:
            rolled = self._apply(write_batch)
        except Exception as defect:
            # Part of the write batch may be state by now, so it can neither be rolled back nor
            # written again.
            why = (
                f"a defect ({defect!r}): memory may differ from the journal, nothing is written "
                "until the broker is restarted"
            )
            self.stop_writing(why, broken=True)
            logger.critical("%s. Fetch requests are still served", why, exc_info=True)
            self.measure_room()
            self._finish(write_batch, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why))
            return
        self._finish(write_batch, None)
        if rolled:
            call_all([lambda _: self.hooks.rolled(rolled)], None)
        # In a thread, well before the active journal is full: rolling must not wait for a file.
        if not self.journals.ready and self.journals.is_half_full(self.config.journal_entries):
            self.journals.prepare()

    def _apply(self, write_batch: WriteBatch) -> list[Journal]:
        """Change the state in memory as the write batch says; return the journals that were
        rolled. Hot."""
        rolled: list[Journal] = []
        for write in write_batch.writes:
            end = write.position + write.length
            rolled += self.journals.note_written(write.journal, end, write.entries, write.named)
            # Before any waiter is called: a commit that starts now must sync this journal.
            self.disk_sink.mark_dirty(write.journal)
            add_step(write.journal.stored, write.position, write.time_ms)
        dirty = self.dirty
        records = 0
        for frame in write_batch.frames:
            partition = frame.partition
            if partition is None:
                continue
            base, end, length = frame.base, frame.end, frame.length
            count = end - base
            tail = partition.tail
            tail += pack_row(base, frame.log_position, length, count, frame.newest)
            if len(tail) >= MAX_TAIL_BYTES:
                partition.index_tail()
            # Only now, after the write: a batch that failed must leave no gap in the offsets.
            partition.offsets.apply(end)
            partition.next_offset = end
            partition.size_bytes += length
            traffic = partition.traffic
            traffic.in_bytes += length
            traffic.in_records += count
            records += count
            if not partition.dirty:
                partition.dirty = True
                dirty.append(partition)
            if partition.producers.flying:
                partition.producers.apply_in_flight()
            # Last: the sink may move the high watermark at once.
            partition.sink.add(partition, frame)
        self.written = self.journals.active.end_log_position
        self.write_batches += 1
        self.appended_bytes += write_batch.size_bytes
        self.appended_records += records
        if self.failing:
            self.failing = False
            logger.warning("the commit log can be written again, Produce requests are accepted")
        # The disk sink counts the frames of all partitions, since all of them are in the journals.
        self.disk_sink.queue.add_bytes(write_batch.size_bytes)
        for sink in self.sinks:
            if sink.queue.filled:
                sink.note_write(awaited=sink in write_batch.durable)
        return rolled

    def _fail(self, write_batch: WriteBatch, failure: BaseException) -> None:
        """Leave everything as before the write batch."""
        # One line per outage, not one per attempt.
        if not self.failing and self.failed is None:
            self.failing = True
            logger.error(
                "cannot write to the commit log, Produce requests are refused until it can: %s",
                failure,
                exc_info=None if isinstance(failure, OSError | KafkaError) else failure,
            )  # fmt: skip
        # A whole frame of the failed write may be on the disk, after the end of a shorter next
        # write at the same position. Under the older run number recovery does not take it.
        self.run += 1
        for write in write_batch.writes:
            # The naming frames may not be on the disk: the next write has to name the partitions
            # again.
            write.unname()
        # What was queued since then fails too: its offsets follow those of this write batch.
        queued = self._take_queued()
        for frame in [*write_batch.frames, *queued.frames]:
            if frame.partition is not None:
                frame.partition.rollback()
        self.measure_room()
        error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason_of(failure))
        error.__cause__ = failure
        self._finish(write_batch, error)
        self._finish(queued, error)

    def _finish(self, write_batch: WriteBatch, error: BaseException | None) -> None:
        """Call the waiters of the write, and pass those of sinks to them."""
        call_all(write_batch.written, error)
        for sink, waiting in write_batch.durable.items():
            if error is None:
                sink.wait(waiting)
            else:
                call_all(waiting, error)

    @property
    def at_rest(self) -> bool:
        """Whether everything appended so far is durable here."""
        written = not self.scheduled and not self.writer.flying
        return written and self.disk_sink.committed == self.written

    async def close(self) -> None:
        """Write and commit what is queued, then end as `drain` does."""
        # Several rounds: callbacks of a commit may append again.
        while self.failed is None and not self.at_rest:
            await self.disk_sink.wait_until_durable()
        await self.drain()

    async def drain(self) -> None:
        """Accept no more, and return when no write and no fsync is in flight."""
        # A reason given earlier is kept: it is the one that operators need.
        if self.failed is None:
            self.failed = "the broker is shutting down"
        self.disk_sink.stop()
        await self.writer.idle()
        await self.disk_sink.wait_until_idle()
