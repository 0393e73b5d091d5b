"""A transactional producer of raw requests, through a socket: every field and version as wanted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.batches import TRANSACTIONAL
from kafkawire.codec.errors import ErrorCode as E
from kafkawire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kafkawire.messages.end_txn import EndTxnRequest
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.kit.client import Client, batch

WAIT = {E.COORDINATOR_LOAD_IN_PROGRESS, E.CONCURRENT_TRANSACTIONS}
TV1, TV2 = 11, 12
"""The newest Produce of transaction version 1, and the oldest of version 2."""


@dataclass
class RawProducer:
    """One transactional id. `sequence`: the next sequence number of partition 0, which `send` uses
    unless another is given."""

    client: Client
    name: str = "tx"
    topic: str = "t"
    id: int = -1
    epoch: int = -1
    sequence: int = field(default=0)

    async def init(self, timeout_ms: int = 60_000) -> RawProducer:
        """Take a producer id and the next epoch."""
        await self.client.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name]), 4)
        request = InitProducerIdRequest(self.name, timeout_ms)
        answer = await repeated(self.client, request, 4)
        assert answer.error_code == 0
        self.id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return self

    async def add(self, *partitions: int) -> int:
        """AddPartitionsToTxn v3; the code of the first partition."""
        topics = [AddPartitionsToTxnTopic(self.topic, list(partitions))]
        request = AddPartitionsToTxnRequest([], self.name, self.id, self.epoch, topics)
        answer = await self.client.call(request, 3)
        topic = answer.results_by_topic_v3_and_below[0]
        return int(topic.results_by_partition[0].partition_error_code)

    async def end(self, *, commit: bool = True, version: int = 4) -> int:
        """EndTxn, once markers of the transaction before are written; takes the new epoch."""
        request = EndTxnRequest(self.name, self.id, self.epoch, commit)
        answer = await repeated(self.client, request, version)
        if version >= 5 and not answer.error_code:
            self.id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return int(answer.error_code)

    def packed(self, *values: bytes, sequence: int | None = None, **changed: Any) -> bytes:
        """A transactional batch."""
        fields = {
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "base_sequence": self.sequence if sequence is None else sequence,
            "attributes": TRANSACTIONAL,
            **changed,
        }
        return batch(*values, **fields)

    def request(self, batches: dict[int, bytes], acks: int = -1) -> ProduceRequest:
        """A Produce of one batch to each partition."""
        rows = [PartitionProduceData(index, raw) for index, raw in batches.items()]
        topic = TopicProduceData(self.topic, partition_data=rows)
        return ProduceRequest(self.name, acks, 1000, [topic])

    async def send(
        self,
        *values: bytes,
        version: int = TV2,
        index: int = 0,
        sequence: int | None = None,
        **changed: Any,
    ) -> Any:
        """Produce one batch; the row of its partition in the answer."""
        raw = self.packed(*values, sequence=sequence, **changed)
        row = (await self.codes({index: raw}, version))[index]
        if not row.error_code and sequence is None and not index:
            self.sequence += len(values)
        return row

    async def codes(self, batches: dict[int, bytes], version: int = TV2) -> dict[int, Any]:
        """Produce a batch to each partition; the rows of the answer."""
        answer = await self.client.call(self.request(batches), version)
        return {row.index: row for row in answer.responses[0].partition_responses}

    async def add_offsets(self, group: str = "g") -> int:
        """AddOffsetsToTxn."""
        request = AddOffsetsToTxnRequest(self.name, self.id, self.epoch, group)
        return int((await self.client.call(request, 3)).error_code)

    async def commit_offset(
        self, offset: int, version: int = 3, group: str = "g", **changed: Any
    ) -> int:
        """TxnOffsetCommit of partition 0; its code."""
        metadata = changed.pop("metadata", "")
        partition = TxnOffsetCommitRequestPartition(0, offset, committed_metadata=metadata)
        topic = TxnOffsetCommitRequestTopic(
            changed.pop("topic", self.topic), partitions=[partition]
        )
        values = {"producer_id": self.id, "producer_epoch": self.epoch, **changed}
        request = TxnOffsetCommitRequest(self.name, group, topics=[topic], **values)
        answer = await self.client.call(request, version)
        return int(answer.topics[0].partitions[0].error_code)


async def repeated(client: Client, request: Any, version: int) -> Any:
    """The answer, once the coordinator has loaded and markers are written."""
    while (answer := await client.call(request, version)).error_code in WAIT:
        pass
    return answer
