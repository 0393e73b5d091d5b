"""The state that the actors of a kill trial share: topics, ledger, and whether the broker serves.

Topics are known by id: a deleted topic's name is soon used again, for another incarnation. A
creation or deletion whose response was lost is settled by the Metadata after the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from tests.trials.context import Context
from tests.trials.ledger import Commits, Partition
from tests.trials.link import LOST, Link, Unanswered, link
from tests.trials.records import Outgoing

KEYS = 40
"""Few keys, so that compaction has records to remove."""
INTERNAL = ("__consumer_offsets", "__transaction_state")


@dataclass(slots=True)
class Topic:
    """One incarnation. `state`: live, deleting (requested, maybe done) or gone (acknowledged)."""

    name: str
    id: bytes
    count: int
    compacted: bool
    tiered: bool
    state: str = "live"
    ledgers: list[Partition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledgers = [
            Partition(f"{self.name}({self.id.hex()[:8]})-{index}", self.compacted)
            for index in range(self.count)
        ]


@dataclass(slots=True)
class Wanted:
    """A creation that was sent and not answered yet."""

    name: str
    count: int
    compacted: bool
    tiered: bool


class World:
    """The shared state."""

    def __init__(self, context: Context, port: int) -> None:
        self.context = context
        self.rng = Random(context.rng.random())
        self.port = port
        self.serving = asyncio.Event()
        self.lives = 0  # lives of the broker that have ended
        self.over = False
        self.topics: dict[bytes, Topic] = {}
        self.wanted: dict[str, Wanted] = {}
        self.commits: dict[str, Commits] = {}
        self.names = [f"t{number}" for number in range(8)]
        self._uid = 0

    def live(self) -> list[Topic]:
        """Topics whose deletion was not requested."""
        return [topic for topic in self.topics.values() if topic.state == "live"]

    def rows(self, topic: Topic) -> list[Outgoing]:
        """New records for a topic; some are tombstones where it is compacted."""
        rng = self.rng
        made = []
        for _ in range(rng.choice((1, 1, 2, 4, 8, 20))):
            self._uid += 1
            key = b"key-%d" % rng.randrange(KEYS)
            value: bytes | None = b"%d|" % self._uid + rng.randbytes(8) * rng.choice(
                (0, 2, 20, 200)
            )
            if topic.compacted and rng.random() < 0.1:
                value = None
            made.append(Outgoing(self._uid, key, value))
        return made

    def broken(self, *found: str) -> None:
        """Report a failed check."""
        for text in found:
            self.context.broken(text)

    def ends(self) -> None:
        """Note that the broker is about to be killed or stopped: it may close connections."""
        self.serving.clear()
        self.lives += 1

    async def keep(self, name: str, life: Callable[[Link], Awaitable[None]]) -> None:
        """Run `life` on a new connection whenever the broker serves, until the trial is over.
        Only a broker that was killed or is stopped may end a connection; a client that slept
        meanwhile finds out when the next one serves. A connection that was requested from one
        broker and accepted by the next one is not used: the next one is verified first, and
        records written meanwhile would look like lost ones."""
        while not self.over:
            await self.serving.wait()
            lives = self.lives
            try:
                async with link(self.port, name) as client:
                    if self.lives == lives:
                        await life(client)
            except Unanswered as why:
                self.broken(f"{name}: {why}")
            except LOST as why:
                if self.lives == lives:
                    self.broken(f"{name}: a living broker ended the connection: {why!r}")
                    await asyncio.sleep(0.1)

    def settle(self, there: dict[str, tuple[bytes, int]]) -> list[str]:
        """Compare the topics that a broker has after a start with those it must have."""
        by_id = {row[0]: (name, row[1]) for name, row in there.items() if name not in INTERNAL}
        found = []
        for topic in self.topics.values():
            has = by_id.pop(topic.id, None)
            if topic.state == "live" and has != (topic.name, topic.count):
                found.append(f"topic {topic.name} ({topic.id.hex()[:8]}) is {has} after a start")
            elif topic.state == "gone" and has is not None:
                found.append(f"the deleted topic {topic.name} ({topic.id.hex()[:8]}) is back")
            elif topic.state == "deleting":
                topic.state = "gone" if has is None else "live"
        for id_, (name, count) in by_id.items():
            wanted = self.wanted.get(name)
            if wanted is None or wanted.count != count:
                found.append(f"a topic {name} ({id_.hex()[:8]}) is there that was never created")
            else:
                self.topics[id_] = Topic(name, id_, count, wanted.compacted, wanted.tiered)
        self.wanted.clear()
        return found
