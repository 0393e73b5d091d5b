"""Producers of a kill trial: idempotent ones that retry, plain ones that do not."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass

from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.trials.kill.world import Topic, World
from tests.trials.link import Link
from tests.trials.records import Outgoing, build

DUPLICATE_SEQUENCE_NUMBER = 46
UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, KAFKA_STORAGE_ERROR = 3, 100, 56
MAX_PAUSE_S = 0.02
"""Pause between two responses: everything that is written is read again after each start."""
NO_TOPIC_PAUSE_S = 0.02
IN_FLIGHT = 3
"""Kafka's brokers know a producer's last five batches; three leave room for the retries."""


@dataclass(slots=True)
class Pending:
    """A batch that was sent and not answered."""

    topic: Topic
    partition: int
    rows: list[Outgoing]
    data: bytes


class Producer:
    """One producer, which stays the same over all lives of the broker."""

    def __init__(self, world: World, name: str, *, idempotent: bool, acks: int) -> None:
        self.world, self.name, self.idempotent, self.acks = world, name, idempotent, acks
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[bytes, int], int] = {}
        self.pending: deque[Pending] = deque()
        self.codec = world.rng.choice((0, 0, 0, 1, 2, 3, 4))

    async def run(self) -> None:
        """Produce whenever the broker serves, until the trial is over."""
        await self.world.keep(self.name, self._life)

    async def _life(self, client: Link) -> None:
        """One connection: first retry the unanswered batches of the last one, then send new
        batches."""
        if not self.idempotent:
            self.pending.clear()  # sent once: it is stored once or not at all
        for pending in self.pending:
            self._send(client, pending)
        while not self.world.over:
            if self.idempotent and self.producer_id < 0 and not self.pending:
                await self._identify(client)
            while len(self.pending) < IN_FLIGHT and (made := self._make()):
                self.pending.append(made)
                self._send(client, made)
            if not self.pending:  # no topic; a new connection for each try would fill the queue
                await asyncio.sleep(NO_TOPIC_PAUSE_S)
                continue
            self._answered(await client.receive())
            await asyncio.sleep(self.world.rng.random() * MAX_PAUSE_S)

    async def _identify(self, client: Link) -> None:
        """Obtain a producer id; only with nothing in flight."""
        answer = await client.call(InitProducerIdRequest(None, 60_000), 4)
        if answer.error_code:
            self.world.broken(f"InitProducerId was refused with {answer.error_code}")
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()

    def _make(self) -> Pending | None:
        """A batch for a random partition of a live topic."""
        live = self.world.live()
        if not live or (self.idempotent and self.producer_id < 0):
            return None
        topic = self.world.rng.choice(live)
        partition = self.world.rng.randrange(topic.count)
        rows = self.world.rows(topic)
        topic.ledgers[partition].send(rows)
        key = (topic.id, partition)
        sequence = self.sequences.get(key, 0) if self.idempotent else -1
        if self.idempotent:
            self.sequences[key] = sequence + len(rows)
        data = build(
            rows,
            codec=self.codec,
            timestamp_ms=int(time.time() * 1000),
            producer_id=self.producer_id,
            epoch=self.epoch,
            sequence=sequence,
        )
        return Pending(topic, partition, rows, data)

    def _send(self, client: Link, pending: Pending) -> None:
        rows = [PartitionProduceData(pending.partition, pending.data)]
        data = TopicProduceData(topic_id=pending.topic.id, partition_data=rows)
        client.send(ProduceRequest(acks=self.acks, timeout_ms=30_000, topic_data=[data]), 13)

    def _answered(self, answer: ProduceResponse) -> None:
        """Handle the response to the oldest batch in flight."""
        pending = self.pending.popleft()
        row = answer.responses[0].partition_responses[0]
        ledger = pending.topic.ledgers[pending.partition]
        code = row.error_code
        context = self.world.context
        if code in (0, DUPLICATE_SEQUENCE_NUMBER):
            self.world.broken(*ledger.ack(row.base_offset if not code else -1, pending.rows))
            context.tried("records acknowledged", len(pending.rows))
            return
        gone = pending.topic.state != "live"
        if not (gone and code in (UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID)):
            self.world.broken(
                f"{ledger.name}: a batch of {self.name} was refused with {code} "
                f"({row.error_message})"
            )
        if self.idempotent and not gone:
            self._begin_again()

    def _begin_again(self) -> None:
        """Continue under another producer id after a refusal, which breaks the sequence numbers."""
        self.producer_id = -1
