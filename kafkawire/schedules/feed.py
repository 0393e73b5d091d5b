"""Reading the committed records of a schedule partition: all of them in order, or some by offset.

Long batches are unpacked in a thread, and records are parsed in slices of the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Sequence
from typing import TYPE_CHECKING

from kafkawire.codec.batches import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    HEAD_BYTES,
    LENGTH_AT,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHead,
    Record,
    iter_batches,
    payload,
    records,
)
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import DamagedOffsets, ErrorCode, KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.log.io.ports import Env

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

FOLLOWED_BYTES = 256 << 10
"""Bytes read at a time while following: a few milliseconds of parsing, and room for others in the
reader's budget."""
FOUND_BYTES = 64 << 10
"""Bytes read at a time where many of the next records are wanted; elsewhere one batch is read."""
DENSE_OFFSETS = 64
"""Wanted records closer than this are probably in the same read."""
UNPACKED_AT_ONCE = 16 << 10
"""Compressed bytes that are unpacked on the event loop: a fraction of a millisecond."""
PARSED_AT_ONCE = 50
"""Records parsed between two readings of the clock: a quarter of a millisecond."""


class RecordFeed:
    """Reads one partition. Raises KafkaError and OSError where it cannot be read, now or ever."""

    def __init__(self, env: Env, partition: Partition, commit_log: CommitLog) -> None:
        self._env = env
        self._partition = partition
        self._commit_log = commit_log

    async def follow(self, offset: int) -> tuple[list[Record], int]:
        """Return the next committed records from `offset` on, and the offset after them. Records
        of aborted transactions are left out, as damaged ones are, which is logged."""
        partition = self._partition
        start = max(offset, partition.log_start)
        end = partition.committed_end(start)
        found: list[Record] = []
        if start >= end:
            return found, start
        aborted: list[Aborted] = []
        try:
            buffers = await self._read(start, end, FOLLOWED_BYTES, aborted)
        # Passed: one damaged batch must not stop all later deliveries.
        except DamagedOffsets as damage:
            logger.error(
                "%s-%d: records scheduled at the offsets %d-%d are damaged, they are not delivered",
                partition.topic, partition.index, start, damage.end - 1,
            )  # fmt: skip
            return found, damage.end
        at = start
        async for head, batch in self._batches(buffers):
            if head.attributes & CONTROL or _is_aborted(head, aborted):
                at = max(at, head.last_offset + 1)
                continue
            async for record in self._records(head, batch):
                if record.offset >= start:
                    found.append(record)
            at = max(at, head.last_offset + 1)
        if at == start:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"there is no batch at offset {start}")
        return found, at

    async def find(self, wanted: Collection[int]) -> dict[int, Record]:
        """Return records by offset; those that are not in the log any more are absent."""
        found: dict[int, Record] = {}
        rest, every = sorted(wanted), frozenset(wanted)
        at = 0
        while at < len(rest):
            start = rest[at]
            # Deleted by retention or by DeleteRecords.
            if start < self._partition.log_start or start >= self._partition.high_watermark:
                at += 1
                continue
            after = await self._find_from(start, every, _near(rest, at), found)
            while at < len(rest) and rest[at] < after:
                at += 1
        return found

    async def _find_from(
        self, start: int, wanted: frozenset[int], max_bytes: int, found: dict[int, Record]
    ) -> int:
        """Add the wanted records that one read from `start` on has; return the offset after it."""
        end = self._partition.high_watermark
        try:
            buffers = await self._read(start, end, max_bytes, None)
        except DamagedOffsets as damage:
            return damage.end
        after = start + 1
        async for head, batch in self._batches(buffers):
            if not wanted.isdisjoint(range(head.base_offset, head.last_offset + 1)):
                async for record in self._records(head, batch):
                    if record.offset in wanted:
                        found[record.offset] = record
            after = max(after, head.last_offset + 1)
        return after

    async def _read(
        self, start: int, end: int, max_bytes: int, aborted: list[Aborted] | None
    ) -> Sequence[Buffer]:
        plan = self._partition.plan(start, max_bytes, end, True)
        return await self._commit_log.read(plan, None, aborted)

    async def _batches(self, buffers: Sequence[Buffer]) -> AsyncIterator[tuple[BatchHead, Buffer]]:
        for buffer in buffers:
            for position, head in iter_batches(buffer):
                batch = memoryview(buffer)[position : position + head.size_bytes]
                yield head, await unpack_batch(self._env, batch, head)

    async def _records(self, head: BatchHead, batch: Buffer) -> AsyncIterator[Record]:
        try:
            async for record in parse_records(self._env, batch):
                yield record
        except KafkaError as error:
            partition = self._partition
            logger.error(
                "%s-%d: the rest of the batch with the offsets %d-%d cannot be parsed, its records "
                "are not delivered: %s",
                partition.topic, partition.index, head.base_offset, head.last_offset, error,
            )  # fmt: skip


async def unpack_batch(env: Env, batch: memoryview, head: BatchHead) -> bytes:
    """Return a batch without compression. Raises KafkaError as `codec.batches.payload` does."""
    if not head.codec:
        return bytes(batch)
    if head.size_bytes <= UNPACKED_AT_ONCE:
        return _unpack(batch, head)
    return await env.offload.submit("read", _unpack, batch, head)


async def parse_records(env: Env, batch: Buffer) -> AsyncIterator[Record]:
    """Yield the records of an unpacked batch, in slices. Raises KafkaError where one is
    invalid."""
    for count, record in enumerate(records(batch)):
        yield record
        if count % PARSED_AT_ONCE == PARSED_AT_ONCE - 1:
            await env.slices.give_way()


def _near(rest: Sequence[int], at: int) -> int:
    """Return how many bytes to read at a wanted offset: few if the next ones are far away."""
    near = at + 1 < len(rest) and rest[at + 1] - rest[at] < DENSE_OFFSETS
    return FOUND_BYTES if near else 1


def _is_aborted(head: BatchHead, aborted: Sequence[Aborted]) -> bool:
    if not head.attributes & TRANSACTIONAL:
        return False
    return any(
        producer_id == head.producer_id and first <= head.base_offset < marker
        for producer_id, first, marker in aborted
    )


def _unpack(batch: memoryview, head: BatchHead) -> bytes:
    data = payload(batch, 0, head)
    out = bytearray(batch[:HEAD_BYTES])
    # Without a new checksum, which parsing does not compare: the log has checked the batch.
    attributes = head.attributes & ~CODEC_MASK
    out[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = attributes.to_bytes(2, "big", signed=True)
    length = HEAD_BYTES - PREFIX_BYTES + len(data)
    out[LENGTH_AT : LENGTH_AT + 4] = length.to_bytes(4, "big")
    out += data
    return bytes(out)
