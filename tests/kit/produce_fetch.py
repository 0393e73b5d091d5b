"""Produce and Fetch requests of one partition, and the creation of topics, in short form."""

from __future__ import annotations

from typing import Any

from kafkawire.codec.batches import iter_batches, records
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.kit.client import Client


async def make(client: Client, name: str, partitions: int = 1, **configs: str) -> bytes:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    topic.configs = [_config(key.replace("_", "."), value) for key, value in configs.items()]
    answer = await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
    assert answer.topics[0].error_code == 0
    return bytes(answer.topics[0].topic_id)


def _config(key: str, value: str) -> Any:
    from kafkawire.messages.create_topics import CreatableTopicConfig

    return CreatableTopicConfig(name=key, value=value)


def produce(topic: str | bytes, *batches: bytes, acks: int = -1, index: int = 0) -> ProduceRequest:
    rows = [PartitionProduceData(index + n, raw) for n, raw in enumerate(batches)]
    data = TopicProduceData(partition_data=rows)
    if isinstance(topic, bytes):
        data.topic_id = topic
    else:
        data.name = topic
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data])


def fetch(topic: str | bytes, offset: int, wait_ms: int = 0, **partition: int) -> FetchRequest:
    row = FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)
    for name, value in partition.items():
        setattr(row, name, value)
    asked = FetchTopic(partitions=[row])
    if isinstance(topic, bytes):
        asked.topic_id = topic
    else:
        asked.topic = topic
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[asked])


def values(row: Any) -> list[bytes]:
    raw = bytes(row.records or b"")
    return [
        bytes(record.value or b"")
        for position, _ in iter_batches(raw)
        for record in records(raw, position)
    ]
