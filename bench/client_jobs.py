"""`python -m bench.client_jobs LIBRARY JOB PORT TOPIC RECORDS SIZE ACKS`: one job, a real client.

Each job is a process of its own, so that no state of the previous one is left; it prints the
seconds from the first record to the last ack, or from the first records read to the last, as a JSON
line. Every setting is the library's default except those written here. Offsets that are read must
follow each other without a gap; a record that was not acknowledged ends the job. Called by
bench.clients.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    """The job to run; `acks` is 1 or "all"."""

    port: int
    topic: str
    records: int
    size: int  # bytes of a value
    acks: int | str

    @property
    def server(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def value(self) -> bytes:
        """The value of every record."""
        return (b"0123456789abcdef" * (self.size // 16 + 1))[: self.size]


class Reading:
    """Counts the records read since the first response, and checks that offsets follow each
    other."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.read = 0
        self.next = 0
        self.timed = 0
        self.began = 0.0
        self.limit = time.monotonic() + PATIENCE_S

    @property
    def more(self) -> bool:
        """Whether records are missing; RuntimeError when none has arrived for long."""
        if time.monotonic() > self.limit:
            raise RuntimeError(f"{self.read} of {self.wanted} records after {PATIENCE_S:.0f} s")
        return self.read < self.wanted

    def saw(self, first: int, last: int, count: int) -> None:
        """Count a run of records of one partition."""
        if first != self.next or last != first + count - 1:
            raise RuntimeError(f"{count} records {first}..{last} where {self.next} was due")
        self.next = last + 1
        self.read += count
        if self.began:
            self.timed += count
        else:
            self.began = time.monotonic()

    def seconds(self) -> float:
        """Seconds for all the records wanted, from the rate without the first response's."""
        spent = time.monotonic() - self.began
        if not self.timed:
            raise RuntimeError("all records came in one answer: too few to measure")
        return spent / self.timed * self.wanted


def produce_confluent(task: Task) -> float:
    """librdkafka: default linger of 5 ms, batches of up to 1 MB."""
    from confluent_kafka import Producer

    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": task.server,
            "acks": task.acks,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, message: failed.append(error),
        }
    )
    value, topic = task.value, task.topic
    producer.list_topics(topic, timeout=10)
    began = time.monotonic()
    for number in range(task.records):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:  # its queue is full, as it should be
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(PATIENCE_S)
    seconds = time.monotonic() - began
    if left or failed:
        raise RuntimeError(f"{left} records left, {len(failed)} failed: {failed[:1]}")
    return seconds


def consume_confluent(task: Task) -> float:
    """librdkafka: by default its waits after a full queue are as long as a fetch takes."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": task.server,
            "group.id": f"bench-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.subscribe([task.topic])
    reading = Reading(task.records)
    while reading.more:
        found = consumer.consume(10_000, 1.0)
        if found:
            wrong = [message.error() for message in found if message.error()]
            if wrong:
                raise RuntimeError(str(wrong[0]))
            reading.saw(found[0].offset(), found[-1].offset(), len(found))
    seconds = reading.seconds()
    consumer.close()
    return seconds


def produce_kafka_python(task: Task) -> float:
    """kafka-python."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=task.server, acks=task.acks)
    producer.partitions_for(task.topic)
    value = task.value
    began = time.monotonic()
    futures = [producer.send(task.topic, value) for _ in range(task.records)]
    producer.flush(PATIENCE_S)
    seconds = time.monotonic() - began
    failed = [future for future in futures if not future.succeeded()]
    if failed:
        raise RuntimeError(f"{len(failed)} records failed: {failed[0].exception}")
    producer.close()
    return seconds


def consume_kafka_python(task: Task) -> float:
    """kafka-python."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        task.topic,
        bootstrap_servers=task.server,
        group_id=f"bench-{uuid.uuid4()}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    reading = Reading(task.records)
    while reading.more:
        for found in consumer.poll(timeout_ms=1000).values():
            reading.saw(found[0].offset, found[-1].offset, len(found))
    seconds = reading.seconds()
    consumer.close()
    return seconds


async def _produce_aiokafka(task: Task) -> float:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=task.server, acks=task.acks)
    await producer.start()
    try:
        value = task.value
        began = time.monotonic()
        futures = [await producer.send(task.topic, value) for _ in range(task.records)]
        await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
        return time.monotonic() - began
    finally:
        await producer.stop()


async def _consume_aiokafka(task: Task) -> float:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        task.topic,
        bootstrap_servers=task.server,
        group_id=f"bench-{uuid.uuid4()}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        reading = Reading(task.records)
        while reading.more:
            for found in (await consumer.getmany(timeout_ms=1000)).values():
                if found:
                    reading.saw(found[0].offset, found[-1].offset, len(found))
        return reading.seconds()
    finally:
        await consumer.stop()


def produce_aiokafka(task: Task) -> float:
    """aiokafka."""
    return asyncio.run(_produce_aiokafka(task))


def consume_aiokafka(task: Task) -> float:
    """aiokafka."""
    return asyncio.run(_consume_aiokafka(task))


JOBS: dict[tuple[str, str], Callable[[Task], float]] = {
    ("confluent_kafka", "produce"): produce_confluent,
    ("confluent_kafka", "consume"): consume_confluent,
    ("kafka", "produce"): produce_kafka_python,
    ("kafka", "consume"): consume_kafka_python,
    ("aiokafka", "produce"): produce_aiokafka,
    ("aiokafka", "consume"): consume_aiokafka,
}


def main(words: list[str]) -> int:
    """Exit code 0; a failure is a traceback."""
    library, job, port, topic, records, size, acks = words
    known: Any = acks if acks == "all" else int(acks)
    seconds = JOBS[library, job](Task(int(port), topic, int(records), int(size), known))
    print(json.dumps({"records": int(records), "seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
