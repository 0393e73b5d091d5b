"""Segments and journals built by hand, for tests of what reads them.

`journal` writes a rolled journal with its index file like the log; `segment` builds the bytes of a
segment from batches; `everything` reads a whole segment with all checks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from kafkawire.codec.batches import build, iter_batches
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment import format as codec
from kafkawire.codec.segment.format import (
    PartitionEntry,
    PartitionState,
    SegmentBuilder,
    SparseIndex,
)
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import (
    CutArguments,
    JournalFile,
    PartitionToCut,
    SegmentOutput,
    pack,
)
from kafkawire.log.journal import format as journal_format
from kafkawire.log.journal.file import journal_name
from kafkawire.log.journal.format import JournalHeader, pad_length
from kafkawire.log.journal.index_columns import IndexColumns, empty_columns
from kafkawire.log.journal.index_file import Extent, pack_index, write_index

UUID = bytes(range(16))
RUN = 1 << 32
FOLDER = "/data"


def batch(base: int, count: int = 1, *, size: int = 10, stamp: int = 1000) -> bytes:
    """A batch of `count` records of `size` bytes each."""
    pairs = [(b"k", bytes([(base + n) % 251]) * size) for n in range(count)]
    return bytes(build(pairs, base_offset=base, timestamp_ms=stamp, leader_epoch=3))


def topic_id(number: int) -> bytes:
    return number.to_bytes(8, "big") * 2


@dataclass
class Part:
    """A partition of a segment to be built."""

    number: int
    batches: Sequence[bytes]
    base: int = 0
    end: int | None = None
    state: PartitionState | None = None


def segment(
    parts: Iterable[Part],
    uuid: bytes = UUID,
    node_id: int = 1,
    created_ms: int = 5,
    origin: codec.Origin | None = None,
) -> bytes:
    """A whole file. Topics are named t<number>, and everything is their partition 2."""
    builder = SegmentBuilder(uuid, node_id, created_ms)
    data = bytearray(builder.header())
    for part in parts:
        name = f"t{part.number}"
        state = part.state or PartitionState()
        builder.start_partition(part.number, topic_id(part.number), name, 2, part.base, state)
        for one in part.batches:
            builder.add(one)
            data += one
        builder.end_partition(builder.next_offset if part.end is None else part.end)
    data += builder.finish(origin)
    assert builder.position == len(data)
    return bytes(data)


@dataclass
class Whole:
    """The whole content of a segment."""

    header: codec.Header
    trailer: codec.Trailer
    entries: list[PartitionEntry]
    states: dict[int, PartitionState]
    origin: codec.Origin | None
    indexes: list[SparseIndex]
    batches: list[list[bytes]]


def everything(data: bytes) -> Whole:
    """Read a segment with every check except the batches' CRCs; FormatError."""
    header = codec.read_header(data)
    trailer = codec.read_trailer(data[-codec.TAIL_BYTES :], len(data))
    bodies = {
        kind: codec.section_body(found, data[found.start : found.stop])
        for kind in (codec.DIRECTORY, codec.INDEX, codec.STATE)
        if (found := trailer.section(kind))
    }
    entries = codec.read_directory(bodies[codec.DIRECTORY])
    codec.check_directory(entries, trailer)
    indexes, batches = [], []
    for entry in entries:
        body = data[entry.index_start : entry.index_start + entry.index_length]
        index = SparseIndex(
            body, entry.start, entry.length, entry.base_offset, entry.index_checksum
        )
        inside = data[entry.start : entry.start + entry.length]
        bad = index.find_damaged_block(entry.start, inside)
        if bad is not None:
            raise FormatError(f"block at {bad}")
        indexes.append(index)
        batches.append(split(inside))
    states, origin = codec.read_state(bodies[codec.STATE]), None
    said = trailer.optional(codec.ORIGIN)
    if said is not None:
        origin = codec.read_origin(codec.section_body(said, data[said.start : said.stop]))
    said = trailer.optional(codec.STORED)
    if said is not None:
        stored = codec.read_stored(codec.section_body(said, data[said.start : said.stop]))
        for number, steps in stored.items():
            states[number].stored = steps
    return Whole(header, trailer, entries, states, origin, indexes, batches)


def split(data: bytes) -> list[bytes]:
    """The batches of a run of them."""
    return [data[at : at + head.size_bytes] for at, head in iter_batches(data)]


def journal(
    fs: FileSystem,
    number: int,
    frames: Sequence[tuple[int, Sequence[bytes]]],
    *,
    index: bool = True,
) -> JournalFile:
    """A rolled journal in FOLDER of frames (partition number, batches), and its index file."""
    data = bytearray(journal_format.write_header(JournalHeader(number, RUN, 0, 0)))
    rows: dict[int, IndexColumns] = {}
    for partition, batches in frames:
        log_position = number << 32 | len(data)
        body = journal_format.pack_body(
            sum(map(len, batches)),
            journal_format.KIND_BATCH,
            len(batches),
            log_position,
            RUN,
            partition,
            0,
        )
        prefixes = b"".join(one[:21] for one in batches)
        data += (
            journal_format.pack_front(journal_format.MAGIC, crc32c(body + prefixes))
            + body
            + b"".join(batches)
        )
        data += bytes(pad_length(len(data)) - len(data))
        row = rows.setdefault(partition, empty_columns())
        base, last = _base(batches[0]), batches[-1]
        row.base.append(base)
        row.log_position.append(log_position + journal_format.HEAD_BYTES)
        row.length.append(sum(map(len, batches)))
        row.count.append(_base(last) + struct.unpack_from(">i", last, 23)[0] + 1 - base)
        row.newest.append(max(struct.unpack_from(">q", one, 35)[0] for one in batches))
    path = f"{FOLDER}/{journal_name(number)}"
    file = fs.open(path, create=True)
    file.pwritev([data, bytes(4096)], 0)  # a rolled journal is longer than what was written
    file.sync()
    if index:
        extent = Extent(len(data), RUN, 0, len(frames))
        write_index(fs, FOLDER, number, pack_index(number, extent, rows))
    return JournalFile(number, path, len(data))


def _base(data: bytes) -> int:
    base: int = struct.unpack_from(">q", data)[0]
    return base


def wanted(
    number: int, start: int, end: int, state: PartitionState | None = None
) -> PartitionToCut:
    """A partition to cut."""
    return PartitionToCut(
        number, topic_id(number), f"t{number}", 2, start, end, state or PartitionState(start)
    )


def output(name: int, *numbers: int) -> SegmentOutput:
    """A segment to make."""
    uuid = bytes([name]) * 16
    return SegmentOutput(f"{FOLDER}/{uuid.hex()}.segment", uuid, list(numbers))


def cutting(
    journals: list[JournalFile], parts: Iterable[PartitionToCut], outputs: list[SegmentOutput]
) -> CutArguments:
    """A cut job."""
    return CutArguments(1, 5, journals, pack(parts), outputs)


def read(fs: FileSystem, path: str) -> bytes:
    """A file's bytes."""
    file = fs.open(path)
    return file.pread(file.size(), 0)


def write(fs: FileSystem, path: str, data: bytes) -> None:
    """Create or replace a file with these bytes."""
    fs.remove(path)
    fs.open(path, create=True).pwritev([data], 0)
