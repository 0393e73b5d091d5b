"""The waiting records of a partition against a list, over operations made up by Hypothesis.

The model has the log, and for each offset up to where its due times are delivered; what waits is
computed from that each time. Windows have a few records, so they are cut and refilled all the time;
the index is older than the log, lost or newer than it; the clock goes forwards and backwards.

Covers: kafkawire.schedules.backlog, kafkawire.schedules.waiting, kafkawire.schedules.window,
kafkawire.schedules.progress.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kafkawire.codec.batches import Record
from kafkawire.schedules import backlog as backlog_module
from kafkawire.schedules.backlog import CONTENT_BYTES, Backlog
from kafkawire.schedules.headers import CANCELS, DELIVER_EVERY, Delivery
from kafkawire.schedules.progress import LAST_OFFSET, Due, Progress
from kafkawire.schedules.waiting import IN_MEMORY, DamagedIndex, WaitingIndex
from kafkawire.schedules.window import DueWindow
from tests.kit.env import EPOCH_MS, SettableClock, memory_env
from tests.kit.seeds import quiet

pytestmark = pytest.mark.slow

T = TypeVar("T")

WINDOW = 3
UNSAVED = 5
FOLLOWED_AT_ONCE = 3
UNIT_MS = 1000
NOTHING: Due = (-1, -1)

keys = st.sampled_from([b"a", b"b", b"c"])
delays = st.integers(-3, 9)
back = st.integers(0, 2) | st.integers(0, 12)


class Entry(NamedTuple):
    """A record of the log, as the model sees it. `every_ms`: 0 if it does not repeat; `cancels`: an
    offset, -1: none."""

    due_ms: int
    key: bytes | None
    value: bytes | None
    every_ms: int = 0
    cancels: int = -1

    def record(self, offset: int) -> Record:
        headers: list[tuple[str, bytes | None]] = []
        if self.every_ms:
            headers.append((DELIVER_EVERY, str(self.every_ms).encode()))
        if self.cancels >= 0:
            headers.append((CANCELS, str(self.cancels).encode()))
        return Record(offset, self.due_ms, self.key, self.value, headers)


class ListFeed:
    """Reads the list that is the log."""

    def __init__(self, log: list[Entry]) -> None:
        self.log = log

    async def follow(self, offset: int) -> tuple[list[Record], int]:
        end = min(offset + FOLLOWED_AT_ONCE, len(self.log))
        return [self.log[at].record(at) for at in range(offset, end)], end

    async def find(self, wanted: Collection[int]) -> dict[int, Record]:
        return {at: self.log[at].record(at) for at in wanted if at < len(self.log)}


class Index(WaitingIndex):
    """An index whose next save fails if a test wants so."""

    failing = False

    def save(self, *args: Any) -> Any:
        if self.failing:
            self.failing = False
            raise sqlite3.OperationalError("database or disk is full")
        return super().save(*args)


class State(NamedTuple):
    """A state of `__schedule_state`, and how long the log and the list of deliveries were."""

    log_end: int = 0
    delivered: int = 0
    progress: Progress = Progress()
    until: tuple[Due, ...] = ()


class BacklogMachine(RuleBasedStateMachine):
    compacted = False

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Entry] = []
        self.delivered: list[Due] = []
        self.until: list[Due] = []  # by offset: all due times up to it are delivered
        self.states = [State()]
        self.loop = asyncio.new_event_loop()
        self.env = memory_env()
        self.index = Index(IN_MEMORY)
        self.index.open()
        self.durable = asyncio.Event()
        self.durable.set()
        self.reopened = 0

    @initialize(compacted=st.booleans())
    def begin(self, compacted: bool) -> None:
        self.compacted = compacted
        self.make()

    def make(self) -> None:
        """Begin again with the index, as a deliverer does after a start or a failure."""
        config = SimpleNamespace(cleanup_compact=self.compacted, schedule_header="")
        partition: Any = SimpleNamespace(
            number=1, config=config, log_start=0, next_offset=len(self.log)
        )
        commit_log: Any = SimpleNamespace(wait_until_durable=self.durable.wait)
        feed: Any = ListFeed(self.log)
        self.backlog = Backlog(self.env, partition, commit_log, feed, self.index)
        self.loop.run_until_complete(self.backlog.open(self.progress))

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.index.close()
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do something that the index may fail; then begin again, as a deliverer does."""
        try:
            return self.loop.run_until_complete(work)
        except sqlite3.Error:
            self.reopened += 1
            self.make()
            return None

    @property
    def progress(self) -> Progress:
        return self.states[-1].progress

    @property
    def clock(self) -> SettableClock:
        clock = self.env.clock
        assert isinstance(clock, SettableClock)
        return clock

    def waiting(self) -> list[Due]:
        """Return all records that wait, of those that are followed, in the order of delivery."""
        followed = self.backlog.followed
        gone = {each.cancels for each in self.log[:followed]}
        found: list[Due] = []
        for offset, each in enumerate(self.log[:followed]):
            later = self.log[offset + 1 : followed]
            replaced = self.compacted and any(each.key == other.key for other in later)
            if replaced or offset in gone or each.cancels >= 0:
                continue
            if self.compacted and each.value is None:
                continue
            due_ms = each.due_ms
            until = self.until[offset] if offset < len(self.until) else NOTHING
            while each.every_ms and (due_ms, offset) <= until:
                due_ms += each.every_ms
            if (due_ms, offset) > until:
                found.append((due_ms, offset))
        return sorted(found)

    # -- the log --------------------------------------------------------------------------

    @rule(key=keys, delay=delays, every=st.sampled_from([0, 0, 2, 5]), large=st.booleans())
    def add(self, key: bytes, delay: int, every: int, large: bool) -> None:
        value = b"v" * (CONTENT_BYTES + 1 if large else 1)
        due_ms = self.clock.ms + delay * UNIT_MS
        self.log.append(Entry(due_ms, key, value, every * UNIT_MS))
        self.appended()

    @rule(count=st.integers(1, 9), step=st.integers(-2, 2))
    def add_many(self, count: int, step: int) -> None:
        for number in range(count):
            due_ms = self.clock.ms + (3 + step * number) * UNIT_MS
            self.log.append(Entry(due_ms, b"m%d" % number, b"v"))
        self.appended()

    @precondition(lambda self: self.compacted)
    @rule(key=keys)
    def add_null(self, key: bytes) -> None:
        """Cancel by key."""
        self.log.append(Entry(self.clock.ms, key, None))
        self.appended()

    @precondition(lambda self: self.log)
    @rule(before=back, of_key=st.none() | keys)
    def cancel(self, before: int, of_key: bytes | None) -> None:
        offset = max(len(self.log) - 1 - before, 0)
        key = of_key or b"cancels %d" % offset
        self.log.append(Entry(self.clock.ms, key, b"", cancels=offset))
        self.appended()

    def appended(self) -> None:
        self.backlog._partition.next_offset = len(self.log)

    # -- what a deliverer does ------------------------------------------------------------

    @rule()
    def follow(self) -> None:
        invalid = self.run(self.backlog.follow(self.progress))
        assert not invalid

    @rule(count=st.integers(1, 4))
    def deliver(self, count: int) -> None:
        self.step(count)

    def step(self, count: int) -> bool:
        """Deliver a step; return whether there was anything to deliver."""
        if self.run(self.filled()) is None:
            return True
        now_ms = self.clock.ms
        waiting = self.waiting()
        due = [each for each in waiting if each[0] <= now_ms]
        entries = self.backlog.next_due(count, now_ms)
        assert entries == due[: len(entries)], "in due order, nothing early, nothing cancelled"
        assert len(entries) <= count
        assert bool(entries) == bool(due)
        first_ms = self.backlog.first_due_ms()
        assert first_ms == (waiting[0][0] if waiting else None)
        if not entries:
            return False
        assert not set(entries) & set(self.delivered), "nothing twice"
        until = self.backlog.until(entries, count, now_ms)
        assert entries[-1] <= until <= (now_ms, LAST_OFFSET)
        assert all(each > until for each in waiting[len(entries) :]), "nothing is skipped"
        records = self.run(self.backlog.records(entries))
        if records is None:
            return True
        for _, offset in entries:
            assert records[offset].value == self.log[offset].value
        self.committed(entries, until, records)
        return True

    async def filled(self) -> bool:
        await self.backlog.fill(self.progress)
        return True

    def committed(self, entries: list[Due], until: Due, records: dict[int, Record]) -> None:
        followed = self.backlog.followed
        progress = self.progress.add_corner(followed, until)
        self.until += [NOTHING] * (followed - len(self.until))
        self.until[:followed] = [max(each, until) for each in self.until[:followed]]
        for offset, each in enumerate(self.until):
            assert progress.delivered_until(offset) == (None if each == NOTHING else each)
        self.delivered += entries
        state = State(len(self.log), len(self.delivered), progress, tuple(self.until))
        self.states.append(state)
        again = []
        for _, offset in entries:
            asked = self.backlog.instruction(records[offset])
            assert isinstance(asked, Delivery)
            arrival = self.backlog.again(records[offset], asked, progress)
            if arrival is not None and asked.repetition is not None:
                again.append(arrival)
        self.backlog.remove_delivered(entries, again, progress)

    @rule(forward=st.integers(0, 4))
    def live(self, forward: int) -> None:
        """Let time pass, and deliver everything that is due."""
        self.clock.ms += forward * UNIT_MS
        while self.backlog.followed < len(self.log) or self.step(4):
            self.follow()

    @rule(by=st.integers(-8, 12))
    def jump(self, by: int) -> None:
        self.clock.ms = max(self.clock.ms + by * UNIT_MS, EPOCH_MS)

    # -- the index ------------------------------------------------------------------------

    async def saved(self) -> bool:
        await self.backlog.save()
        return True

    @rule()
    def save(self) -> None:
        if self.run(self.saved()):
            assert not self.backlog.has_unsaved()
            assert self.backlog.waiting >= len(self.waiting())

    @rule(count=st.integers(1, 4))
    def deliver_during_a_save(self, count: int) -> None:
        """Deliver while a save waits for the log."""
        if self.run(self.filled()) is None:
            return
        self.durable.clear()
        saving = self.loop.create_task(self.saved())
        self.loop.run_until_complete(asyncio.sleep(0))
        try:
            due = [each for each in self.waiting() if each[0] <= self.clock.ms]
            entries = self.backlog.next_due(count, self.clock.ms)
            assert entries == due[: len(entries)]
            until = self.backlog.until(entries, count, self.clock.ms) if entries else NOTHING
            # The index may have been lost: then a deliverer begins again.
            records = self.run(self.backlog.records(entries)) if entries else None
            if records is not None:
                self.committed(entries, until, records)
        finally:  # otherwise every later save would wait forever, and hide what has failed
            self.durable.set()
            self.run(awaited(saving))

    @rule()
    def reopen(self) -> None:
        """A broker that was killed: what was not saved is followed again."""
        self.make()

    @rule(
        fault=st.sampled_from(["lost", "damaged", "fails", "newer", "restart", "retention"]),
        back=back,
    )
    def fault(self, fault: str, back: int) -> None:
        if fault == "lost":
            with quiet():
                self.index.recreate("a test says so", self.index.generation)
        elif fault == "damaged":
            self.damage(back)
        elif fault == "fails":
            self.index.failing = True
        elif fault == "newer":
            self.lose_the_end_of_the_log(back)
        elif fault == "restart":
            self.save()
            self.make()
        else:
            self.ask_for_retention()

    def damage(self, back: int) -> None:
        """Change the due time of a row, to a past or a future one; it is noticed when the index is
        opened, and made again then."""
        query = "UPDATE waiting SET due = due + ? WHERE at = (SELECT max(at) FROM waiting)"
        if self.index._open.execute(query, (1 - 2 * back,)).rowcount:
            with pytest.raises(DamagedIndex), quiet():
                self.make()
            with quiet():
                self.loop.run_until_complete(self.backlog.rebuild_index("a test has damaged it"))
            self.make()

    def ask_for_retention(self) -> None:
        """Have the lowest offset that is needed."""
        least = self.run(self.backlog.least_offset())
        if least is not None:
            assert least <= min([self.backlog.followed, *(at for _, at in self.waiting())])

    def lose_the_end_of_the_log(self, back: int) -> None:
        """Have an index that is newer than the log: a file of another folder, for example."""
        found = self.index.read_followed(1)
        end = (found.until if found else 0) - 1 - back
        if end < 0:
            return
        del self.log[end:]
        while self.states[-1].log_end > end:
            self.states.pop()
        state = self.states[-1]
        del self.delivered[state.delivered :]
        self.until = list(state.until)
        self.make()

    def drain(self) -> None:
        """Follow and deliver everything: each record that waits is delivered."""
        self.index.failing = False
        for _ in range(3):
            self.live(10)


async def awaited(task: asyncio.Task[T]) -> T:
    return await task


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small limits."""
    monkeypatch.setattr(backlog_module, "WINDOW_RECORDS", WINDOW)
    monkeypatch.setattr(backlog_module, "UNSAVED_MAX", UNSAVED)
    monkeypatch.setattr(DueWindow.__init__, "__defaults__", (WINDOW, None))


@pytest.fixture
def machine() -> Iterator[BacklogMachine]:
    made = BacklogMachine()
    made.begin(compacted=False)
    yield made
    made.teardown()


def test_repetition_is_cancelled_that_the_index_has_with_an_earlier_due_time(
    machine: BacklogMachine,
) -> None:
    machine.add(b"a", 1, 2, large=False)
    machine.live(0)
    machine.save()
    machine.live(1)
    assert len(machine.delivered) == 1
    machine.cancel(0, None)
    machine.reopen()
    machine.live(0)
    assert machine.waiting() == []


def test_repetition_continues_that_was_delivered_during_a_save(machine: BacklogMachine) -> None:
    machine.add(b"a", 1, 2, large=False)
    machine.live(0)
    machine.save()
    machine.add(b"b", 9, 0, large=False)
    machine.live(0)
    machine.clock.ms += UNIT_MS
    machine.deliver_during_a_save(1)
    assert len(machine.delivered) == 1
    machine.reopen()
    machine.live(2)
    assert len(machine.delivered) == 2


def test_waiting_records_against_a_list() -> None:
    chosen = settings(
        max_examples=settings().max_examples * 3,
        stateful_step_count=50,
        phases=[Phase.generate],  # to shrink a failure takes minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(BacklogMachine, settings=chosen)


@pytest.mark.parametrize("large", [False, True])
def test_index_may_be_lost_before_a_delivery_during_a_save(
    machine: BacklogMachine, large: bool
) -> None:
    machine.add(b"a", 0, 0, large=large)
    machine.follow()
    machine.save()
    machine.reopen()
    machine.run(machine.filled())
    machine.fault("lost", 0)
    machine.deliver_during_a_save(1)
    machine.live(0)
    assert len(machine.delivered) == 1
