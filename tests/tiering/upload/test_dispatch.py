"""The dispatcher: lag limits, bounds and fairness, for any order of events."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.objectstore.backoff import wait_s
from kafkawire.tiering.upload.scheduler import (
    HISTORY_EVERY,
    MAX_ADMITTED,
    NEVER,
    Candidate,
    CandidateState,
    Dispatcher,
    Fault,
    Reason,
    UploadLimits,
)

MIB = 1 << 20


def limits(**more: int) -> UploadLimits:
    made = UploadLimits(buffer_bytes=64 * MIB, uploads=4, bytes_per_second=-1, retry_max_s=60)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def candidate(
    segment_id: int, due: float = 0.0, size: int = MIB, *, history: bool = False
) -> Candidate:
    return Candidate(segment_id, size, due, due + 60, history)


def test_small_segment_is_uploaded_at_its_age() -> None:
    dispatcher = Dispatcher(limits())
    dispatcher.register(candidate(1, due=90.0), 0.0)
    assert dispatcher.admit_uploads(0.0) == []
    assert dispatcher.why(1, 0.0)[:2] == (Reason.WAIT_AGE, 90.0)
    assert dispatcher.wake_at(0.0) == 90.0
    assert dispatcher.admit_uploads(90.0) == [1]
    assert dispatcher.why(1, 90.0).reason is Reason.QUEUED
    assert dispatcher.start_uploads(90.0) == [1]
    assert dispatcher.why(1, 90.0).reason is Reason.UPLOADING
    dispatcher.note_upload()
    dispatcher.finish(1)
    assert not dispatcher.candidates
    assert dispatcher.buffered_bytes == 0
    assert dispatcher.wake_at(90.0) == NEVER


def test_registering_twice_keeps_state() -> None:
    dispatcher = Dispatcher(limits())
    dispatcher.register(candidate(1), 0.0)
    assert dispatcher.admit_uploads(0.0) == [1]
    dispatcher.remove_segment(1)  # too late: it has a row
    dispatcher.register(candidate(1), 0.0)
    assert dispatcher.admit_uploads(1.0) == []
    assert dispatcher.start_uploads(1.0) == [1]


def test_removed_candidate_is_not_uploaded() -> None:
    dispatcher = Dispatcher(limits())
    for at, due in enumerate((0.0, 5.0)):
        dispatcher.register(candidate(at, due), 0.0)
        dispatcher.remove_segment(at)
    assert dispatcher.admit_uploads(10.0) == []
    dispatcher.register(candidate(0, 20.0), 10.0)  # again, with its new time
    assert dispatcher.admit_uploads(19.0) == []
    assert dispatcher.admit_uploads(20.0) == [0]


def test_pause_stops_uploads_not_yet_started() -> None:
    dispatcher = Dispatcher(limits(uploads=1))
    dispatcher.register(candidate(1), 0.0)
    dispatcher.register(candidate(2), 0.0)
    dispatcher.admit_uploads(0.0)
    assert dispatcher.start_uploads(0.0) == [1]
    dispatcher.pause("tier.paused")
    dispatcher.register(candidate(3), 0.0)
    assert dispatcher.admit_uploads(1.0) == []
    dispatcher.note_upload()
    assert dispatcher.start_uploads(1.0) == []
    assert dispatcher.why(1, 1.0).reason is Reason.UPLOADING
    for held in (2, 3):
        assert dispatcher.why(held, 1.0) == (Reason.PAUSED, NEVER, "tier.paused")
    assert dispatcher.wake_at(1.0) == NEVER
    dispatcher.pause("")
    assert dispatcher.admit_uploads(2.0) == [3]
    assert dispatcher.start_uploads(2.0) == [2]
    dispatcher.owned_by_other(True)
    assert dispatcher.why(3, 2.0).reason is Reason.OWNED_BY_OTHER
    dispatcher.note_upload()
    assert dispatcher.start_uploads(2.0) == []


def test_pause_does_not_count_as_missed_deadline() -> None:
    dispatcher = Dispatcher(limits())
    dispatcher.register(candidate(1, due=10.0), 0.0)  # late at 70
    dispatcher.pause("tier.paused")
    dispatcher.resume_uploads(1000.0)
    assert dispatcher.candidates[1].late >= 1000.0 + 60
    assert dispatcher.admit_uploads(1000.0) == [1]


def test_earliest_deadline_is_uploaded_first() -> None:
    dispatcher = Dispatcher(limits())
    for at, due in enumerate((30.0, 10.0, 20.0)):
        dispatcher.register(candidate(at, due), 0.0)
    assert dispatcher.admit_uploads(40.0) == [1, 2, 0]


def test_backlog_and_new_segments_share_slots() -> None:
    dispatcher = Dispatcher(limits(buffer_bytes=8 * MIB))
    for at in range(20):
        dispatcher.register(candidate(at, history=True), 0.0)
        dispatcher.register(candidate(100 + at), 0.0)
    admitted = dispatcher.admit_uploads(1.0)
    assert len(admitted) == 8
    assert sum(each < 100 for each in admitted) == 8 // HISTORY_EVERY


def test_segment_larger_than_buffer_is_uploaded_alone() -> None:
    dispatcher = Dispatcher(limits(buffer_bytes=4 * MIB))
    dispatcher.register(candidate(1, 0.0), 0.0)
    dispatcher.register(candidate(2, 1.0, 100 * MIB), 1.0)
    dispatcher.register(candidate(3, 2.0), 2.0)
    assert dispatcher.admit_uploads(3.0) == [1]  # 3 would fit and must not overtake
    assert dispatcher.why(2, 3.0).reason is Reason.QUEUED
    dispatcher.start_uploads(3.0)
    dispatcher.note_upload()
    dispatcher.finish(1)
    assert dispatcher.admit_uploads(4.0) == [2]
    dispatcher.start_uploads(4.0)
    dispatcher.note_upload()
    dispatcher.finish(2)
    assert dispatcher.admit_uploads(5.0) == [3]


def test_transaction_size_is_bounded() -> None:
    dispatcher = Dispatcher(limits())
    for at in range(2 * MAX_ADMITTED):
        dispatcher.register(candidate(at, size=1), 0.0)
    assert len(dispatcher.admit_uploads(0.0)) == MAX_ADMITTED


def test_one_upload_probes_after_store_failure() -> None:
    dispatcher = Dispatcher(limits())
    for at in range(6):
        dispatcher.register(candidate(at), 0.0)
    dispatcher.admit_uploads(0.0)
    assert len(dispatcher.start_uploads(0.0)) == 4
    for at in range(4):
        dispatcher.fail(at, Fault.STORE, "Timeout", 1.0, 0.0)
    assert dispatcher.failures[Fault.STORE] == 4
    until = 1.0 + wait_s(1, 60, 0.0)  # four failures at once are one
    assert dispatcher.error(1.0) == ("Timeout", until)
    assert dispatcher.start_uploads(1.1) == []
    assert dispatcher.why(5, 1.1) == (Reason.ERROR, until, "Timeout")
    assert dispatcher.wake_at(1.1) <= until
    assert dispatcher.start_uploads(until) == [4]
    dispatcher.note_upload()
    assert dispatcher.start_uploads(until) == [5]
    assert sorted(dispatcher.admit_uploads(until + 1)) == [0, 1, 2, 3]


def test_retry_delay_depends_on_kind_of_failure() -> None:
    waits = {}
    for fault in (Fault.STORE, Fault.SLOW_DOWN, Fault.REFUSED):
        dispatcher = Dispatcher(limits())
        dispatcher.register(candidate(1), 0.0)
        dispatcher.admit_uploads(0.0)
        dispatcher.start_uploads(0.0)
        waits[fault] = dispatcher.fail(1, fault, "code", 0.0, 0.5)
    assert 0 < waits[Fault.STORE] < waits[Fault.SLOW_DOWN] < waits[Fault.REFUSED] == 60


def test_bad_file_does_not_delay_others() -> None:
    dispatcher = Dispatcher(limits(uploads=1))
    dispatcher.register(candidate(1), 0.0)
    dispatcher.register(candidate(2), 0.0)
    dispatcher.admit_uploads(0.0)
    dispatcher.start_uploads(0.0)
    dispatcher.fail(1, Fault.FILE, "EIO", 0.0, 0.0)
    assert dispatcher.start_uploads(0.0) == [2]
    assert dispatcher.why(1, 0.0)[::2] == (Reason.ERROR, "EIO")


def test_failing_segment_does_not_block_others() -> None:
    dispatcher = Dispatcher(limits())
    for at in range(5):
        dispatcher.register(candidate(at), 0.0)
    now, done = 0.0, set[int]()
    while len(done) < 4 and now < 600:
        dispatcher.admit_uploads(now)
        for at in dispatcher.start_uploads(now):
            if at == 0:
                dispatcher.fail(0, Fault.REFUSED, "EntityTooLarge", now, 0.0)
            else:
                dispatcher.note_upload()
                dispatcher.finish(at)
                done.add(at)
        now += 1.0
    assert done == {1, 2, 3, 4}
    assert dispatcher.failures[Fault.REFUSED] < 10


@given(st.integers(1, 40), st.floats(1, 120), st.floats(0, 1, exclude_max=True))
def test_retry_delay_grows_to_a_bound(failures: int, most: float, jitter: float) -> None:
    assert 0 < wait_s(failures, most, jitter) <= most
    assert wait_s(failures, most, jitter) <= wait_s(failures + 1, most, jitter)
    assert wait_s(failures, most, jitter) >= wait_s(failures, most, 0.0) / 2


SEGMENTS = st.lists(
    st.tuples(st.floats(0, 300), st.integers(1, 100 * MIB), st.booleans()), min_size=1, max_size=25
)


class Uploads:
    """An uploader that never fails by itself, in steps of virtual time."""

    def __init__(self, dispatcher: Dispatcher, seconds: float) -> None:
        self.dispatcher = dispatcher
        self.seconds = seconds
        self.now = 0.0
        self.ends: list[tuple[float, int]] = []
        self.begun: dict[int, float] = {}
        self.done: dict[int, float] = {}
        self.fails: Callable[[int], Fault | None] = lambda _: None

    def upload_all(self, segments: list[tuple[float, int, bool]], steps: int) -> None:
        """Register segments, and continue until they are uploaded: none starves."""
        for at, (due, size, history) in enumerate(segments):
            self.dispatcher.register(candidate(at, due, size, history=history), 0.0)
        for _ in range(steps):
            if not self.dispatcher.candidates:
                break
            self.step()
        assert set(self.done) == set(range(len(segments)))

    def step(self) -> None:
        """Decide, check the bounds, advance to the next event."""
        dispatcher, rules = self.dispatcher, self.dispatcher.limits
        dispatcher.admit_uploads(self.now)
        for at in dispatcher.start_uploads(self.now):
            self.begun.setdefault(at, self.now)
            self.ends.append((self.now + self.seconds, at))
        assert dispatcher.begun <= rules.uploads
        buffered = (CandidateState.ADMITTED, CandidateState.BEGUN)
        in_buffer = [each for each in dispatcher.candidates.values() if each.state in buffered]
        filled = sum(each.size_bytes for each in in_buffer)
        assert filled == dispatcher.buffered_bytes
        assert filled <= rules.buffer_bytes or len(in_buffer) == 1
        wake = min([dispatcher.wake_at(self.now), *[at for at, _ in self.ends]])
        assert wake > self.now or dispatcher.admit_uploads(self.now) == []
        self.now = max(self.now + 1e-3, min(wake, self.now + 50))
        for end, at in [each for each in self.ends if each[0] <= self.now]:
            self.ends.remove((end, at))
            fault = self.fails(at)
            if fault is not None:
                dispatcher.fail(at, fault, fault.value, self.now, 0.3)
            else:
                dispatcher.note_upload()
                dispatcher.finish(at)
                self.done[at] = self.now


@given(SEGMENTS, st.integers(1, 6), st.integers(0, 3).map(lambda n: (64 << n) * MIB))
def test_deadlines_hold_if_uploads_succeed(
    segments: list[tuple[float, int, bool]], uploads: int, buffer: int
) -> None:
    """All bounds hold, nothing starts before its time, and with a store that is fast enough
    everything is uploaded in time."""
    dispatcher = Dispatcher(limits(uploads=uploads, buffer_bytes=buffer))
    world = Uploads(dispatcher, seconds=1.0)
    world.upload_all(segments, steps=2000)
    for at, (due, _, _) in enumerate(segments):
        assert world.begun[at] >= due
        assert world.done[at] <= due + 60  # candidate(): the deadline


@given(SEGMENTS, st.data())
def test_no_segment_starves_despite_failures(
    segments: list[tuple[float, int, bool]], data: st.DataObject
) -> None:
    dispatcher = Dispatcher(limits())
    world = Uploads(dispatcher, seconds=0.5)
    left = data.draw(st.lists(st.sampled_from(list(Fault)), max_size=40))
    world.fails = lambda _: left.pop() if left else None
    world.upload_all(segments, steps=5000)


@given(SEGMENTS, st.integers(MIB, 100 * MIB))
def test_upload_rate_is_limited(segments: list[tuple[float, int, bool]], rate: int) -> None:
    """From any moment on, started uploads are at most the rate for the time and one object more."""
    dispatcher = Dispatcher(limits(bytes_per_second=rate))
    world = Uploads(dispatcher, seconds=0.1)
    world.upload_all(segments, steps=5000)
    started = sorted((when, segments[at][1]) for at, when in world.begun.items())
    for first in range(len(started)):
        total = 0
        for when, size in started[first:]:
            assert total <= rate * (when - started[first][0]) + started[first][1] + 1
            total += size


def test_rate_limit_is_reported_as_reason() -> None:
    dispatcher = Dispatcher(limits(bytes_per_second=MIB))
    for at in (1, 2):
        dispatcher.register(candidate(at, size=5 * MIB), 0.0)
    dispatcher.admit_uploads(0.0)
    assert dispatcher.start_uploads(0.0) == [1]
    assert dispatcher.start_uploads(4.9) == []
    assert dispatcher.why(2, 4.9) == (Reason.RATE_LIMITED, 5.0, "")
    assert dispatcher.wake_at(4.9) == 5.0
    assert dispatcher.start_uploads(5.0) == [2]
