"""The meaning of a coordinator partition's log, by Kafka's rule word for word; and its compaction.

The model compares offsets of records, where the code under test relies on the order of steps. It
decodes with the codec alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kafkawire.codec.batches import (
    CONTROL,
    TRANSACTIONAL,
    BatchHead,
    Record,
    pack,
    read_head,
    records,
)
from kafkawire.codec.control import ABORT, COMMIT, read_marker
from kafkawire.groups.model.records import OffsetKey, OffsetRecord, decode_record

At = tuple[int, int]
"""Offset of the record in the log, and the committed offset."""


@dataclass
class Meaning:
    """The state after some batches."""

    current: dict[OffsetKey, At] = field(default_factory=dict)
    pending: dict[int, dict[OffsetKey, At]] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    """Base offsets of the batches of aborted transactions."""
    batches_of: dict[int, list[int]] = field(default_factory=dict)
    markers: dict[int, list[int]] = field(default_factory=dict)
    """Base offset of a marker -> base offsets of its transaction's batches."""

    def read(self, batch: bytes | bytearray) -> None:
        head = read_head(batch)
        pid = head.producer_id
        if head.attributes & CONTROL:
            self.end(pid, read_marker(batch, 0, head).kind, head.base_offset)
            return
        if head.attributes & TRANSACTIONAL:
            self.first.setdefault(pid, head.base_offset)
            self.batches_of.setdefault(pid, []).append(head.base_offset)
        for record in records(batch):
            self.put(record, pid if head.attributes & TRANSACTIONAL else -1)

    def put(self, record: Record, pid: int) -> None:
        found = decode_record(record.key, record.value)
        if not isinstance(found, OffsetRecord):
            return
        key = found.group_id, found.topic, found.partition
        if found.value is None:
            self.current.pop(key, None)
            for keys in self.pending.values():
                keys.pop(key, None)
        elif pid >= 0:
            self.pending.setdefault(pid, {})[key] = record.offset, found.value.offset
        else:
            self.current[key] = record.offset, found.value.offset

    def end(self, pid: int, kind: int, at: int) -> None:
        assert kind in (ABORT, COMMIT)
        for key, found in self.pending.pop(pid, {}).items():
            if kind == COMMIT and found[0] > self.current.get(key, (-1, 0))[0]:
                self.current[key] = found
        self.markers[at] = self.batches_of.pop(pid, [])
        if kind == ABORT:
            self.aborted |= set(self.markers[at])
        self.first.pop(pid, None)

    @property
    def offsets(self) -> dict[OffsetKey, int]:
        return {key: offset for key, (_, offset) in self.current.items()}

    @property
    def open(self) -> set[tuple[int, OffsetKey, int]]:
        return {
            (pid, key, offset)
            for pid, keys in self.pending.items()
            for key, (_, offset) in keys.items()
        }


def meaning(batches: list[bytearray]) -> Meaning:
    """Return the state after these batches."""
    found = Meaning()
    for batch in batches:
        found.read(batch)
    return found


def compacted(batches: list[bytearray], end: int, expired: int) -> list[bytearray]:
    """The batches after compaction below `end` and below the first open transaction: the newest
    record of each key, nothing of aborted transactions. Below `expired` delete.retention.ms is
    over: no tombstones, no markers of transactions without records. The last batch stays."""
    known = meaning(batches)
    end = min([end, *known.first.values()])
    newest: dict[bytes | None, int] = {}
    for batch in batches:
        head = read_head(batch)
        if head.last_offset < end and not _dropped(head, known):
            newest |= {record.key: record.offset for record in records(batch)}
    out: list[bytearray] = []
    stays: set[int] = set()
    for batch in batches:
        head = read_head(batch)
        if head.last_offset >= end or batch is batches[-1]:
            stays.add(head.base_offset)
            out.append(batch)
        elif head.attributes & CONTROL:
            if head.base_offset >= expired or stays & set(known.markers[head.base_offset]):
                out.append(batch)
        elif head.base_offset not in known.aborted:
            kept = [
                record
                for record in records(batch)
                if newest[record.key] == record.offset
                and (record.value is not None or record.offset >= expired)
            ]
            if kept:
                stays.add(head.base_offset)
                stays.add(kept[0].offset)
                out.append(_packed(kept, head))
    return out


def _dropped(head: BatchHead, known: Meaning) -> bool:
    return bool(head.attributes & CONTROL) or head.base_offset in known.aborted


def _packed(kept: list[Record], head: BatchHead) -> bytearray:
    return pack(
        kept,
        producer_id=head.producer_id,
        producer_epoch=head.producer_epoch,
        attributes=head.attributes,
    )
