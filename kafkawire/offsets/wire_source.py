"""`OffsetSource` over the wire, for partitions of any Kafka cluster.

Each call is a request to the brokers, so a subscription sees the current log. Blocking; part of
`kafkawire.offsets`, and called by `kafkawire.offsets.integration` and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import EARLIEST, LATEST, Partition, committed, leaders, list_offsets
from kafkawire.codec.errors import ErrorCode


class LiveSource:
    """`kafkawire.offsets.subscription.OffsetSource` of one partition. Raises ClientError if a
    broker cannot be reached or returns an error.

    `led_by`: known leaders; None: they are looked up. `committed`: known committed offsets of the
    group, by partition.
    """

    def __init__(
        self,
        cluster: Cluster,
        partition: Partition,
        led_by: Mapping[Partition, int] | None = None,
        committed: Mapping[Partition, int] | None = None,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._led_by = leaders(cluster, [partition[0]]) if led_by is None else led_by
        self._committed = committed
        if partition not in self._led_by:
            raise ClientError(f"topic {partition[0]} has no partition {partition[1]}")

    @property
    def leader(self) -> int:
        """Return the leader of the partition."""
        return self._led_by[self._partition]

    def log_start(self) -> int:
        return self._ask(EARLIEST)

    def high_watermark(self) -> int:
        return self._ask(LATEST)

    def offset_at(self, timestamp_ms: int) -> int | None:
        found = self._ask(max(0, timestamp_ms))
        return None if found < 0 else found

    def committed(self, group: str) -> int | None:
        if self._committed is not None:
            return self._committed.get(self._partition)
        found = committed(self._cluster, group).get(self._partition)
        return None if found is None else found[0]

    def _ask(self, timestamp: int) -> int:
        found = list_offsets(self._cluster, {self._partition: timestamp}, self._led_by)
        if self._partition not in found:
            topic, index = self._partition
            raise ClientError(f"{topic}-{index}: {ErrorCode.LEADER_NOT_AVAILABLE.sentence}")
        return found[self._partition]
