"""The sink's connection to a cluster: requests are repeated while that may help."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kafkawire.client.admin import create_topic
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError, check
from kafkawire.client.offsets import leaders
from kafkawire.codec.errors import ErrorCode
from kafkawire.reading.files.broker_queries import BOOTSTRAP, passes, pause
from kafkawire_spark.sink.options import SinkError

WITHIN_S = 60.0
"""How long a request is repeated: a broker restarts, or an earlier transaction is completed, within
this time."""
LONGEST_PAUSE = 4
"""The number of an attempt: from then on the pause between two is the same, 1.6 s."""
FENCED = {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}

T = TypeVar("T")


class SinkConnection:
    """A cluster, connected on first use and again after a failure. Every failure is a SinkError."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._cluster: Cluster | None = None
        self._leaders: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        """Close all connections; the next request opens them again."""
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None
        self._leaders = {}

    def request(self, work: Callable[[Cluster], T], within_s: float = WITHIN_S) -> T:
        """Return the result of `work`, which is repeated after errors that may pass, as long as
        `within_s` seconds have not passed."""
        until = time.monotonic() + within_s
        attempt = 0
        while True:
            try:
                if self._cluster is None:
                    self._cluster = Cluster(self._bootstrap, BOOTSTRAP)
                return work(self._cluster)
            except ClientError as error:
                self.close()
                if not passes(error) or time.monotonic() >= until:
                    raise SinkError(_sentence(error)) from None
            attempt += 1
            pause(min(attempt, LONGEST_PAUSE))

    def leader(self, cluster: Cluster, place: tuple[str, int]) -> int:
        """Return the leader of a partition. Raises BrokerError."""
        if place not in self._leaders:
            self._leaders.update(leaders(cluster, [place[0]]))
        node = self._leaders.get(place, -1)
        if node < 0:
            del self._leaders[place]
            raise BrokerError(f"{place[0]}-{place[1]}", ErrorCode.LEADER_NOT_AVAILABLE)
        return node

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of an existing topic."""

        def work(cluster: Cluster) -> int:
            row = cluster.metadata([topic]).topics[0]
            check(f"topic {topic}", row.error_code)
            return len(row.partitions)

        return self.request(work)

    def create(self, topic: str) -> None:
        """Create a topic of one partition, unless it exists, and wait until it has a leader."""

        def work(cluster: Cluster) -> None:
            row = cluster.metadata([topic]).topics[0]
            if row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                check(f"topic {topic}", row.error_code)
                self.leader(cluster, (topic, 0))
                return
            try:
                create_topic(cluster, topic, 1, {})
            except BrokerError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            raise BrokerError(f"topic {topic}", ErrorCode.LEADER_NOT_AVAILABLE)  # scan again

        self.request(work)


def _sentence(error: ClientError) -> str:
    if isinstance(error, BrokerError) and error.code in FENCED:
        return (
            f"{error} (another writer with the same transactionalId has started, or the "
            "transaction took longer than kafka.transaction.timeout.ms)"
        )
    return str(error)
