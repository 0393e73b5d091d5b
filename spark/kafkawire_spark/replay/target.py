"""The target topic of a replay, over Kafka's protocol, on any Kafka broker.

Each thread has its own connection. Batches are sent with acks=all and a producer id, so an
unanswered batch is sent again unchanged, and stored once (KIP-98).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kafkawire.client.admin import create_topic, effective_setting
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError, check
from kafkawire.client.fetching import fetch
from kafkawire.client.offsets import EARLIEST, LATEST, leaders, list_offsets
from kafkawire.client.producer import append, new_producer_id
from kafkawire.codec.batches import header_text, records
from kafkawire.codec.errors import ErrorCode
from kafkawire.reading.files.broker_queries import passes, pause
from kafkawire_spark.replay.lane import ComparedRow, Unanswered
from kafkawire_spark.replay.record import ReplayError

TRIES = 5
KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Setting of a topic created for a replay: its records are as old as the table's, and would be
deleted."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicState:
    """The target before a replay: `ends` of its partitions, `id` hexadecimal or ""."""

    cluster: str
    id: str
    ends: Mapping[int, int]


class WireTarget:
    """The topic `topic` of the cluster at `bootstrap`; see kafkawire_spark.replay.lane.Target."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self.topic = bootstrap, topic
        self._cluster: Cluster | None = None
        self._leaders: dict[tuple[str, int], int] = {}
        self._tries = 0

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None
        self._leaders = {}

    def log_end_offset(self, partition: int) -> int:
        return self._ask(lambda cluster: self._offset(cluster, partition, LATEST))

    def start(self, partition: int) -> int:
        return self._ask(lambda cluster: self._offset(cluster, partition, EARLIEST))

    def row(self, partition: int, offset: int) -> ComparedRow | None:
        def work(cluster: Cluster) -> ComparedRow | None:
            node = self._leader(cluster, partition)
            got = fetch(cluster, node, (self.topic, partition), offset)
            for position, head in got.batches():
                if head.last_offset < offset:
                    continue
                for record in records(got.records, position):
                    if record.offset == offset:
                        headers = tuple((header_text(key), value) for key, value in record.headers)
                        return ComparedRow(record.timestamp, record.key, record.value, headers)
                return None
            return None

        return self._ask(work)

    def append(self, partition: int, data: Any) -> int:
        try:
            cluster = self._open()
            place = self.topic, partition
            got = append(cluster, self._leader(cluster, partition), {place: data})[place]
            check(f"{self.topic}-{partition}", got.code, got.message)
        except ClientError as error:
            if isinstance(error, BrokerError) and not passes(error):
                raise ReplayError(str(error)) from None
            raise Unanswered(str(error)) from None
        self._tries = 0
        return int(got.base_offset)

    def reconnect(self) -> None:
        """Reconnect after Unanswered, with increasing delay."""
        self.close()
        self._tries += 1
        pause(self._tries)

    def check_topic(self) -> TopicState | None:
        """Check that the topic exists. Raises ReplayError if it overwrites timestamps."""

        def work(cluster: Cluster) -> TopicState | None:
            answer = cluster.metadata([self.topic])
            row = answer.topics[0]
            if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            check(f"topic {self.topic}", row.error_code)
            led_by = leaders(cluster, [self.topic])
            ends = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by)
            return TopicState(
                answer.cluster_id or "",
                row.topic_id.hex() if row.topic_id and any(row.topic_id) else "",
                {partition: end for (_, partition), end in sorted(ends.items())},
            )

        return self._ask(work)

    def setting(self, name: str) -> str:
        """Return a setting of the topic, "" if the broker does not return it."""
        return self._ask(lambda cluster: effective_setting(cluster, self.topic, name))

    def create(self, partitions: int) -> None:
        """Create the topic without retention. Raises ReplayError."""

        def work(cluster: Cluster) -> None:
            try:
                create_topic(cluster, self.topic, partitions, KEEP)
            except BrokerError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise

        self._ask(work)

    def producer(self) -> tuple[int, int]:
        """Return a new producer id and its epoch."""
        return self._ask(new_producer_id)

    def _ask(self, work: Callable[[Cluster], T]) -> T:
        """Return the result of `work`, retried if that may help. Raises ReplayError."""
        for attempt in range(1, TRIES + 1):
            try:
                return work(self._open())
            except ClientError as error:
                self.close()
                if attempt == TRIES or not passes(error):
                    raise ReplayError(str(error)) from None
            pause(attempt)
        raise AssertionError("the last attempt raises")

    def _open(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._bootstrap, "--server")
        return self._cluster

    def _leader(self, cluster: Cluster, partition: int) -> int:
        if (self.topic, partition) not in self._leaders:
            self._leaders = leaders(cluster, [self.topic])
        node = self._leaders.get((self.topic, partition), -1)
        if node < 0:
            self._leaders = {}
            raise BrokerError(f"{self.topic}-{partition}", ErrorCode.LEADER_NOT_AVAILABLE)
        return node

    def _offset(self, cluster: Cluster, partition: int, when: int) -> int:
        place = self.topic, partition
        led_by = {place: self._leader(cluster, partition)}
        found = list_offsets(cluster, {place: when}, led_by)
        return found[place]
