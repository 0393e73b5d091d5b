"""The undamaged folder of a rot trial: that of the flip trial, with transactions, delayed records
and a deleted topic.

Delayed records are due when the folder is complete, or years later. A broker that is started on a
copy delivers the first ones at once, if it has not before, and must never deliver the others.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.messages.end_txn import EndTxnRequest
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.trials.context import Context
from tests.trials.flip.base import Base, produce
from tests.trials.kill.members import RETRY
from tests.trials.kill.world import Topic
from tests.trials.link import Link, topics_of
from tests.trials.records import Outgoing, build

TRANSACTIONAL_ID = "rotten"
LOCAL = {"remote.storage.enable": "false"}
TOPICS: tuple[tuple[str, dict[str, str]], ...] = (
    ("txn", LOCAL),
    ("orders", LOCAL),
    ("later", {**LOCAL, "schedule.target.topic": "orders"}),
    ("gone", LOCAL),
)
DUE_IN_MS = 15_000
"""The last of them are due after the folder is complete: they wait in its index."""
SAVED_AFTER_S = 6.0
"""The index is saved every five seconds."""
YEARS_MS = 10 * 365 * 86_400_000
SIZES = (20, 300, 900)
"""Of delayed records: the index has small ones as a whole, larger ones are read from the log."""


@dataclass(slots=True)
class RotBase(Base):
    """`due` and `never`: ids of delayed records that are delivered, or are due in years; `aborted`:
    ids of records of aborted transactions."""

    extra: dict[str, Topic] = field(default_factory=dict)
    due: set[int] = field(default_factory=set)
    never: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)

    async def more(self, client: Link, context: Context) -> None:
        """Write transactions and delayed records, and delete a topic."""
        if not self.extra:
            await self._create(client)
        for commit in (True, False, True):
            await self._transaction(client, context, commit)
        await self._delay(client, context)
        if "gone" in self.extra:
            await produce(client, self.extra.pop("gone"), 0, self._rows(context, 3, 50))
            request = DeleteTopicsRequest([DeleteTopicState("gone")], timeout_ms=30_000)
            answer = await client.call(request, 6)
            assert not answer.responses[0].error_code, answer
        else:
            await asyncio.sleep(context.rng.choice((0, SAVED_AFTER_S, SAVED_AFTER_S)))

    def _rows(self, context: Context, count: int, size: int) -> list[Outgoing]:
        first, self.next_uid = self.next_uid, self.next_uid + count
        return [
            Outgoing(uid, b"k%d" % (uid % 7), b"%d|" % uid + context.rng.randbytes(size))
            for uid in range(first, first + count)
        ]

    async def _create(self, client: Link) -> None:
        rows = [
            CreatableTopic(n, 1, 1, configs=[CreatableTopicConfig(*pair) for pair in s.items()])
            for n, s in TOPICS
        ]
        answer = await client.call(CreateTopicsRequest(rows, 30_000), 7)
        assert not any(row.error_code for row in answer.topics), answer
        there = await topics_of(client)
        for name, _ in TOPICS:
            self.extra[name] = Topic(name, there[name][0], 1, compacted=False, tiered=False)

    async def _delay(self, client: Link, context: Context) -> None:
        topic = self.extra["later"]
        now_ms = int(time.time() * 1000)
        for due_ms, ids in ((now_ms + DUE_IN_MS, self.due), (now_ms + YEARS_MS, self.never)):
            for size in SIZES:
                rows = self._rows(context, 4, size)
                topic.ledgers[0].send(rows)
                data = build(rows, timestamp_ms=due_ms + context.rng.randrange(1000))
                offset = await produce_batch(client, topic, data, "")
                assert topic.ledgers[0].ack(offset, rows) == []
                ids |= {row.uid for row in rows}

    async def _transaction(self, client: Link, context: Context, commit: bool) -> None:
        topic = self.extra["txn"]
        await transaction_coordinator(client)
        made = await client.call(InitProducerIdRequest(TRANSACTIONAL_ID, 60_000), 4)
        assert not made.error_code, made
        known = made.producer_id, made.producer_epoch
        parts = [AddPartitionsToTxnTopic(topic.name, [0])]
        added = await client.call(AddPartitionsToTxnRequest([], TRANSACTIONAL_ID, *known, parts), 3)
        (row,) = added.results_by_topic_v3_and_below[0].results_by_partition
        assert not row.partition_error_code, added
        rows = self._rows(context, context.rng.choice((1, 4)), 100)
        topic.ledgers[0].send(rows)
        data = build(
            rows, transactional=True, timestamp_ms=int(time.time() * 1000), producer_id=known[0],
            epoch=known[1], sequence=0,
        )  # fmt: skip
        offset = await produce_batch(client, topic, data, TRANSACTIONAL_ID)
        assert topic.ledgers[0].ack(offset, rows) == []
        answer = await client.call(EndTxnRequest(TRANSACTIONAL_ID, *known, commit), 3)
        assert not answer.error_code, answer
        ids = self.committed if commit else self.aborted
        ids |= {row.uid for row in rows}


async def transaction_coordinator(client: Link) -> None:
    """Ask until there is a coordinator of transactions; the first request creates its topic."""
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=[TRANSACTIONAL_ID])
    code = -1
    while code in (-1, *RETRY):
        await asyncio.sleep(0.05)
        code = (await client.call(request, 4)).coordinators[0].error_code


async def produce_batch(client: Link, topic: Topic, data: bytes, transactional_id: str) -> int:
    """Produce a batch with acks=all; return its base offset."""
    asked = TopicProduceData(topic_id=topic.id, partition_data=[PartitionProduceData(0, data)])
    request = ProduceRequest(transactional_id or None, -1, 30_000, [asked])
    row = (await client.call(request, 13)).responses[0].partition_responses[0]
    assert not row.error_code, row
    return int(row.base_offset)
