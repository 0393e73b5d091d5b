"""Damage to one file, and which records lie in the bytes it hits.

Pure functions over bytes. Which records a damage may cost is found by the trial's own scan for
batches: it knows no file format of the product, only Kafka's batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.trials.records import CRC_FROM, Batch, records_of, scan

SECTOR = 512
BLOCK_BYTES = 4096
"""Of a segment (docs/segment-format.md), as far as the start of its last batch: if base offset or
leader epoch of a batch is damaged, it is not known of which one in the block."""
HOW = ("flip", "cut", "empty", "remove", "zero")


@dataclass(frozen=True, slots=True)
class Damage:
    """A damage to a file: bytes [`start`, `end`) are changed or removed. `content`: the file's
    content afterwards, None where it is removed."""

    how: str
    start: int
    end: int
    content: bytes | None

    def __str__(self) -> str:
        if self.how in ("remove", "empty"):
            return self.how
        return f"{self.how} at {self.start}-{self.end - 1}"


def draw(rng: Random, how: str, data: bytes) -> Damage:
    """Choose damage of one kind somewhere in the part of a file that was written."""
    used = len(data.rstrip(b"\0")) or len(data)
    if how == "remove":
        return Damage(how, 0, len(data), None)
    if how == "empty" or not data:
        return Damage("empty", 0, len(data), b"")
    at = rng.randrange(used)
    if how == "cut":
        return Damage(how, at, len(data), data[:at])
    if how == "zero":
        at -= at % SECTOR
        end = min(at + SECTOR, len(data))
        return Damage(how, at, end, data[:at] + bytes(end - at) + data[end:])
    changed = bytes([data[at] ^ (1 << rng.randrange(8))])
    return Damage("flip", at, at + 1, data[:at] + changed + data[at + 1 :])


@dataclass(frozen=True, slots=True)
class Hit:
    """The possible loss by a damage: ids of records, and whether internal records are among
    them."""

    uids: frozenset[int]
    internal: bool


def hit_batches(data: bytes, damage: Damage, *, frames: bool) -> Hit:
    """The records in the bytes that a damage hits. `frames`: the file is a journal, where one
    checksum covers a frame: its header, then batches without a gap between them. Elsewhere each
    batch is independent, but the footer after the last batch is the only index of the file: damage
    to it may cost all of them."""
    found = list(scan(data))
    groups: list[list[Batch]] = []
    for batch in found:
        if frames and groups and groups[-1][-1].end == batch.start:
            groups[-1].append(batch)
        else:
            groups.append([batch])
    uids: set[int] = set()
    before = 0
    ends = groups[-1][-1].end if groups else 0
    all_of_it = not frames and damage.end > ends
    block = range(0)
    for batch in found:
        if not frames and batch.start < damage.end and damage.start < batch.start + CRC_FROM:
            block = range(batch.start - BLOCK_BYTES, batch.end + BLOCK_BYTES)
    for group in groups:
        start = before if frames else group[0].start
        end = before = group[-1].end
        reached = start < damage.end and damage.start < end
        if all_of_it or reached or start in block:
            for batch in group:
                uids |= {record.uid for record in records_of(data, batch)}
    return Hit(frozenset(uids - {-1}), -1 in uids)
