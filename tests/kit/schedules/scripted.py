"""A conversation of producers with schedule topics of a simulated broker, which a fault interrupts.

Records are due in the past, soon and later, in order and not; some are replaced, cancelled or
repeat. In the end the checker compares what is in the schedule topic with what was delivered. The
target has LogAppendTime: its timestamps are the moments of delivery.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any, NamedTuple

from kafkawire.codec.batches import CONTROL, Record, iter_batches, pack, records
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.schedules.headers import (
    CANCELS,
    DELIVER_AFTER,
    DELIVER_AT,
    DELIVER_EVERY,
    SCHEDULED_FROM,
)
from tests.kit.exactly_once.producer import Lost
from tests.kit.exactly_once.world import SimNet, World
from tests.kit.tier.crash_points import Points

LATER, ORDERS = "later", "orders"
PARTITIONS = 2
SETTLED_S = 12.0
"""After the last record is due: restarts, retries of a second, and the delivery itself."""
DONE_WITHIN_S = 600.0


class Row(NamedTuple):
    """A record as it was read."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None]


class Schedule(NamedTuple):
    """A record to be sent: its due time is `after_ms` after it is built."""

    after_ms: int
    key: bytes | None
    value: bytes | None
    header: str = ""
    every: str = ""


def some_schedules(rng: Random, count: int, *, compacted: bool) -> list[Schedule]:
    """Return records of all kinds."""
    made: list[Schedule] = []
    for number in range(count):
        key = b"k%d" % rng.randrange(count // 2) if compacted or rng.random() < 0.5 else None
        value = b"v%d" % number
        if compacted and rng.random() < 0.2:
            made.append(Schedule(0, key, None))
            continue
        after_ms = rng.choice([-60_000, 0, 5, 300, 700, 1500, 3000])
        header = rng.choice(["", DELIVER_AT, DELIVER_AFTER]) if after_ms >= 0 else ""
        made.append(Schedule(after_ms, key, value, header))
    return made


def record_of(asked: Schedule, now_ms: int, delta: int = 0) -> Record:
    """Return the record as a producer sends it."""
    headers: list[tuple[str, bytes | None]] = [("x", b"y")]
    timestamp = now_ms
    if asked.value is None:
        pass
    elif not asked.header:
        timestamp = now_ms + asked.after_ms
    elif asked.header == DELIVER_AT:
        headers.append((DELIVER_AT, str(now_ms + asked.after_ms).encode()))
    else:
        headers.append((DELIVER_AFTER, str(asked.after_ms).encode()))
    if asked.every:
        headers.append((DELIVER_EVERY, asked.every.encode()))
    return Record(delta, timestamp, asked.key, asked.value, headers)


def first_due(row: Row) -> int:
    """Return the due time of a record, by other code than the broker's."""
    if (at := row.headers.get(DELIVER_AT)) is not None:
        return int(at)
    return row.timestamp + int(row.headers.get(DELIVER_AFTER) or 0)


class ScheduleScript:
    """One run. `points`: of the first broker, from the first record on."""

    def __init__(
        self, points: Points, how: str = "kill", *, seed: int = 1, compacted: bool = True,
        count: int = 40, **settings: Any,
    ) -> None:  # fmt: skip
        self.world = world = World(seed, journal_bytes=1 << 14, **settings)
        world.points, world.how = points, how
        self.points = points
        self.compacted = compacted
        self.rng = Random(seed)
        self.schedules = some_schedules(self.rng, count, compacted=compacted)
        self.net = SimNet(world)
        self.sent: list[Row] = []
        self.delivered: list[Row] = []

    def run(self) -> ScheduleScript:
        """Run to the end, and check."""
        self.world.run(self.main())
        check(self.sent, self.delivered, compacted=self.compacted)
        return self

    async def main(self) -> None:
        world = self.world
        assert await world.start()
        await self.create()
        while not self.ready():
            await world.sleep(0.05)
        self.points.on = True
        writing = world.spawn(self.write())
        await self.until_done(writing)
        resting = world.spawn(world.sleep(SETTLED_S))
        await self.until_done(resting)
        self.points.on = False
        self.sent = await self.read(LATER)
        self.delivered = await self.read(ORDERS)

    def ready(self) -> bool:
        """Whether the broker delivers from all partitions."""
        broker = self.world.broker
        assert broker is not None
        service = broker.parts.schedules.service
        return service is not None and len(service.deliverers) == PARTITIONS

    async def create(self) -> None:
        policy = "compact" if self.compacted else "delete"
        configs = {"schedule.target.topic": ORDERS, "cleanup.policy": policy,
                   "min.compaction.lag.ms": "86400000"}  # fmt: skip
        rows = [CreatableTopicConfig(name, value) for name, value in configs.items()]
        stamped = [CreatableTopicConfig("message.timestamp.type", "LogAppendTime")]
        topics = [
            CreatableTopic(ORDERS, PARTITIONS, 1, configs=stamped),
            CreatableTopic(LATER, PARTITIONS, 1, configs=rows),
        ]
        answer = await self.net.call(CreateTopicsRequest(topics, 5_000), 7)
        assert not any(topic.error_code for topic in answer.topics), answer

    async def until_done(self, task: asyncio.Task[Any]) -> None:
        """Start the broker again whenever it has ended."""
        world = self.world
        began = world.loop.now
        while not task.done():
            assert world.loop.now - began < DONE_WITHIN_S, "clients wait forever"
            await world.sleep(0.1)
            broker = world.broker
            assert broker is not None
            if not broker.over and broker.log.commit_log.failed is not None:
                broker.end(world.how)
            if broker.over:
                await world.bury()
                world.fs.faults.failing_syncs = 0
                while not await world.start():
                    pass
        task.result()

    async def write(self) -> None:
        left = list(self.schedules)
        while left:
            part, left = left[:3], left[3:]
            now_ms = self.net.now_ms()
            items = [record_of(asked, now_ms, delta) for delta, asked in enumerate(part)]
            await self.produce(self.rng.randrange(PARTITIONS), bytes(pack(items)))
            await self.world.sleep(0.2 * self.rng.random())

    async def produce(self, partition: int, batch: bytes) -> None:
        """Send a batch until it is acknowledged; it may be there more than once."""
        data = TopicProduceData(LATER, partition_data=[PartitionProduceData(partition, batch)])
        while True:
            try:
                answer = await self.net.call(ProduceRequest(None, -1, 1000, [data]), 9)
            except Lost:
                continue
            code = answer.responses[0].partition_responses[0].error_code
            if not code:
                return
            await self.world.sleep(0.1)

    async def read(self, topic: str) -> list[Row]:
        """Return all records of a topic, in the order of offsets."""
        found: list[Row] = []
        for partition in range(PARTITIONS):
            offset = 0
            while True:
                row = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)
                asked = FetchRequest(
                    max_wait_ms=0, max_bytes=1 << 22, topics=[FetchTopic(topic, partitions=[row])]
                )
                answer = (await self.net.call(asked, 12)).responses[0].partitions[0]
                assert not answer.error_code, answer.error_code
                raw = bytes(answer.records or b"")
                if not raw:
                    break
                for position, head in iter_batches(raw):
                    offset = head.last_offset + 1
                    if not head.attributes & CONTROL:
                        for each in records(raw, position):
                            found.append(
                                Row(partition, each.offset, each.timestamp, each.key, each.value,
                                    dict(each.headers))
                            )  # fmt: skip
        return found


def check(sent: list[Row], delivered: list[Row], *, compacted: bool) -> None:
    """Raise AssertionError unless everything that was due was delivered exactly once."""
    source = {(row.partition, row.offset): row for row in sent}
    newest: dict[tuple[int, bytes | None], int] = {}
    cancelled: set[tuple[int, int]] = set()
    for row in sent:
        if compacted:
            newest[row.partition, row.key] = row.offset
        if (offset := row.headers.get(CANCELS)) is not None:
            cancelled.add((row.partition, int(offset)))
    count: Counter[tuple[int, int]] = Counter()
    for got in delivered:
        name, partition, at = (got.headers[SCHEDULED_FROM] or b"").decode().rsplit("-", 2)
        assert name == LATER
        where = int(partition), int(at)
        row = source[where]
        count[where] += 1
        assert (got.key, got.value, got.headers["x"]) == (row.key, row.value, b"y")
        assert got.timestamp >= first_due(row), f"{row} was delivered early, at {got.timestamp}"
    repeating = {where for where, row in source.items() if DELIVER_EVERY in row.headers}
    for where, row in source.items():
        if row.value is None or CANCELS in row.headers or where in repeating:
            continue
        replaced = compacted and newest[row.partition, row.key] != row.offset
        least = 0 if replaced or where in cancelled else 1
        assert least <= count[where] <= 1, f"{row} was delivered {count[where]} times"
