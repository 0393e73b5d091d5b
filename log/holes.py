"""Damaged ranges of the journals as readers meet them: where one ends, and the bytes left of it.

A hole between two rows of a partition's index, or between its last row and its next offset, means
that acknowledged bytes are damaged there (log.hotindex). Who has to read everything that is left,
as the coordinators of groups, goes on after the hole. Shell; called by groups.loading.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from log.frame import HEAD_BYTES
from log.journal import Pins

if TYPE_CHECKING:
    from log.commitlog import CommitLog
    from log.partition import Partition


async def hole_end(partition: Partition, offset: int) -> int | None:
    """Return the offset after the damaged range of the journals that has `offset`; None if no such
    range has it. Raises KafkaError and OSError where the index of a journal cannot be read."""
    rows, portions = partition.rows, partition.portions
    if not partition.cut_offset <= offset < partition.high_watermark:
        return None
    row = rows.find(offset)
    if row >= 0 and offset < rows.end_offset(row):
        return None
    following = [partition.high_watermark]
    if row + 1 < len(rows):
        following.append(rows.base[row + 1])
    at = portions.find(offset)
    if 0 <= at < partition.evicted and offset < portions.end[at]:
        index = await partition.log.reader.indexes.get(portions.journal[at])
        columns = index.rows(partition.number)
        row = bisect_right(columns.base, offset) - 1
        if row >= 0 and offset < columns.base[row] + columns.count[row]:
            return None
        following += columns.base[row + 1 : row + 2]
    if at + 1 < partition.evicted:
        following.append(portions.first[at + 1])
    return min(following)


async def damaged_payloads(log: CommitLog, number: int, first: int, last: int) -> list[bytes]:
    """Read what is left of the damaged frames that held offsets [first, last) of a partition.

    Nothing in them may be trusted. Raises OSError."""
    payloads: list[bytes] = []
    for loss in log.losses:
        journal = log.journals.by_number.get(loss.journal)
        if loss.number != number or journal is None or not first <= loss.first < last:
            continue
        pins = Pins()
        pins.add(journal)
        try:
            span = loss.start + HEAD_BYTES, loss.end - loss.start - HEAD_BYTES
            payloads += await log.env.offload.submit("read", journal.read, log.env.fs, [span])
        finally:
            pins.release()
    return payloads
