"""One job of the cleaner: the arguments for the worker, and the rows that follow from its
result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.codec.segment.format import PartitionState
from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import JobOrigin, SegmentOutput, pack
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.compact.messages import (
    CompactArguments,
    CompactResult,
    CompactSource,
    PartitionToClean,
)
from kafkawire.log.segments.compact.plan import MAX_OUTPUTS, SHARED_BYTES, Dirty
from kafkawire.log.segments.store.grouping import retention_class
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore
from kafkawire.log.segments.store.swap import mappings_of
from kafkawire.metadata.checkpoint import pack_epochs, pack_producers
from kafkawire.offsets.catalog.port import SegmentRange, SegmentRow

Finished = list[tuple[SegmentRow, list[SegmentRange]]]


class CleanJob:
    """The dirty partitions of one job with their current rows. `planned`: the rows each is cleaned
    from, `dirty_from`: the offset of its first dirty record; `segments`: those that are read;
    `left`: partitions to check again."""

    __slots__ = (
        "_batch", "_generation", "_kind", "_segment_bytes", "_store", "dirty_from", "left",
        "planned", "segments",
    )  # fmt: skip

    def __init__(self, batch: list[Dirty], kind: str, store: SegmentStore) -> None:
        self._batch = sorted(batch, key=lambda dirty: dirty.partition.number)
        self._kind = kind
        self._store = store
        self.planned = {dirty.partition.number: dirty.mappings() for dirty in self._batch}
        self.dirty_from = {
            dirty.partition.number: self.planned[dirty.partition.number][dirty.first].base_offset
            for dirty in self._batch
        }
        ids = {mapping.segment_id for rows in self.planned.values() for mapping in rows}
        self.segments = [store.get_segment(segment_id) for segment_id in ids]
        self._segment_bytes = SHARED_BYTES
        # Above its inputs: readers of files alone take the newest generation.
        self._generation = 1 + max(segment.row.generation for segment in self.segments)
        self.left: list[int] = []

    def pin(self) -> None:
        for segment in self.segments:
            segment.pins += 1

    def unpin(self) -> None:
        for segment in self.segments:
            segment.pins -= 1

    @property
    def size_bytes(self) -> int:
        """The bytes read, which are the most that are written."""
        return sum(dirty.size_bytes for dirty in self._batch)

    @property
    def dirty_bytes(self) -> int:
        """The bytes of those that were not cleaned yet."""
        return sum(dirty.dirty_bytes for dirty in self._batch)

    @property
    def title(self) -> str:
        """Return the cleaned partitions as text for log lines."""
        first = self._batch[0].partition.number
        more = f" and {len(self._batch) - 1} more" if len(self._batch) > 1 else ""
        return self.name_of(first) + more

    def name_of(self, number: int) -> str:
        """Return the name of a partition for people."""
        for dirty in self._batch:
            if dirty.partition.number == number:
                return f"{dirty.partition.topic}-{dirty.partition.index}"
        return f"partition {number}"

    def output_segments(self, env: Env, node_id: int) -> list[SegmentRow]:
        """Return the segments to write."""
        count = 1
        if len(self._batch) == 1:
            (dirty,) = self._batch
            # `segment.bytes`, unless that would be too many rows for one transaction.
            wanted = dirty.partition.config.segment_bytes
            self._segment_bytes = max(wanted, dirty.size_bytes // MAX_OUTPUTS)
            count += dirty.size_bytes // self._segment_bytes
        now_ms = env.clock.now_ms()
        rest_kind = retention_class(self._batch[0].partition.config)
        made = self._generation
        return [
            SegmentRow(
                env.random.randbytes(16), node_id, now_ms, generation=made, retention_class=kind
            )
            # The last one is for the rest, which is not cleaned, so it has another class.
            for kind in [self._kind] * count + [rest_kind]
        ]

    def arguments(
        self, rows: Sequence[SegmentRow], config: BrokerConfig, origin: JobOrigin
    ) -> CompactArguments:
        outputs = [
            SegmentOutput(
                Segment(row, self._store.folder).path,
                row.uuid,
                generation=row.generation,
                retention_class=row.retention_class,
            )
            for row in rows
        ]
        return CompactArguments(
            rows[0].node_id,
            rows[0].created_ms,
            pack(self._share(dirty) for dirty in self._batch),
            outputs[:-1],
            outputs[-1],
            self._segment_bytes,
            config.log_cleaner_dedupe_buffer_size,
            config.log_cleaner_io_buffer_load_factor,
            origin,
        )

    def _share(self, dirty: Dirty) -> PartitionToClean:
        partition = dirty.partition
        number = partition.number
        return PartitionToClean(
            number,
            partition.topic_id,
            partition.topic,
            partition.index,
            self.dirty_from[number],
            partition.config.delete_retention_ms,
            [self._source(mapping) for mapping in self.planned[number]],
            PartitionState(
                partition.log_start,
                pack_epochs(partition.epochs),
                pack_producers(partition.producers.entries()),
                [],
            ),
        )

    def _source(self, mapping: SegmentRange) -> CompactSource:
        segment = self._store.get_segment(mapping.segment_id)
        return CompactSource(
            segment.path,
            segment.row.uuid,
            mapping.start,
            mapping.length,
            mapping.base_offset,
            mapping.end_offset,
            mapping.records,
        )

    def is_as_planned(self, partition: Partition | None, number: int) -> bool:
        """Return whether the rows a partition was cleaned from are still its first ones."""
        planned = self.planned[number]
        if partition is None or partition.removed or len(partition.segments) < len(planned):
            return False
        segments = partition.segments
        return all(
            # Retention may have removed rows at the front, a swap replaced some.
            segments.segment[at] == mapping.segment_id and segments.base[at] == mapping.base_offset
            for at, mapping in enumerate(planned)
        )


async def made_by(
    env: Env,
    job: CleanJob,
    result: CompactResult,
    rows: Sequence[SegmentRow],
    partitions: Mapping[int, Partition],
) -> tuple[Finished, list[SegmentRange]]:
    """Return the written segments with their mappings, and the mappings they replace.

    Partitions that have changed meanwhile are left out, and checked again.
    """
    removed: dict[int, list[SegmentRange]] = {}
    for share in result.cleaned:
        planned = job.planned[share.number]
        if share.clean_end <= job.dirty_from[share.number]:
            continue  # nothing could be cleaned
        # Sources after the rest were not read, and stay.
        gone = [mapping for mapping in planned if mapping.base_offset < share.touched_end]
        if not job.is_as_planned(partitions.get(share.number), share.number):
            job.left.append(share.number)
            continue
        removed[share.number] = gone
        if share.clean_end < planned[-1].end_offset:
            job.left.append(share.number)  # the offset map was full
    finished: Finished = []
    for made, row in zip([*result.made, result.rest], rows, strict=True):
        assert made.uuid == row.uuid, "outputs are made in their order"
        if not made.size_bytes:
            continue
        mappings = await mappings_of(env, made, row, partitions)
        # Parts of partitions that have changed are in the files, and no row points to them.
        kept = [mapping for mapping in mappings if mapping.number in removed]
        if kept:
            finished.append((row, kept))
    return finished, [mapping for rows_of in removed.values() for mapping in rows_of]
