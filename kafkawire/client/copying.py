"""Copying the records of partitions exactly: key, value, headers, timestamp and order.

Large batches are forwarded as they are, compressed; small ones are collected into larger ones.
Control records and records of aborted transactions are left out, so offsets of the copy are those
of the source only if the source has no gaps and begins at 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.fetching import (
    Fetched,
    fetch,
    fetch_next,
    find_delivered_batches,
    sound_records,
)
from kafkawire.client.offsets import READ_COMMITTED, Partition
from kafkawire.client.producer import Producer
from kafkawire.codec.batches import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    CODEC_MASK,
    LEADER_EPOCH_AT,
    TRANSACTIONAL,
    BatchHead,
    Record,
    records,
    resum,
)
from kafkawire.codec.errors import KafkaError

FORWARDED_BYTES = 32 << 10
"""Smaller batches are collected into larger ones: each batch is a request of its own."""

_INT64, _INT32, _INT16 = Struct(">q"), Struct(">i"), Struct(">h")


@dataclass(slots=True)
class PartitionCopy:
    """The copy of one partition: the next offset to read in the source, where to end, and the
    numbers of records. `skipped`: those that the target has from an earlier copy."""

    source: Partition
    target: Partition
    node: int
    position: int
    end: int
    skipped: int = 0
    copied: int = 0
    last_offset: int = -1

    @property
    def done(self) -> bool:
        return self.position >= self.end

    @property
    def same_offsets(self) -> bool:
        """Return whether each record has the same offset in source and target; True without
        records. Offsets only rise, so that equal last ones have no gap before them."""
        count = self.skipped + self.copied
        return not count or self.last_offset == count - 1


class Copier:
    """Copies partitions of one cluster through a producer, which belongs to the target's."""

    def __init__(
        self, cluster: Cluster, producer: Producer, *, isolation: int = READ_COMMITTED
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._isolation = isolation

    def step(self, part: PartitionCopy) -> None:
        """Copy what one Fetch returns. ClientError."""
        got, after = self._fetch(part)
        for position, head in find_delivered_batches(got):
            if head.base_offset >= part.end:
                break
            if not got.sound(position, head):
                raise ClientError(
                    f"the batch at offset {head.base_offset} is damaged: CRC mismatch"
                )
            if self._forwardable(part, head):
                self._forward(part, got, position, head)
            else:
                for record in _records(got, position, head):
                    if part.position <= record.offset < part.end:
                        self._producer.send(part.target, record, record.offset, codec=head.codec)
                        part.copied += 1
                        part.last_offset = record.offset
        part.position = min(after, part.end)

    def skip_records(self, part: PartitionCopy, count: int) -> Record | None:
        """Move the position of a partition after `count` records; return the last of them. None if
        the source has fewer."""
        while not part.done:
            got, after = self._fetch(part)
            for position, head in find_delivered_batches(got):
                whole = head.base_offset >= part.position and head.last_offset < part.end
                if whole and part.skipped + head.count < count:
                    part.skipped += head.count
                    continue
                for record in _records(got, position, head):
                    if not part.position <= record.offset < part.end:
                        continue
                    part.skipped += 1
                    if part.skipped == count:
                        part.position = record.offset + 1
                        part.last_offset = record.offset
                        return record
            part.position = min(after, part.end)
        return None

    def _fetch(self, part: PartitionCopy) -> tuple[Fetched, int]:
        return fetch_next(
            self._cluster, part.node, part.source, part.position, isolation=self._isolation
        )

    def _forwardable(self, part: PartitionCopy, head: BatchHead) -> bool:
        """Return whether a batch can be forwarded as it is: whole, without gaps, and with
        timestamps of its records."""
        return (
            head.size_bytes >= FORWARDED_BYTES
            and part.position <= head.base_offset
            and head.last_offset < part.end
            and head.last_delta == head.count - 1
            and not head.attributes & ~(CODEC_MASK | TRANSACTIONAL)
        )

    def _forward(self, part: PartitionCopy, got: Fetched, position: int, head: BatchHead) -> None:
        batch = bytearray(memoryview(got.records)[position : position + head.size_bytes])
        _INT64.pack_into(batch, BASE_OFFSET_AT, 0)
        _INT32.pack_into(batch, LEADER_EPOCH_AT, -1)
        _INT16.pack_into(batch, ATTRIBUTES_AT, head.attributes & ~TRANSACTIONAL)
        resum(batch, 0, len(batch))
        self._producer.send_batch(part.target, batch, head.count, head.base_offset)
        part.copied += head.count
        part.last_offset = head.last_offset


def _records(got: Fetched, position: int, head: BatchHead) -> Iterator[Record]:
    try:
        yield from records(got.records, position)
    except KafkaError as error:
        raise ClientError(f"the batch at offset {head.base_offset}: {error}") from None


def record_at(cluster: Cluster, node: int, partition: Partition, offset: int) -> Record | None:
    """Return the record at an offset; None if there is none."""
    got = fetch(cluster, node, partition, offset)
    return next((each for each in sound_records(got, offset) if each.offset == offset), None)
