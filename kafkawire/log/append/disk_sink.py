"""The disk as a sink: one fsync makes everything written before it durable, for all who wait.

With flush=commit the high watermark is the committed end. With flush=os the high watermark is the
log end and a commit runs in the background every `flush.os.ms`; only checkpoints wait for it.

Owned by kafkawire.log.append.commit_log, which it calls back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.callbacks import Callback, await_callbacks, call_all
from kafkawire.log.io.ports import File
from kafkawire.log.journal.file import Journal
from kafkawire.log.journal.ledger import LedgerWrite
from kafkawire.log.partition.waiting_queue import (
    WITHOUT_BOUND,
    UncommittedWrite,
    WaitingQueue,
    move_high_watermarks,
)
from kafkawire.log_lines import reason_of
from kafkawire.metric_counters import Histogram

if TYPE_CHECKING:
    from kafkawire.log.partition.state import AppendLog, Frame, LoadedPartition

logger = logging.getLogger(__name__)

MAX_PAUSE_S = 0.005
"""The longest pause: `commit.delay.ms` by default, after which records are committed for which
nothing waits."""
SMOOTHING = 8
"""Commits over which their duration is averaged: as few as follow a change of the disk's speed
within some tens of milliseconds, more than an outlier lasts."""
_RESOLUTION_S = 0.001
"""Of the event loop's timers."""


class ReaderPause:
    """When a commit starts that only parked readers wait for; one that a request waits for starts
    at once.

    A record of a producer with acks=1 is answered already; a parked Fetch sees it after the commit.
    A commit of each record by itself costs more CPU time than all the rest of its delivery. So
    there is a pause of one commit's duration (smoothed) after each commit: commits for readers
    alone take at most half of the time, what is written meanwhile shares the next one, and a record
    waits no longer for its commit to start than it may wait for a running one to end.
    """

    __slots__ = ("_ended", "_max_pause_s", "_typical_s")

    def __init__(self, max_pause_s: float = MAX_PAUSE_S) -> None:
        self._max_pause_s = min(max_pause_s, MAX_PAUSE_S)
        self._typical_s = 0.0
        self._ended = 0.0

    def note_commit(self, begun: float, now: float) -> None:
        self._typical_s += (now - begun - self._typical_s) / SMOOTHING
        self._ended = now

    def remaining_s(self, now: float) -> float:
        """Return how long to wait from now; 0: start at once."""
        # On a slow disk MAX_PAUSE_S bounds it; on a fast one a commit takes less than the
        # millisecond that timers resolve, which rounds to no pause.
        left = self._ended + min(self._typical_s, self._max_pause_s) - now
        return round(left / _RESOLUTION_S) * _RESOLUTION_S if left > 0 else 0.0


class DiskSink:
    """The disk as a Sink: batches that are not committed, their waiters, and the fsync in progress.

    Everything before the log position `committed` is durable; `queue` has the partitions with
    batches above their high watermark, which the next commit moves; `seconds` are the durations of
    the fsyncs.
    """

    awaited_by_acks_1 = False
    in_sync = 1

    __slots__ = (
        "_bounded",
        "_delay_s",
        "_dirty",
        "_due_at",
        "_ended",
        "_log",
        "_pause",
        "_running",
        "_running_since",
        "_timer",
        "_wanted",
        "committed",
        "os_mode",
        "queue",
        "refusal",
        "seconds",
    )

    def __init__(self, log: AppendLog) -> None:
        config = log.config
        self._log = log
        self.os_mode = config.flush == "os"
        self._delay_s = (config.flush_os_ms if self.os_mode else config.commit_delay_ms) / 1000
        self._pause = ReaderPause(self._delay_s)
        self.committed = 0
        # None until the broker shuts down: before that only CommitLog refuses batches of all
        # partitions.
        self.refusal: KafkaError | None = None
        self.seconds = Histogram()
        # With flush=os the kernel bounds its dirty pages by slowing down the writes, which then
        # move to the writer thread.
        max_bytes = WITHOUT_BOUND if self.os_mode else config.uncommitted_max_bytes
        self.queue = WaitingQueue(UncommittedWrite, max_bytes)
        self._bounded: dict[LoadedPartition, None] = {}
        self._dirty: list[Journal] = []
        self._wanted = False
        self._running = False
        self._running_since = 0.0
        self._ended: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def start(self, committed: int) -> None:
        self.committed = committed

    def mark_dirty(self, journal: Journal) -> None:
        """Note that a journal was written to: the next commit must sync it."""
        # `dirty` also keeps its file open and the journal from being recycled.
        journal.dirty = True
        if journal not in self._dirty:  # two at most, but for write batches larger than a journal
            self._dirty.append(journal)

    def add(self, partition: LoadedPartition, frame: Frame) -> None:
        self.queue.newest.ends[partition] = frame.end
        if partition.watchers:  # a reader is parked there
            # With flush=os the reader sees the record at the write.
            self._wanted = not self.os_mode

    def note_frame(self, partition: LoadedPartition) -> None:
        """Note a frame of a partition whose records have to be on the disk and elsewhere."""
        self._bounded[partition] = None

    def note_write(self, *, awaited: bool) -> None:
        if self.os_mode:
            move_high_watermarks(self.queue.newest.ends)
            self.queue.newest.ends.clear()
        else:
            self._log.measure_room()
        # A commit that callers wait for is started by `wait`, which would cancel a timer set here.
        if not awaited or self.os_mode:
            self._go()

    def wait(self, callbacks: list[Callback], *, synced: bool = False) -> None:
        """`synced`: they are to be called when it is on the disk with flush=os, too."""
        if self.os_mode and not synced:
            call_all(callbacks, None)
        # After a failed fsync a second one proves nothing, so these will never be durable.
        elif self._log.failed is not None:
            call_all(callbacks, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._log.failed))
        else:
            self.queue.wait(callbacks)
            self._go()

    def want(self) -> None:
        """Commit soon what is written, since a reader waits for it."""
        if self.os_mode or (self.committed == self._log.written and not self._log.frames):
            return
        self._wanted = True
        self._go()

    async def wait_until_durable(self) -> None:
        """Return when everything appended so far is on the disk, with any setting of `flush`."""
        await await_callbacks(self.when_durable)

    def when_durable(self, fn: Callback) -> None:
        """Call `fn` when everything appended so far is on the disk."""

        def on_written(failure: BaseException | None) -> None:
            if failure is None:
                self.wait([fn], synced=True)
            else:
                fn(failure)

        # First the write: a commit that starts before it would not cover it.
        self._log.after_write(on_written)

    def running_s(self) -> float:
        """Return how many seconds the current fsync has been running; 0: none is."""
        return self._log.env.clock.monotonic() - self._running_since if self._running else 0.0

    def refuse_batches(self) -> None:
        self.refusal = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is shutting down")

    def stop(self) -> None:
        """Start no more commits because of time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wait_until_idle(self) -> None:
        """Return when no fsync is in flight."""
        # Only then may files be closed: a thread that syncs a closed one fails, or syncs the file
        # that got the descriptor meanwhile.
        while self._running:
            if self._ended is None:
                self._ended = asyncio.get_running_loop().create_future()
            await self._ended

    def _go(self) -> None:
        """Commit now if a caller waits, soon if only readers do, later otherwise, not at all if
        nothing was written."""
        log = self._log
        # One fsync at a time: what is written while it runs shares the next one.
        if self._running or self.committed == log.written or log.failed is not None:
            return
        if self.queue.newest.callbacks:
            self._commit()
        # Only parked readers wait: at most 5 ms. A full log has producers that wait as well.
        elif self._wanted:
            pause_s = 0.0 if log.full else self._pause.remaining_s(log.env.clock.monotonic())
            if pause_s:
                self._commit_within(pause_s)
            else:
                self._commit()
        # Nothing waits: within `commit.delay.ms`, or `flush.os.ms`.
        elif self._timer is None:
            self._commit_within(self._delay_s)

    def _commit_within(self, delay_s: float) -> None:
        env = self._log.env
        due_at = env.clock.monotonic() + delay_s
        if self._timer is not None:
            if self._due_at <= due_at:
                return
            self._timer.cancel()
        self._due_at = due_at
        self._timer = env.call_later(delay_s, self._due)

    def _due(self) -> None:
        self._timer = None
        if not self._running and self.committed != self._log.written and self._log.failed is None:
            self._commit()

    def _commit(self) -> None:
        self.stop()
        log = self._log
        self._running = True
        self._running_since = log.env.clock.monotonic()
        self._wanted = False
        # What is written from here on belongs to the next commit, dirty journals too.
        write = self.queue.seal(log.written, self._running_since)
        journals, self._dirty = self._dirty, []
        others, self._bounded = self._bounded, {}
        entry: LedgerWrite | None = None

        def on_synced(_: None, failure: BaseException | None) -> None:
            self._running = False
            if self._ended is not None:
                self._ended.set_result(None)
                self._ended = None
            now = log.env.clock.monotonic()
            self._pause.note_commit(self._running_since, now)
            # An entry that failed does not fail the commit: the ledger is a second line of defence.
            if entry is not None:
                log.ledger.note_written(entry)
            if failure is not None:
                self._fail(failure)
                return
            self.seconds.add(now - self._running_since)
            # Not `log.written`: writes continued while the fsync ran.
            self.committed = write.log_position
            log.ledger.mark(self.committed)
            for journal in journals:
                # Written to since this fsync began: the next one has to cover it.
                journal.dirty = journal in self._dirty
            call_all(self.queue.complete().callbacks, None)
            log.measure_room()
            self._go()

        try:
            files = [journal.require_file() for journal in journals]
            bounded = [*write.ends, *others]
            entry = log.ledger.entry(bounded, journals)
            log.env.offload.submit_then("commit", on_synced, sync_all, files, entry)
        except Exception as failure:  # such as no memory for a thread
            self._running = False
            self._fail(failure)

    def _fail(self, failure: BaseException) -> None:
        log = self._log
        why = (
            f"fsync failed ({reason_of(failure)}): nothing is written until the broker is restarted"
        )
        # It is unknown which bytes are on the disk now: the kernel may take them for clean, so that
        # a second fsync proves nothing. A restart reads them back.
        log.stop_writing(why, broken=True)
        logger.critical(
            "%s. Fetch requests are still served. Check the disk, then restart: recovery keeps all "
            "records it can read back.",
            why,
        )
        self.queue.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why))
        log.measure_room()


def sync_all(files: list[File], entry: LedgerWrite | None) -> None:
    """Make the files durable. Runs in the commit thread."""
    # The ledger first: before the commit is acknowledged it must name the journals, and have a
    # bound above the offsets.
    if entry is not None:
        entry.write()
    for file in files:
        file.sync()
