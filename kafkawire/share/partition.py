"""The state machine of one share partition: which records are available, acquired and done. Pure.

A `decide_*` method returns changes and what follows from them, and changes nothing; `apply` applies
changes. Records between the start offset (SPSO) and the end offset are in flight; those from the
end offset on were never acquired. State is kept in runs of offsets (kafkawire.share.runs): a
batch that is acquired and acknowledged as a whole is one.

    state        event                                           next state
    AVAILABLE    acquired by a member (decide_acquire)           ACQUIRED, its delivery count + 1
                 no record there any more, aborted, control      ARCHIVED
    ACQUIRED     accepted (decide_acknowledge)                   ACKNOWLEDGED  *
                 released, the member's session ended            AVAILABLE     *
                 the lock expired (decide_expire)                AVAILABLE
                 one of these two, at the delivery limit         ARCHIVING or ARCHIVED, likewise
                 rejected                                        ARCHIVING or ARCHIVED  *
                 a gap, says the member                          ARCHIVED  *
                 renewed                                         ACQUIRED, with a new lock
    ARCHIVING    its dead letter was written, or cannot be       ARCHIVED
    any          the log start moved past it                     not in flight

ARCHIVING with a dead-letter topic, ARCHIVED without. A move marked * is in two phases: the records
are *in transition* (`ShareRecord.target`) while the persister writes, and no member can use them;
`decide_written` completes the moves, or undoes them. A lock that expires in between ends when they
are undone. The others are done at once, and written as soon as possible (`ShareRecord.save`).

A write has everything that changed since the one before it. It has the start offset as it will be
after it, so most have no batches. After a failed write its outcome is unknown, and its records
are written again as they are then.

Differences from Kafka's SharePartition: control batches are archived here, where Kafka leaves them
to members; a record with many failed deliveries is also not delivered after others of its batch;
offsets that were never settled before a new leader are ordinary available ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from kafkawire.codec.configs.group_config import ShareGroupSettings
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.share.persister import ShareState, StateBatch
from kafkawire.share.runs import OffsetRun, Runs
from kafkawire.share.states import LEGAL, TERMINAL, AcknowledgeType, ArchiveReason, RecordState

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ACKNOWLEDGED = RecordState.ACKNOWLEDGED
ARCHIVING, ARCHIVED = RecordState.ARCHIVING, RecordState.ARCHIVED


class ShareRecord(NamedTuple):
    """The state of each record of a run. `deliveries`: how often it was acquired; `size`: of
    how many records the batch was that was acquired first; `member`: its owner. `until_ms`: when
    the lock of an acquired one ends, or from when on an available one may be acquired. In
    transition to `target`, if there is one; a release will take effect `delay_ms` later. `save`:
    the number of the write that must have it, 0: it is stored."""

    state: RecordState
    deliveries: int = 0
    size: int = 1
    member: str = ""
    until_ms: int = 0
    target: RecordState | None = None
    delay_ms: int = 0
    reason: ArchiveReason = ArchiveReason.UNKNOWN
    save: int = 0

    @property
    def next_state(self) -> RecordState:
        return self.state if self.target is None else self.target

    def may_be_acquired(self, now_ms: int) -> bool:
        return self.state is AVAILABLE and self.until_ms <= now_ms


GAP = ShareRecord(ARCHIVED)
RUNS_AT_ONCE = 500
"""Runs that one request acquires: few milliseconds. A run is usually a batch or more."""


class FetchedBatch(NamedTuple):
    """A batch of the log: its first and last offset, and whether members are not to get it, since
    it is a control batch or, for readers of committed records, of an aborted transaction."""

    first: int
    last: int
    dropped: bool = False


class Acquire(NamedTuple):
    """A request for records of `batches`, which were read from `fetch_offset` on. `strict`: not one
    more than `max_records`; otherwise whole batches, in runs of about `batch_size` records."""

    member: str
    fetch_offset: int
    batches: Sequence[FetchedBatch]
    max_records: int
    batch_size: int = 500
    strict: bool = False


class Acknowledge(NamedTuple):
    """Offsets, with one acknowledge type for all or one for each."""

    first: int
    last: int
    types: Sequence[int]


class Acquired(NamedTuple):
    """Offsets that a member has acquired, for the n-th time."""

    first: int
    last: int
    delivery_count: int


class StartMoved(NamedTuple):
    """The records before `offset` are not in flight any more."""

    offset: int


Put = OffsetRun[ShareRecord]
"""Set the state of these offsets."""
Change = Put | StartMoved


@dataclass(slots=True)
class ShareDecision:
    """`changes` to apply. `acquired`: the answer of decide_acquire. `saves`: a write is needed, for
    which acknowledgements wait; `wakes`: records may be available that were not."""

    changes: list[Change] = field(default_factory=list)
    acquired: list[Acquired] = field(default_factory=list)
    saves: bool = False
    wakes: bool = False


class StateWrite(NamedTuple):
    """A write of the persister; `number` is passed to decide_written."""

    number: int
    start_offset: int
    complete_count: int
    batches: tuple[StateBatch, ...]


class SharePartition:
    """The records in flight of one share partition."""

    __slots__ = ("_counts", "_runs", "_write")

    def __init__(self, start: int) -> None:
        self._runs: Runs[ShareRecord] = Runs(start)
        self._counts = [0] * len(RecordState)
        self._write = 1  # the number of the next write

    @classmethod
    def load(
        cls, state: ShareState, start: int, now_ms: int, settings: ShareGroupSettings
    ) -> SharePartition:
        """Return the state that a leader begins with. `start` replaces a start offset that was not
        decided. Raises KafkaError if the batches overlap or are not in order."""
        machine = cls(start)
        at = start
        puts: list[Change] = []
        for batch in state.batches:
            if batch.last < start:
                continue
            first = max(batch.first, start)
            if first < at or batch.last < first or batch.state not in _STORED:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"stored {batch} is not valid")
            if first > at:  # acquired once, and not settled
                puts.append(Put(at, first - 1, ShareRecord(AVAILABLE, size=first - at)))
            kept, size = RecordState(batch.state), batch.last - batch.first + 1
            # Whether it was released is not known: a delay begins again.
            delay = retry_delay_ms(settings, batch.delivery_count) if kept is AVAILABLE else 0
            until = now_ms + delay if delay else 0
            record = ShareRecord(kept, batch.delivery_count, size, until_ms=until)
            puts.append(Put(first, batch.last, record))
            at = batch.last + 1
        machine._replace(puts)
        machine._advance()
        return machine

    # -- what is asked of it --------------------------------------------------------------

    @property
    def start(self) -> int:
        return self._runs.start

    @property
    def end(self) -> int:
        """The offset after the last one in flight."""
        return self._runs.end

    @property
    def in_flight(self) -> int:
        """Offsets between start and end, also those that are done."""
        return self.end - self.start

    def count_in(self, state: RecordState) -> int:
        """Return how many offsets in flight are in a state."""
        return self._counts[state]

    def runs(self, first: int = 0, last: int = 1 << 63) -> list[OffsetRun[ShareRecord]]:
        """Return what is in flight of these offsets."""
        return self._runs.within(first, last)

    def fetch_offset(self, now_ms: int, max_locks: int) -> int | None:
        """Return the first offset that may be acquired; None: none, as too many are in flight."""
        if self._counts[AVAILABLE]:
            for run in self._runs:
                if run.value.may_be_acquired(now_ms):
                    return run.first
        return self.end if self.in_flight < max_locks else None

    def next_deadline(self) -> int | None:
        """Return when the next lock or delay ends."""
        ends = [run.value.until_ms for run in self._runs if run.value.until_ms]
        return min(ends, default=None)

    def dead_letters(self, limit: int) -> list[OffsetRun[ShareRecord]]:
        """Return the first records that wait for their dead letter, stored as such."""
        found: list[OffsetRun[ShareRecord]] = []
        if self._counts[ARCHIVING]:
            for run in self._runs:
                if limit > 0 and run.value.state is ARCHIVING and not run.value.save:
                    found.append(
                        OffsetRun(run.first, min(run.last, run.first + limit - 1), run.value)
                    )
                    limit -= run.length
        return found

    # -- decisions ------------------------------------------------------------------------

    def decide_acquire(
        self, ask: Acquire, now_ms: int, settings: ShareGroupSettings
    ) -> ShareDecision:
        """Acquire records that were read, and archive what the read shows to be no record."""
        made = self._decide_acquire(ask, now_ms, settings)
        # Otherwise the next write is that of what is acquired here, and stores this, too. In Kafka
        # members acknowledge it as gaps.
        made.saves = bool(made.changes) and not made.acquired
        return made

    def _decide_acquire(
        self, ask: Acquire, now_ms: int, settings: ShareGroupSettings
    ) -> ShareDecision:
        made = ShareDecision()
        if not ask.batches or ask.max_records <= 0:
            return made
        first, last = ask.batches[0].first, ask.batches[-1].last
        # Read from there, and not found: compacted away.
        for run in self._runs.within(ask.fetch_offset, first - 1):
            if run.value.state is AVAILABLE:
                made.changes.append(Put(run.first, run.last, GAP))
        wanted = min(ask.max_records, settings.max_record_locks - self.in_flight)
        if wanted <= 0:
            # At the limit what is in flight may be acquired again.
            if ask.fetch_offset >= self.end:
                return made
            wanted = min(ask.max_records, self.end - ask.fetch_offset)
            last = min(last, self.end - 1)
        taking = _Taking(made, ask, now_ms, settings, wanted)
        for run in self._runs.within(first, last):
            if run.value.may_be_acquired(now_ms) and not taking.acquire_from(run, last):
                return made
        if last >= self.end:
            if first > self.end:
                made.changes.append(Put(self.end, first - 1, GAP))
            taking.acquire_from(OffsetRun(max(first, self.end), last, ShareRecord(AVAILABLE)), last)
        return made

    def decide_acknowledge(
        self, member: str, batches: Sequence[Acknowledge], now_ms: int, settings: ShareGroupSettings
    ) -> ShareDecision:
        """Begin the moves that a member asks for: all or, with a KafkaError, none."""
        made = ShareDecision()
        done = self.start - 1  # up to here: before the start, or earlier in this request
        for batch in batches:
            if batch.last < self.start:
                continue  # done already
            self._check_offsets(batch)
            first = max(batch.first, self.start)
            if first <= done:
                raise _not_acquired("in transition")
            done = batch.last
            for run in self._runs.within(first, batch.last):
                _check_owner(run.value, member)
                moved: dict[int, ShareRecord] = {}  # by type: types may alternate, and are few
                for first, last, kind in _by_type(run, batch):
                    record = moved.get(kind)
                    if record is None:
                        record = self._settle_as(AcknowledgeType(kind), run.value, now_ms, settings)
                        moved[kind] = record
                    made.changes.append(Put(first, last, record))
                made.saves = made.saves or any(kind != AcknowledgeType.RENEW for kind in moved)
        return made

    def _check_offsets(self, batch: Acknowledge) -> None:
        if self.start == self.end:
            raise _not_acquired("not in flight")
        if batch.last >= self.end:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The last offset in request is past acquired records."
            )

    def _settle_as(
        self, kind: AcknowledgeType, record: ShareRecord, now_ms: int, settings: ShareGroupSettings
    ) -> ShareRecord:
        """Return an acquired record as it is after its acknowledgement."""
        if kind is AcknowledgeType.RENEW:
            if not settings.renew_enabled:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE,
                    "Renewing acquisition locks is not enabled for the group.",
                )
            return record._replace(until_ms=now_ms + settings.record_lock_duration_ms)
        if kind is AcknowledgeType.RELEASE:
            delay = retry_delay_ms(settings, record.deliveries)
            return self._begin_return(record, settings)._replace(delay_ms=delay)
        if kind is AcknowledgeType.REJECT:
            return self._begin_archive(record, settings, ArchiveReason.REJECTED)
        target = ACKNOWLEDGED if kind is AcknowledgeType.ACCEPT else ARCHIVED
        return record._replace(target=target, save=self._write)

    def _begin_return(self, record: ShareRecord, settings: ShareGroupSettings) -> ShareRecord:
        if record.deliveries >= settings.delivery_count_limit:
            return self._begin_archive(record, settings, ArchiveReason.DELIVERED_TOO_OFTEN)
        return record._replace(target=AVAILABLE, save=self._write)

    def _begin_archive(
        self, record: ShareRecord, settings: ShareGroupSettings, reason: ArchiveReason
    ) -> ShareRecord:
        target = ARCHIVING if settings.dead_letter_topic else ARCHIVED
        return record._replace(target=target, reason=reason, save=self._write)

    def decide_release(self, member: str, settings: ShareGroupSettings) -> ShareDecision:
        """Begin to release all that a member has acquired: its session has ended."""
        made = ShareDecision()
        for run in self._runs:
            record = run.value
            if record.state is ACQUIRED and record.target is None and record.member == member:
                made.saves = True
                made.changes.append(Put(run.first, run.last, self._begin_return(record, settings)))
        return made

    def decide_expire(self, now_ms: int, settings: ShareGroupSettings) -> ShareDecision:
        """End the locks and delays that are over."""
        made = ShareDecision()
        for run in self._runs:
            record = run.value
            if not record.until_ms or record.until_ms > now_ms or record.target is not None:
                continue
            made.wakes = True
            if record.state is ACQUIRED:
                record = self._expire(record, settings)
                made.saves = True
            made.changes.append(Put(run.first, run.last, record._replace(until_ms=0)))
        return made

    def _expire(self, record: ShareRecord, settings: ShareGroupSettings) -> ShareRecord:
        return _settle(self._begin_return(record, settings), 0)._replace(save=self._write)

    def begin_write(self) -> StateWrite:
        """Return all that is to be stored, and begin the next write: what changes from here on
        belongs to that one."""
        number, self._write = self._write, self._write + 1
        start, moves = self.start, True
        complete = 0
        batches: list[StateBatch] = []
        for run in self._runs:
            record = run.value
            state, count = record.next_state, record.deliveries
            if state in TERMINAL:
                if moves:
                    start = run.last + 1
                    continue
                complete += run.length
            moves = False
            if not record.save:
                continue
            if state is ACQUIRED:  # acquiring is not stored
                state, count = AVAILABLE, count - 1
            before = batches[-1] if batches else None
            if before and before.last + 1 == run.first and before[2:] == (state, count):
                batches[-1] = before._replace(last=run.last)
            else:
                batches.append(StateBatch(run.first, run.last, state, count))
        return StateWrite(number, start, complete, tuple(batches))

    def decide_written(
        self, number: int, now_ms: int, settings: ShareGroupSettings, *, stored: bool
    ) -> ShareDecision:
        """Complete the moves of a write, or undo them: then `saves` is set for another one."""
        made = ShareDecision(saves=not stored)
        after: dict[ShareRecord, ShareRecord] = {}  # many runs may have one of a few states
        for run in self._runs:
            record = run.value
            if not 0 < record.save <= number:
                continue
            moved = after.get(record)
            if moved is None:
                moved = (
                    _settle(record, now_ms)._replace(save=0)
                    if stored
                    else self._undo(record, now_ms, settings)
                )
                after[record] = moved
            made.wakes = made.wakes or moved.state is not ACQUIRED
            made.changes.append(Put(run.first, run.last, moved))
        return made

    def _undo(self, record: ShareRecord, now_ms: int, settings: ShareGroupSettings) -> ShareRecord:
        """Return a record as it was before a write that has failed, to be written again."""
        kept = _kept_reason(record)
        undone = record._replace(target=None, delay_ms=0, reason=kept, save=self._write)
        if undone.state is ACQUIRED and undone.until_ms <= now_ms:
            return self._expire(undone, settings)
        return undone

    def decide_dead_lettered(self, first: int, last: int) -> ShareDecision:
        """Archive records whose dead letter is written, or cannot be."""
        made = ShareDecision(wakes=True)
        for run in self._runs.within(first, last):
            if run.value.state is ARCHIVING:
                made.saves = True
                archived = run.value._replace(state=ARCHIVED, save=self._write)
                made.changes.append(Put(run.first, run.last, archived))
        return made

    def decide_log_start(self, log_start: int) -> ShareDecision:
        """Drop what is not in the log any more; stored with the next write, as in Kafka."""
        made = ShareDecision()
        if log_start > self.start:
            made.wakes = True
            made.changes.append(StartMoved(log_start))
        return made

    # -- changes --------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change]) -> int | None:
        """Apply changes; the only method that changes records. Return the earliest end of a lock or
        delay among them."""
        deadlines: list[int] = []
        puts: list[Put] = []
        for change in changes:
            if isinstance(change, StartMoved):
                self._replace(puts)
                puts = []
                self._trim(change.offset)
                continue
            if puts and puts[-1].last + 1 != change.first:
                self._replace(puts)
                puts = []
            puts.append(change)
            if change.value.until_ms:
                deadlines.append(change.value.until_ms)
        self._replace(puts)
        self._advance()
        return min(deadlines, default=None)

    def _replace(self, puts: Sequence[Change]) -> None:
        """Set the state of adjacent runs, and count it."""
        runs = [put for put in puts if not isinstance(put, StartMoved)]
        if not runs:
            return
        counts = self._counts
        new = iter(runs)
        put = next(new)
        for run in self._runs.within(runs[0].first, runs[-1].last):
            at = run.first
            while at <= run.last:
                while put.last < at:
                    put = next(new)
                old, state = run.value.state, put.value.state
                assert old is state or state in LEGAL[old], f"{old.name} to {state.name}"
                stop = min(run.last, put.last)
                counts[old] -= stop - at + 1
                at = stop + 1
        for put in runs:
            counts[put.value.state] += put.length
        self._runs.replace(runs)

    def _advance(self) -> None:
        """Move the start over what is done and stored as such. An acknowledgement of what is before
        the start succeeds, so another leader must not deliver it again."""
        start = self.start
        for run in self._runs:
            if run.value.state not in TERMINAL or run.value.save:
                break
            start = run.last + 1
        self._trim(start)

    def _trim(self, start: int) -> None:
        for run in self._runs.within(self.start, start - 1):
            self._counts[run.value.state] -= run.length
        self._runs.trim(start)


def retry_delay_ms(settings: ShareGroupSettings, deliveries: int) -> int:
    """Return for how long a record is unavailable that was released after so many deliveries: twice
    as long after each."""
    if not settings.retry_delay_ms or deliveries < 1:
        return 0
    # Few bits: a count that is stored may be of any size.
    return min(settings.retry_delay_ms << min(deliveries - 1, 32), settings.retry_delay_max_ms)


def isolation_threshold(delivery_count_limit: int) -> int:
    """Return the delivery count from which on a record is delivered with fewer others, so that one
    that members fail on does not take others to the limit (Kafka:
    SharePartition.throttleRecordsDeliveryLimit)."""
    return max(2, -(-delivery_count_limit // 2))


_STORED = frozenset(RecordState) - {ACQUIRED}


class _Taking:
    """Collects what one request acquires."""

    def __init__(
        self,
        made: ShareDecision,
        ask: Acquire,
        now_ms: int,
        settings: ShareGroupSettings,
        wanted: int,
    ) -> None:
        self._made = made
        self._ask = ask
        self._until_ms = now_ms + settings.record_lock_duration_ms
        self._settings = settings
        self._left = wanted
        self._lasts = [batch.last for batch in ask.batches]

    def acquire_from(self, run: OffsetRun[ShareRecord], last: int) -> bool:
        """Acquire from the beginning of a run of available records; return whether more may be
        acquired from others."""
        alone = self._isolate(run.value)
        acquired = len(self._made.acquired)
        if self._left <= 0 or acquired >= RUNS_AT_ONCE or (alone and acquired):
            return False
        wanted = min(self._left, alone) if alone else self._left
        stop = run.first + wanted - 1
        if not (alone or self._ask.strict):  # whole batches
            stop = self._lasts[min(bisect_left(self._lasts, stop), len(self._lasts) - 1)]
        self._acquire(run, min(stop, run.last, last))
        return self._left > 0 and not alone

    def _isolate(self, record: ShareRecord) -> int:
        """Return how many records may be acquired at once because of failed deliveries; 0: any."""
        limit = self._settings.delivery_count_limit
        threshold = isolation_threshold(limit)
        if record.deliveries < threshold:
            return 0
        if limit > 2 and record.deliveries >= limit - 1:
            return 1  # the last delivery
        return max(1, record.size >> (record.deliveries - threshold + 1))

    def _acquire(self, run: OffsetRun[ShareRecord], last: int) -> None:
        """Acquire the records up to `last`, in runs that end where batches do, without batches that
        are dropped."""
        at, batches = run.first, self._ask.batches
        for batch in batches[bisect_left(self._lasts, at) :]:
            if batch.first > last:
                break
            if batch.dropped:
                self._put(run.value, at, batch.first - 1)
                first, stop = max(at, batch.first), min(last, batch.last)
                self._made.changes.append(Put(first, stop, GAP))
                at = stop + 1
            elif not self._ask.strict and batch.first - at >= self._ask.batch_size:
                self._put(run.value, at, batch.first - 1)
                at = batch.first
        self._put(run.value, at, last)

    def _put(self, record: ShareRecord, first: int, last: int) -> None:
        if first > last:
            return
        count = last - first + 1
        self._left -= count
        # Of a batch that is delivered again in parts the size stays.
        size = record.size if record.deliveries else count
        acquired = ShareRecord(
            ACQUIRED,
            record.deliveries + 1,
            size,
            self._ask.member,
            self._until_ms,
            save=record.save,
        )
        self._made.changes.append(Put(first, last, acquired))
        self._made.acquired.append(Acquired(first, last, record.deliveries + 1))


def _settle(record: ShareRecord, now_ms: int) -> ShareRecord:
    """Complete the move of a record."""
    if record.target is None:
        return record
    until = now_ms + record.delay_ms if record.delay_ms else 0
    return ShareRecord(
        record.target, record.deliveries, record.size, until_ms=until, reason=record.reason,
        save=record.save,
    )  # fmt: skip


def _kept_reason(record: ShareRecord) -> ArchiveReason:
    return record.reason if record.target is None else ArchiveReason.UNKNOWN


def _by_type(run: OffsetRun[ShareRecord], batch: Acknowledge) -> Iterator[tuple[int, int, int]]:
    """Yield (first offset, last offset, acknowledge type) of the parts of a run."""
    types = batch.types
    if len(types) == 1:
        yield run.first, run.last, types[0]
        return
    first = run.first
    for kind, same in groupby(types[first - batch.first : run.last + 1 - batch.first]):
        last = first + len(list(same)) - 1
        yield first, last, kind
        first = last + 1


def _check_owner(record: ShareRecord, member: str) -> None:
    if record.state is not ACQUIRED:
        raise _not_acquired("not in the acquired state")
    if record.target is not None:
        raise _not_acquired("in transition")
    if record.member != member:
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "Member is not the owner of batch record")


def _not_acquired(why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_RECORD_STATE,
        f"The batch cannot be acknowledged. The batch is {why}.",
    )
