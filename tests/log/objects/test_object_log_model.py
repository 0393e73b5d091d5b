"""A model of the protocol of log objects: random walks of one broker with several lives.

The model has no code of the product: it checks the rules that the product follows. A *life* opens
its log in SQL, ends the logs of earlier lives with fences, adopts their objects, and then stores
objects of its own, up to four at a time. Everything between the processes is unreliable: a PUT may
arrive late, even after its process has ended, its answer may be lost, and a process may end or
stall at any step. A stalled process does not know that another was started as the same broker.

What was acknowledged or adopted is *visible* to clients. It must stay in the log that a later life
finds, or have been uploaded in segments. Each rule has a walk without it (`Rules`) that must fail,
which shows that the walks reach the situation for which the rule exists.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, fields, replace

import pytest

MAX_PUTS = 4
"""PUTs of a writer in progress at a time."""
MAX_LIVES = 3
"""Processes at a time: the newest life, and earlier ones that have stalled."""
STEPS = 400
"""Steps of a walk: enough for eight lives, of which some release what they have adopted."""
STARTS = 0.02
"""How likely another life starts in a step."""
SWITCHES = 0.04
"""How likely a step begins a time in which another life runs, and the others stall."""
STALLS = 0.8
"""How likely a life stalls after it has loaded the logs from SQL."""
CUT_OFF = 0.6
"""How likely a superseded life does not reach SQL, which would stop it."""
ARRIVALS = 0.3
"""How likely a PUT arrives in a step."""
SLOW = 0.1
"""How likely a PUT is slow: it arrives in one of twenty cases when others would."""
LOST = 0.05
"""How likely, in each step, the answer to a PUT is lost or not waited for any longer."""

MUTATED_WALKS = 200
"""Walks without a rule, of which one must fail: of the rarest failures there are three in 100."""

Key = tuple[int, int]
"""The broker epoch of a log, and a sequence number."""
Steps = Generator[None, None, None]
"""A part of a process; anything may happen at a yield."""


def ends(steps: Steps) -> bool:
    """Make the next step; return whether it was the last one."""
    return next(steps, True) is True


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; a test leaves one out."""

    put_if_absent: bool = True
    read_after_refusal: bool = True  # a refused object is stored only if it is there
    acknowledge_in_order: bool = True
    fence_read_on: bool = True  # a refused fence is not the end of a log
    keep_fence: bool = True
    release_before_deletion: bool = True
    release_guarded: bool = True  # by the broker epoch
    end_once: bool = True  # and guarded by the broker epoch


class Violation(Exception):
    """Something visible is lost, or has changed."""


@dataclass(frozen=True, slots=True)
class LogObject:
    """`nonce`: of the life that has put it; `record`: its content, None for a fence."""

    nonce: int
    record: int | None


@dataclass(slots=True)
class Put:
    """A PUT in the network; `stored` is its answer, None until it has arrived."""

    key: Key
    value: LogObject
    slow: bool
    stored: bool | None = None


@dataclass(slots=True)
class LogRow:
    """A row of `object_logs`."""

    released: int = 0
    ended: int | None = None


class Bucket:
    """The objects, and PUTs that have not arrived."""

    def __init__(self, rules: Rules, choices: random.Random) -> None:
        self._rules = rules
        self._random = choices
        self.objects: dict[Key, LogObject] = {}
        self.network: list[Put] = []

    def send(self, key: Key, value: LogObject) -> Put:
        put = Put(key, value, slow=self._random.random() < SLOW)
        self.network.append(put)
        return put

    def arrive(self) -> Put | None:
        """Let one of the PUTs in the network arrive, unless it is a slow one."""
        at = self._random.randrange(len(self.network))
        if self.network[at].slow and self._random.random() < 0.95:
            return None
        put = self.network.pop(at)
        put.stored = put.key not in self.objects or not self._rules.put_if_absent
        if put.stored:
            self.objects[put.key] = put.value
        return put


class Sql:
    """The epoch of the broker and its logs, with the conditions of
    `kafkawire.offsets.catalog.object_logs`, and the records that are in uploaded segments."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.epoch = 0
        self.logs: dict[int, LogRow] = {}
        self.uploaded: set[int] = set()

    def register(self) -> int:
        self.epoch += 1
        return self.epoch

    def open_log(self, epoch: int) -> bool:
        if epoch == self.epoch:
            self.logs[epoch] = LogRow()
        return epoch == self.epoch

    def end(self, log: int, sequence: int, epoch: int) -> int | None:
        row = self.logs.get(log)
        if not self._rules.end_once and row is not None:
            row.ended = sequence
        if epoch != self.epoch or row is None:
            return None
        if row.ended is None:
            row.ended = sequence
        return row.ended

    def upload(self, records: list[int], epoch: int) -> bool:
        if epoch == self.epoch:
            self.uploaded.update(records)
        return epoch == self.epoch

    def release(self, log: int, sequence: int, epoch: int) -> bool:
        row = self.logs.get(log)
        if row is None or (epoch != self.epoch and self._rules.release_guarded):
            return False
        row.released = max(row.released, sequence)
        return True

    def forget(self, log: int, epoch: int) -> bool:
        row = self.logs.get(log)
        if epoch != self.epoch or row is None or row.ended is None or row.released < row.ended:
            return False
        del self.logs[log]
        return True


@dataclass(slots=True)
class Held:
    """The part of a log that a life has: of its own, or of one that it has adopted. `records` by
    sequence number; everything below `end` is there from `released` on."""

    released: int
    end: int
    records: dict[int, int] = field(default_factory=dict)
    uploaded: int = 0  # everything below it is in uploaded segments


class World:
    """The state that the lives share, and the checks. `visible`: records that were acknowledged or
    adopted; `ends`: of logs, as first found; `seen` counts situations that the walk has reached."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.rules = rules
        self.random = random.Random(seed)
        self.bucket = Bucket(rules, self.random)
        self.sql = Sql(rules)
        self.lives: list[Life] = []
        self._running: Life | None = None
        self.visible: dict[Key, int] = {}
        self.ends: dict[int, int] = {}
        self.records = 0
        self.seen: Counter[str] = Counter()

    def new_record(self) -> int:
        self.records += 1
        return self.records

    def step(self) -> None:
        """Let one thing happen: a PUT arrives, or a life makes a step."""
        if self.bucket.network and self.random.random() < ARRIVALS:
            put = self.bucket.arrive()
            if put is not None:
                self._note_arrival(put)
        elif self.lives:
            if self._running not in self.lives or self.random.random() < SWITCHES:
                self._running = self.random.choice(self.lives)
            if ends(self._running.steps):
                self.lives.remove(self._running)

    def start_life(self) -> Life:
        """Start a life, after the end of another one if there are many."""
        if len(self.lives) == MAX_LIVES:
            self.lives.pop(self.random.randrange(MAX_LIVES))
        life = self._running = Life(self)
        self.lives.append(life)
        return life

    def may_stall(self) -> None:
        """Often let another life run: the one that calls this has read something that changes."""
        if self.random.random() < STALLS:
            self._running = self.random.choice(self.lives)

    def acknowledge(self, key: Key, record: int) -> None:
        log, sequence = key
        self._show(key, record)
        if sequence >= self.ends.get(log, sequence + 1):
            raise Violation(f"acknowledged {key}, in a log that ends at {self.ends[log]}")
        self.seen["acknowledged"] += 1
        self.seen["acknowledged by a stalled life"] += log < self.sql.epoch

    def adopt(self, log: int, held: Held) -> None:
        """Check a log as a later life found it."""
        self._check_end(log, held.end)
        for sequence, record in held.records.items():
            self._show((log, sequence), record)
        self._check_kept(log, held)
        self.seen["adopted"] += len(held.records)

    def check_ends(self) -> None:
        """Check that the end of no log has changed in SQL."""
        for log, row in self.sql.logs.items():
            if row.ended is not None:
                self._check_end(log, row.ended)

    def check_all(self, life: Life) -> None:
        """Check that everything visible is uploaded, or in a log that the newest life has."""
        for log in {log for log, _ in self.visible}:
            self._check_kept(log, life.held.get(log, Held(0, 0)))

    def _show(self, key: Key, record: int) -> None:
        if self.visible.setdefault(key, record) != record:
            raise Violation(f"{key} was {self.visible[key]} and became {record}")

    def _check_end(self, log: int, end: int) -> None:
        if self.ends.setdefault(log, end) != end:
            raise Violation(f"log {log} ends at {self.ends[log]} and at {end}")

    def _check_kept(self, log: int, held: Held) -> None:
        for (of, sequence), record in self.visible.items():
            kept = record in self.sql.uploaded or held.records.get(sequence) == record
            if of == log and not kept:
                raise Violation(f"{(log, sequence)} is lost: log {log} ends at {held.end}")

    def _note_arrival(self, put: Put) -> None:
        fence = put.value.record is None
        there = self.bucket.objects[put.key]
        own = there == put.value
        if not put.stored:
            met = "itself" if own else "a fence" if there.record is None else "a record"
            self.seen[f"{'a fence' if fence else 'a record'} was put after {met}"] += 1
        self.seen["a PUT of a life that has ended"] += put.value.nonce not in {
            life.epoch for life in self.lives
        }


class Life:
    """One process of the broker, from its start until it finds that it was superseded."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rules = world.rules
        self._random = world.random
        self._bucket = world.bucket
        self._sql = world.sql
        self.epoch = world.sql.register()
        self.held: dict[int, Held] = {}
        self.serving = False
        self._next = 0
        self._stored: dict[int, int] = {}
        self._flying: list[Steps] = []
        self._garbage: list[Key] = []
        self._superseded = False
        self.steps = self._run()

    def _run(self) -> Steps:
        yield
        if not self._sql.open_log(self.epoch):
            return
        earlier = {log: replace(row) for log, row in self._sql.logs.items() if log < self.epoch}
        self._world.may_stall()
        yield
        for log, row in sorted(earlier.items()):
            yield from self._take_over(log, row)
            if self._superseded:
                return
        self.held[self.epoch] = Held(0, 0)
        self.serving = True
        while not self._superseded:
            self._serve()
            yield

    # -- the logs of earlier lives

    def _take_over(self, log: int, row: LogRow) -> Steps:
        """Find the end of a log, or make it; adopt what is in it."""
        held = Held(row.released, row.released, uploaded=row.released)
        while row.ended is None:
            yield
            there = self._bucket.objects.get((log, held.end))
            if there is not None and there.record is not None:
                held.records[held.end] = there.record
                held.end += 1
                continue
            if there is None:
                stored = yield from self._put((log, held.end), LogObject(self.epoch, None))
                if not stored and self._rules.fence_read_on:
                    continue
            yield
            row.ended = self._sql.end(log, held.end, self.epoch)
            self._world.check_ends()
            if row.ended is None:
                self._superseded = True
                return
        while held.end < row.ended:
            yield
            there = self._bucket.objects.get((log, held.end))
            if there is None or there.record is None:
                self._missing((log, held.end))
                return
            held.records[held.end] = there.record
            held.end += 1
        self._world.adopt(log, held)
        self.held[log] = held

    def _missing(self, key: Key) -> None:
        """A later life has released and deleted it; the newest life finds all that it needs."""
        if self.epoch == self._sql.epoch:
            raise Violation(f"{key} is below the end of its log, and absent")
        self._superseded = True

    # -- PUTs

    def _put(self, key: Key, value: LogObject) -> Generator[None, None, bool]:
        """Put an object until there is an answer; return whether it was stored by this request."""
        while True:
            put = self._bucket.send(key, value)
            yield
            while put.stored is None and self._random.random() >= LOST:
                yield
            if put.stored is not None and self._random.random() >= LOST:
                return put.stored
            self._world.seen["an answer was lost"] += put.stored is not None

    def _write(self, sequence: int, record: int) -> Steps:
        """Store one object; acknowledge what is stored without a gap."""
        key, value = (self.epoch, sequence), LogObject(self.epoch, record)
        stored = yield from self._put(key, value)
        if not stored and self._rules.read_after_refusal:
            yield
            stored = self._bucket.objects.get(key) == value
        if self._superseded:
            return
        if not stored and self._rules.read_after_refusal:
            self._superseded = True
            self._world.seen["a writer met a fence"] += 1
            return
        self._stored[sequence] = record
        own = self.held[self.epoch]
        if not self._rules.acknowledge_in_order:
            self._world.acknowledge(key, record)
        while own.end in self._stored:
            own.records[own.end] = self._stored.pop(own.end)
            self._world.acknowledge((self.epoch, own.end), own.records[own.end])
            own.end += 1

    # -- the work of a broker

    def _serve(self) -> None:
        choice = self._random.random()
        if choice < 0.1 and len(self._flying) < MAX_PUTS:
            self._flying.append(self._write(self._next, self._world.new_record()))
            self._next += 1
        elif choice < 0.4 and self._flying:
            writing = self._random.choice(self._flying)
            if ends(writing):
                self._flying.remove(writing)
        elif choice < 0.85:
            if self.epoch == self._sql.epoch or self._random.random() >= CUT_OFF:
                self._random.choice([self._upload, self._release, self._forget])()
        elif self._garbage:
            self._delete()

    def _upload(self) -> None:
        """Upload the next records of a log in a segment."""
        log = self._any_log(lambda held: held.uploaded < held.end)
        if log is None:
            return
        held = self.held[log]
        end = min(held.end, held.uploaded + self._random.randint(1, 3))
        records = [held.records[at] for at in range(held.uploaded, end)]
        if not self._sql.upload(records, self.epoch):
            self._superseded = True
            return
        held.uploaded = end

    def _release(self) -> None:
        """Release objects whose records are uploaded."""
        log = self._any_log(lambda held: held.released < held.uploaded)
        if log is None:
            return
        held = self.held[log]
        if not self._rules.release_before_deletion:
            self._discard(log, held.uploaded)
            if self._random.random() < 0.5:
                return  # it is released with later ones
        if not self._sql.release(log, held.uploaded, self.epoch):
            self._superseded = True
            return
        self._discard(log, held.uploaded)
        held.released = held.uploaded

    def _forget(self) -> None:
        """Forget an earlier log of which nothing is needed; its fence stays."""
        log = self._any_log(lambda held: held.released == held.end)
        if log is not None and log < self.epoch and self._sql.forget(log, self.epoch):
            self._world.seen["forgotten"] += 1
            del self.held[log]

    def _any_log(self, condition: Callable[[Held], bool]) -> int | None:
        logs = [log for log, held in self.held.items() if condition(held)]
        return self._random.choice(logs) if logs else None

    def _discard(self, log: int, below: int) -> None:
        """Let objects be deleted, those left by earlier lives included."""
        ended = log < self.epoch and below == self.held[log].end
        if ended and not self._rules.keep_fence:
            below += 1
        self._garbage += [key for key in self._bucket.objects if key[0] == log and key[1] < below]

    def _delete(self) -> None:
        """Delete some of the objects that may go, in any order."""
        self._random.shuffle(self._garbage)
        for _ in range(self._random.randint(1, len(self._garbage))):
            gone = self._bucket.objects.pop(self._garbage.pop(), None)
            self._world.seen["deleted"] += gone is not None


def walk(seed: int, rules: Rules = Rules()) -> Counter[str]:
    """Make one walk; return what it has reached. Raises Violation."""
    world = World(seed, rules)
    world.start_life()
    for _ in range(STEPS):
        if world.random.random() < STARTS:
            world.start_life()
        world.step()
    last = world.start_life()
    while not last.serving:
        world.step()
    world.check_all(last)
    for _ in range(STEPS // 4):  # late PUTs of writers that have stalled
        world.step()
    world.check_all(last)
    world.seen["lives"] += last.epoch
    return world.seen


@pytest.mark.parametrize(
    "seeds",
    [range(150), pytest.param(range(150, 3000), marks=pytest.mark.slow)],
    ids=["few", "many"],
)
def test_nothing_visible_is_lost(seeds: range) -> None:
    for seed in seeds:
        try:
            walk(seed)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")


def test_walks_reach_what_the_rules_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(50):
        seen += walk(seed)
    assert seen["lives"] > 200
    assert seen.keys() >= {
        "acknowledged",
        "acknowledged by a stalled life",
        "adopted",
        "an answer was lost",
        "a PUT of a life that has ended",
        "a fence was put after a fence",
        "a fence was put after a record",
        "a fence was put after itself",
        "a record was put after a fence",
        "a record was put after itself",
        "a writer met a fence",
        "deleted",
        "forgotten",
    }


def test_seed_decides_a_walk() -> None:
    assert walk(4711) == walk(4711)


@pytest.mark.parametrize("rule", [rule.name for rule in fields(Rules)])
def test_walks_without_a_rule_fail(rule: str) -> None:
    rules = replace(Rules(), **{rule: False})
    for seed in range(MUTATED_WALKS):
        try:
            walk(seed, rules)
        except Violation:
            return
    pytest.fail(f"nothing was lost in {MUTATED_WALKS} walks without {rule}")
