"""Upload dispatcher: chooses the next uploads and has the reason for everything that waits.

A segment to be uploaded is registered here and passes through the states of CandidateState, by
decisions of `admit_uploads`, `start_uploads` and the results of the uploader. The oldest deadline
is admitted first. A failure of the storage closes a gate for all uploads. Times are monotonic
seconds. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from kafkawire.objectstore.backoff import wait_s

NEVER = float("inf")
HISTORY_EVERY = 4
"""One of so many admissions is of history if both kinds wait."""
MAX_ADMITTED = 256
"""Maximum number of objects per transaction; thousands of small ones would otherwise fill the
buffer."""


class Reason(Enum):
    """Reasons why something is not in the remote tier."""

    ACTIVE = "active"
    TRANSACTION = "transaction open"
    WAIT_AGE = "waiting for age"
    QUEUED = "queued"
    UPLOADING = "uploading"
    RATE_LIMITED = "rate-limited"
    ERROR = "error"
    PAUSED = "paused"
    NOT_TIERED = "not tiered"
    OWNED_BY_OTHER = "owned by another broker"
    UPLOADED = "uploaded"


class Why(NamedTuple):
    """A reason; `until`: when it changes or is retried (monotonic; NEVER: not by time)."""

    reason: Reason
    until: float = NEVER
    detail: str = ""


class Fault(Enum):
    """Scope of a failure: one segment or all uploads."""

    FILE = "file"
    STORE = "store"
    SLOW_DOWN = "slow down"
    REFUSED = "refused"


class CandidateState(Enum):
    """How far a segment is.

    | from | event | to |
    |---|---|---|
    | - | registered | WAITING |
    | WAITING | `when` is reached | READY |
    | READY | there is room in the upload buffer | ADMITTED |
    | ADMITTED | an upload slot is free, and the rate limit allows it | BEGUN |
    | ADMITTED, BEGUN | its object is finished, or not needed any more | forgotten |
    | ADMITTED, BEGUN | the attempt failed | WAITING |
    | WAITING, READY | the segment is gone | forgotten |
    """

    WAITING = auto()
    """For its age, if it is smaller than the minimum object size, or after a failure."""
    READY = auto()
    ADMITTED = auto()
    """In the upload buffer, which is bounded in bytes, and with a row for its object."""
    BEGUN = auto()


_NOT_ADMITTED = (CandidateState.WAITING, CandidateState.READY)


@dataclass(slots=True)
class UploadLimits:
    """Limits from the settings, updated in place. `bytes_per_second` -1: unlimited."""

    buffer_bytes: int
    uploads: int
    bytes_per_second: int
    retry_max_s: float


@dataclass(slots=True)
class Candidate:
    """A segment to be uploaded. `due`: when it is uploaded whatever its size; `late`: when its lag
    limit is exceeded; `history`: it was late when registered; `numbers`: its partitions; `since`:
    when its oldest record was written. `error`: of its last attempt."""

    segment_id: int
    size_bytes: int
    due: float
    late: float
    history: bool = False
    numbers: Sequence[int] = ()
    since: float = 0.0
    state: CandidateState = CandidateState.WAITING
    when: float = 0.0  # if waiting: when it becomes ready
    tries: int = 0
    error: str = ""


class _Queued(NamedTuple):
    """An entry of a heap: the candidate with the least `at` is first."""

    at: float
    order: int
    candidate: Candidate


class Dispatcher:
    """Chooses the segments to upload now. `paused`: by which setting, "" if not paused; `foreign`:
    another broker owns the bucket; `detached`: why the bucket cannot be used yet, "" if it can.
    `failures` counts failed attempts by scope."""

    def __init__(self, limits: UploadLimits) -> None:
        self.limits = limits
        self.paused = ""
        self.foreign = False
        self.detached = ""
        self.failures: Counter[Fault] = Counter()
        self.candidates: dict[int, Candidate] = {}
        self.buffered_bytes = 0
        self.begun = 0
        self._waiting: list[_Queued] = []
        self._ready: list[_Queued] = []
        self._history: list[_Queued] = []
        self._admitted: list[Candidate] = []
        self._admissions = 0
        self._order = count()
        self._free_at = 0.0  # of the rate limit
        self._gate_until = 0.0
        self._gate_error = ""
        self._in_a_row = 0

    def register(self, candidate: Candidate, now: float) -> None:
        """Add a segment to be uploaded; a registered one keeps its state."""
        if candidate.segment_id in self.candidates:
            return
        self.candidates[candidate.segment_id] = candidate
        self._wait(candidate, candidate.due)
        self._ripen(now)

    def upload_soon(self, numbers: Set[int], now: float) -> None:
        """Upload the segments of some partitions soon, except those that wait after a failure."""
        for candidate in self.candidates.values():
            waits = (
                candidate.state is CandidateState.WAITING
                and not candidate.tries
                and candidate.when > now
            )
            if waits and not numbers.isdisjoint(candidate.numbers):
                self._wait(candidate, now)

    def remove_segment(self, segment_id: int) -> None:
        """Remove a segment. One in the buffer runs to its end."""
        candidate = self.candidates.get(segment_id)
        # The heaps keep it until it is their first, and find then that it is not registered.
        if candidate is not None and candidate.state in _NOT_ADMITTED:
            del self.candidates[segment_id]

    def limit(self, limits: UploadLimits) -> None:
        self.limits = limits

    def attach(self) -> None:
        """Allow uploads: the bucket is attached and owned by this broker."""
        self.foreign, self.detached = False, ""

    def detach(self, why: str) -> None:
        """Block uploads until the bucket can be used."""
        self.detached = why

    def owned_by_other(self, foreign: bool) -> None:
        self.foreign = foreign

    def pause(self, setting: str) -> None:
        """Block uploads until `resume_uploads`; `setting`: the one that requests it."""
        self.paused = setting

    def resume_uploads(self, now: float) -> None:
        """Resume uploads. Lag limits restart for segments that waited during the pause."""
        self.paused = ""
        # Without the limits restarted, all of them would count as exceeded at once.
        for candidate in self.candidates.values():
            candidate.late += max(0.0, now - candidate.since)
            candidate.history = True

    def admit_uploads(self, now: float) -> list[int]:
        self._ripen(now)
        admitted: list[int] = []
        most = MAX_ADMITTED
        # After a failure only one, which tests the storage; the others follow after its success.
        if self._in_a_row:
            most = 1 - self.begun - len(self._admitted)
        while len(admitted) < most and not self._is_held(now):
            heap = self._next_heap()
            if heap is None or not self._fits(heap[0].candidate):
                break
            candidate = heappop(heap).candidate
            candidate.state = CandidateState.ADMITTED
            self._admissions += 1
            self.buffered_bytes += candidate.size_bytes
            self._admitted.append(candidate)
            admitted.append(candidate.segment_id)
        return admitted

    def start_uploads(self, now: float) -> list[int]:
        begun: list[int] = []
        while self._admitted and not self._is_held(now) and self.begun < self._slots():
            if now < self._free_at:
                break
            candidate = self._admitted.pop(0)
            candidate.state = CandidateState.BEGUN
            self.begun += 1
            if self.limits.bytes_per_second > 0:
                pace = candidate.size_bytes / self.limits.bytes_per_second
                self._free_at = max(self._free_at, now) + pace
            begun.append(candidate.segment_id)
        return begun

    def wake_at(self, now: float) -> float:
        """Return when to decide again without a new event; NEVER: not by time."""
        if self.paused or self.foreign or self.detached:
            return NEVER
        times = [self._waiting[0].at] if self._waiting else []
        if self._admitted or self._ready or self._history:
            times += [at for at in (self._gate_until, self._free_at) if at > now]
        return min(times, default=NEVER)

    def note_upload(self) -> None:
        """An upload has succeeded. Its segment stays in the buffer until its rows are finished."""
        self.begun -= 1
        self.open_gate()

    def open_gate(self) -> None:
        """The storage works again."""
        self._in_a_row = 0
        self._gate_until, self._gate_error = 0.0, ""

    def finish(self, segment_id: int) -> None:
        """Its object is finished or not needed any more: remove it from the buffer."""
        candidate = self.candidates.pop(segment_id)
        self.buffered_bytes -= candidate.size_bytes
        if candidate in self._admitted:
            self._admitted.remove(candidate)

    def fail(self, segment_id: int, fault: Fault, error: str, now: float, jitter: float) -> float:
        """An attempt has failed. Return the seconds to the next try (0: other uploads continue)."""
        self.failures[fault] += 1
        candidate = self.candidates[segment_id]
        if candidate.state is CandidateState.BEGUN:
            self.begun -= 1
        else:
            self._admitted.remove(candidate)
        self.buffered_bytes -= candidate.size_bytes
        candidate.tries += 1
        candidate.error = error
        if fault is not Fault.FILE:
            self.close_gate(fault, error, now, jitter)
        own = wait_s(candidate.tries, self.limits.retry_max_s, jitter)
        # Later than the gate opens, so that another segment is tried first: one that always fails
        # must not block the others.
        self._wait(candidate, max(now + own, self._gate_until + own / 8))
        return max(0.0, self._gate_until - now)

    def close_gate(self, fault: Fault, error: str, now: float, jitter: float) -> None:
        """The storage has failed: block uploads until the gate opens."""
        # Failures of uploads that were begun before it closed count once.
        if now < self._gate_until:
            return
        self._in_a_row += 1
        refused = fault is Fault.REFUSED
        wait = self.limits.retry_max_s
        if not refused:
            wait = wait_s(self._in_a_row + (fault is Fault.SLOW_DOWN), wait, jitter)
        self._gate_until, self._gate_error = now + wait, error

    def why(self, segment_id: int, now: float) -> Why:
        """Return why a registered segment is not finished. KeyError if it is not registered."""
        candidate = self.candidates[segment_id]
        if self.foreign:
            return Why(Reason.OWNED_BY_OTHER)
        if candidate.state is CandidateState.BEGUN and now >= self._gate_until:
            return Why(Reason.UPLOADING)
        if self.paused and candidate.state is not CandidateState.BEGUN:
            return Why(Reason.PAUSED, NEVER, self.paused)
        if candidate.state is CandidateState.WAITING and candidate.when > now:
            reason = Reason.ERROR if candidate.error else Reason.WAIT_AGE
            return Why(reason, candidate.when, candidate.error)
        if self.detached:
            return Why(Reason.ERROR, NEVER, self.detached)
        if now < self._gate_until:
            return Why(Reason.ERROR, self._gate_until, self._gate_error)
        if now < self._free_at:
            return Why(Reason.RATE_LIMITED, self._free_at)
        return Why(Reason.QUEUED, NEVER, candidate.error)

    @property
    def trouble(self) -> str:
        """Return the last failure of the storage, if nothing has succeeded since."""
        return self._gate_error

    def error(self, now: float) -> tuple[str, float]:
        """Return what blocks all uploads (code, time of the next attempt); ("", 0): nothing."""
        return (self._gate_error, self._gate_until) if now < self._gate_until else ("", 0.0)

    def _wait(self, candidate: Candidate, when: float) -> None:
        candidate.state, candidate.when = CandidateState.WAITING, when
        heappush(self._waiting, _Queued(when, next(self._order), candidate))

    def _ripen(self, now: float) -> None:
        while self._waiting and self._waiting[0].at <= now:
            when, _, candidate = heappop(self._waiting)
            # It was hurried since: its old entry stays in the heap.
            if candidate.state is not CandidateState.WAITING or candidate.when != when:
                continue
            if self._is_registered(candidate):
                candidate.state = CandidateState.READY
                heap = self._history if candidate.history else self._ready
                heappush(heap, _Queued(candidate.late, next(self._order), candidate))

    def _next_heap(self) -> list[_Queued] | None:
        for heap in (self._ready, self._history):
            # Removed candidates stay in the heap.
            while heap and not self._is_registered(heap[0].candidate):
                heappop(heap)
        # The history of a newly tiered topic is late already, and would otherwise come before all
        # new records, or after all of them: this way neither kind starves.
        history_first = self._admissions % HISTORY_EVERY == HISTORY_EVERY - 1
        first, second = (
            (self._history, self._ready) if history_first else (self._ready, self._history)
        )
        return first or second or None

    def _is_registered(self, candidate: Candidate) -> bool:
        return self.candidates.get(candidate.segment_id) is candidate

    def _fits(self, candidate: Candidate) -> bool:
        # One larger than the buffer is uploaded alone.
        filled = self.buffered_bytes + candidate.size_bytes
        return not self.buffered_bytes or filled <= self.limits.buffer_bytes

    def _is_held(self, now: float) -> bool:
        return bool(self.paused or self.detached) or self.foreign or now < self._gate_until

    def _slots(self) -> int:
        """Return the number of concurrent uploads: one after a failure, until one has succeeded."""
        return 1 if self._in_a_row else self.limits.uploads
