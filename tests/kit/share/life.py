"""A simulation of the leaders of one share partition in virtual time, with a history that is
checked.

Members fetch, hold records for a while, and accept, release, reject or forget them, some several
times for the same record and some after their lock has expired. Writes of the persister take time,
fail with and without effect, and leaders are replaced at any moment. Dead letters take time, too.

The checker knows nothing of runs, locks or writes. It sees what was delivered and answered:

- no record is with two members, unless its lock was over or the leader changed;
- no record is delivered more often than the limit by one leader, or after its acceptance or
  rejection was answered;
- once the failures end, every record was accepted, rejected or delivered to the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.share.counts import ShareCounts
from kafkawire.share.leader import ShareLeader, ShareParts
from kafkawire.share.partition import Acknowledge, Acquire, FetchedBatch
from kafkawire.share.persister import SharePartitionKey, StateBatch
from kafkawire.share.states import AcknowledgeType
from tests.kit.env import sim_env
from tests.kit.memfs import MemFileSystem
from tests.kit.share.persister import MemoryPersister
from tests.kit.share.settings import share_settings
from tests.kit.simloop import SimLoop

KEY = SharePartitionKey("g", bytes(16), 0)
RECORDS = 120
BATCH = 8
LIMIT = 4
LOCK_S = 2.0
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


class SlowPersister(MemoryPersister):
    """Takes time, and fails while `failing`."""

    def __init__(self, env: Env, random: Random) -> None:
        super().__init__()
        self.env = env
        self.random = random
        self.failing = True

    async def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: tuple[StateBatch, ...],
    ) -> None:
        await self.env.sleep(self.random.choice((0.001, 0.02, 0.5, 3.0)))
        fails = self.failing and self.random.random() < 0.2
        if not fails or self.random.random() < 0.5:
            await super().write(
                key, state_epoch, leader_epoch, start_offset, delivery_complete_count, batches
            )
        if fails:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)


class SlowLetters:
    """Dead letters, which take time."""

    AT_ONCE = 5

    def __init__(self, env: Env, random: Random) -> None:
        self.env = env
        self.random = random
        self.written: list[int] = []

    async def write(self, source: Any, waiting: Any) -> list[tuple[int, int]]:
        await self.env.sleep(self.random.choice((0.01, 1.0)))
        for run in waiting:
            self.written += range(run.first, run.last + 1)
        return [(run.first, run.last) for run in waiting]

    def remove_partition(self, key: SharePartitionKey) -> None:
        pass


class FakeLog:
    """The partition as a leader sees it."""

    topic, index = "t", 0
    removed = resigned = False
    log_start = 0
    high_watermark = RECORDS

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self.watchers: list[Callable[[Any], None]] = []

    def watch(self, watcher: Callable[[Any], None]) -> None:
        self.watchers.append(watcher)

    def unwatch(self, watcher: Callable[[Any], None]) -> None:
        if watcher in self.watchers:
            self.watchers.remove(watcher)


class ShareLife:
    """One simulated run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.loop = SimLoop()
        self.env = sim_env(self.loop, self.random, MemFileSystem())
        self.persister = SlowPersister(self.env, self.random)
        self.persister.initialize(KEY, start_offset=0)
        self.letters = SlowLetters(self.env, self.random)
        self.settings = share_settings(
            record_lock_duration_ms=int(LOCK_S * 1000),
            delivery_count_limit=LIMIT,
            max_record_locks=self.random.choice((16, 40, 200)),
            retry_delay_ms=self.random.choice((0, 700)),
            dead_letter_topic=self.random.choice(("", "dlq")),
        )
        self.epoch = 0
        self.leader: ShareLeader | None = None
        # What the checker knows of each record.
        self.holder: dict[int, tuple[str, float, int]] = {}  # member, end of the lock, epoch
        self.deliveries: Counter[tuple[int, int]] = Counter()  # by epoch and offset
        self.counts: Counter[int] = Counter()
        self.done: dict[int, str] = {}
        self.ending = False

    def begin_leader(self) -> None:
        """Replace the leader."""
        if self.leader is not None:
            self.leader.stop_serving(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.epoch += 1
        letters: Any = self.letters
        parts = ShareParts(
            self.env, self.persister, lambda _: self.settings, letters, ShareCounts()
        )
        log: Any = FakeLog(self.epoch)
        self.leader = ShareLeader(parts, KEY, log, lambda leader: None)
        self.leader.start()

    async def main(self) -> None:
        self.begin_leader()
        members = [self.env.spawn(self.live(f"m{n}"), f"m{n}") for n in range(4)]
        for _ in range(self.random.randint(0, 6)):
            await self.env.sleep(self.random.uniform(0.1, 6.0))
            self.begin_leader()
        await self.env.sleep(20)
        self.persister.failing = False
        self.ending = True
        end = self.loop.now + 3_000
        while not self.is_complete() and self.loop.now < end:
            await self.env.sleep(1)
            for member in members:
                if member.done():
                    member.result()  # what it has found
        assert self.is_complete(), self.describe_left()
        for member in members:
            member.cancel()
        if self.leader is not None:
            self.leader.stop_serving(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def is_complete(self) -> bool:
        machine = None if self.leader is None else self.leader.machine
        return machine is not None and machine.start == RECORDS

    def describe_left(self) -> str:
        machine = None if self.leader is None else self.leader.machine
        return "nothing is loaded" if machine is None else str(machine.runs())

    # -- members ---------------------------------------------------------------------------

    async def live(self, name: str) -> None:
        while True:
            await self.env.sleep(self.random.choice((0.01, 0.1, 0.5)))
            leader = self.leader
            if leader is None or leader.machine is None or leader.ended is not None:
                if leader is not None and leader.ended is not None and self.leader is leader:
                    self.begin_leader()  # as the next request does
                continue
            held = self.acquire(leader, name)
            if not held:
                continue
            await self.env.sleep(self.random.choice((0.0, 0.1, 1.0, 2.5)))
            if self.random.random() < 0.1 and not self.ending:
                leader.release(name)  # its session ends
                for at in [at for at, held_by in self.holder.items() if held_by[0] == name]:
                    del self.holder[at]
                continue
            if self.random.random() < 0.1 and not self.ending:
                continue  # it forgets them
            await self.settle(leader, name, held)

    def acquire(self, leader: ShareLeader, name: str) -> list[int]:
        offset = leader.fetch_offset()
        if offset is None or offset >= RECORDS:
            return []
        first = offset - offset % BATCH
        batches = [
            FetchedBatch(at, at + BATCH - 1)
            for at in range(first, RECORDS, BATCH)[: self.random.randint(1, 3)]
        ]
        strict = self.random.random() < 0.5
        ask = Acquire(name, offset, batches, self.random.randint(1, 20), 500, strict)
        held: list[int] = []
        for run in leader.acquire(ask)[0]:
            for at in range(run.first, run.last + 1):
                self.see_delivery(leader, name, at, run.delivery_count)
                held.append(at)
        return held

    def see_delivery(self, leader: ShareLeader, name: str, at: int, count: int) -> None:
        assert at not in self.done, f"{at} was {self.done[at]}, and is delivered again"
        epoch = leader.leader_epoch
        _, until, of_epoch = self.holder.get(at, ("", 0.0, 0))
        # Locks are in milliseconds.
        assert self.loop.now >= until - 0.002 or of_epoch != epoch, f"{at} is with two members"
        self.deliveries[epoch, at] += 1
        self.counts[at] += 1
        assert count <= LIMIT, f"{at} is delivered too often"
        assert self.deliveries[epoch, at] <= LIMIT, f"{at} is delivered too often"
        self.holder[at] = name, self.loop.now + LOCK_S, epoch

    async def settle(self, leader: ShareLeader, name: str, held: list[int]) -> None:
        kinds = [
            self.random.choice((ACCEPT, ACCEPT, RELEASE, REJECT)) if not self.ending else ACCEPT
            for _ in held
        ]
        batches = [Acknowledge(at, at, [kind]) for at, kind in zip(held, kinds, strict=True)]
        if self.random.random() < 0.1:
            batches.append(Acknowledge(held[0], held[0], [ACCEPT]))  # twice
        try:
            stored = leader.acknowledge(name, batches)
            # From here on others may get what is released.
            for at, kind in zip(held, kinds, strict=True):
                if kind is RELEASE:
                    self.holder.pop(at, None)
            if stored is not None:
                await stored
        except KafkaError:
            return
        for at, kind in zip(held, kinds, strict=True):
            if kind is not RELEASE:
                self.done[at] = kind.name
