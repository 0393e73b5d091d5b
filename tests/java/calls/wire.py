"""The connection of one conversation to one broker, and the notes of its responses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from kafkawire.client.connection import ClientConnection
from kafkawire.messages import create_topics, list_offsets
from tests.java.twins import KEYS, create, flatten
from tests.kit.waiting import wait_until

CONCURRENT = 51
RETRY = (14, 15, 16, CONCURRENT)
"""The coordinator is loading, not found yet, or writes the markers of the last transaction."""
RETRY_LIMIT_S = 40.0
TIMES = {
    "time_ms",
    "timestamp",
    "timestamp_ms",
    "last_timestamp",
    "transaction_start_time_ms",
}
KAFKAS_OWN = {"log_start_offset", "log_append_time_ms"}
NO_EPOCH = -1

Part = tuple[str, int]
"""A topic and a partition."""


class Owner(NamedTuple):
    """A transactional id with what InitProducerId answered."""

    id: str | None
    pid: int
    epoch: int

    def at(self, epoch: int) -> Owner:
        """Return the same producer with another epoch."""
        return self._replace(epoch=epoch)


class Wire:
    """A connection to one broker. `transcript`: each response, with the fields that always differ
    masked."""

    def __init__(self, name: str, address: str, run: str) -> None:
        self.name = name
        self.transcript: list[tuple[str, dict[str, Any]]] = []
        self.address = address
        host, _, port = address.rpartition(":")
        self.connection = ClientConnection(host, int(port))
        self.run = run
        self.aliases: dict[int, str] = {}
        """Names of producer IDs, which differ between brokers."""
        self.starts: dict[str, int] = {}
        """Where `states` begins to read, by transactional id."""
        self.topic_ids: dict[str, bytes] = {}

    @contextmanager
    def another(self) -> Iterator[Self]:
        """Yield another connection to the same broker, whose answers are not compared."""
        other = type(self)(self.name, self.address, self.run)
        other.topic_ids, other.aliases = self.topic_ids, self.aliases
        try:
            yield other
        finally:
            other.connection.close()

    def new(self, prefix: str) -> str:
        """Return a name for a topic, group or transactional id, the same on both sides."""
        return f"{prefix}-{self.run}"

    def topic(self, prefix: str = "t", partitions: int = 2, **configs: str) -> str:
        """Create a topic and return its name."""
        name = self.new(prefix)
        rows = [
            create_topics.CreatableTopicConfig(name=k.replace("_", "."), value=v)
            for k, v in configs.items()
        ]
        made = self.send("CreateTopics", create(name, num_partitions=partitions, configs=rows), 7)
        assert made.topics[0].error_code == 0
        self.topic_ids[name] = made.topics[0].topic_id
        wait_until(
            lambda: not any(self.code_of_latest(name, p) for p in range(partitions)),
            f"leaders of {name}",
        )
        return name

    def code_of_latest(self, topic: str, partition: int) -> int:
        """Return the code of ListOffsets, without noting it."""
        row = list_offsets.ListOffsetsPartition(
            partition_index=partition, timestamp=-1, current_leader_epoch=-1
        )
        named = list_offsets.ListOffsetsTopic(name=topic, partitions=[row])
        request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=[named])
        return int(self.send("ListOffsets", request, 9).topics[0].partitions[0].error_code)

    def send(self, api: str, request: object, version: int) -> Any:
        """Return the response of exactly this version, which is not compared."""
        key = KEYS[api]
        assert self.connection.version(key, version) == version, f"{api} v{version}"
        return self.connection.request(key, request, at_most=version)

    def ask(self, api: str, request: object, version: int) -> Any:
        """Return the response, after its fields are noted for the comparison."""
        answer = self.send(api, request, version)
        self.note(f"{api} v{version}", answer)
        return answer

    def note(self, label: str, answer: Any) -> None:
        """Add `answer` to what is compared."""
        self.transcript.append((label, dict(map(mask, flatten(answer)))))

    def final(self, call: Callable[[], Any], code: Callable[[Any], int]) -> Any:
        """Repeat `call` until its code is not one to retry; only the last answer is noted."""
        end = time.monotonic() + RETRY_LIMIT_S
        while True:
            noted = len(self.transcript)
            answer = call()
            if code(answer) not in RETRY:
                return answer
            assert time.monotonic() < end, f"{self.name} answers {code(answer)} all the time"
            del self.transcript[noted:]
            time.sleep(0.005)


def codes_of(topics: Any, parts: Any) -> list[int]:
    """Return the codes of a response by topic and partition, in the order of `parts`."""
    found: dict[Part, int] = {}
    for topic in topics:
        for row in getattr(topic, "results_by_partition", None) or topic.partitions:
            code = getattr(row, "partition_error_code", None)
            found[topic.name, row.partition_index] = row.error_code if code is None else code
    return [found[part] for part in parts]


def mask(leaf: tuple[str, Any]) -> tuple[str, Any]:
    """Hide the times of a response, and what Kafka fills in for errors and duplicates alone."""
    path, value = leaf
    name = path.rpartition(".")[2]
    if name in TIMES:
        return path, "unset" if value == -1 else "set"
    return path, None if name in KAFKAS_OWN else value
