"""The state of a partition, and what it needs of the commit log and of the sink of its records.

What appends to partitions, reads and commits them, is in the modules above: they import this one,
and it imports none of them. kafkawire.log.append.commit_log is the AppendLog.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from kafkawire.codec.configs.settings import BrokerConfig, TopicConfig
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.callbacks import Callback
from kafkawire.log.io.ports import Buffer, Env
from kafkawire.log.journal.directory import Journals
from kafkawire.log.journal.format import KIND_BATCH
from kafkawire.log.journal.ledger import Ledger
from kafkawire.log.journal.losses import Loss
from kafkawire.log.partition.hot_index import HotIndex, JournalExtents
from kafkawire.log.partition.producers import Producers
from kafkawire.log.partition.segment_extents import SegmentRows
from kafkawire.log.partition.verification import Guard
from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.metric_counters import TopicTraffic
from kafkawire.offsets.manager import PartitionOffsetManager

logger = logging.getLogger(__name__)

Watcher = Callable[..., None]
"""Called with a partition whose high watermark, last stable offset or log start has moved."""
SaveLogStarts = Callable[[dict[int, int]], Awaitable[None]]
"""Store the log starts of partition numbers, durably."""


class Frame:
    """One frame to be written.

    For batches: the partition, its batches, [base, end) of their offsets, their bytes and newest
    timestamp; for catalog frames no partition and one part. `log_position` is that of the payload.
    """

    __slots__ = ("base", "batches", "end", "kind", "length", "log_position", "newest", "partition")

    def __init__(
        self,
        partition: LoadedPartition | None,
        batches: list[memoryview],
        base: int,
        end: int,
        length: int,
        newest: int,
        kind: int = KIND_BATCH,
    ) -> None:
        self.partition = partition
        self.batches = batches
        self.base = base
        self.end = end
        self.length = length
        self.newest = newest
        self.kind = kind
        self.log_position = -1


class Sink(Protocol):
    """Where the records of some partitions have to be before they are committed: on the disk, in
    log objects, or at followers. `refusal`: the error for their batches, if they are refused.
    """

    @property
    def awaited_by_acks_1(self) -> bool:
        """Whether acks=1 waits for it, too, instead of for the write only."""

    @property
    def in_sync(self) -> int:
        """In how many replicas records are when they are committed."""

    @property
    def refusal(self) -> KafkaError | None: ...

    def add(self, partition: LoadedPartition, frame: Frame) -> None:
        """Add a frame that was written. Hot."""

    def note_write(self, *, awaited: bool) -> None:
        """Note that a write batch is applied, of which frames may have been added. `awaited`:
        `wait` is called for it once the callbacks of the write have been."""

    def wait(self, callbacks: list[Callback]) -> None:
        """Call these when everything written so far is durable here, or with the reason why it
        never will be; with FailedPartitions if only some partitions have failed."""


class _Read:
    """Whole batches of one partition from `offset` on, below `end`.

    `runs` are (log position, length) in offset order. With `first` the first batch is taken
    whatever its size (KIP-74). `whole`: the runs are just the batches to return, so that no byte of
    them has to be read first.
    """

    __slots__ = (
        "end",
        "first",
        "journal",
        "max_bytes",
        "offset",
        "partition",
        "runs",
        "size_bytes",
        "whole",
    )

    def __init__(
        self,
        partition: LoadedPartition,
        offset: int,
        max_bytes: int,
        end: int,
        first: bool,
        size_bytes: int,
        runs: list[tuple[int, int]],
        journal: int | None = None,
        whole: bool = False,
    ) -> None:
        # One constructor for all kinds: one plan is made for each partition of a Fetch, and calling
        # a second constructor takes time. Not a dataclass: frozen for the type checker only it
        # cannot be compiled, and one that is really frozen takes three times as long to make.
        self.partition: Final = partition
        self.offset: Final = offset
        self.max_bytes: Final = max_bytes
        self.end: Final = end
        self.first: Final = first
        self.size_bytes: Final = size_bytes
        self.runs: Final = runs
        self.journal: Final = journal
        self.whole: Final = whole


class HotRead(_Read):
    """Batches in mapped journals: CommitLog.views may be used. `size_bytes` is the sum of the
    lengths of `runs`; `journal` is not used."""

    __slots__ = ()


class JournalRead(_Read):
    """Batches in journals that are not mapped: PartitionReader.find_spans or CommitLog.read must be
    used, which may find fewer than `size_bytes`. `journal`: the number of a journal whose index is
    not in memory, in whose index file the runs are found; None: they are in `runs`."""

    __slots__ = ()


class SegmentRead(_Read):
    """Batches that begin in a segment: CommitLog.read must be used. `size_bytes` is an estimate;
    `runs` and `journal` are not used."""

    __slots__ = ()


Plan = HotRead | JournalRead | SegmentRead


class AppendLog(ABC):
    """The commit log, as partitions and sinks use it.

    `failed` is the reason why nothing is written any more (after a failed fsync, or when closed).
    While `full`, the server starts no Produce request. `frames`, `batch_bytes`, `scheduled` and
    `room_bytes` are the current write batch; only appends to partitions use them. `written` is the
    log position up to which everything is written.
    """

    __slots__ = (
        "batch_bytes", "config", "correcting", "dirty", "env", "failed", "frames", "full",
        "journals", "ledger", "losses", "producing", "room_bytes", "save_log_starts", "scheduled",
        "trimmed", "validation", "written",
    )  # fmt: skip

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        journals: Journals,
        ledger: Ledger,
        save_log_starts: SaveLogStarts,
    ) -> None:
        self.env = env
        self.config = config
        self.validation = config.record_validation
        self.journals = journals
        self.ledger = ledger
        self.save_log_starts = save_log_starts
        self.losses: Sequence[Loss] = ()
        # The times of one partition at a time are corrected (kafkawire.log.partition.time_lookup).
        self.correcting = asyncio.Lock()
        self.written = 0
        self.failed: str | None = None
        self.full = False
        self.frames: list[Frame] = []
        self.batch_bytes = self.room_bytes = 0
        self.scheduled = False
        # Partitions that the next checkpoint must contain.
        self.dirty: list[LoadedPartition] = []
        # Those with idempotent producers as of the last one.
        self.producing: dict[LoadedPartition, None] = {}
        # Partition number -> log start, of partitions with segment rows below it.
        self.trimmed: dict[int, int] = {}

    @abstractmethod
    def schedule_flush(self) -> None:
        """Schedule the flush after something was queued, and measure how much more may be
        queued."""

    @abstractmethod
    def after_write(self, fn: Callback, requests: Sequence[object] | None = None) -> None:
        """Call `fn` when the current write batch is written (None) or has failed (why); in order.

        If nothing is queued: at the end of the current write batch. `requests`: those it answers; a
        list that grows.
        """

    @abstractmethod
    def call_when_durable(self, sinks: tuple[Sink, ...], fn: Callback) -> None:
        """Call `fn` when everything appended so far to partitions of these sinks, at least one, is
        durable there. After the first failure of one; with FailedPartitions if only some partitions
        have failed."""

    @abstractmethod
    def sink_of(self, config: TopicConfig) -> Sink:
        """Return where the records of a topic have to be before they are committed."""

    @abstractmethod
    async def wait_until_committed(self) -> None:
        """Return when everything appended so far is committed as its partitions want it. Raises
        KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, or an error of followers, if that fails."""

    @abstractmethod
    def measure_room(self) -> None:
        """Measure how much more may be queued, and wake the waiting requests."""

    @abstractmethod
    def stop_writing(self, why: str, *, broken: bool = False) -> None:
        """Stop writing until the broker is restarted; `why` is the reason."""

    @abstractmethod
    def views(self, plan: HotRead) -> tuple[list[memoryview], Callable[[], None]]:
        """Return views of a hot plan's bytes, and the function to call when they have been sent."""

    @abstractmethod
    async def read(
        self, plan: Plan, patience_s: float | None = None, aborted: list[Aborted] | None = None
    ) -> list[Buffer]:
        """Return the bytes of any plan, whole batches. `patience_s`: how long to wait for a remote
        tier; None: as long as it takes. `aborted` is extended by the aborted transactions that
        touch them."""

    @abstractmethod
    async def first_since(self, partition: LoadedPartition, at: int, timestamp: int) -> int:
        """Return the first offset of segment row `at` that may have a record at or after a time."""


class LoadedPartition:
    """One partition of the log, without what appends to it and reads it. Offsets below `cut_offset`
    are in `segments`, all others in the journals."""

    __slots__ = (
        "_rows", "absent_end", "bound", "closed", "commit_offset", "config", "cut_offset", "dirty",
        "dispatch_offset", "epochs", "evicted", "frame", "high_watermark", "index",
        "journal_extents", "kept_from", "last_stable_offset", "leader_epoch", "log", "log_start",
        "named_in", "next_offset", "number", "offsets", "producers", "removed", "reserve",
        "resigned", "segments", "sink", "size_bytes", "tail", "timed_upto", "topic", "topic_id",
        "traffic", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        log: AppendLog,
        number: int,
        topic_id: bytes,
        topic: str,
        index: int,
        leader_epoch: int,
        config: TopicConfig,
        traffic: TopicTraffic,
    ) -> None:
        self.log = log
        self.traffic = traffic
        self.number = number
        self.topic_id = topic_id
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch
        self.config = config
        # Where its records have to be before they are committed.
        self.sink: Sink = log.sink_of(config)
        self.offsets = PartitionOffsetManager(0)
        # (leader epoch, its first offset), rising.
        self.epochs: list[tuple[int, int]] = [(leader_epoch, 0)]
        self.log_start = 0
        # The applied end; what readers may see; what readers of committed records may see, which is
        # lower while a transaction is open, or its marker not committed.
        self.next_offset = 0
        self.high_watermark = 0
        self.last_stable_offset = 0
        self.size_bytes = 0
        # Offsets below this without a row were left at another broker.
        self.absent_end = 0
        # It takes no appends, since it is being handed over or was removed; it is not in memory any
        # more; another broker leads it.
        self.closed = False
        self.removed = False
        self.resigned = False
        self.watchers: dict[Watcher, None] = {}  # in order of arrival
        self._rows = HotIndex()
        # The newest rows of its index, packed (kafkawire.log.partition.hot_index).
        self.tail = bytearray()
        self.journal_extents = JournalExtents()
        # So many journal extents, from the first, have no rows in memory.
        self.evicted = 0
        self.segments = SegmentRows()
        self.cut_offset = 0
        # Everything below `commit_offset` is in the remote tier, everything below `dispatch_offset`
        # is there or being uploaded; 0: never tiered.
        self.dispatch_offset = 0
        self.commit_offset = 0
        self.producers = Producers()
        # Collects the batches of the current write batch.
        self.frame: Frame | None = None
        # The journal that has its naming frame.
        self.named_in = -1
        # True: the next checkpoint must contain it.
        self.dirty = False
        # The ledger's bound above all acknowledged offsets, last raised by `reserve`
        # (kafkawire.log.journal.ledger).
        self.bound = 0
        self.reserve = 0
        # Retention keeps the records of a schedule topic from here on.
        self.kept_from = 0
        # Below this the index has the newest timestamps of the records themselves
        # (kafkawire.log.partition.time_lookup).
        self.timed_upto = 0

    @property
    def too_few_replicas(self) -> bool:
        """Whether fewer replicas are in sync than its topic wants for acks=all."""
        least = self.config.min_insync_replicas
        return least > 1 and self.sink.in_sync < least

    @property
    def rows(self) -> HotIndex:
        """The index of its batches in the journals; get it again after other tasks have run."""
        if self.tail:
            self.index_tail()
        return self._rows

    def index_tail(self) -> None:
        self._rows.add_packed(self.tail)
        self.tail.clear()

    def raise_high_watermark(self, high_watermark: int) -> None:
        """Raise the high watermark, and the last stable offset with it. Hot."""
        self.high_watermark = high_watermark
        transactions = self.producers.transactions
        if transactions is None:
            self.last_stable_offset = high_watermark
        else:
            # The log start may have passed an open transaction.
            self.last_stable_offset = max(self.log_start, transactions.stable(high_watermark))

    def refusal(self) -> KafkaError:
        """The error for appends: the log has failed, or the partition is not here any more."""
        # Resigned partitions exist, at another broker.
        if self.removed and not self.resigned:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self.closed:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.sink.refusal is not None:
            return self.sink.refusal
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.log.failed)

    def begin_frame(self) -> None:
        """Have the next append follow everything queued so far, of all partitions, in the
        journal."""
        # In the frame that is open it could precede frames queued since that was begun: a crash
        # could keep it and lose them.
        self.frame = None

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, adds: bool
    ) -> Guard | None:
        """Return the guard that the first batch of a transaction needs, or None where nothing is
        to be verified; see Producers.begin_verification."""
        self.log.producing[self] = None  # for guards expire with producers
        return self.producers.begin_verification(producer_id, epoch, sequence, now_ms, adds=adds)

    def list_aborted(self, start: int, end: int) -> list[Aborted]:
        """Aborted transactions with a marker in the journals at or after `start`, and a first
        offset below `end`."""
        transactions = self.producers.transactions
        return transactions.aborted.overlapping(start, end) if transactions is not None else []

    def committed_end(self, offset: int) -> int:
        """Return where a page of committed records from `offset` on ends: at the last stable
        offset, or before, where the page would have too many aborted transactions."""
        transactions = self.producers.transactions
        end = self.last_stable_offset
        return end if transactions is None else transactions.aborted.end_of_page(offset, end)

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` called by `notify_watchers`, after those that watch already."""
        self.watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Undo `watch`, if it was called."""
        self.watchers.pop(watcher, None)

    def notify_watchers(self) -> None:
        """Notify the watchers that the high watermark, the last stable offset or the log start
        moved, or that the partition is removed."""
        for watcher in tuple(self.watchers):
            try:
                watcher(self)
            except Exception:  # one broken reader must not stop the others, nor the write batch
                logger.exception(
                    "a high-watermark callback of %s-%d failed", self.topic, self.index
                )

    def close_appends(self) -> None:
        """Take no appends until `open_appends`: another broker is about to lead it. Readers are
        served."""
        self.closed = True

    def open_appends(self) -> None:
        """Take appends again, and new transactions: it stays here."""
        self.producers.refuse_new_transactions(refuse=False)
        self.closed = self.removed

    def note_absent(self, end: int) -> None:
        """Note that offsets below `end` without a row were left at another broker."""
        self.absent_end = end

    def remove(self) -> None:
        self.closed = self.removed = True

    def resign(self) -> None:
        """Take no more appends: another broker leads it. Its readers are to be woken by
        `notify_watchers`."""
        self.closed = self.removed = self.resigned = True

    def rollback(self) -> None:
        self.frame = None
        self.offsets.rollback()
        self.producers.rollback()

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return (the largest epoch at or below `epoch`, its end offset), (-1, -1) if unknown.

        As LeaderEpochFileCache.endOffsetFor.
        """
        epochs = self.epochs
        if epoch < 0 or not epochs or epoch > epochs[-1][0]:
            return -1, -1
        if epoch == epochs[-1][0]:
            return epoch, self.next_offset
        known = epoch
        for other, start in epochs:
            if other > epoch:
                return known, start
            known = other
        raise AssertionError("the last epoch is larger")

    def start_epoch(self, epoch: int) -> None:
        """Begin a new leader epoch at the log end."""
        assert epoch >= self.leader_epoch, "leader epochs only rise"
        self.leader_epoch = epoch
        while self.epochs and self.epochs[-1][1] >= self.next_offset:
            self.epochs.pop()  # nothing was written with it
        self.epochs.append((epoch, self.next_offset))
        self.mark_dirty()

    def mark_dirty(self) -> None:
        """Note that the next checkpoint must contain it."""
        if not self.dirty:
            self.dirty = True
            self.log.dirty.append(self)

    async def delete_records(self, offset: int) -> int:
        """Move the log start to `offset` (-1: the high watermark); return the new log start.

        Returns when that is durable. Raises OFFSET_OUT_OF_RANGE above the high watermark.
        """
        target = self.high_watermark if offset == -1 else offset
        if target < 0 or target > self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if target > self.log_start:
            await self.log.save_log_starts({self.number: target})
            # Not here any more: the client looks it up and sends the request again.
            if self.removed and self.log_start < target:
                raise self.refusal()
        return self.log_start

    def keep_from(self, offset: int) -> None:
        """Have retention keep the records from `offset` on, if this is a schedule topic: they are
        not delivered yet. 0: all of them, as long as nothing is known of deliveries."""
        self.kept_from = offset

    def snapshot(self) -> PartitionCheckpoint:
        """Return its row in a checkpoint, for everything applied so far."""
        return PartitionCheckpoint(
            self.number,
            self.next_offset,
            self.log_start,
            list(self.epochs),
            self.producers.entries(),
        )
