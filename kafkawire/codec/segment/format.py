"""Segments, format version 1: sorted batches of many partitions in one immutable file.

    +-----------------------+ 0
    | header                | 64 bytes
    +-----------------------+ 64
    | batches               | sorted by (partition number, offset), back to back, byte for byte
    +-----------------------+ batches end
    | sections              | index, state, origin, lost, keys, stored, directory; any order
    +-----------------------+ table position
    | section table         | 32 bytes for each section
    +-----------------------+ file size - 96
    | trailer               | 96 bytes
    +-----------------------+ file size

Integers are little-endian (in batches, Kafka's, they are big-endian); checksums are CRC-32C.

    header      0 magic "KWSEGMNT"      8 version u32            12 checksum u32 (of 0-11, 16-63)
               16 uuid 16 bytes        32 node id i32           36 zero u32
               40 created ms i64       48 zeros

    trailer     0 uuid 16 bytes        16 file size u64         24 batches end u64
               32 batches u64          40 records u64           48 partitions u32
               52 sections u32         56 table position u64    64 checksum of the table u32
               68 zeros                80 version u32           84 checksum u32 (of 0-83)
               88 magic "KWSEGEND"

    table row   0 type u16              2 version u16            4 flags u32 (1: must be known)
                8 start u64            16 body length u64       24 checksum u32 (head and body)
               28 zeros

    section     0 type u16              2 version u16            4 flags u32
                8 body length u64      16 body

    directory   0 partitions u32        4 topics u32             8 entries, rising number
                then topics: id 16 bytes, name length u16, name (UTF-8)
      entry     0 number u64            8 topic u32 (ordinal)   12 index in the topic u32
               16 start u64            24 length u64            32 base offset i64
               40 end offset i64       48 max timestamp i64     56 records u64
               64 batches u32          68 index checksum u32    72 index start u64
               80 index length u32     84 zero u32

    index       for each partition in the directory's order, n = index length / 28:
                offset of each block's first batch - base offset, i64 * n
                position of each block - start, i64 * n
                largest timestamp in the block and all before it, i64 * n
                checksum of each block's bytes, u32 * n

    state       0 partitions u32        4 zero u32               8 entries, rising number
      entry     0 number u64            8 log start i64         16 length of epochs u32
               20 length of producers u32                       24 aborted transactions u32
               28 epochs, producers (kafkawire.metadata.checkpoint),
                  then producer id i64, first offset i64, last offset i64 of each aborted one

    origin      0 topics u32            4 generation u32         8 length of cluster id u16
               10 length of class u16  12 cluster id, retention class (UTF-8), then topics
      topic     0 id 16 bytes          16 flags u32 (1: internal) 20 partitions u32
               24 created ms i64       32 settings u32, then for each: name length u16,
                  value length u32, name, value (UTF-8)

    lost        0 ranges u32            4 zero u32               8 ranges, rising number and offset
      range     0 number u64            8 first offset i64      16 end offset i64
               24 noticed ms i64       32 reason u32            36 zero u32

    keys        kafkawire.codec.segment.keys

    stored      0 partitions u32        4 zero u32               8 entries, rising number
      entry     0 number u64            8 first offset i64      16 its store time, ms, i64
               24 steps n u32          28 zero u32              32 offset - first offset, u32 * n
              ... seconds after the first store time, u32 * n

This module writes; reading is in the modules layout, directory, origin and index, re-exported here.
Pure: the caller reads and writes files. docs/segment-format.md describes the format in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError

from kafkawire.codec.batches import CRC_FROM, HEAD_BYTES, PREFIX_BYTES
from kafkawire.codec.batches import MAGIC as BATCH_MAGIC
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.directory import (
    PartitionEntry,
    PartitionState,
    check_directory,
    read_directory,
    read_state,
    write_directory,
    write_state,
)
from kafkawire.codec.segment.index import BLOCK_BYTES, SparseIndex, write_index
from kafkawire.codec.segment.layout import (
    DIRECTORY,
    HEADER_BYTES,
    INDEX,
    KEYS,
    LOST,
    MAGIC,
    ORIGIN,
    REQUIRED,
    SECTION,
    SECTION_HEAD_BYTES,
    STATE,
    STORED,
    TAIL_BYTES,
    TRAILER_BYTES,
    Header,
    Section,
    Trailer,
    read_header,
    read_trailer,
    section_body,
    write_header,
    write_section,
    write_trailer,
)
from kafkawire.codec.segment.lost import LostRange, read_lost, select_overlapping, write_lost
from kafkawire.codec.segment.origin import Origin, TopicOrigin, read_origin, write_origin
from kafkawire.codec.segment.stored import read_stored, select_steps, write_stored
from kafkawire.codec.types import Buffer
from kafkawire.crc32c import crc32c

__all__ = [
    "DIRECTORY",
    "HEADER_BYTES",
    "INDEX",
    "KEYS",
    "LOST",
    "MAGIC",
    "ORIGIN",
    "STATE",
    "STORED",
    "TAIL_BYTES",
    "TRAILER_BYTES",
    "DamagedBatch",
    "Header",
    "LostRange",
    "Origin",
    "PartitionEntry",
    "PartitionState",
    "Section",
    "SegmentBuilder",
    "SparseIndex",
    "TopicOrigin",
    "Trailer",
    "check_directory",
    "read_directory",
    "read_header",
    "read_lost",
    "read_origin",
    "read_state",
    "read_stored",
    "read_trailer",
    "section_body",
]

_BATCH = Struct(">qi4xbI2xi8xq14xi")
"""Base offset, length, magic, CRC, last delta, max timestamp, count."""
assert _BATCH.size == HEAD_BYTES
# The least length that a batch can state: it counts from after itself.
_AFTER_AT_LEAST = HEAD_BYTES - PREFIX_BYTES


class DamagedBatch(FormatError):
    """A damaged batch in the input: `part` and `at` are its position in the given buffers, `offset`
    is the first offset expected there."""

    def __init__(self, part: int, at: int, offset: int) -> None:
        super().__init__(f"the batch with offset {offset} is damaged")
        self.part = part
        self.at = at
        self.offset = offset


class SegmentBuilder:
    """Builder of a segment file, in order: header, each partition's batches, the rest.

    Partitions come with rising numbers, batches with rising offsets. The caller writes the header,
    then the buffers passed to `extend`, then the result of `finish`. `position`: the next byte of
    the file; `entries`: one for each completed partition.
    """

    def __init__(self, uuid: bytes, node_id: int, created_ms: int) -> None:
        assert len(uuid) == 16, f"a uuid has 16 bytes, not {len(uuid)}"
        self._header = Header(uuid, node_id, created_ms)
        self.position = HEADER_BYTES
        self.entries: list[PartitionEntry] = []
        self._states: list[tuple[int, PartitionState]] = []
        self._indexes: list[bytes] = []
        self._entry: PartitionEntry | None = None

    def header(self) -> bytes:
        return write_header(self._header)

    def start_partition(
        self,
        number: int,
        topic_id: bytes,
        topic: str,
        index: int,
        base_offset: int,
        state: PartitionState,
    ) -> None:
        """Begin the next partition; its offsets are covered from `base_offset` on."""
        assert self._entry is None, "the partition before was not ended"
        assert not self.entries or number > self.entries[-1].number, "numbers must rise"
        self._entry = PartitionEntry(
            number, topic_id, topic, index, self.position, 0, base_offset, base_offset, 0, 0, -1,
            0, 0, 0,
        )  # fmt: skip
        self._state = state
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._newest: list[int] = []
        self._sums: list[int] = []
        self._sum = 0
        # From the partition's start on: where the next block may begin.
        self._block_end = 0
        # Less than every offset: the first batch may begin below `base_offset` (a log start within
        # it).
        self._next = -1 << 63

    def add(self, batches: Buffer) -> None:
        """Add one buffer to the current partition as `extend` does."""
        self.extend([memoryview(batches)])

    def extend(self, parts: Sequence[memoryview]) -> None:
        """Add batches to the current partition: each part is whole batches, back to back. Hot.

        Every CRC is checked. DamagedBatch for a bad one or a falling offset; then only `abandon`
        may follow.
        """
        entry = self._entry
        assert entry is not None, "no partition was begun"
        offsets, positions, newest, sums = self._offsets, self._positions, self._newest, self._sums
        head, checksum = _BATCH.unpack_from, crc32c
        base_offset, following, top = entry.base_offset, self._next, entry.max_timestamp
        block_end, block_sum, length = self._block_end, self._sum, entry.length
        batches = records = 0
        for number, part in enumerate(parts):
            at = block_from = 0
            size = len(part)
            limit = block_end - length
            while at < size:
                try:
                    base, after, magic, crc, delta, stamp, count = head(part, at)
                except StructError:
                    # Too short for a head. Everything else is checked in one condition: a call for
                    # each batch would take longer than the checks.
                    raise DamagedBatch(number, at, max(following, base_offset)) from None
                stop = at + after + PREFIX_BYTES
                # Whole, not shorter than a head, of this format, not before the batch before it, no
                # negative delta or count (either makes the disjunction negative), and the CRC.
                if (
                    stop > size
                    or after < _AFTER_AT_LEAST
                    or magic != BATCH_MAGIC
                    or base < following
                    or delta | count < 0
                    or checksum(part[at + CRC_FROM : stop]) != crc
                ):
                    raise DamagedBatch(number, at, max(following, base_offset))
                # A block begins with the first batch at least BLOCK_BYTES after the start of the
                # last one.
                if at >= limit:
                    # End the block before, whose first bytes may be in earlier parts: `block_sum`
                    # has theirs.
                    if positions:
                        sums.append(checksum(part[block_from:at], block_sum))
                        newest.append(top)
                    offsets.append(base - base_offset)
                    positions.append(length + at)
                    block_sum, block_from, limit = 0, at, at + BLOCK_BYTES
                if stamp > top and count:  # the record of an emptied batch's time is gone
                    top = stamp
                following = base + delta + 1
                batches += 1
                records += count
                at = stop
            block_sum = checksum(part[block_from:], block_sum)
            block_end = limit + length
            length += size
        # Local until here, for speed; after DamagedBatch they are not needed, since only `abandon`
        # may follow.
        self._next, self._block_end, self._sum = following, block_end, block_sum
        self.position += length - entry.length
        entry.length = length
        entry.max_timestamp = top
        entry.batches += batches
        entry.records += records

    @property
    def next_offset(self) -> int:
        """Next offset of the current partition."""
        assert self._entry is not None
        return max(self._next, self._entry.base_offset)

    def abandon(self) -> None:
        """Drop the current partition: `position` returns to its start, and writing continues
        there."""
        assert self._entry is not None, "no partition was begun"
        # The caller writes over the bytes of this partition.
        self.position = self._entry.start
        self._entry = None

    def end_partition(self, end_offset: int) -> None:
        """End the current partition, which covers the offsets below `end_offset`."""
        entry = self._entry
        assert entry is not None, "no partition was begun"
        assert self.next_offset <= end_offset, f"batches reach beyond {end_offset}"
        if self._positions:
            self._sums.append(self._sum)
            self._newest.append(entry.max_timestamp)
        entry.end_offset = end_offset
        index = write_index(self._offsets, self._positions, self._newest, self._sums)
        entry.index_length = len(index)
        entry.index_checksum = crc32c(index)
        self._indexes.append(index)
        self._states.append((entry.number, self._state))
        self.entries.append(entry)
        self._entry = None

    def finish(self, origin: Origin | None = None, keys: bytes | None = None) -> bytes:
        """Return sections and trailer, the rest of the file. `position` becomes its size. `origin`
        and `keys`, the body of the key index, None: the file has no such section."""
        assert self._entry is None, "the last partition was not ended"
        batches_end = self.position
        at = batches_end + SECTION_HEAD_BYTES
        for entry in self.entries:
            entry.index_start = at
            at += entry.index_length
        bodies = [
            (INDEX, REQUIRED, b"".join(self._indexes)),
            (STATE, 0, write_state(self._states)),
            (DIRECTORY, REQUIRED, write_directory(self.entries)),
        ]
        if origin is not None:
            bodies.insert(2, (ORIGIN, 0, write_origin(origin)))
        lost = [
            (entry.number, each)
            for entry, (_, state) in zip(self.entries, self._states, strict=True)
            # The state has all lost ranges of the partition; this file those of its own offsets.
            for each in select_overlapping(state.lost, entry.base_offset, entry.end_offset)
        ]
        if lost:
            bodies.insert(2, (LOST, 0, write_lost(lost)))
        stored = [
            (entry.number, select_steps(state.stored, entry.base_offset, entry.end_offset))
            for entry, (_, state) in zip(self.entries, self._states, strict=True)
        ]
        if any(steps for _, steps in stored):
            body = write_stored((number, steps) for number, steps in stored if steps)
            bodies.insert(-1, (STORED, 0, body))
        if keys is not None:
            bodies.insert(-1, (KEYS, 0, keys))
        parts: list[bytes] = []
        sections: list[Section] = []
        at = batches_end
        for kind, flags, body in bodies:
            data, section = write_section(kind, flags, body, at)
            parts.append(data)
            sections.append(section)
            at += len(data)
        self.position = at + len(sections) * SECTION.size + TRAILER_BYTES
        trailer = Trailer(
            self._header.uuid,
            self.position,
            batches_end,
            len(self.entries),
            sum(entry.batches for entry in self.entries),
            sum(entry.records for entry in self.entries),
            sections,
        )
        parts.append(write_trailer(trailer))
        return b"".join(parts)
