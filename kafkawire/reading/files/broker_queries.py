"""Requests of a catalog to a broker: topics, ends, times, and the location of its segments.

Any Kafka broker supports all except the last. Connections are opened on demand, and again after a
failure; temporary errors (such as a moving leader) are retried a few times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError, LoginRefused, check
from kafkawire.client.offsets import EARLIEST, LATEST, leaders, list_offsets
from kafkawire.client.offsets import READ_COMMITTED as COMMITTED_LEVEL
from kafkawire.client.offsets import READ_UNCOMMITTED as UNCOMMITTED_LEVEL
from kafkawire.client.security import NO_SECURITY, read_security
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import ZERO_UUID
from kafkawire.reading.model.source import READ_COMMITTED, Source, SourceError, Unreachable

BOOTSTRAP = "kafka.bootstrap.servers"
"""The option with the bootstrap servers."""
TRIES = 5
BACKOFF_S = 0.2
"""Delay between attempts, doubled each time: three seconds in all, which a leader election
needs."""
ASKED_WITHIN_S = 20.0
"""Time limit for starting an attempt: a broker that does not respond for the 30 s of one is down or
overloaded."""
DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS = 32, 35
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
_NOT_SHOWN = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_REQUEST,
)
"""Answers to a user who may read topics, but not settings: records are then read by the broker."""

T = TypeVar("T")


class TopicMeta(NamedTuple):
    """Metadata of a topic; `id` is zeros if the broker has none."""

    id: bytes
    partitions: int
    internal: bool


def isolation_level(source: Source) -> int:
    """Return Kafka's number of the level."""
    return COMMITTED_LEVEL if source.isolation == READ_COMMITTED else UNCOMMITTED_LEVEL


def connect(source: Source) -> Cluster:
    """Return a connection to the cluster of a source. Raises ClientError."""
    path = source.security_file
    security = read_security("--command-config", path) if path else NO_SECURITY
    return Cluster(source.bootstrap, BOOTSTRAP, security)


def passes(error: ClientError) -> bool:
    """Return True if a retry may help: for any error that is not final."""
    if not isinstance(error, BrokerError):
        return not isinstance(error, LoginRefused)
    final = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return not final and error.code in set(ErrorCode) and ErrorCode(error.code).retriable


def pause(attempt: int) -> None:
    """Wait before the next attempt; the first is 1."""
    time.sleep(random.uniform(0.5, 1) * BACKOFF_S * 2 ** (attempt - 1))


class BrokerQueries:
    """The cluster at a source's bootstrap servers. Raises SourceError for every failure."""

    def __init__(self, source: Source) -> None:
        self._cluster: Cluster | None = None
        self._leaders: dict[str, dict[tuple[str, int], int]] = {}
        self._source = source
        self._level = isolation_level(source)

    def close(self) -> None:
        """Close all connections; the next call opens them again."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        self._leaders.clear()

    def __del__(self) -> None:
        self.close()  # a catalog exists as long as its stream, whose end is not reported

    def run_with_retries(self, work: Callable[[Cluster], T]) -> T:
        """Return the result of `work`, retried if that may help."""
        until = time.monotonic() + ASKED_WITHIN_S
        for attempt in range(1, TRIES + 1):
            try:
                if self._cluster is None:
                    self._cluster = connect(self._source)
                return work(self._cluster)
            except ClientError as error:
                self.close()
                if attempt == TRIES or not passes(error) or time.monotonic() > until:
                    kind = Unreachable if passes(error) else SourceError
                    raise kind(str(error)) from None
            pause(attempt)
        raise AssertionError("the last attempt raises")

    def cluster_id(self) -> str:
        """Return the cluster id; empty if it has none."""
        return self.run_with_retries(lambda cluster: cluster.metadata([]).cluster_id or "")

    def topics(self) -> dict[str, TopicMeta]:
        """Return all topics that can be read."""
        rows = self.run_with_retries(lambda cluster: cluster.metadata(None)).topics
        return {row.name: _meta(row) for row in rows if not row.error_code}

    def topic(self, name: str) -> TopicMeta | None:
        """Return one topic; None if there is none."""

        def work(cluster: Cluster) -> TopicMeta | None:
            row = cluster.metadata([name]).topics[0]
            if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            check(f"topic {name}", row.error_code)
            return _meta(row)

        return self.run_with_retries(work)

    def ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return log start and end of each partition with a leader. The end is that of the source's
        isolation level."""

        def work(cluster: Cluster) -> dict[int, tuple[int, int]]:
            self._leaders.pop(topic, None)  # partitions may have been added meanwhile
            led_by = self._led_by(cluster, topic)
            starts = list_offsets(cluster, dict.fromkeys(led_by, EARLIEST), led_by)
            ends = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by, self._level)
            return {
                place[1]: (start, max(start, ends[place]))
                for place, start in starts.items()
                if place in ends
            }

        return self.run_with_retries(work)

    def offset_for_time(self, topic: str, partition: int, ms: int) -> int | None:
        """Return the offset of the first record at or after a time; None if there is none."""

        def work(cluster: Cluster) -> int | None:
            place = topic, partition
            found = list_offsets(
                cluster, {place: max(0, ms)}, self._led_by(cluster, topic), self._level
            )
            if place not in found:
                raise BrokerError(f"{topic}-{partition}", ErrorCode.LEADER_NOT_AVAILABLE)
            return found[place] if found[place] >= 0 else None

        return self.run_with_retries(work)

    def _led_by(self, cluster: Cluster, topic: str) -> Mapping[tuple[str, int], int]:
        if topic not in self._leaders:
            self._leaders[topic] = leaders(cluster, [topic])
        return self._leaders[topic]

    def configs(self, topic: str) -> dict[str, str]:
        """Return the topic's own settings."""
        rows = self.run_with_retries(
            lambda cluster: _describe_configs(cluster, TOPIC_RESOURCE, topic, None)
        )
        return {row.name: row.value for row in rows if row.config_source == 1 and row.value}

    def segments(self) -> tuple[str, list[str]]:
        """Return (the tier's URL or nothing, folders of the brokers), if these are kafkawire
        brokers."""

        def work(cluster: Cluster) -> tuple[str, list[str]]:
            nodes = cluster.nodes()
            tiers = {
                row.value
                for node in nodes
                for row in _describe_configs(
                    cluster, BROKER_RESOURCE, str(node), ["tier.url"], node
                )
                if row.name == "tier.url" and row.value
            }
            return min(tiers, default=""), [_folder(cluster, node) for node in nodes]

        return self.run_with_retries(work)


def _meta(row: Any) -> TopicMeta:
    indexes = [each.partition_index for each in row.partitions]
    return TopicMeta(row.topic_id or ZERO_UUID, max(indexes, default=-1) + 1, row.is_internal)


def _describe_configs(
    cluster: Cluster, kind: int, name: str, keys: list[str] | None, node: int | None = None
) -> list[Any]:
    from kafkawire.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
    )

    asked = DescribeConfigsRequest(resources=[DescribeConfigsResource(kind, name, keys)])
    connection = cluster.first if node is None else cluster.node(node)
    answer = connection.request(DESCRIBE_CONFIGS, asked).results[0]
    if answer.error_code in _NOT_SHOWN:
        return []
    check(f"settings of {name}", answer.error_code, answer.error_message)
    return list(answer.configs)


def _folder(cluster: Cluster, node: int) -> str:
    from kafkawire.messages.describe_log_dirs import DescribeLogDirsRequest

    answer = cluster.node(node).request(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=[]))
    return next((row.log_dir for row in answer.results if not row.error_code), "")
