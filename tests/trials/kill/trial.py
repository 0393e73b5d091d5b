"""One round of the kill trial: lives of one data folder, each ended by SIGKILL and then checked.

The seed decides the kind of broker (flush, storage of offsets, tier), what the clients do, and
which process is killed when: the broker under load, during recovery, its worker, its storage
process.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kafkawire.testing.control import BrokerFailed
from tests.trials.context import Context, Trial
from tests.trials.kill.admin import Admin
from tests.trials.kill.members import Member, committed
from tests.trials.kill.producers import Producer
from tests.trials.kill.world import World
from tests.trials.link import LOST, Link, Unanswered, link, topics_of
from tests.trials.process import Victim, command
from tests.trials.reading import read_all

LIVES, SHORT_LIVES = 8, 3
PROGRESS = ("records acknowledged", "commits acknowledged", "records consumed")
PROGRESS_WITHIN_S = 90.0
MIN_ROUND_S = 45.0
"""No further life of a round begins with less than this left."""
SETTINGS = {
    "auto.create.topics.enable": "false",
    "journal.bytes": str(1 << 20),
    "journal.roll.ms": "1000",
    "hot.bytes": str(1 << 20),
    "cut.interval.ms": "200",
    "log.cleaner.backoff.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "1500",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
}
TIER_SETTINGS = {"tier.delete.delay.ms": "1000", "tier.manifest.fold": "8"}


class Round:
    """One data folder from its first start to its last. `sabotage` is for the tests of the trial:
    it damages the folder of a killed broker, and the round must notice."""

    def __init__(
        self, context: Context, sabotage: Callable[[Path], None] = lambda data: None
    ) -> None:
        self.context, self.rng = context, context.rng
        self.tier = self.rng.random() < 0.6
        self.victim = Victim(context.folder / "data", self._settings(), self._arguments())
        self.world = World(context, 0)
        self.actors: list[asyncio.Task[None]] = []
        self.sabotage = sabotage

    def _settings(self) -> Mapping[str, str]:
        settings = {**SETTINGS, "flush": self.rng.choice(("commit", "commit", "commit", "os"))}
        settings["offset.storage"] = self.rng.choice(("sql", "sql", "rocksdb"))
        if self.tier:
            settings |= TIER_SETTINGS
        chosen = f"flush={settings['flush']}, offset.storage={settings['offset.storage']}"
        self.context.say(f"a broker with {chosen}, {'a' if self.tier else 'no'} tier")
        return settings

    def _arguments(self) -> list[str]:
        return ["--tier", str(self.context.folder / "tier")] if self.tier else []

    async def run(self) -> None:
        """All lives, then a clean stop."""
        try:
            if await self._started():
                await self._lives()
                await self._end()
        finally:
            await self._release()

    async def _release(self) -> None:
        self.world.over = True
        self.world.serving.set()
        for actor in self.actors:
            actor.cancel()
        await asyncio.gather(*self.actors, return_exceptions=True)
        self.victim.process.kill()
        self.context.outputs["broker.log"] = self.victim.output
        for text in self.victim.complaints():
            self.context.broken(f"the broker logged: {text}")
        self.context.tried("starts", self.victim.starts)
        self.context.tried("kills of the broker", self.victim.kills)
        self.context.tried("kills of child processes", self.victim.child_kills)

    async def _started(self) -> bool:
        """Start the broker; return whether it serves."""
        try:
            await self.victim.start()
        except BrokerFailed as why:
            self.context.broken(f"the broker did not start: {str(why)[-2000:]}")
            return False
        self.world.port = self.victim.port
        return True

    async def _lives(self) -> None:
        self._begin_actors()
        for life in range(SHORT_LIVES if self.context.short else LIVES):
            if self.context.left_s < MIN_ROUND_S and self.victim.starts > SHORT_LIVES:
                break
            self.world.serving.set()
            await self._load()
            if life == 0 or self.rng.random() < 0.6:
                await self._progress()
            self.world.ends()
            await self.victim.kill()
            for _ in range(self.rng.choice((0, 0, 1, 2))):
                await self.victim.start_and_kill(0.02 + self.rng.random() * 0.3)
                self.context.tried("kills while starting")
            self.sabotage(self.context.folder / "data")
            for orphan in await self.victim.orphans():
                self.context.broken(f"a child of a killed broker runs on: {orphan}")
            if not await self._started():
                return
            await self.verify()
            if self.context.findings:
                return  # later findings would only follow from this one

    def _begin_actors(self) -> None:
        world, rng = self.world, self.rng
        jobs = [Admin(world, self.tier).run()]
        for number in range(4):
            acks = 1 if number == 3 else -1
            jobs.append(Producer(world, f"p{number}", idempotent=number < 2, acks=acks).run())
        for number in range(5):
            jobs.append(Member(world, f"g{number % 2}", f"m{number}").run())
        rng.shuffle(jobs)
        self.actors = [asyncio.create_task(job) for job in jobs]

    async def _load(self) -> None:
        """Let the actors work, and kill child processes meanwhile."""
        left = self.rng.choice((0.3, 1.0, 2.5, 4.0)) * (0.5 + self.rng.random())
        while left > 0:
            pause = min(left, 0.2 + self.rng.random())
            left -= pause
            done, _ = await asyncio.wait(self.actors, timeout=pause)
            for actor in done:
                actor.result()  # an actor ends only by a defect of the trial
            if self.rng.random() < 0.3 and (killed := self.victim.kill_child(self.rng)):
                self.context.tried(f"kills of {killed}")

    async def _progress(self) -> None:
        """Wait until each kind of client has been served in this life."""
        counts = self.context.counts
        before = {what: counts[what] for what in PROGRESS}
        end = time.monotonic() + PROGRESS_WITHIN_S
        while still := [what for what in PROGRESS if counts[what] == before[what]]:
            if time.monotonic() > end:
                waits = f"of these there were none in {PROGRESS_WITHIN_S:g} s"
                self.context.broken(f"a broker that serves makes no progress: {waits}: {still}")
                return
            await asyncio.wait(self.actors, timeout=0.05)

    async def verify(self) -> None:
        """Compare everything that the broker has with the ledger."""
        try:
            async with link(self.victim.port, "verify") as client:
                there = await topics_of(client)
                self.world.broken(*self.world.settle(there))
                await self._verify_topics(client)
                await self._verify_commits(client)
        except Unanswered as why:
            self.context.broken(f"while verifying: {why}")
        except LOST as why:
            self.context.broken(f"while verifying, the broker ended the connection: {why!r}")

    async def _verify_topics(self, client: Link) -> None:
        for topic in self.world.live():
            for index, ledger in enumerate(topic.ledgers):
                full = await read_all(client, topic.name, topic.id, index)
                self.world.broken(*full.trouble)
                if full.trouble:
                    return  # each stuck reader takes a minute
                if full.errors:
                    self.world.broken(
                        f"{ledger.name}: refused at {dict(list(full.errors.items())[:5])}"
                    )
                    continue
                found = ledger.check(full.log_start, full.high_watermark, full.records)
                self.world.broken(*found)
                self.context.tried("records read back", len(full.records))
                self.context.tried("partitions verified")

    async def _verify_commits(self, client: Link) -> None:
        for group, commits in self.world.commits.items():
            live = {topic.id: topic for topic in self.world.live()}
            keys = [key for key in commits.sent if key[0] in live]
            if not keys:
                continue
            found = await committed(client, group, keys)
            for key in keys:
                name = live[key[0]].ledgers[key[1]].name
                self.world.broken(*commits.check(key, found.get(key, -1), name))
                self.context.tried("commits verified")

    async def _end(self) -> None:
        """Stop cleanly; check that fsck finds nothing and that one more start has everything."""
        self.world.over = True
        self.world.ends()
        await self.victim.stop()
        done = await asyncio.to_thread(command, "fsck", "--data", str(self.context.folder / "data"))
        self.context.check(
            done.code == 0,
            "fsck after an orderly end",
            f"fsck of an undamaged folder ended with {done.code}: {done.text[-1500:]}",
        )
        if await self._started():
            await self.verify()
            await self.victim.stop()


async def round_(context: Context) -> None:
    """Run one round."""
    if shutil.disk_usage(context.folder).free < 1 << 30:
        context.broken("less than 1 GiB is free: a kill trial would measure the full disk")
        return
    try:
        await Round(context).run()
    except BrokerFailed as why:
        context.broken(f"the broker did not stop in order: {str(why)[-2000:]}")


TRIAL = Trial(
    "kill", "SIGKILL of broker, worker and storage process under load", round_, weight=2.0
)
