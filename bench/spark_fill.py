"""Topics for the Spark bench: the given number of records of one size, in four partitions, quickly.

The values look like log lines (`bench.payload`) and are all different: some batches are built once,
each is sent repeatedly with other numbers in its values, another time and a new checksum.
Repetitions are so far apart that no codec and no dictionary of Parquet's can use them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from bench.admin import Admin
from bench.payload import CODECS, line, record
from kafkawire.client.connection import ClientConnection
from kafkawire.codec.batches import HEAD, HEAD_BYTES, MAGIC, resum
from kafkawire.codec.compression import compress
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE = 0
PARTITIONS = 4
BATCH_BYTES = 100_000
"""Bytes of values in a batch before it is compressed."""
VARIANTS = 64
"""Bytes of a partition before values repeat: more than a page of Parquet or the window of a
codec."""
NUMBER_AT, DIGITS = 6, 16
"""The position of a value's number, after {"id":."""
SPREAD = np.uint64(0x9E3779B97F4A7C15)
HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
BASE_MS = 1_760_000_000_000
STEP_MS = 1000
"""Time between two batches of a partition: a topic then spans days, like one with history."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The topic to create."""

    records: int
    value_bytes: int
    codec: str  # none, or one of bench.payload.CODECS

    @property
    def name(self) -> str:
        """The topic's name."""
        return f"bench-{self.records}-{self.value_bytes}-{self.codec}"

    @property
    def label(self) -> str:
        """The label in the tables."""
        size = "1 KB" if self.value_bytes == 1000 else f"{self.value_bytes} B"
        packed = "" if self.codec == "none" else f", {self.codec}"
        return f"{self.records:,} x {size}{packed}"

    @property
    def batch_records(self) -> int:
        """The number of records in one batch."""
        return max(1, BATCH_BYTES // self.value_bytes)


class Template:
    """The records of a batch, uncompressed, and the position of the number in each value."""

    def __init__(self, chance: random.Random, topic: Topic, count: int) -> None:
        self.topic, self.count = topic, count
        records = [record(i, line(chance, topic.value_bytes)) for i in range(count)]
        self._body = np.frombuffer(b"".join(records), np.uint8).copy()
        ends = np.cumsum([len(one) for one in records])
        starts = ends - 1 - topic.value_bytes  # one byte after a value: no headers
        self._places = starts[:, None] + NUMBER_AT + np.arange(DIGITS)

    def batch(self, number: int) -> bytes:
        """Batch `number` of a partition, whose values are unique."""
        numbers = np.uint64(number * self.count) + np.arange(self.count, dtype=np.uint64)
        numbers *= SPREAD
        digits = numbers[:, None] >> (np.arange(DIGITS, dtype=np.uint64) * np.uint64(4))
        self._body[self._places] = HEX[(digits & np.uint64(15)).astype(np.intp)]
        codec = CODECS.get(self.topic.codec, 0)
        packed = bytes(compress(codec, self._body.data))
        length, time_ms = HEAD_BYTES - 12 + len(packed), BASE_MS + number * STEP_MS
        fields = (codec, self.count - 1, time_ms, time_ms, -1, -1, -1, self.count)
        made = bytearray(HEAD.pack(0, length, -1, MAGIC, 0, *fields) + packed)
        resum(made, 0, len(made))
        return bytes(made)


def batches(topic: Topic, records: int, seed: int) -> Iterator[bytes]:
    """Batches of exactly this many records for one partition."""
    chance = random.Random(seed)
    whole = [Template(chance, topic, topic.batch_records) for _ in range(VARIANTS)]
    number = -1
    for number in range(records // topic.batch_records):
        yield whole[number % VARIANTS].batch(number)
    if rest := records % topic.batch_records:
        yield Template(chance, topic, rest).batch(number + 1)


def fill(port: int, topic: Topic) -> None:
    """Create the topic and send everything: a request has a batch for each partition. RuntimeError
    if one is refused."""
    settings = {"retention.ms": "-1", "retention.bytes": "-1"}
    with Admin(port) as admin:
        admin.create_topic(topic.name, PARTITIONS, settings)
    shares = [topic.records // PARTITIONS] * PARTITIONS
    shares[0] += topic.records - sum(shares)
    streams = [batches(topic, share, seed) for seed, share in enumerate(shares)]
    connection = ClientConnection("127.0.0.1", port)
    for row in zip_longest(*streams):
        parts = [
            PartitionProduceData(index, memoryview(batch))
            for index, batch in enumerate(row)
            if batch is not None
        ]
        data = [TopicProduceData(topic.name, partition_data=parts)]
        request = ProduceRequest(None, 1, 30_000, data)
        answer = connection.request(PRODUCE, request, at_most=12)
        for result in answer.responses[0].partition_responses:
            if result.error_code:
                raise RuntimeError(f"{topic.name}-{result.index}: error {result.error_code}")
    connection.close()
