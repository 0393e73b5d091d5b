"""Topics for the Spark bench: so many records of one size, in four partitions, quickly.

A few batches are made once; each is sent again and again with another time and a new checksum. The
values look like log lines (`bench.payload`), so that zstd finds what it finds in a user's data.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from bench.admin import Admin
from bench.payload import CODECS, line, record
from kafkawire.client.connection import Connection
from kafkawire.codec.batches import BASE_TIMESTAMP_AT, HEAD, HEAD_BYTES, MAGIC, stamp
from kafkawire.codec.compression import compress
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE = 0
PARTITIONS = 4
BATCH_BYTES = 100_000
"""Of values, as far as a batch goes before it is compressed."""
VARIANTS = 8
BASE_MS = 1_760_000_000_000
STEP_MS = 1000
"""Between two batches of a partition: a topic then spans days, as one does that has history."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What to make."""

    records: int
    value_bytes: int
    codec: str  # none, or one of bench.payload.CODECS

    @property
    def name(self) -> str:
        """The topic's."""
        return f"bench-{self.records}-{self.value_bytes}-{self.codec}"

    @property
    def label(self) -> str:
        """For the tables."""
        size = "1 KB" if self.value_bytes == 1000 else f"{self.value_bytes} B"
        packed = "" if self.codec == "none" else f", {self.codec}"
        return f"{self.records:,} x {size}{packed}"

    @property
    def batch_records(self) -> int:
        """In one batch."""
        return max(1, BATCH_BYTES // self.value_bytes)


def _batch(chance: random.Random, topic: Topic, count: int) -> bytearray:
    codec = CODECS.get(topic.codec, 0)
    body = b"".join(record(i, line(chance, topic.value_bytes)) for i in range(count))
    packed = bytes(compress(codec, body))
    length = HEAD_BYTES - 12 + len(packed)
    head = (0, length, -1, MAGIC, 0, codec, count - 1, BASE_MS, BASE_MS, -1, -1, -1, count)
    return bytearray(HEAD.pack(*head) + packed)


def batches(topic: Topic, records: int) -> Iterator[bytes]:
    """Batches of exactly so many records for one partition."""
    chance = random.Random(11)
    whole = [_batch(chance, topic, topic.batch_records) for _ in range(VARIANTS)]
    sent = 0
    while sent < records:
        count = min(topic.batch_records, records - sent)
        number = sent // topic.batch_records
        batch = whole[number % VARIANTS]
        if count < topic.batch_records:
            batch = _batch(chance, topic, count)
        time_ms = BASE_MS + number * STEP_MS
        struct.pack_into(">q", batch, BASE_TIMESTAMP_AT, time_ms)
        stamp(batch, time_ms, log_append=False)
        yield bytes(batch)
        sent += count


def fill(port: int, topic: Topic) -> None:
    """Create the topic and send everything: a request has a batch for each partition. RuntimeError
    if one is refused."""
    settings = {"retention.ms": "-1", "retention.bytes": "-1"}
    with Admin(port) as admin:
        admin.create_topic(topic.name, PARTITIONS, settings)
    shares = [topic.records // PARTITIONS] * PARTITIONS
    shares[0] += topic.records - sum(shares)
    connection = Connection("127.0.0.1", port)
    for row in zip_longest(*(batches(topic, share) for share in shares)):
        parts = [
            PartitionProduceData(index, memoryview(batch))
            for index, batch in enumerate(row)
            if batch is not None
        ]
        data = [TopicProduceData(topic.name, partition_data=parts)]
        request = ProduceRequest(None, 1, 30_000, data)
        answer = connection.request(PRODUCE, request, at_most=12)
        for told in answer.responses[0].partition_responses:
            if told.error_code:
                raise RuntimeError(f"{topic.name}-{told.index}: error {told.error_code}")
    connection.close()
