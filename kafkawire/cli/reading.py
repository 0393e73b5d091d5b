"""`OffsetSource` over the wire: what subscriptions ask of a partition of any Kafka.

Called by kafkawire.cli.consume and offset_report.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import EARLIEST, LATEST, Partition, list_offsets
from kafkawire.codec.errors import ErrorCode

WAIT_MS = 500
"""For a batch, where there is none yet."""


class WireSource:
    """`offsets.subscription.OffsetSource`: a partition, asked over the wire."""

    def __init__(
        self,
        cluster: Cluster,
        partition: Partition,
        led_by: Mapping[Partition, int],
        committed: Mapping[Partition, int] | None = None,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._led_by = led_by
        self._committed = committed or {}

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
        """What the group, whose offsets this was made with, has committed."""
        return self._committed.get(self._partition)

    def _ask(self, timestamp: int) -> int:
        found = list_offsets(self._cluster, {self._partition: timestamp}, self._led_by)
        if self._partition not in found:
            topic, index = self._partition
            raise ClientError(f"{topic}-{index}: {ErrorCode.LEADER_NOT_AVAILABLE.sentence}")
        return found[self._partition]
