"""Reading record batches of any Kafka: fetching, checking what was got, `OffsetSource` over it.

One partition a request, by name (so Fetch 12 at most), without a session. Called by
kafkawire.cli.consume, offset_report and backup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import crc32c

from kafkawire.cli.client import ClientError, Cluster, check
from kafkawire.cli.offsets import EARLIEST, LATEST, Partition, list_offsets
from kafkawire.codec.batches import CRC_FROM, BatchHead, iter_batches
from kafkawire.codec.errors import ErrorCode, KafkaError

FETCH = 1
NAMES_UNTIL = 12
"""The last version of Fetch that names topics; later ones want ids."""
PART_BYTES = 4 << 20
"""Asked for at a time; a larger single batch comes whole all the same (KIP-74)."""
WAIT_MS = 500


@dataclass(slots=True)
class Fetched:
    """What one Fetch of a partition brought."""

    log_start: int
    high_watermark: int
    records: bytes

    def batches(self) -> Iterator[tuple[int, BatchHead]]:
        """(position, head) of each whole batch. ClientError where the bytes are no batches."""
        try:
            yield from iter_batches(self.records)
        except KafkaError as error:
            raise ClientError(
                f"the broker sent bytes that are no record batches: {error}"
            ) from None

    def sound(self, position: int, head: BatchHead) -> bool:
        """Whether the CRC of a batch is right."""
        body = memoryview(self.records)[position + CRC_FROM : position + head.size_bytes]
        return crc32c.crc32c(body) == head.crc


def fetch(
    cluster: Cluster, node: int, partition: Partition, offset: int, wait_ms: int = 0
) -> Fetched:
    """Batches from the one that holds `offset` on; waits up to `wait_ms` for one. ClientError."""
    from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

    topic, index = partition
    row = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=PART_BYTES)
    asked = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=PART_BYTES,
        topics=[FetchTopic(topic=topic, partitions=[row])],
    )
    answer = cluster.node(node).request(FETCH, asked, at_most=NAMES_UNTIL)
    check(f"Fetch of {topic}-{index}", answer.error_code)
    got = answer.responses[0].partitions[0]
    check(f"{topic}-{index} at offset {offset}", got.error_code)
    return Fetched(got.log_start_offset, got.high_watermark, bytes(got.records or b""))


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
