"""A broker that serves share groups from a persister in memory, and members of a group."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.broker.broker import Broker
from kafkawire.codec.batches import iter_batches, records
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from kafkawire.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    ShareFetchRequest,
)
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.states import AcknowledgeType
from tests.kit.client import Client
from tests.kit.share.persister import MemoryPersister

GROUP = "g"
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


def serve_shares(broker: Broker, patch: pytest.MonkeyPatch, level: int = 2) -> MemoryPersister:
    """Let a broker serve share groups at this level of share.version."""
    persister = MemoryPersister()
    patch.setattr(BrokerConfig, "share_version", property(lambda _: level))
    patch.setitem(broker.__dict__, "share_persister", persister)
    return persister


async def set_group(broker: Broker, **settings: str) -> None:
    """Set settings of the group, by name with underscores for dots."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    broker.config._groups = {GROUP: named}  # as ConfigService does


class Member:
    """A member of the group, which fetches from one topic."""

    def __init__(self, client: Client, topic: bytes, name: str = "m", partitions: int = 1) -> None:
        self.client = client
        self.topic = topic
        self.name = name
        self.epoch = 0
        self.partitions = partitions

    def request(self, **fields: Any) -> ShareFetchRequest:
        """A request of the next epoch; the first one has all partitions."""
        req = ShareFetchRequest(
            GROUP,
            self.name,
            self.epoch,
            max_wait_ms=0,
            min_bytes=1,
            max_records=500,
            batch_size=500,
        )
        if self.epoch == 0:
            rows = [FetchPartition(index) for index in range(self.partitions)]
            req.topics = [FetchTopic(self.topic, rows)]
        for name, value in fields.items():
            setattr(req, name, value)
        return req

    async def fetch(self, version: int = 2, **fields: Any) -> Any:
        answer = await self.client.call(self.request(**fields), version)
        if not answer.error_code:
            self.epoch += 1
        return answer

    async def acquire(self, **fields: Any) -> list[tuple[int, int, int]]:
        """Fetch until there are records; return the acquired runs of partition 0."""
        for _ in range(50):
            answer = await self.fetch(**{"max_wait_ms": 200, **fields})
            assert answer.error_code == 0, answer
            row = row_of(answer)
            if row is not None:
                assert row.error_code == 0, row
                if row.acquired_records:
                    return [
                        (each.first_offset, each.last_offset, each.delivery_count)
                        for each in row.acquired_records
                    ]
        raise AssertionError("nothing to acquire")

    async def settle(
        self, first: int, last: int, *kinds: int, version: int = 2, **fields: Any
    ) -> tuple[int, int]:
        """Acknowledge; return the codes of the request and of partition 0."""
        req = ShareAcknowledgeRequest(
            GROUP, self.name, self.epoch, is_renew_ack=AcknowledgeType.RENEW in kinds
        )
        batch = AcknowledgementBatch(first, last, list(kinds))
        req.topics = [AcknowledgeTopic(self.topic, [AcknowledgePartition(0, [batch])])]
        for name, value in fields.items():
            setattr(req, name, value)
        answer = await self.client.call(req, version)
        if answer.error_code:
            return answer.error_code, 0
        self.epoch += 1
        return 0, answer.responses[0].partitions[0].error_code

    def with_acks(self, first: int, last: int, *kinds: int) -> list[FetchTopic]:
        batch = AcknowledgementBatch(first, last, list(kinds))
        return [FetchTopic(self.topic, [FetchPartition(0, [batch])])]

    def forgetting(self, *indexes: int) -> list[ForgottenTopic]:
        return [ForgottenTopic(self.topic, list(indexes))]


def row_of(answer: Any, index: int = 0) -> Any:
    """The row of a partition in a response, None if there is none."""
    for topic in answer.responses:
        for row in topic.partitions:
            if row.partition_index == index:
                return row
    return None


def values_of(row: Any) -> list[bytes]:
    """The values of the records that are acquired."""
    raw = bytes(row.records or b"")
    return [
        bytes(record.value or b"")
        for position, _ in iter_batches(raw)
        for record in records(raw, position)
        if any(run.first_offset <= record.offset <= run.last_offset for run in row.acquired_records)
    ]


def initialize(persister: MemoryPersister, topic: bytes, index: int = 0, start: int = 0) -> None:
    persister.initialize(SharePartitionKey(GROUP, topic, index), start_offset=start)
