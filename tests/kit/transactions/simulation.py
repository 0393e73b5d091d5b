"""One seed of a simulation of transactions: producers, zombies, and a coordinator that crashes."""

from __future__ import annotations

from collections.abc import Callable

from tests.kit.transactions.checker import Violation, check
from tests.kit.transactions.desk import TransactionSettings
from tests.kit.transactions.producers import History, Producer
from tests.kit.transactions.world import Crash, World

IDS = ("a", "b")
STEPS_MAX = 4_000
"""Six times what the longest of three hundred seeds takes."""


class Simulation:
    """One seed: random steps until every producer is done, then quiet ones until all settled."""

    def __init__(
        self,
        seed: int,
        early: bool = False,
        crashes: float | None = None,
        crash_at: int = -1,
        instances: int = 8,
    ) -> None:
        self.crash_at = crash_at
        self.passed = 0
        self.crash_chance = 0.0
        version = (0, 1, 2, 2)[seed % 4]
        expiry_ms = (604_800_000, 5_000)[seed // 4 % 2]
        settings = TransactionSettings(version, transactional_id_expiration_ms=expiry_ms)
        self.world = World(seed, settings, self.maybe_crash, early)
        self.rng = self.world.rng
        self.history = History()
        self.crash_chance = self.rng.choice((0.0, 0.003, 0.01)) if crashes is None else crashes
        # Clients follow the cluster. Those of one id speak the same version: else Kafka's rules
        # take an EndTxn 5 of a fenced producer for the retry of its successor's EndTxn 4.
        spoken = {id_: self.rng.choice((1, 2)) if version >= 2 else 1 for id_ in IDS}
        self.to_come = []
        for number in range(instances):
            id_ = self.rng.choice(IDS)
            instance = seed * 100 + number
            self.to_come.append(Producer(self.world, self.history, instance, id_, spoken[id_]))
        self.alive: list[Producer] = []
        self.points: dict[str, int] = {}
        if seed % 3 == 0:  # the highest epochs, where producer ids change
            for transactional_id in IDS:
                self.world.exhaust(transactional_id)

    def maybe_crash(self, name: str) -> None:
        self.points[name] = self.points.get(name, 0) + 1
        self.passed += 1
        if self.passed == self.crash_at:
            raise Crash
        if self.rng.random() < self.crash_chance:
            raise Crash

    def run(self) -> Simulation:
        for self.steps in range(STEPS_MAX):
            if not self.step():
                break
        else:
            raise Violation("producers wait for ever")
        self.crash_chance = 0.0
        for _ in range(20):
            self.settle()
        check(self.world, self.history)
        return self

    def settle(self) -> None:
        """Let everything come to its end, and time pass."""
        try:
            while self.background():
                pass
            self.world.tick(2_000)
        except Crash:
            self.world.crash()

    def step(self) -> bool:
        """One random step; False when there are no producers any more."""
        self.alive = [each for each in self.alive if not each.done]
        if self.to_come and (not self.alive or self.rng.random() < 0.02):
            self.alive.append(self.to_come.pop())
        if not self.alive:
            return False
        try:
            ready = [each for each in self.alive if not each.busy]
            if ready and self.rng.random() < 0.4:
                self.rng.choice(ready).step()
            elif self.rng.random() < 0.02:
                self.world.tick(self.rng.choice((10, 700, 6_000)))
            elif not self.background() and not ready:
                raise Violation("nothing is under way, and producers wait")
        except Crash:
            self.world.crash()
        return True

    def background(self) -> bool:
        """One step of the broker; False if there is none to be done."""
        world = self.world
        steps: list[Callable[[], None]] = []
        if world.open_entries:
            steps.append(world.commit)
        if world.replies:
            steps.append(world.answer_one)
        if world.work:
            steps.append(world.mark_one)
        if world.results:
            steps.append(world.result_one)
        if steps:
            self.rng.choice(steps)()
        return bool(steps)
