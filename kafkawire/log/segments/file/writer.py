"""Write one segment file: gathered writes of the batches, synced piece by piece.

The file has its final name from the start: its row is STARTED, which readers ignore.
"""

from __future__ import annotations

import errno
import logging
import os.path
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Self

from kafkawire.codec.segment.format import Origin, PartitionState, SegmentBuilder, TopicOrigin
from kafkawire.log.io.gathered_write import MAX_IOV, write_whole
from kafkawire.log.io.ports import Buffer, FileSystem
from kafkawire.log.io.worker_jobs import JobOrigin, Made, SegmentOutput, pack, unpack_all
from kafkawire.log.segments.file.key_port import KeyCollector, PartSpans

logger = logging.getLogger(__name__)

WRITE_BYTES = 4 << 20
"""Bytes of a gathered write; the views in it keep only pages in memory that were just read."""
SYNC_BYTES = 16 << 20
"""Bytes between two syncs: a tenth of a second of a slow disk, for which a commit of the log may
have to wait."""


class JobOrigins:
    """The origin section of the segments of one job; `order` None: none. `may_index_keys`: as
    topics want it; false where batches have no records."""

    __slots__ = ("_cluster_id", "_may_index_keys", "_topics")

    def __init__(self, order: JobOrigin | None, may_index_keys: bool = True) -> None:
        self._may_index_keys = may_index_keys
        self._cluster_id = None if order is None else order.cluster_id
        topics: Iterable[TopicOrigin] = () if order is None else unpack_all(order.topics)
        self._topics = {topic.id: topic for topic in topics}

    def index_keys(self, topic_id: bytes) -> bool:
        """Return whether the segments of the job have the key index of this topic."""
        topic = self._topics.get(topic_id) if self._may_index_keys else None
        return topic is not None and topic.configs.get(INDEX_KEYS) == "true"

    def origin_of_output(self, output: SegmentOutput, topic_ids: Iterable[bytes]) -> Origin | None:
        if self._cluster_id is None:
            return None
        known = [self._topics[each] for each in dict.fromkeys(topic_ids) if each in self._topics]
        return Origin(self._cluster_id, output.generation, output.retention_class, known)


NOWHERE = JobOrigins(None)
INDEX_KEYS = "index.keys.enable"
"""The setting of topics."""


class SegmentWriter:
    """A segment being written. Partition by partition: `start_partition`, `write`..., then
    `end_partition` or `abandon`; finally `finish` or `discard`. OSError from the disk, EEXIST if
    the file exists. As a context it closes its handle after a failure; then the caller must remove
    the file.
    """

    __slots__ = (
        "_builder", "_file", "_fs", "_keys", "_origins", "_output", "_pending", "_size", "_synced",
        "_written",
    )  # fmt: skip

    def __init__(
        self,
        fs: FileSystem,
        output: SegmentOutput,
        node_id: int,
        created_ms: int,
        origins: JobOrigins = NOWHERE,
    ) -> None:
        self._fs = fs
        self._output = output
        self._origins = origins
        try:
            # An existing file is never overwritten.
            fs.open(output.path).close()
        except FileNotFoundError:
            pass
        else:
            raise OSError(errno.EEXIST, "the segment file exists already", output.path)
        self._file = fs.open(output.path, create=True)
        self._builder = SegmentBuilder(output.uuid, node_id, created_ms)
        # The header is written with the first batches.
        self._pending: list[Buffer] = [self._builder.header()]
        self._size = self._builder.position
        self._written = self._synced = 0
        self._keys: KeyCollector | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._file.close()
        if self._keys is not None:
            self._keys.close()

    def start_partition(
        self,
        number: int,
        topic: tuple[bytes, str, int],
        base_offset: int,
        state: PartitionState,
    ) -> None:
        """Begin the next partition; `topic`: id, name, index. See
        SegmentBuilder.start_partition."""
        self._builder.start_partition(number, *topic, base_offset, state)
        if self._origins.index_keys(topic[0]):
            if self._keys is None:
                # A cut does not decompress; rewrites do.
                self._keys = key_collector(decompress=self._output.generation > 0)
            if self._keys is not None:
                self._keys.start_partition(number)

    def write(self, parts: Sequence[memoryview], spans: PartSpans | None = None) -> None:
        """Write whole batches; their buffers must not change before the next flush. `spans`: where
        the parts are, if they are in one buffer.

        DamagedBatch as in SegmentBuilder.extend; then nothing of `parts` is written.
        """
        # First the builder, which checks: after DamagedBatch nothing is pending.
        before = self._builder.position
        self._builder.extend(parts)
        if self._keys is not None:
            self._keys.add(parts, spans)
        self._pending += parts
        self._size += self._builder.position - before
        if self._size >= WRITE_BYTES or len(self._pending) >= MAX_IOV:
            self._flush()

    @property
    def next_offset(self) -> int:
        return self._builder.next_offset

    def end_partition(self, end_offset: int) -> None:
        self._builder.end_partition(end_offset)
        if self._keys is not None:
            self._keys.end_partition()

    def abandon(self) -> None:
        # What is pending may be of the partitions before; the rest is overwritten.
        self._flush()
        self._builder.abandon()
        if self._keys is not None:
            self._keys.abandon()
        self._written = self._builder.position
        self._synced = min(self._synced, self._written)

    def _flush(self) -> None:
        write_whole(self._file, self._pending, self._written, self._size)
        # The caller may change the buffers from here on; the thread must have read them.
        if self._keys is not None:
            self._keys.wait_for_reads()
        self._written += self._size
        self._pending = []
        self._size = 0
        # Synced as it grows: the end of a job must not send hundreds of megabytes to the disk at
        # once, before the fsyncs of the commit log.
        if self._written - self._synced >= SYNC_BYTES:
            self._file.sync()
            self._synced = self._written

    def finish(self) -> Made:
        """Make the file and its name durable; without partitions there is no file."""
        if not self._builder.entries:
            self.discard()
            return Made(self._output.path, self._output.uuid, 0, [])
        topics = (entry.topic_id for entry in self._builder.entries)
        keys = None if self._keys is None else self._keys.section()
        rest = self._builder.finish(self._origins.origin_of_output(self._output, topics), keys)
        self._pending.append(rest)
        self._size += len(rest)
        self._flush()
        size = self._builder.position
        # An abandoned partition may have been longer than what was written after it.
        self._file.truncate(size)
        # The content, then the name. Only after both is the row made LIVE.
        self._file.sync()
        self._close()
        self._fs.sync_dir(os.path.dirname(self._output.path))
        return Made(self._output.path, self._output.uuid, size, pack(self._builder.entries))

    def discard(self) -> None:
        self._close()
        self._fs.remove(self._output.path)


@cache
def report_absence() -> None:
    logger.warning(
        "index.keys.enable is true for a topic, but numba is not installed, so segments are "
        "written without a key index and are scanned for keys; install kafkawire[keys]"
    )


def key_collector(decompress: bool) -> KeyCollector | None:
    """Return a collector; None where numba is not installed or the machine is big-endian.
    `decompress` false: partitions with compressed batches get no index."""
    try:
        # Only here: numba takes 0.3 s and 90 MB, which processes without a key index do not need.
        kernels = import_module("kafkawire.log.segments.file.key_kernels")  # compiled by numba
        from kafkawire.log.segments.file.key_collector import HashCollector
    except ImportError:
        report_absence()
        return None
    return HashCollector(kernels, decompress) if kernels.SUPPORTED else None
