"""A simulation of one share partition against a model with an object for each record.

One number decides what members do, when locks expire, which writes of the persister fail (with or
without effect) and when the leader ends. The model knows no runs and no writes: it checks that

- a record is delivered only if no member has it, and at most as often as the limit says;
- a record whose acceptance was answered is never delivered again;
- the start offset never goes back, also over a change of the leader;
- states are those that a record alone would have;
- at the end every record was accepted, or archived for a reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from kafkawire.codec.errors import KafkaError
from kafkawire.share.partition import (
    Acknowledge,
    Acquire,
    FetchedBatch,
    ShareDecision,
    SharePartition,
    retry_delay_ms,
)
from kafkawire.share.persister import ShareState
from kafkawire.share.runs import OffsetRun
from kafkawire.share.states import AcknowledgeType, RecordState
from tests.kit.share.persister import merge_batches
from tests.kit.share.settings import share_settings

AVAILABLE, ACQUIRED, ACKED, ARCHIVING, ARCHIVED = RecordState
MEMBERS = ("a", "b", "c")
FINAL = (ACKED, ARCHIVED)


@dataclass
class ModelRecord:
    """One record. `moving`: the state it will have when the write is done; `answered`: its
    acceptance was answered."""

    dropped: bool = False
    state: RecordState = AVAILABLE
    count: int = 0
    member: str = ""
    until_ms: int = 0
    moving: RecordState | None = None
    delayed: bool = False
    answered: bool = False


@dataclass
class Log:
    """The batches of the partition, without those that were compacted away."""

    batches: list[FetchedBatch] = field(default_factory=list)
    end: int = 0
    start: int = 0


class Simulation:
    """A leader, its members, its persister and the model."""

    def __init__(self, seed: int, machine: type[SharePartition] = SharePartition) -> None:
        self.make = machine
        self.random = Random(seed)
        limit = self.random.choice((2, 3, 5, 6))
        self.settings = share_settings(
            record_lock_duration_ms=1_000,
            delivery_count_limit=limit,
            max_record_locks=self.random.choice((10, 40, 100)),
            retry_delay_ms=self.random.choice((0, 0, 300)),
            dead_letter_topic=self.random.choice(("", "dlq")),
        )
        self.now_ms = 1_000
        self.log = Log()
        self.records: dict[int, ModelRecord] = {}
        self.stored = ShareState(1, 0)
        self.machine = machine(0)
        self.highest_start = 0
        self.dead: dict[int, int] = {}
        self.may_be_stored: set[int] = set()  # as done, by writes that failed with an effect, too

    # -- the model's view ------------------------------------------------------------------

    def apply(self, made: ShareDecision) -> None:
        self.machine.apply(made.changes)
        self.check()

    def check(self) -> None:
        """Compare the machine with the model, record by record."""
        machine = self.machine
        assert machine.start >= self.highest_start, "the start went back"
        self.highest_start = machine.start
        at = machine.start
        for run in machine.runs():
            assert run.first == at, "a hole between runs"
            at = run.last + 1
            for offset in range(run.first, run.last + 1):
                record = self.records[offset]
                shown = (run.value.state, run.value.target, run.value.member)
                wanted = (record.state, record.moving, record.member)
                assert shown == wanted, (offset, shown, wanted)
                if record.state not in FINAL:
                    assert run.value.deliveries == record.count, offset
        assert at == machine.end
        for state in RecordState:
            counted = sum(run.length for run in machine.runs() if run.value.state is state)
            assert counted == machine.count_in(state), state
        for offset in range(self.log.start, machine.start):
            assert self.records[offset].state in FINAL, f"the start moved over {offset}"

    # -- events ----------------------------------------------------------------------------

    def produce(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            first, count = self.log.end, self.random.randint(1, 12)
            dropped = self.random.random() < 0.1
            self.log.batches.append(FetchedBatch(first, first + count - 1, dropped))
            for offset in range(first, first + count):
                self.records[offset] = ModelRecord(dropped)
            self.log.end += count

    def compact(self) -> None:
        """Remove a batch from the log."""
        if len(self.log.batches) > 3 and self.random.random() < 0.3:
            self.log.batches.pop(self.random.randrange(len(self.log.batches) - 1))

    def acquire(self) -> None:
        offset = self.machine.fetch_offset(self.now_ms, self.settings.max_record_locks)
        if offset is None:
            return
        batches = [batch for batch in self.log.batches if batch.last >= offset]
        batches = batches[: self.random.randint(1, 4)]
        if not batches:
            return
        member, most = self.random.choice(MEMBERS), self.random.randint(1, 30)
        strict = self.random.random() < 0.4
        ask = Acquire(member, offset, batches, most, self.random.choice((3, 8, 500)), strict)
        made = self.machine.decide_acquire(ask, self.now_ms, self.settings)
        taken = 0
        for run in made.acquired:
            for at in range(run.first, run.last + 1):
                record = self.records[at]
                assert not record.answered, f"{at} was accepted, and is delivered again"
                assert record.state is AVAILABLE, (at, record)
                assert record.until_ms <= self.now_ms, f"{at} is delayed"
                there = any(each.first <= at <= each.last for each in batches)
                assert not (record.dropped and there), f"{at} is dropped"
                record.count += 1
                assert run.delivery_count == record.count, at
                assert record.count <= self.settings.delivery_count_limit, f"{at}: too often"
                record.state, record.member = ACQUIRED, member
                record.until_ms = self.now_ms + self.settings.record_lock_duration_ms
                taken += 1
        if strict:
            assert taken <= most, "more than max_records"
        if taken > 1 and self.settings.delivery_count_limit > 2:
            last = [run for run in made.acquired
                    if run.delivery_count == self.settings.delivery_count_limit]  # fmt: skip
            assert not last, "a last delivery is not alone"
        for change in made.changes:
            if isinstance(change, OffsetRun) and change.value.state is ARCHIVED:
                for at in range(change.first, change.last + 1):
                    self._see_no_record(at)
        self.apply(made)

    def _see_no_record(self, at: int) -> None:
        record = self.records[at]
        assert record.state is AVAILABLE, at
        there = any(batch.first <= at <= batch.last for batch in self.log.batches)
        assert record.dropped or not there, f"{at} is archived, and was never delivered"
        record.state, record.until_ms = ARCHIVED, 0

    def acknowledge(self) -> None:
        """Acknowledge what is held, something else, or some of both."""
        member = self.random.choice(MEMBERS)
        held = [at for at, each in self.records.items()
                if each.state is ACQUIRED and each.member == member and each.moving is None
                and at >= self.machine.start]  # fmt: skip
        if held and self.random.random() < 0.9:
            first = self.random.choice(held)
            last = first
            while last + 1 in held and self.random.random() < 0.8:
                last += 1
        else:
            first = self.random.randint(0, max(1, self.log.end))
            last = first + self.random.randint(0, 4)
        kinds = [int(self.random.choice((0, 1, 1, 1, 2, 2, 3, 4)))]
        if self.random.random() < 0.3:
            kinds = [self.random.choice((0, 1, 2, 3)) for _ in range(last - first + 1)]
        batch = Acknowledge(first, last, kinds)
        offsets = range(max(first, self.machine.start), last + 1)
        legal = last < self.machine.start or (
            last < self.machine.end
            and all(
                self.records[at].state is ACQUIRED
                and self.records[at].member == member
                and self.records[at].moving is None
                for at in offsets
            )
        )
        try:
            made = self.machine.decide_acknowledge(member, [batch], self.now_ms, self.settings)
        except KafkaError:
            assert not legal, batch
            return
        assert legal, f"{member} must not acknowledge {batch}"
        for at in offsets:
            self._move(at, AcknowledgeType(kinds[0] if len(kinds) == 1 else kinds[at - first]))
        self.apply(made)

    def _move(self, at: int, kind: AcknowledgeType) -> None:
        record = self.records[at]
        if kind is AcknowledgeType.RENEW:
            record.until_ms = self.now_ms + self.settings.record_lock_duration_ms
        elif kind is AcknowledgeType.RELEASE:
            record.moving = self._returned(record)
            record.delayed = True
        elif kind is AcknowledgeType.REJECT:
            record.moving = ARCHIVING if self.settings.dead_letter_topic else ARCHIVED
        else:
            record.moving = ACKED if kind is AcknowledgeType.ACCEPT else ARCHIVED

    def _returned(self, record: ModelRecord) -> RecordState:
        if record.count < self.settings.delivery_count_limit:
            return AVAILABLE
        return ARCHIVING if self.settings.dead_letter_topic else ARCHIVED

    def end_session(self) -> None:
        member = self.random.choice(MEMBERS)
        made = self.machine.decide_release(member, self.settings)
        for at, record in self.records.items():
            held = record.state is ACQUIRED and record.member == member
            if held and record.moving is None and at >= self.machine.start:
                record.moving, record.delayed = self._returned(record), False
        self.apply(made)

    def expire(self) -> None:
        self.pass_time(self.random.choice((10, 100, 400, 1_100)))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        made = self.machine.decide_expire(self.now_ms, self.settings)
        for at, record in self.records.items():
            if record.until_ms <= self.now_ms and record.moving is None:
                record.until_ms = 0
                if record.state is ACQUIRED and at >= self.machine.start:
                    self._end_lock(record)
        self.apply(made)

    def _end_lock(self, record: ModelRecord) -> None:
        record.state, record.member, record.until_ms = self._returned(record), "", 0

    def write(self) -> None:
        """Let the persister store, fail, or store and fail; other events come in between."""
        write = self.machine.begin_write()
        moving = [at for at, record in self.records.items() if record.moving is not None]
        outcome = self.random.random()
        if outcome < 0.9:
            self.may_be_stored |= {at for at in moving if self.records[at].moving in FINAL}
            merged = merge_batches(self.stored.batches, write.batches, write.start_offset)
            start = max(self.stored.start_offset, write.start_offset)
            kept = tuple(batch for batch in merged if batch.last >= start)
            self.stored = ShareState(1, start, kept, write.complete_count)
        for _ in range(self.random.randint(0, 2)):
            self.random.choice((self.acquire, self.acknowledge, self.expire, self.produce))()
        stored = outcome < 0.8
        made = self.machine.decide_written(write.number, self.now_ms, self.settings, stored=stored)
        for at in moving:
            self._settle(at, stored=stored)
        self.apply(made)
        for run in self.machine.dead_letters(100):
            for offset in range(run.first, run.last + 1):
                self.dead[offset] = self.dead.get(offset, 0) + 1
                self.records[offset].state = ARCHIVED
            self.apply(self.machine.decide_dead_lettered(run.first, run.last))

    def _settle(self, at: int, *, stored: bool) -> None:
        record = self.records[at]
        if at < self.machine.start and record.state in FINAL:
            return
        target, record.moving = record.moving, None
        assert target is not None
        if stored:
            record.answered = record.answered or target is ACKED
            record.state, record.member, record.until_ms = target, "", 0
            if target is AVAILABLE and record.delayed:
                delay = retry_delay_ms(self.settings, record.count)
                record.until_ms = self.now_ms + delay if delay else 0
        elif record.until_ms <= self.now_ms:
            self._end_lock(record)
        record.delayed = False

    def move_log_start(self) -> None:
        if self.random.random() < 0.3 and self.log.end:
            self.log.start = self.random.randint(self.log.start, self.log.end)
            self.log.batches = [each for each in self.log.batches if each.last >= self.log.start]
            made = self.machine.decide_log_start(self.log.start)
            for at in range(min(self.log.start, self.log.end)):
                record = self.records[at]
                record.state, record.moving, record.member = ARCHIVED, None, ""
            self.apply(made)

    def change_leader(self) -> None:
        """Load what is stored: acquired records are available again, with the count before."""
        start = max(self.stored.start_offset, 0)
        self.machine = self.make.load(self.stored, start, self.now_ms, self.settings)
        self.highest_start = self.machine.start
        for at, record in self.records.items():
            done = record.state in FINAL or at in self.may_be_stored
            if at < self.machine.start:
                assert done, f"the stored start moved over {at}"
                record.state = record.state if record.state in FINAL else ARCHIVED
                record.moving, record.member = None, ""
                continue
            stored = [run.value for run in self.machine.runs(at, at)]
            value = stored[0] if stored else None
            assert done or value is None or value.state not in FINAL, f"{at} is stored as done"
            record.state = value.state if value else AVAILABLE
            assert not (record.answered and record.state is not ACKED), f"{at} was accepted"
            record.count = value.deliveries if value else 0
            record.until_ms = value.until_ms if value else 0
            record.member, record.moving = "", None
        self.check()

    def run(self, steps: int = 60) -> None:
        self.produce()
        events = (
            [self.acquire] * 8 + [self.acknowledge] * 10 + [self.write] * 8 + [self.expire] * 3
            + [self.produce] * 2 + [self.end_session, self.compact, self.move_log_start]
            + [self.change_leader]
        )  # fmt: skip
        for _ in range(steps):
            self.random.choice(events)()
        self.drain()

    def drain(self) -> None:
        """Accept everything that is delivered, until nothing is left."""
        for _ in range(2_000):
            self.pass_time(2_000)
            self.acquire()
            for run in self.machine.runs():
                if run.value.state is ACQUIRED and run.value.target is None:
                    one = [Acknowledge(run.first, run.last, [1])]
                    made = self.machine.decide_acknowledge(
                        run.value.member, one, self.now_ms, self.settings
                    )
                    for at in range(run.first, run.last + 1):
                        self.records[at].moving = ACKED
                    self.apply(made)
            self.write()
            last = max((batch.last for batch in self.log.batches), default=-1)
            if self.machine.start > last:
                break
        for batch in self.log.batches:
            for at in range(batch.first, batch.last + 1):
                assert self.records[at].state in FINAL, f"{at} is lost"


def simulate(seed: int, machine: type[SharePartition] = SharePartition) -> None:
    Simulation(seed, machine).run()
