"""`OffsetSource` over the wire: what subscriptions ask of a partition of any Kafka.

Asked of the brokers each time, so a subscription sees the log as it is. Blocking; part of
`kafkawire.offsets`, and called by `kafkawire.offsets.integration` and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import (
    EARLIEST,
    LATEST,
    Partition,
    committed,
    leaders,
    list_offsets,
)
from kafkawire.codec.errors import ErrorCode


class LiveSource:
    """`kafkawire.offsets.subscription.OffsetSource` of one partition. ClientError where a broker
    cannot be reached or refuses.

    `led_by`: leaders that are known already; None: they are looked up. `committed`: offsets of the
    group that is asked for, by partition, where they are known already.
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
        """The broker that leads the partition."""
        return self._led_by[self._partition]

    def log_start(self) -> int:
        """The first offset there is."""
        return self._ask(EARLIEST)

    def high_watermark(self) -> int:
        """The end of what readers may be given."""
        return self._ask(LATEST)

    def offset_at(self, timestamp_ms: int) -> int | None:
        """The first record at or after a time; None when there is none."""
        found = self._ask(max(0, timestamp_ms))
        return None if found < 0 else found

    def committed(self, group: str) -> int | None:
        """The committed offset of a group; None if there is none."""
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
