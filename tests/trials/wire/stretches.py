"""The rule of 5 ms: no request, whatever its bytes, may block the event loop longer.

It runs a broker in a thread of this process, whose selector measures the CPU time of each
event-loop iteration (tests.kit.loop_time): independent of the product's own watchdog.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from random import Random
from struct import pack

from crc32c import crc32c

from kafkawire.codec.compile import encode
from kafkawire.handlers.table import ApiRow
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.messages.registry import request_class
from tests.kit.client import Client
from tests.kit.codec.extremes import STYLES, TOPIC, Case, arrays, case_of, frame, served
from tests.kit.loop_time import MeasuredBroker, measured
from tests.kit.slowness import least_cpu_time
from tests.trials.context import Context
from tests.trials.link import topics_of
from tests.trials.records import compress
from tests.trials.wire.garbage import many_headers, many_records

RULE_S = 0.005
LIMIT_S = 1.5 * RULE_S
"""CPU time of the same work differs by half where the other hardware thread of the core is busy, as
in CI: a longer time in every repetition is not noise."""
COUNTS = (1000, 20_000, 64_000)
"""A request may have some 48,000 entries; making one from many more takes ten seconds."""
SHORT_COUNTS = (1000, 5000)
MAX_FRAME_BYTES = 16 << 20


async def topics(port: int) -> dict[str, tuple[bytes, int]]:
    """The topics that requests name, one of them compacted."""
    client = await Client.connect(port)
    compact = [CreatableTopicConfig("cleanup.policy", "compact")]
    rows = [CreatableTopic(TOPIC, 1, 1), CreatableTopic("compacted", 1, 1, configs=compact)]
    await client.call(CreateTopicsRequest(rows, 10_000), 7)
    found = await topics_of(client)
    await client.close()
    return found


def produce_case(name: str, topic: str, body: bytes, count: int, codec: int) -> Case:
    """A Produce of one batch with this body."""
    packed = compress(codec, body)
    now = int(time.time() * 1000)
    tail = pack(">hiqqqhii", codec, count - 1, now, now, -1, -1, -1, count) + packed
    batch = pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c(tail)) + tail
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])
    raw = encode(ProduceRequest(None, -1, 9000, [data]), 9)
    return Case(name, "Produce", 9, frame(0, 9, raw))


def record_cases(rng: Random, count: int) -> Iterator[Case]:
    """Batches whose records cost much more than their bytes."""
    for codec in rng.sample((0, 1, 3, 4), 2):
        for topic in (TOPIC, "compacted"):
            words = f"{count} records, codec {codec}, to {topic}"
            yield produce_case(words, topic, many_records(count), count, codec)
            words = f"a record of {count} headers, codec {codec}, to {topic}"
            yield produce_case(words, topic, many_headers(count), 1, codec)


def extreme_cases(rng: Random, topic_id: bytes, short: bool) -> Iterator[Case]:
    """Every API and version in random order, again and again with other arrays."""
    pairs: list[tuple[ApiRow, int]] = list(served())
    while True:
        rng.shuffle(pairs)
        yield from record_cases(rng, 2000 if short else rng.choice((20_000, 200_000)))
        for row, version in pairs:
            count = rng.choice(SHORT_COUNTS if short else COUNTS)
            style = rng.choice(STYLES)
            paths = list(arrays(request_class(row.key), version))
            if paths:
                yield case_of(row, version, count, topic_id, rng.choice(paths), style)


def judge(context: Context, broker: MeasuredBroker, case: Case) -> float:
    """Check how long one request blocks the loop; return the CPU seconds."""
    took = least_cpu_time(lambda: broker.ask(case.frame), LIMIT_S)
    context.check(
        took <= LIMIT_S,
        "extreme requests under the rule of 5 ms",
        f"{case.name} ({len(case.frame):,} bytes) held the loop for {took * 1000:.1f} ms",
    )
    return took


def run(context: Context, until: float, most: int) -> None:
    """Send requests until the time is over, or this many cases; blocking."""
    with measured(context.folder / "measured") as broker:
        ids = asyncio.run(topics(broker.port))
        worst = 0.0
        for done, case in enumerate(extreme_cases(context.rng, ids[TOPIC][0], context.short)):
            if done >= most or time.monotonic() >= until:
                break
            if len(case.frame) > MAX_FRAME_BYTES or context.match not in case.name:
                continue
            worst = max(worst, judge(context, broker, case))
        context.say(f"the longest stretch of the event loop: {worst * 1000:.1f} ms of CPU time")
