"""One round of the starve trial: storms of hostile clients around one well-behaved client.

It must be served all the time, the broker's memory must stay bounded, and its descriptors must be
released. Then thousands of groups, whose commits survive a kill, and a broker with all the
connections that `max.connections` allows.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.kit.hostile import anonymous_bytes
from tests.trials.context import Context, Trial
from tests.trials.flip.base import produce
from tests.trials.kill.world import Topic
from tests.trials.link import link, topics_of
from tests.trials.process import Victim, report_log
from tests.trials.records import Outgoing
from tests.trials.starve import groups
from tests.trials.starve.good import Good
from tests.trials.starve.limit import at_limit
from tests.trials.starve.storms import MIB, STORMS, Storm, allowed

SETTINGS = {
    "hot.bytes": str(MIB),
    "journal.bytes": str(16 * MIB),
    "journal.roll.ms": "3600000",
    "group.initial.rebalance.delay.ms": "0",
}
OLD_RECORDS, SHORT_OLD_RECORDS = 3000, 1000
OLD_RECORD_BYTES = 12_000
"""Each in a batch of its own: long runs of batches leave by sendfile and take no memory."""
MAX_GROWTH = 600 * MIB
"""inflight.bytes and inflight.answer.bytes are 256 MiB each; the rest is what malloc keeps."""
CONNECTION_BYTES = 40 << 10
"""Memory of an idle connection: buffers and objects."""
SETTLED_WITHIN_S = 60.0
EXCHANGES = 20
"""Requests of the well-behaved client during each storm."""
DESCRIPTORS_LEFT = 30
"""Files of journals and segments that were opened meanwhile."""
GROUPS, SHORT_GROUPS = 2000, 200
SHORT_PART = 20
"""A short storm has this share of the clients."""


class Round:
    """One broker, and the well-behaved client."""

    def __init__(self, context: Context, victim: Victim) -> None:
        self.context, self.victim = context, victim
        self.new = self.old = Topic("", b"", 0, compacted=False, tiered=False)
        self.filled_bytes = 0

    async def run(self) -> None:
        """Fill, storms until the time is nearly over, groups, a kill, and the commits again."""
        try:
            await self.victim.start()
            await self.fill()
            good = Good(self.context, self.victim.port, self.new, self.old)
            serving = asyncio.create_task(good.run())
            await self._storms(good)
            count = SHORT_GROUPS if self.context.short else GROUPS
            port = self.victim.port
            offsets = await groups.storm(self.context, port, self.old, count)
            good.stop.set()
            await serving
            await self.victim.kill()
            await self.victim.start()
            await groups.verify(self.context, self.victim.port, self.old, offsets)
            await self.victim.stop()
            self.context.say(f"the slowest turn: {good.slowest_s * 1000:.0f} ms")
        finally:
            await asyncio.to_thread(self.victim.process.kill)
            self.context.outputs["broker.log"] = self.victim.output
            report_log(self.context, self.victim.log)

    async def fill(self) -> None:
        """Append records of which only the last are hot; memory is compared with that
        afterwards."""
        async with link(self.victim.port) as client:
            rows = [CreatableTopic("old", 1, 1), CreatableTopic("new", 1, 1)]
            await client.call(CreateTopicsRequest(rows, 30_000), 7)
            there = await topics_of(client)
            self.old, self.new = (
                Topic(name, there[name][0], 1, compacted=False, tiered=False)
                for name in ("old", "new")
            )
            for uid in range(SHORT_OLD_RECORDS if self.context.short else OLD_RECORDS):
                row = Outgoing(uid, b"k", bytes(OLD_RECORD_BYTES))
                if (offset := await produce(client, self.old, 0, [row])) != uid:
                    self.context.broken(f"record {uid} of the old topic is at offset {offset}")
        self.filled_bytes = anonymous_bytes(self.victim.process.pid)

    async def _storms(self, good: Good) -> None:
        """Each kind of hostile client in random order; in a long round again and again."""
        while True:
            for storm in self.context.rng.sample(STORMS, len(STORMS)):
                part = SHORT_PART if self.context.short else self.context.rng.choice((1, 1, 3))
                await self.storm(storm, allowed(storm.most // part), good)
            if self.context.short or self.context.left_s < 75:
                return

    async def storm(self, storm: Storm, count: int, good: Good) -> None:
        """Run `count` hostile clients of one kind until the good one was served often enough."""
        self.context.say(f"{count} {storm.name}")
        served = good.served
        descriptors = self.victim.usage().descriptors
        with ExitStack() as stack:
            begin = storm.begin
            port, rng = self.victim.port, self.context.rng
            await asyncio.to_thread(begin, port, count, rng, stack)
            grown = await self._watch(good, served + EXCHANGES)
        judge(self.context, f"{count} {storm.name}", grown, count)
        await self._settled(storm.name, descriptors)
        self.context.tried(storm.name, count)

    async def _watch(self, good: Good, until: int) -> int:
        """Wait until the good client was served this often; return the largest growth of memory
        since before all hostile clients."""
        largest = 0
        end = time.monotonic() + SETTLED_WITHIN_S
        while good.served < until and time.monotonic() < end:
            largest = max(largest, anonymous_bytes(self.victim.process.pid) - self.filled_bytes)
            await asyncio.sleep(0.05)
        if good.served < until:
            missing = until - good.served
            self.context.broken(
                f"{missing} of {EXCHANGES} exchanges were not served in {SETTLED_WITHIN_S:g} s"
            )
        return largest

    async def _settled(self, name: str, descriptors: int) -> None:
        """Check that the descriptors of the hostile clients are released once these have left."""
        end = time.monotonic() + SETTLED_WITHIN_S
        while (now := self.victim.usage().descriptors) > descriptors + DESCRIPTORS_LEFT:
            if time.monotonic() > end:
                self.context.broken(f"after {name}: {now} descriptors, {descriptors} before")
                return
            await asyncio.sleep(0.1)


def judge(context: Context, name: str, grown: int, connections: int) -> None:
    """Compare the growth of the broker's memory with the limit."""
    most = MAX_GROWTH + connections * CONNECTION_BYTES
    context.check(
        grown <= most,
        "storms in bounded memory",
        f"{name}: the broker's memory grew by {grown // MIB} MiB, {most // MIB} are allowed",
    )


async def round_(context: Context) -> None:
    """Run one round."""
    await Round(context, Victim(context.folder / "data", SETTINGS)).run()
    await at_limit(context, context.folder / "limit")


TRIAL = Trial("starve", "hostile clients, thousands of connections and groups", round_, weight=0.7)
