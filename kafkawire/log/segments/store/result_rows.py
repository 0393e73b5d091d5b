"""Mapping rows of a segment, from the result of a job."""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import Made, unpack
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.store.swap import due_ms
from kafkawire.offsets.catalog.port import SegmentRange, SegmentRow, range_of


async def mappings_of(
    env: Env, made: Made, row: SegmentRow, partitions: Mapping[int, Partition]
) -> list[SegmentRange]:
    """Return the mappings into a segment that was written, and complete its row. In slices.

    The time at which retention checks one follows from the partition's settings; a partition that
    is not loaded is checked soon, and gets its time then.
    """
    row.size_bytes = made.size_bytes
    found: list[SegmentRange] = []
    for packed in made.entries:
        for entry in unpack(packed):
            partition = partitions.get(entry.number)
            newest = entry.max_timestamp
            due = due_ms(partition.config, newest) if partition is not None else 0
            found.append(range_of(entry, row.id, due))
            row.max_timestamp = max(row.max_timestamp, newest)
        await env.slices.pause()
    return found
