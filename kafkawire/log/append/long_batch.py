"""Batches whose records cannot be checked at once on the event loop.

A batch of 1 MB can unpack to 64 MiB with millions of records, and a producer may send nothing else.
Such a batch is unpacked, and packed again for compression.type, in a thread; its records are walked
in slices of the event loop. Then the partition queues it without checking its records again.

Shell; one per broker, called by kafkawire.handlers.produce.long.
"""

from __future__ import annotations

import asyncio

from kafkawire.codec.batches import ATTRIBUTES, CODEC_MASK, COUNT, MAX_TIMESTAMP, stamp
from kafkawire.codec.configs.settings import NO_RECORD_BOUND
from kafkawire.codec.validate import (
    HEAD_ONLY,
    Head,
    check_batch,
    ends_are_valid,
    measure_records,
    must_walk,
    unpack_long,
    walk_long,
)
from kafkawire.log.io.ports import Env
from kafkawire.log.partition.partition import (
    Inspected,
    Partition,
    StoredForm,
    stored_form,
)

POOL = "read"
"""The thread pool for decompression: its four threads mostly wait for disks, and this takes one."""

FREED_AT_ONCE_BYTES = 1 << 20
"""So many bytes are given back to the system in a tenth of a millisecond, 64 MiB in several."""


class LongBatches:
    def __init__(self, env: Env) -> None:
        self._env = env
        # One at a time: an unpacked batch takes up to 64 MiB.
        self._one = asyncio.Lock()

    async def inspect(self, partition: Partition, batch: memoryview, now_ms: int) -> Inspected:
        """Inspect a batch that `Partition.queue` refused as LongBatch.

        `batch` must not change until this returns. Raises KafkaError as `queue` does.
        """
        async with self._one:
            config = partition.config
            head = check_batch(batch, config.max_message_bytes)
            newest = head[MAX_TIMESTAMP]
            validation = partition.log.validation
            walks = must_walk(head, config, now_ms, validation)
            # With HEAD_ONLY, only what must be walked is unpacked.
            most = config.max_record_bytes
            measures = most < NO_RECORD_BOUND and bool(head[ATTRIBUTES] & CODEC_MASK)
            if walks or measures or validation != HEAD_ONLY:
                # In a thread: the codecs release the interpreter lock.
                data = await self._env.offload.submit(POOL, unpack_long, batch, head, most)
                try:
                    if measures:
                        await self._env.slices.run(measure_records(data, head[COUNT], most))
                    if walks or not ends_are_valid(memoryview(data), head):
                        # Walking is Python, so a thread would not help: slices between event-loop
                        # iterations.
                        newest = await self._env.slices.run(walk_long(data, head, config, now_ms))
                finally:
                    # Freeing 64 MiB takes milliseconds: in the thread, not here.
                    if isinstance(data, bytearray) and len(data) > FREED_AT_ONCE_BYTES:
                        await self._env.offload.submit(POOL, data.clear)
                if newest != head[MAX_TIMESTAMP]:
                    # The head states another newest timestamp than the records have: readers by
                    # time need the true one.
                    stamp(batch, newest, log_append=False)
            stored = None
            # Packed again only if the topic wants another compression or the append time.
            if config.timestamp_type or config.compression >= 0:
                stored = await self._env.offload.submit(
                    POOL, _stored_form, partition, batch, head, newest, now_ms
                )
            return Inspected(newest, stored)


def _stored_form(
    partition: Partition, batch: memoryview, head: Head, newest: int, now_ms: int
) -> StoredForm:
    return stored_form(partition.config, batch, head, newest, now_ms, at_once=False)
