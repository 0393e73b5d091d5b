"""Clean a compacted partition that is a list, and compute the expected result by a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kafkawire.codec.batches import CONTROL, BatchHead, Record, build, pack, read_head, records
from kafkawire.codec.control import ABORT, COMMIT, Aborted
from kafkawire.log.segments.compact.offset_map import OffsetMap
from kafkawire.log.segments.compact.retain import (
    OFFSET_MAX,
    Cleaner,
    LastBatch,
    OffsetMapBuilder,
    Scanner,
    UnknownFate,
)

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
TXN = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "attributes": 0x10}
"""Of a batch in a transaction."""


@dataclass
class Round:
    """The result of cleaning a list of batches once."""

    batches: list[bytes]
    end: int
    cleaner: Cleaner
    aborted: list[Aborted] = field(default_factory=list)

    def heads(self) -> list[BatchHead]:
        return [read_head(batch) for batch in self.batches]

    def records(self) -> list[Record]:
        return all_records(self.batches)

    def pairs(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.offset, record.key, record.value) for record in self.records()]


def all_records(batches: Sequence[bytes]) -> list[Record]:
    """The records of data batches, in order."""
    found: list[Record] = []
    for batch in batches:
        if not read_head(batch).attributes & CONTROL:
            found += records(batch)
    return found


def split(parts: Sequence[memoryview]) -> list[bytes]:
    """Single batches."""
    found = []
    for part in parts:
        at = 0
        while at < len(part):
            size = read_head(part, at).size_bytes
            found.append(bytes(part[at : at + size]))
            at += size
    return found


def clean(
    batches: Sequence[bytes],
    dirty_from: int = 0,
    *,
    now_ms: int = NOW_MS,
    delete_retention_ms: int = DAY_MS,
    producers: Mapping[int, LastBatch] | None = None,
    buffer_bytes: int = 1 << 20,
    keys_at_most: int = 100_000,
) -> Round:
    """Clean once, as the job does: index, scan for transactions if there are any, clean."""
    data = b"".join(batches)
    dirty = b"".join(batch for batch in batches if read_head(batch).base_offset >= dirty_from)
    aborted: list[Aborted] = []

    def offset_map() -> OffsetMap:
        return OffsetMap(dirty_from, keys_at_most, buffer_bytes, 0.9)

    offsets = offset_map()
    indexer = OffsetMapBuilder(offsets)
    try:
        indexer.index(dirty, len(dirty))
    except UnknownFate:
        scanner = Scanner()
        scanner.scan(dirty, len(dirty))
        aborted = scanner.fates.aborted
        offsets = offset_map()
        indexer = OffsetMapBuilder(offsets, aborted, min(scanner.stable(), OFFSET_MAX))
        indexer.index(dirty, len(dirty))
    cleaner = Cleaner(offsets, aborted, producers or {}, indexer.end, now_ms, delete_retention_ms)
    cleaned = split(cleaner.clean(data, len(data)))
    later = [batch for batch in batches if read_head(batch).base_offset >= indexer.end]
    return Round(cleaned + later, indexer.end, cleaner, aborted)


def marker(offset: int, producer_id: int, *, commit: bool, epoch: int = 0) -> bytes:
    """A control batch that ends a transaction."""
    key = (0).to_bytes(2, "big") + (COMMIT if commit else ABORT).to_bytes(2, "big")
    value = (0).to_bytes(2, "big") + (7).to_bytes(4, "big")  # version, coordinator epoch
    return bytes(
        build(
            [(key, value)],
            base_offset=offset,
            timestamp_ms=NOW_MS,
            producer_id=producer_id,
            producer_epoch=epoch,
            attributes=0x30,
        )
    )


def keyed(offset: int, *pairs: tuple[bytes | None, bytes | None], **more: int) -> bytes:
    """A batch of (key, value) pairs, a millisecond apart."""
    items = [Record(offset + n, NOW_MS + n, key, value) for n, (key, value) in enumerate(pairs)]
    return bytes(pack(items, **more))
