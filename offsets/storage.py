"""The port to what is stored of offsets: checkpoints, segments, and which offsets lie in which.

`OffsetStorage` is implemented in memory (`memory_storage`), in the metadata's database
(`sql_storage`) and in RocksDB (`rocks_storage`); tests/test_offset_storage.py holds all of them to
what is promised here. The path of a produce never calls it: the log does, for what is already
committed. A *mapping* is the row of one partition in one segment; the mappings of a partition are
contiguous (each begins where the one before ended), whatever compaction has left inside of them.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint

NEVER = 1 << 62
"""As `due_ms`: retention need not look at the mapping."""
EVERYTHING = 1 << 62
"""As a log start in `remove_mappings`: the partition's topic is deleted, nothing of it stays."""

STARTED, LIVE, DELETING = 0, 1, 2
"""States of a segment: its file is being written and nobody reads it; it is read; nothing points
to it any more and its file may go after `delete_after_ms`, once nobody reads it."""


class StaleSwap(Exception):
    """The rows a swap was planned on have changed meanwhile. Nothing was done: plan again."""


class Mapping(NamedTuple):
    """One partition's share of one segment: offsets [base_offset, end_offset) lie in the bytes
    [start, start + length) of its file, their sparse index at `index_start`."""

    number: int  # of the partition
    segment_id: int
    base_offset: int
    end_offset: int
    start: int
    length: int
    index_start: int
    index_length: int
    index_checksum: int
    max_timestamp: int  # ms, -1: none
    batches: int
    records: int
    due_ms: int = NEVER  # when retention should look at it


@dataclass(slots=True)
class SegmentRow:
    """One segment file. `id` is given by `start_segments` and never again."""

    uuid: bytes
    node_id: int
    created_ms: int
    id: int = 0
    state: int = STARTED
    size_bytes: int = 0  # of the file
    live_bytes: int = 0  # sum of `length` of its mappings; kept by the storage
    generation: int = 0  # 0: cut from journals; a rewrite: 1 + that of its newest input
    retention_class: str = ""
    max_timestamp: int = -1
    delete_after_ms: int = 0  # of a DELETING one


@dataclass(slots=True)
class PartitionRow:
    """What is stored of one partition. `mappings` in order of their offsets."""

    number: int
    checkpoint: PartitionCheckpoint | None = None
    mappings: list[Mapping] = field(default_factory=list)


@dataclass(slots=True)
class Swap:
    """One change of what is read: `finished` segments (STARTED until now; size_bytes and
    max_timestamp as written) with their mappings, in place of the `removed` mappings. A segment
    left without mappings is DELETING from then on, its file to be kept until `delete_after_ms`."""

    finished: list[tuple[SegmentRow, list[Mapping]]]
    removed: list[Mapping] = field(default_factory=list)
    checkpoints: list[PartitionCheckpoint] = field(default_factory=list)
    delete_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class StoredStats:
    """One partition in numbers. Records and bytes are those in segments; -1: never checkpointed,
    never cut."""

    number: int
    checkpoint_offset: int = -1
    log_start: int = 0
    mappings: int = 0
    records: int = 0
    size_bytes: int = 0
    created_ms: int = -1  # of its first cut
    last_activity_ms: int = -1  # of the newest checkpoint or cut


@dataclass(frozen=True, slots=True)
class StorageMetrics:
    """The whole storage in numbers. Counting looks at every row: for people, not for the log."""

    checkpoints: int
    mappings: int
    segments: dict[int, int]  # state -> how many
    size_bytes: int
    live_bytes: int


class OffsetStorage(Protocol):
    """Each call is one transaction: when it returns, its effect is durable and whole; when it
    raises, nothing has changed, except after a lost connection or a cancelled call, where either
    may be the case. MetadataError: the store is broken. Writes are ordered.

    Rows of partitions that do not exist (any more) are left out of every write;
    NOT_LEADER_OR_FOLLOWER when another broker leads one of them, and then nothing is written.
    """

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Stores the place and the given partitions."""
        ...

    async def load_place(self, node_id: int) -> int:
        """The last place stored for a broker; 0: there is none."""
        ...

    async def load_partitions(self, numbers: Sequence[int]) -> list[PartitionRow]:
        """A row for each of the numbers, in their order; empty where nothing is stored."""
        ...

    async def start_segments(self, rows: Sequence[SegmentRow]) -> list[int]:
        """Enters segments that will be written, as STARTED; their ids."""
        ...

    async def finish_segments(self, swap: Swap) -> None:
        """Makes the finished segments LIVE and exchanges the mappings. StaleSwap when a removed
        mapping is not there as given, an added one covers offsets that are taken, or a finished
        segment is not STARTED."""
        ...

    async def remove_mappings(
        self, below: Map[int, int], delete_after_ms: int = 0
    ) -> list[SegmentRow]:
        """Drops the mappings that end at or below the log start of their partition (number ->
        log start); for EVERYTHING all that is stored of it. The segments this touched, as they
        are now: one without mappings is DELETING."""
        ...

    async def drop_segments(self, ids: Sequence[int]) -> None:
        """Forgets segments whose files are gone: STARTED ones that were given up, DELETING ones.
        A segment that still has mappings is left alone."""
        ...

    async def segments(
        self, node_id: int, states: Sequence[int], limit: int, after_id: int = 0
    ) -> list[SegmentRow]:
        """Up to `limit` segments of a broker in these states, by id, from above `after_id`."""
        ...

    async def segments_by_id(self, ids: Sequence[int]) -> list[SegmentRow]:
        """Those of the segments that are there, by id."""
        ...

    async def segment_mappings(self, segment_ids: Sequence[int]) -> list[Mapping]:
        """All mappings into these segments, by segment, partition and offset."""
        ...

    async def mappings(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[Mapping]]:
        """For each (number, from, to) the mappings that cover an offset of [from, to), in order;
        one round trip for all."""
        ...

    async def expiring(self, before_ms: int, limit: int) -> list[Mapping]:
        """Up to `limit` mappings with due_ms < before_ms of partitions this broker leads, the
        most overdue first. None of deleted topics: these are `orphans`."""
        ...

    async def set_due(self, numbers: Sequence[int] | None, due_ms: int) -> None:
        """Sets due_ms of all mappings of these partitions; None: of all partitions."""
        ...

    async def orphans(self, limit: int) -> list[int]:
        """Partitions of deleted topics that this broker led and of which something is stored, up
        to `limit`. An answer may be incomplete (a bounded part of the store is looked at); asking
        again goes on."""
        ...

    async def stats(self, numbers: Sequence[int]) -> list[StoredStats]:
        """Partitions in numbers, in the order given."""
        ...

    async def metrics(self) -> StorageMetrics:
        """The storage in numbers."""
        ...

    async def close(self) -> None:
        """Lets go of what the storage holds. Calling it again does nothing."""
        ...
