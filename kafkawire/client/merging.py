"""Reading several partitions at once, their records merged by timestamp, in bounded memory.

Within a partition records stay in the order of their offsets; between partitions the record with
the earliest timestamp comes first. Timestamps may decrease within a partition, so the whole is
sorted only where they do not.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.fetching import PART_BYTES, fetch, fetch_next, sound_records
from kafkawire.client.offsets import READ_UNCOMMITTED, Partition, leaders
from kafkawire.codec.batches import Record
from kafkawire.codec.errors import ErrorCode

BUFFERED_BYTES = 64 << 20
"""Fetched bytes of all partitions together; a batch that is larger than its share comes whole."""
MIN_SHARE_BYTES = 64 << 10
"""Bytes per Fetch with very many partitions: less would be a request for every few records."""
WAIT_MS = 500
"""Time to wait for records per round over all partitions when following."""


@dataclass(slots=True)
class OffsetSpan:
    """Offsets of a partition to read, from `position` up to `end` (None: without end), and the
    broker that leads it. `position` moves while records are read."""

    node: int
    position: int
    end: int | None

    @property
    def done(self) -> bool:
        return self.end is not None and self.position >= self.end


Item = tuple[Partition, Record]
NO_LEADER = -1


class OutagePolicy(Protocol):
    """Waits for a broker that does not answer; implemented by kafkawire.cli.shared.outage."""

    def handle_failure(self, error: ClientError) -> None:
        """Wait and connect again. Raises the error if it will not pass."""

    def note_success(self) -> None:
        """The broker has answered."""


class MergedReader:
    """Reads spans of partitions. A partition's position is after the last record that was
    yielded."""

    def __init__(
        self,
        cluster: Cluster,
        spans: Mapping[Partition, OffsetSpan],
        *,
        isolation: int = READ_UNCOMMITTED,
    ) -> None:
        self.spans = spans
        self._cluster = cluster
        self._isolation = isolation
        share = BUFFERED_BYTES // max(1, len(spans))
        self._share = max(MIN_SHARE_BYTES, min(PART_BYTES, share))

    def read(self) -> Iterator[Item]:
        """Yield the records of all spans up to their ends, merged. ClientError if a partition has
        no batch where one is expected."""
        merged = heapq.merge(
            *(self._of(partition) for partition in sorted(self.spans)),
            key=lambda item: (item[1].timestamp, item[0]),
        )
        for partition, record in merged:
            self.spans[partition].position = record.offset + 1
            yield partition, record
        for span in self.spans.values():
            if span.end is not None:
                span.position = max(span.position, span.end)

    def read_through(self, outage: OutagePolicy) -> Iterator[Item]:
        """Yield the records as `read` does, and continue after an outage."""
        while True:
            try:
                for item in self.read():
                    yield item
                    outage.note_success()
                return
            except ClientError as error:
                self._outlast(outage, error)

    def follow(self, outage: OutagePolicy | None = None) -> Iterator[Item]:
        """Yield records without end; merges what arrives in one round over the partitions. After
        an outage it continues at the next offset; without `outage` it raises ClientError."""
        while True:
            started = time.monotonic()
            try:
                arrived = self._round()
            except ClientError as error:
                if outage is None:
                    raise
                self._outlast(outage, error)
                continue
            if outage is not None:
                outage.note_success()
            yield from self._emit_merged(arrived)
            if not any(arrived) and time.monotonic() - started < WAIT_MS / 2000:
                time.sleep(WAIT_MS / 1000)  # nothing but errors or empty answers without waiting

    def _round(self) -> list[list[Item]]:
        """Fetch once from each partition. The position of one with records moves when they are
        emitted, so a round that fails loses none."""
        wait_ms = max(1, WAIT_MS // max(1, len(self.spans)))
        arrived: list[list[Item]] = []
        for partition, span in sorted(self.spans.items()):
            found, after = self._once(partition, span.position, wait_ms)
            arrived.append(found)
            if not found:
                span.position = after
        return arrived

    def _outlast(self, outage: OutagePolicy, error: ClientError) -> None:
        """Wait until the leaders of all partitions are known again."""
        while True:
            outage.handle_failure(error)
            try:
                led_by = leaders(self._cluster, {topic for topic, _ in self.spans})
                for partition, span in self.spans.items():
                    span.node = led_by.get(partition, NO_LEADER)
                    if span.node == NO_LEADER:
                        where = f"{partition[0]}:{partition[1]}"
                        raise BrokerError(where, ErrorCode.LEADER_NOT_AVAILABLE)
                return
            except ClientError as again:
                error = again

    def _emit_merged(self, arrived: list[list[Item]]) -> Iterator[Item]:
        for item in heapq.merge(*arrived, key=lambda item: (item[1].timestamp, item[0])):
            self.spans[item[0]].position = item[1].offset + 1
            yield item

    def _of(self, partition: Partition) -> Iterator[Item]:
        """Yield the records of one partition up to its end."""
        span = self.spans[partition]
        at, end = span.position, span.end
        assert end is not None, "follow() reads without end"
        while at < end:
            got, after = fetch_next(
                self._cluster,
                span.node,
                partition,
                at,
                max_bytes=self._share,
                isolation=self._isolation,
            )
            for record in sound_records(got, at):
                if record.offset >= end:
                    return
                yield partition, record
            at = after

    def _once(self, partition: Partition, at: int, wait_ms: int) -> tuple[list[Item], int]:
        """Return the records of one Fetch, and the offset after them."""
        span = self.spans[partition]
        got = fetch(
            self._cluster,
            span.node,
            partition,
            at,
            wait_ms,
            max_bytes=self._share,
            isolation=self._isolation,
        )
        after = max((head.last_offset + 1 for _, head in got.batches()), default=at)
        return [(partition, record) for record in sound_records(got, at)], max(at, after)
