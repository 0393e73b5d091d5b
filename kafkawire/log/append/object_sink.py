"""Log objects as a sink: records of topics with durability=s3 are durable once they are in one.

Frames of these partitions are in the journals, like all others; nothing waits for their fsync. The
frames that were written since the last object are *gathered*, and become the next one when
`log.object.linger.ms` have passed since the previous one was begun, or at `log.object.bytes`. Up to
MAX_STORING are being stored concurrently; they complete in the order of their sequence numbers:
then high watermarks move, waiting Fetches wake up, and answers leave.

A failed PUT is tried again under the same sequence number until it succeeds, so a sequence has no
gaps. Meanwhile producers wait; when the oldest object has not been stored for REFUSE_AFTER_S, their
batches are refused with NOT_ENOUGH_REPLICAS. Owned by kafkawire.log.append.commit_log, which calls
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.callbacks import Callback, call_all
from kafkawire.log.io.ports import Superseded
from kafkawire.log.journal.file import POSITION_BITS, POSITION_MASK
from kafkawire.log.journal.format import HEAD_BYTES, pad_length
from kafkawire.log.partition.waiting_queue import UncommittedWrite, WaitingQueue
from kafkawire.metric_counters import Histogram
from kafkawire.objectstore.backoff import wait_s
from kafkawire.objectstore.errors import StoreError
from kafkawire.plural import count

if TYPE_CHECKING:
    from kafkawire.log.partition.state import AppendLog, Frame, LoadedPartition

logger = logging.getLogger(__name__)

MAX_STORING = 4
"""Objects that are stored concurrently: with the default linger and size about 300 MB/s at 100 ms
for a PUT. Also the most that the next life of the broker finds beyond the last completed one."""
REFUSE_AFTER_S = 10.0
"""For so long producers wait for a storage that fails, then they are refused: their requests would
time out after 30 s without an answer."""
MIN_WATCH_S = 1.0
"""Between two checks of that, while the oldest object is overdue."""
MAX_WAIT_S = 5.0
"""Between two attempts to store an object."""
CLOSE_S = 10.0
"""How long a broker that shuts down waits for its last objects."""
MAX_PARTITIONS = 1000
"""Partitions of one object: writing their names into its head takes two milliseconds."""
MAX_SPANS = 4000
"""Ranges of journals in one object: the message with them takes a millisecond."""


@dataclass(slots=True)
class FrameSpan:
    """Adjacent frames of one journal: the bytes [start, end) of the file."""

    journal: int
    start: int
    end: int


class Gathered(UncommittedWrite):
    """The frames of one log object."""

    __slots__ = ("frames", "spans", "stored")

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[FrameSpan] = []
        self.frames = 0
        # Its PUT succeeded; those before it may still be in progress.
        self.stored = False

    def note_put_started(self, log_position: int, at_s: float) -> None:
        """Note that the first PUT of the object begins; all its frames are before this log
        position."""
        self.log_position, self.at_s = log_position, at_s


class ObjectWriter(Protocol):
    """Stores the objects of one log (kafkawire.log.objects.writer)."""

    async def store(self, sequence: int, gathered: Gathered) -> None:
        """Store the object with a sequence number; make one attempt. Raises StoreError, OSError of
        a journal, Superseded."""


Retain = Callable[[int, Gathered], None]
"""Takes an object that is stored, by its sequence number (`maintenance.object_release`)."""


class ObjectSink:
    """Log objects as a Sink: the frames and callers that wait for them are in `queue`, of which the
    first `_storing` are being stored. `unreleased_bytes`: of stored objects that are still needed.
    `stored_objects`, `stored_bytes`, `failed_puts`, `released_objects`: since the start; `seconds`:
    the durations of successful attempts; `unusable`: why the storage cannot have log objects, empty
    if it can.
    """

    awaited_by_acks_1 = True
    in_sync = 1

    __slots__ = (
        "_adopting", "_closing", "_failing", "_last_start", "_linger_s", "_log", "_max_bytes",
        "_max_unreleased", "_retain", "_sequence", "_storing", "_superseded", "_timer", "_watching",
        "_when_needed", "_writer", "failed_puts", "queue", "refusal", "released_objects", "seconds",
        "stored_bytes", "stored_objects", "unreleased_bytes", "unusable",
    )  # fmt: skip

    def __init__(self, log: AppendLog) -> None:
        config = log.config
        self._log = log
        self._linger_s = config.log_object_linger_ms / 1000
        self._max_bytes = config.log_object_bytes
        self._max_unreleased = config.log_unreleased_max_bytes
        self._writer: ObjectWriter | None = None
        self._retain: Retain | None = None
        self._superseded: Callable[[str], None] | None = None
        self._when_needed: Callable[[], None] | None = None
        self._sequence = 0
        self._storing = 0
        self.queue = WaitingQueue(Gathered, config.uncommitted_max_bytes)
        # Long ago, so that the first object is begun at once.
        self._last_start = -1e9
        self._failing = False
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._closing = False
        self._adopting = False
        self.refusal: KafkaError | None = None
        self.unreleased_bytes = 0
        self.stored_objects = 0
        self.stored_bytes = 0
        self.failed_puts = 0
        self.released_objects = 0
        self.unusable = ""
        self.seconds = Histogram()

    def start(
        self, writer: ObjectWriter, retain: Retain, superseded: Callable[[str], None]
    ) -> None:
        """Begin to store what was gathered. `retain` is called with each stored object;
        `superseded` with the reason, if another life of the broker has ended the log."""
        self._writer, self._retain, self._superseded = writer, retain, superseded
        self.unusable = ""
        self._update_refusal()
        self._go()

    def refuse_batches(self, why: str) -> None:
        """Refuse batches until the log is opened: its storage cannot have log objects."""
        self.unusable = why
        self._update_refusal()

    def when_needed(self, fn: Callable[[], None]) -> None:
        """Call `fn`, which has `start` called, once something is gathered."""
        self._when_needed = fn

    def add(self, partition: LoadedPartition, frame: Frame) -> None:
        # It is durable in those objects: no object of this life has to be stored for it.
        if self._adopting:
            partition.raise_high_watermark(frame.end)
        else:
            self.gather(partition, frame.end, frame.log_position, frame.length)

    def gather(self, partition: LoadedPartition, end: int, log_position: int, length: int) -> None:
        """Gather a frame of `length` payload bytes, which ends at the offset `end`. Hot."""
        queue, gathered = self.queue, self.queue.newest
        # Bounds of one object: its bytes, and how long the event loop takes to describe it.
        full = len(gathered.ends) >= MAX_PARTITIONS and partition not in gathered.ends
        full = full or len(gathered.spans) >= MAX_SPANS or gathered.size_bytes >= self._max_bytes
        if full:
            queue.seal(self._log.written, 0.0)
            gathered = queue.newest
        # A frame's log position is that of its first batch; an object has the frame with its head.
        journal, start = log_position >> POSITION_BITS, (log_position & POSITION_MASK) - HEAD_BYTES
        stop = start + HEAD_BYTES + length
        queue.add(partition, end, stop - start)
        gathered.frames += 1
        spans = gathered.spans
        last = spans[-1] if spans else None
        # Frames are padded to 8 bytes: adjacent ones are one read of the journal.
        if last is not None and last.journal == journal and pad_length(last.end) == start:
            last.end = stop
        else:
            spans.append(FrameSpan(journal, start, stop))

    def waiting_s(self) -> float:
        """Return for how many seconds the oldest object has not been stored; 0 without any."""
        if not self._storing:
            return 0.0
        return self._log.env.clock.monotonic() - self.queue.sealed[0].at_s

    def note_write(self, *, awaited: bool) -> None:
        self._go()

    def wait(self, callbacks: list[Callback]) -> None:
        self.queue.wait(callbacks)

    def note_released(self, number: int, size_bytes: int) -> None:
        """Note that so many stored objects with so many bytes are deleted."""
        self.released_objects += number
        self.unreleased_bytes -= size_bytes
        self._update_refusal()

    def adopt(self, adopting: bool) -> None:
        self._adopting = adopting

    def note_retained(self, size_bytes: int) -> None:
        """Note stored objects of earlier lives that are still needed."""
        self.unreleased_bytes += size_bytes
        self._update_refusal()

    async def close(self) -> bool:
        """Refuse what is appended from now on, store at once what is gathered, and wait up to
        CLOSE_S for everything; return whether all of it is stored."""
        self._closing = True
        self.refusal = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is shutting down")
        self._log.measure_room()
        done = asyncio.get_running_loop().create_future()

        def settle(failure: BaseException | None) -> None:
            if not done.done():
                done.set_result(failure is None)

        self._log.call_when_durable((self,), settle)
        self._go()
        try:
            async with asyncio.timeout(CLOSE_S):
                return bool(await done)
        except TimeoutError:
            logger.warning(
                "the last %s of topics with durability=s3 could not be stored before the end: they "
                "are not acknowledged, and the next start stores them",
                count(self.queue.size_bytes, "byte"),
            )
            why = "the broker has shut down before it could store the records in the remote tier"
            # Answer the waiters. The frames are in the journals: the next start stores them.
            self._end(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, why))
            return False
        finally:
            for timer in (self._timer, self._watching):
                if timer is not None:
                    timer.cancel()

    def _go(self) -> None:
        """Begin an object if it is time, otherwise set the timer."""
        queue = self.queue
        full = len(queue.sealed) > self._storing
        if self._when_needed is not None and (full or queue.filled):
            # Called once, and before the check of the writer: it opens the log.
            needed, self._when_needed = self._when_needed, None
            needed()
        if self._writer is None or not (full or queue.filled) or queue.failed is not None:
            return
        if self._storing >= MAX_STORING:
            return  # the next one is begun when the first of these is stored
        env = self._log.env
        now = env.clock.monotonic()
        due = self._last_start + self._linger_s
        # So a broker with little to do stores what it has at once, and one with much to do begins
        # one object per linger, or per `log.object.bytes`.
        if self._closing or now >= due or full or queue.newest.size_bytes >= self._max_bytes:
            self._begin(now)
            self._go()
        elif self._timer is None:
            self._timer = env.call_later(due - now, self._due)

    def _due(self) -> None:
        self._timer = None
        self._go()

    def _begin(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        queue = self.queue
        if len(queue.sealed) == self._storing:
            queue.seal(self._log.written, now)
        gathered = queue.sealed[self._storing]
        gathered.note_put_started(self._log.written, now)
        self._last_start = now
        self._storing += 1
        # Assigned once per object: every attempt uses it, so the sequence has no gaps.
        sequence, self._sequence = self._sequence, self._sequence + 1
        self._log.env.spawn(self._store(sequence, gathered), f"log object {sequence}")
        self._watch(now)

    def _watch(self, now: float) -> None:
        # A storage that never answers causes no failed attempt that would refuse produces.
        if self._watching is None and self._storing:
            delay_s = max(self.queue.sealed[0].at_s + REFUSE_AFTER_S - now, MIN_WATCH_S)
            self._watching = self._log.env.call_later(delay_s, self._check_overdue)

    def _check_overdue(self) -> None:
        self._watching = None
        self._update_refusal()
        self._watch(self._log.env.clock.monotonic())

    async def _store(self, sequence: int, gathered: Gathered) -> None:
        assert self._writer is not None, "started before"
        env = self._log.env
        failures = 0
        # Under the same sequence number until it succeeds, so the sequence has no gaps.
        while self.queue.failed is None:
            begun = env.clock.monotonic()
            try:
                await self._writer.store(sequence, gathered)
            except Superseded as why:
                # Another life of the broker has put its fence there: it reads nothing after it.
                self.supersede(str(why))
                return
            except Exception as failure:  # also a defect: an object that is never stored stops acks
                self._attempt_failed(sequence, failure)
                failures += 1
                await env.sleep(wait_s(failures, MAX_WAIT_S, env.random.random()))
                continue
            self.seconds.add(env.clock.monotonic() - begun)
            gathered.stored = True
            self._note_recovery()
            self._publish(sequence)
            return

    def _publish(self, sequence: int) -> None:
        """Complete the objects that are stored, in order: move the high watermarks, call the
        waiters, and begin the next one."""
        assert self._retain is not None, "started before"
        first = self._sequence - self._storing
        # Only in order: an acknowledged object after a missing one would be lost with it.
        while self._storing and self.queue.sealed[0].stored:
            gathered = self.queue.complete()
            self._storing -= 1
            self.stored_objects += 1
            self.stored_bytes += gathered.size_bytes
            self.unreleased_bytes += gathered.size_bytes
            # The object is needed until its records are in uploaded segments.
            self._retain(first, gathered)
            first += 1
            call_all(gathered.callbacks, None)
        self._update_refusal()
        self._log.measure_room()
        self._go()

    def _attempt_failed(self, sequence: int, failure: Exception) -> None:
        self.failed_puts += 1
        if not self._failing:
            self._failing = True
            logger.warning(
                "log object %d cannot be stored, acknowledgements of topics with durability=s3 wait"
                " for it and it is tried again: %s",
                sequence,
                failure,
                exc_info=None if isinstance(failure, StoreError | OSError) else failure,
            )
        self._update_refusal()

    def _note_recovery(self) -> None:
        if self._failing:
            self._failing = False
            logger.info("log objects are stored again")

    def _update_refusal(self) -> None:
        if self._closing:
            return
        before, why = self.refusal, self.unusable
        since_s = self._log.env.clock.monotonic() - REFUSE_AFTER_S
        if not why and self._storing and self.queue.sealed[0].at_s <= since_s:
            why = f"the remote tier could not be written for more than {REFUSE_AFTER_S:g} s"
        elif not why and self.unreleased_bytes >= self._max_unreleased:
            why = (
                f"{self.unreleased_bytes} bytes of log objects wait until their records are "
                "uploaded in segments (log.unreleased.max.bytes)"
            )
        if not why:
            # No reason is left, except that the log has ended.
            self.refusal = self.queue.failed
        # A new reason does not replace the one that clients and the log have already.
        elif self.refusal is None:
            self.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, why)
            logger.error("produces to topics with durability=s3 are refused: %s", why)
        if (before is None) != (self.refusal is None):
            self._log.measure_room()
            if self.refusal is None:
                logger.info("produces to topics with durability=s3 are accepted again")

    def supersede(self, why: str) -> None:
        """Store nothing any more, since another life of the broker has ended the log."""
        # Several PUTs in progress may find the same fence.
        if self.queue.failed is not None:
            return
        logger.critical("%s. This process stops", why)
        # Also records of other topics: this process no longer is the broker.
        self._log.stop_writing(why)
        self._end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, why))
        if self._superseded is not None:
            self._superseded(why)

    def _end(self, why: KafkaError) -> None:
        """Store nothing any more, and answer everything that waits with an error."""
        self.refusal = why
        # Their tasks end at their next attempt.
        self._storing = 0
        self.queue.fail(why)
        self._log.measure_room()
