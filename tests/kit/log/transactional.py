"""Transactions in tests of the log: appended to a partition as producers and a coordinator do, and
read back as consumers do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead, build, iter_batches, records
from kafkawire.codec.control import ABORT, COMMIT, Aborted, TransactionMarker, read_marker
from kafkawire.codec.types import Buffer
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import HotRead, aborted_in
from kafkawire.log.partition.verification import NOT_VERIFIED
from tests.kit.env import EPOCH_MS

Read = tuple[int, bytes | None]
"""Offset and value of a record."""


def packed(values: Sequence[bytes], keyed: bool, **more: Any) -> memoryview:
    """A batch; `keyed`: each value is its key too, as a compacted topic needs one."""
    pairs = [(value if keyed else None, value) for value in values]
    return memoryview(build(pairs, timestamp_ms=EPOCH_MS, **more))


class Producer:
    """A transactional producer: its ID, its epoch, and the next sequence number by partition."""

    def __init__(self, producer_id: int, epoch: int = 0) -> None:
        self.id = producer_id
        self.epoch = epoch
        self.sequences: dict[int, int] = {}

    def send(self, partition: Partition, *values: bytes, keyed: bool = False) -> int:
        """Append a batch to its open transaction, or open one; the base offset."""
        sequence = self.sequences.get(partition.number, 0)
        self.sequences[partition.number] = sequence + len(values)
        data = packed(
            values,
            keyed,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        return partition.queue(data, EPOCH_MS, None, NOT_VERIFIED)[0]

    def end(self, partition: Partition, *, commit: bool, version: int = 0) -> int:
        """Append the marker; its offset. Under transaction version 2 the epoch rises with it."""
        if version >= 2:
            self.epoch += 1
            self.sequences.clear()
        kind = COMMIT if commit else ABORT
        marker = TransactionMarker(self.id, self.epoch, 1, kind, version)
        return partition.append_marker(marker, EPOCH_MS).base_offset


async def committed_records(
    partition: Partition, start: int | None = None, max_bytes: int = 1 << 20
) -> list[Read]:
    """Every record that a consumer of committed records gets, as Java's does: from answers of
    `max_bytes` and the aborted transactions named in them."""
    found: list[Read] = []
    offset = partition.log_start if start is None else start
    while offset < partition.last_stable_offset:
        plan = partition.plan(offset, max_bytes, partition.last_stable_offset, True)
        aborted: list[Aborted] = []
        buffers: list[Buffer]
        if isinstance(plan, HotRead):
            aborted = aborted_in(plan)
            views, release = partition.log.views(plan)
            buffers = [bytes(view) for view in views]
            release()
        else:
            buffers = await partition.log.read(plan, None, aborted)
        assert buffers, f"nothing at {offset}, before {partition.last_stable_offset}"
        assert all(last >= offset for _, _, last in aborted), "a marker below the fetch offset"
        read, offset = consume(buffers, offset, [(pid, first) for pid, first, _ in aborted])
        found += read
    return found


def consume(
    buffers: Iterable[Buffer], offset: int, aborted: Iterable[tuple[int, int]]
) -> tuple[list[Read], int]:
    """Return the records that a Java consumer takes from an answer
    (CompletedFetch.nextFetchedRecord), and the offset where it continues."""
    waiting = sorted((first, producer_id) for producer_id, first in aborted)
    dropping: set[int] = set()
    found: list[Read] = []
    for buffer in buffers:
        for at, head in iter_batches(buffer):
            while waiting and waiting[0][0] <= head.last_offset:
                dropping.add(waiting.pop(0)[1])
            if _is_delivered(buffer, at, head, dropping):
                found += [
                    (record.offset, record.value)
                    for record in records(buffer, at)
                    if record.offset >= offset
                ]
            offset = max(offset, head.last_offset + 1)
    return found, offset


def _is_delivered(buffer: Buffer, at: int, head: BatchHead, dropping: set[int]) -> bool:
    if head.attributes & CONTROL:
        if read_marker(buffer, at, head).kind == ABORT:
            dropping.discard(head.producer_id)
        return False
    return not (head.attributes & TRANSACTIONAL and head.producer_id in dropping)
