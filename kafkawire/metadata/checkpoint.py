"""A checkpoint: a log position, and the state of one broker's partitions up to it.

Written in one transaction by the log (`CheckpointCatalog.save_checkpoint`), which after a start
reads its journals from `log_position` on. Leader epochs and producer entries are stored packed; the
two formats are described below; each begins with a version byte. Pure; the rows are in `tables.py`.

    epochs     u8 version=1 | (i32 epoch, i64 first offset)*
    producers  u8 version=1 | (i64 producer id, i16 epoch, u8 count, batch * count)*
               u8 version=2 | (i64 producer id, i16 epoch, u8 count, i32 coordinator epoch,
                               i64 last timestamp, i64 first offset of the open transaction,
                               batch * count)*
    batch      i32 first sequence, i32 last sequence, i64 base offset, i64 max timestamp

All numbers are big-endian. Nothing follows the last entry. Version 2 is written where a producer
has used transactions; -1 stands for what is not there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kafkawire.codec.format_errors import FormatError

MAX_BATCHES = 5  # per producer, as in Kafka (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)
_VERSION = 1
_TRANSACTIONAL_VERSION = 2
_NOTHING = bytes([_VERSION])
_EPOCH = struct.Struct(">iq")
_ONE_EPOCH = struct.Struct(">Biq")  # most partitions have one epoch and no producers: the fast path
_PRODUCER = struct.Struct(">qhB")
_TRANSACTIONAL_PRODUCER = struct.Struct(">qhBiqq")
_BATCH = struct.Struct(">iiqq")

Batch = tuple[int, int, int, int]  # first sequence, last sequence, base offset, max timestamp


@dataclass(slots=True)
class ProducerEntry:
    """An idempotent or transactional producer in one partition and its last batches,
    oldest first.

    -1 where nothing is known: `coordinator_epoch` before the first marker, `last_timestamp` (ms, of
    the last transactional batch or marker), `open_offset` (first offset of the open transaction).
    """

    producer_id: int
    epoch: int
    batches: list[Batch] = field(default_factory=list)
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    open_offset: int = -1

    @property
    def transactional(self) -> bool:
        """Whether it has written a transactional batch or got a marker."""
        return self.last_timestamp >= 0 or self.coordinator_epoch >= 0 or self.open_offset >= 0


@dataclass(slots=True)
class PartitionCheckpoint:
    """One partition, by its number. `leader_epochs`: (epoch, first offset), rising."""

    number: int
    next_offset: int
    log_start: int
    leader_epochs: list[tuple[int, int]] = field(default_factory=list)
    producers: list[ProducerEntry] = field(default_factory=list)


@dataclass(slots=True)
class Checkpoint:
    """`log_position` in the journals of broker `node_id`, 0 if there is none. When saved: the
    partitions changed since the last checkpoint; when loaded: all saved partitions this broker
    leads."""

    node_id: int
    log_position: int = 0
    partitions: list[PartitionCheckpoint] = field(default_factory=list)


def pack_epochs(epochs: Sequence[tuple[int, int]]) -> bytes:
    """Pack leader epochs."""
    if len(epochs) == 1:
        return _ONE_EPOCH.pack(_VERSION, *epochs[0])
    return bytes([_VERSION]) + b"".join([_EPOCH.pack(*entry) for entry in epochs])


def unpack_epochs(packed: bytes) -> list[tuple[int, int]]:
    """Unpack leader epochs. Raises FormatError."""
    if len(packed) == _ONE_EPOCH.size and packed[0] == _VERSION:
        return [_EPOCH.unpack_from(packed, 1)]
    body = _body(packed, "leader epochs")
    if len(body) % _EPOCH.size:
        raise FormatError("stored leader epochs are cut off")
    return [(epoch, start) for epoch, start in _EPOCH.iter_unpack(body)]


def pack_producers(producers: Sequence[ProducerEntry]) -> bytes:
    """Pack producer entries."""
    if not producers:
        return _NOTHING
    extended = any(entry.transactional for entry in producers)
    parts = [bytes([_TRANSACTIONAL_VERSION if extended else _VERSION])]
    for entry in producers:
        assert len(entry.batches) <= MAX_BATCHES, entry
        front = entry.producer_id, entry.epoch, len(entry.batches)
        if extended:
            more = entry.coordinator_epoch, entry.last_timestamp, entry.open_offset
            parts.append(_TRANSACTIONAL_PRODUCER.pack(*front, *more))
        else:
            parts.append(_PRODUCER.pack(*front))
        parts += [_BATCH.pack(*batch) for batch in entry.batches]
    return b"".join(parts)


def unpack_producers(packed: bytes) -> list[ProducerEntry]:
    """Unpack producer entries. Raises FormatError."""
    if packed == _NOTHING:
        return []
    form = _PRODUCER
    if packed[:1] == bytes([_TRANSACTIONAL_VERSION]):
        form, body = _TRANSACTIONAL_PRODUCER, memoryview(packed)[1:]
    else:
        body = _body(packed, "producer entries")
    entries: list[ProducerEntry] = []
    position = 0
    while position < len(body):
        try:
            producer_id, epoch, count, *more = form.unpack_from(body, position)
            position += form.size
            batches = [_BATCH.unpack_from(body, position + i * _BATCH.size) for i in range(count)]
        except struct.error as error:
            raise FormatError("stored producer entries are cut off") from error
        position += count * _BATCH.size
        rows = [(a, b, c, d) for a, b, c, d in batches]
        entries.append(ProducerEntry(producer_id, epoch, rows, *more))
    return entries


def producers_at(entries: Iterable[ProducerEntry], end: int) -> list[ProducerEntry]:
    """The entries as of the offset `end`, which may be older than they are: without the batches and
    the open transactions from `end` on. A producer that had only such batches is left out, so that
    a retry of a lost one is accepted."""
    kept = []
    for entry in entries:
        batches = [batch for batch in entry.batches if batch[2] < end]
        opened = entry.open_offset if entry.open_offset < end else -1
        if batches or opened >= 0 or (entry.transactional and not entry.batches):
            kept.append(replace(entry, batches=batches, open_offset=opened))
    return kept


def unpack_all(rows: Iterable[tuple[int, int, int, bytes, bytes]]) -> list[PartitionCheckpoint]:
    """Return partitions of (number, next offset, log start, packed epochs, packed producers). The
    most common forms are unpacked without a function call: half a microsecond each. Raises
    FormatError."""
    one, size = _EPOCH.unpack_from, _ONE_EPOCH.size
    return [
        PartitionCheckpoint(
            number,
            next_offset,
            log_start,
            [one(epochs, 1)]
            if len(epochs) == size and epochs[0] == _VERSION
            else unpack_epochs(epochs),
            [] if producers == _NOTHING else unpack_producers(producers),
        )
        for number, next_offset, log_start, epochs, producers in rows
    ]


def _body(packed: bytes, what: str) -> memoryview:
    if not packed or packed[0] != _VERSION:
        raise FormatError(f"stored {what} have a format this kafkawire does not know")
    return memoryview(packed)[1:]
