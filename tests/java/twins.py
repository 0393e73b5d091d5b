"""The same request to two brokers, whose responses must be equal, field by field.

With the requests that several test modules need.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import ClientError
from kafkawire.codec.batches import build
from kafkawire.messages import create_topics, list_offsets, produce
from kafkawire.messages.registry import APIS
from tests.kit.configs import NEWER_TOPIC_CONFIGS, OWN_TOPIC_CONFIGS

KEYS = {spec.name: key for key, spec in APIS.items()}
LEFT_OUT = {"unknown_tags", "throttle_time_ms", "error_message", "batch_index_error_message"}
LEFT_OUT |= {"documentation", "client_host"}
EACH_ITS_OWN = {"host", "port", "cluster_id", "topic_id", "member_id", "leader", "producer_id"}
"""Fields that always differ: only whether they are set is compared."""
UNSET = (-1, "", None, bytes(16))
NAMES = (
    "topic_name",
    "name",
    "topic",
    "partition_index",
    "partition",
    "api_key",
    "group_id",
    "node_id",
)


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) of a message; lists by the names of their elements where they have one."""
    fields = getattr(type(value), "__slots__", ())  # every message has them
    if fields:
        for field in fields:
            if field not in LEFT_OUT:
                found = getattr(value, field)
                if field in EACH_ITS_OWN:
                    found = "unset" if found in UNSET else "set"
                yield from flatten(found, f"{path}.{field}")
    elif isinstance(value, list):
        left_out = OWN_TOPIC_CONFIGS | NEWER_TOPIC_CONFIGS
        value = [each for each in value if getattr(each, "name", "") not in left_out]
        yield path + ".length", len(value)
        for index, element in enumerate(value):
            known = () if isinstance(element, str) else NAMES  # str.partition is a method
            names = [getattr(element, n) for n in known if hasattr(element, n)]
            yield from flatten(element, f"{path}[{names[0] if names else index}]")
    else:
        yield path, bytes(value) if isinstance(value, memoryview) else value


def find_differences(
    kafka: object, ours: object, but: tuple[str, ...] = ()
) -> dict[str, tuple[Any, Any]]:
    """Return (Apache Kafka's, ours) of each leaf that differs, but at paths with an item of
    `but`."""
    leaves, own_leaves = dict(flatten(kafka)), dict(flatten(ours))
    both = {
        path: (leaves.get(path, "nothing"), own_leaves.get(path, "nothing"))
        for path in leaves.keys() | own_leaves.keys()
        if not any(part in path for part in but)
    }
    return {path: values for path, values in both.items() if values[0] != values[1]}


class Twins:
    """Apache Kafka and our broker, which receive the same requests."""

    def __init__(self, kafka: ClientConnection, ours: ClientConnection) -> None:
        self.both = (kafka, ours)

    def ask(
        self,
        api: str,
        request: object | Callable[[int], object],
        version: int | None = None,
        *,
        but: tuple[str, ...] = (),
    ) -> tuple[Any, Any]:
        """Both responses. They must be equal, except at paths that contain an item of `but`:
        intended or irrelevant differences. `request` may be built for broker 0 and 1."""
        answers: list[Any] = []
        for index, connection in enumerate(self.both):
            message = request(index) if callable(request) else request
            try:
                answers.append(connection.request(KEYS[api], message, at_most=version))
            except ClientError as error:
                raise AssertionError(f"{api} v{version} of broker {index}: {error}") from error
        different = find_differences(answers[0], answers[1], but)
        assert not different, f"{api} v{version}: (Apache Kafka, ours) differ in {different}"
        return answers[0], answers[1]


def wait_for_leaders(twins: Twins, name: str) -> None:
    ask = list_offsets_request(name, -1)
    for connection in twins.both:
        end = time.monotonic() + 60
        while any(
            p.error_code
            for t in connection.request(KEYS["ListOffsets"], ask).topics
            for p in t.partitions
        ):
            assert time.monotonic() < end
            time.sleep(0.05)


def create(name: str, **fields: Any) -> create_topics.CreateTopicsRequest:
    values = {"num_partitions": 2, "replication_factor": 1, **fields}
    topic = create_topics.CreatableTopic(name=name, **values)
    return create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def send(
    topic: str, pairs: list[tuple[bytes, bytes]], time_ms: int, **head: int
) -> produce.ProduceRequest:
    records = build(pairs, timestamp_ms=time_ms, **head)
    partition = produce.PartitionProduceData(index=0, records=records)
    data = produce.TopicProduceData(name=topic, partition_data=[partition])
    return produce.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])


def list_offsets_request(topic: str, timestamp: int, *partitions: int, epoch: int = -1) -> Any:
    rows = [
        list_offsets.ListOffsetsPartition(
            partition_index=p, timestamp=timestamp, current_leader_epoch=epoch
        )
        for p in partitions or (0, 1)
    ]
    asked = list_offsets.ListOffsetsTopic(name=topic, partitions=rows)
    return list_offsets.ListOffsetsRequest(replica_id=-1, topics=[asked])
