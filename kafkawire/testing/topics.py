"""Topics and records for tests: creates topics, sends records, and reads them to compare.

Uses kafkawire.client, so it works next to any Kafka client and with none, and a mistake in the use
of the client under test does not hide in it. Each call has a connection of its own, so a broker may
be restarted between two.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, check
from kafkawire.client.fetching import fetch, sound_records
from kafkawire.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    Partition,
    leaders,
    list_offsets,
)
from kafkawire.client.producer import append
from kafkawire.codec.batches import Record, pack
from kafkawire.codec.configs.parse import text_of
from kafkawire.codec.configs.row import Value
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.murmur2 import key_partition

__tracebackhide__ = True  # pytest shows the line of the test, not those here

METADATA, CREATE_TOPICS = 3, 19
TIMEOUT_MS = 30_000
PAUSE_S = 0.02
"""Interval of the check for more records."""
NAME_LENGTH = 60
"""Characters of a test's name in that of a topic, which may have 249."""


class ReadRecord(NamedTuple):
    """A record as a consumer gets it; `timestamp_ms` since 1970."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def unique_name(prefix: str) -> str:
    """Return a name for a topic that no other has, beginning with `prefix`."""
    allowed = re.sub(r"[^A-Za-z0-9._-]+", "-", prefix).strip("-")[:NAME_LENGTH]
    return f"{allowed}-{uuid.uuid4().hex[:8]}"


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, settings: Mapping[str, object] | None = None
) -> None:
    """Create a topic, known to all workers on return; `partitions` -1: the broker's num.partitions.
    BrokerError."""
    from kafkawire.messages.create_topics import (
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
    )
    from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic

    topic = CreatableTopic(name, partitions, -1)
    topic.configs = [
        CreatableTopicConfig(key, text_of(cast("Value", value)))
        for key, value in (settings or {}).items()
    ]
    with Cluster(bootstrap, "bootstrap") as cluster:
        answer = cluster.request(CREATE_TOPICS, CreateTopicsRequest([topic], TIMEOUT_MS))
        row = answer.topics[0]
        check(f"topic {name}", row.error_code, row.error_message)
        nodes = cluster.nodes()
        asked = MetadataRequest([MetadataRequestTopic(name=name)], False)
        for node in nodes if len(nodes) > 1 else ():
            # A worker that is asked reads at once what others changed; else 200 ms later.
            cluster.node(node).request(METADATA, asked)


class TopicProducer:
    """Sends records, one request each, answered by the broker when `send` returns."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """Append a record and return its offset; a topic that does not exist is created. `value`
        None: a tombstone; `partition` None: by the hash of the key as Kafka's clients for Java
        choose it, 0 without a key. BrokerError."""
        when = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        batch = pack([Record(0, when, key, value, headers)])
        with Cluster(self._bootstrap, "bootstrap") as cluster:
            led_by = self._leaders(cluster, topic)
            if partition is None:
                partition = 0 if key is None else key_partition(key, len(led_by))
            to = topic, partition
            if to not in led_by:
                raise BrokerError(f"{topic}:{partition}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            found = append(cluster, led_by[to], {to: batch})[to]
        check(f"{topic}:{partition}", found.code, found.message)
        return int(found.base_offset)

    def _leaders(self, cluster: Cluster, topic: str) -> dict[Partition, int]:
        """Return the leaders of a topic's partitions; create it if it does not exist."""
        try:
            return leaders(cluster, [topic])
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        create_topic(self._bootstrap, topic, -1)
        return leaders(cluster, [topic])


class TopicConsumer:
    """Reads what is in topics, without a group, from their start."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def read(self, topic: str, count: int, timeout_s: float = 10.0) -> list[ReadRecord]:
        """Wait until the topic has at least `count` records, and return all that it has, by
        partition and offset: none of open or aborted transactions. AssertionError if there are
        fewer after `timeout_s`, BrokerError if there is no such topic."""
        with Cluster(self._bootstrap, "bootstrap") as cluster:
            return self._wait(cluster, topic, leaders(cluster, [topic]), count, timeout_s)

    def wait_for(
        self,
        topic: str,
        wanted: int | Callable[[ReadRecord], object],
        timeout_s: float = 10.0,
    ) -> list[ReadRecord]:
        """Wait until the topic exists and has at least `wanted` records, or one for which the
        function `wanted` returns a true value; return as `read`. AssertionError after
        `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with Cluster(self._bootstrap, "bootstrap") as cluster:
            while True:
                try:
                    led_by = leaders(cluster, [topic])
                    break
                except BrokerError as error:
                    if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise
                if time.monotonic() > deadline:
                    raise AssertionError(f"there is no topic {topic} after {timeout_s:g} s")
                time.sleep(PAUSE_S)
            return self._wait(cluster, topic, led_by, wanted, timeout_s)

    def _wait(
        self,
        cluster: Cluster,
        topic: str,
        led_by: dict[Partition, int],
        wanted: int | Callable[[ReadRecord], object],
        timeout_s: float,
    ) -> list[ReadRecord]:
        deadline = time.monotonic() + timeout_s
        found: dict[Partition, list[ReadRecord]] = {partition: [] for partition in sorted(led_by)}
        positions = list_offsets(cluster, dict.fromkeys(led_by, EARLIEST), led_by)
        matches = False
        while True:
            ends = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by, READ_COMMITTED)
            for partition, node in led_by.items():
                while positions[partition] < ends[partition]:
                    try:
                        read, positions[partition] = _fetch_records(
                            cluster, node, partition, positions[partition]
                        )
                    except BrokerError as error:
                        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                            raise
                        found[partition].clear()  # the records were deleted meanwhile
                        positions |= list_offsets(cluster, {partition: EARLIEST}, led_by)
                        continue
                    found[partition] += read
                    matches = matches or (callable(wanted) and any(map(wanted, read)))
            total = sum(map(len, found.values()))
            if matches or (not callable(wanted) and total >= wanted):
                return [row for rows in found.values() for row in rows]
            if time.monotonic() > deadline:
                limit = f"{timeout_s:g} s"
                if callable(wanted):
                    raise AssertionError(
                        f"{topic} has {total} records after {limit}, and none is wanted"
                    )
                raise AssertionError(f"{topic} has {total} of {wanted} records after {limit}")
            time.sleep(PAUSE_S)


def _fetch_records(
    cluster: Cluster, node: int, partition: Partition, position: int
) -> tuple[list[ReadRecord], int]:
    """Return the next records of a partition and the position after them."""
    got = fetch(cluster, node, partition, position, isolation=READ_COMMITTED)
    rows = [
        ReadRecord(partition[1], row.offset, row.timestamp, row.key, row.value, row.headers)
        for row in sound_records(got, position)
    ]
    heads = [head.last_offset + 1 for _, head in got.batches()]
    return rows, max(heads, default=position)
