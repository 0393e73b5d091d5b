"""Readers of stored files: damaged bytes give the reader's own error, or a value.

Checksums are left out or computed again where possible: a wrong checksum must not be the only
protection against a damaged length or count.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from crc32c import crc32c

from kafkawire.codec.control import Aborted
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment import format as segment
from kafkawire.codec.segment.directory import write_directory, write_state
from kafkawire.codec.segment.origin import write_origin
from kafkawire.coordination import snapshot
from kafkawire.groups.snapshot import group_snapshot
from kafkawire.log.journal import format as journal_format
from kafkawire.log.journal.format import JournalFormatError
from kafkawire.log.journal.index_columns import empty_columns
from kafkawire.log.journal.index_file import Extent, JournalIndex, pack_index
from kafkawire.log.journal.run_file import RunState, read_run, write_run
from kafkawire.log.journal.scan import scan
from kafkawire.manifest.format import pack, unpack
from kafkawire.manifest.reader import Current, Obsolete, pack_current, unpack_current
from kafkawire.metadata import checkpoint
from kafkawire.metadata.checkpoint import PartitionCheckpoint, ProducerEntry
from kafkawire.metadata.rows import listeners_of, listeners_text
from kafkawire.offsets.catalog.kv import layout as kv
from kafkawire.offsets.catalog.port import (
    ObjectRow,
    SegmentRange,
    SegmentRow,
    TierRow,
    pack_ranges,
    unpack_ranges,
)
from kafkawire.tiering.publishing.owner import DamagedOwner, OwnedByOther, OwnerRecord
from tests.kit.log.segments import Part, batch, everything, journal
from tests.kit.log.segments import segment as write_segment
from tests.kit.memfs import MemFileSystem
from tests.kit.tier.manifests import sample

ROUNDS = 400
PRODUCER = ProducerEntry(7, 1, [(0, 4, 100, 1000), (5, 9, 105, 1001)])
ROW = PartitionCheckpoint(3, 500, 10, [(0, 0), (4, 90)], [PRODUCER])
MAPPING = SegmentRange(3, 9, 10, 500, 64, 4096, 5000, 28, 77, 1000, 4, 490, 12)
SEGMENT = SegmentRow(bytes(16), 1, 1000, 9, retention_class="days=7", object=bytes(range(16)))
OBJECT = ObjectRow(bytes(16), 9, 1, 0, ranges=pack_ranges([(3, 10, 500)]))

Reader = Callable[[bytes], object]
Case = tuple[bytes, Reader, tuple[type[Exception], ...]]
"""Valid bytes, their reader, and the errors it may raise."""


def index_file(data: bytes) -> object:
    """The index of a journal, its checksum computed again."""
    if len(data) < 16:
        return JournalIndex(memoryview(data), 5)
    index = JournalIndex(memoryview(data[:12] + resum(data[16:]) + data[16:]), 5)
    return [index.rows(number) for number in index.numbers()], list(index.singles())


def resum(data: bytes) -> bytes:
    return crc32c(data).to_bytes(4, "little")


def rows_of_index() -> bytes:
    columns = empty_columns()
    for values in ((0, 1 << 32, 61, 10, 1000), (10, 2 << 32, 90, 5, 1001)):
        parts = columns.base, columns.log_position, columns.length, columns.count, columns.newest
        for column, value in zip(parts, values, strict=True):
            column.append(value)
    return pack_index(5, Extent(4096, 1, 64, 2), {3: columns, 4: columns})


def read_group_snapshot(data: bytes) -> object:
    """A snapshot of groups, with its checksum computed again."""
    body = data[:-4] if len(data) > 4 else data
    fs = MemFileSystem()
    fs.makedirs("/groups")
    fs.open(PLACE.path, create=True).pwritev([body, crc32c(body).to_bytes(4, "big")], 0)
    return snapshot.read(fs, PLACE)


PLACE = group_snapshot("/groups", bytes(16), 2)


def snapshot_bytes() -> bytes:
    fs = MemFileSystem()
    fs.makedirs("/groups")
    pending = [snapshot.PendingPair(7, True, b"key", b"later")]
    contents = snapshot.Contents(90, [(b"key", b"value"), (b"k", b"")], pending)
    snapshot.write(fs, PLACE, contents)
    return bytes(fs.files[PLACE.path].data)


def run_file(data: bytes) -> object:
    fs = MemFileSystem()
    fs.makedirs("/data")
    write_run(fs, "/data", RunState(3, -1, "commit"))
    line = data.partition(b"\n")[0]
    node = fs.files["/data/run"]
    node.resize(0)
    file = fs.open("/data/run")
    file.pwritev([line + b"\n%08x\n" % crc32c(line)], 0)
    return read_run(fs, "/data")


def sparse_index(data: bytes) -> object:
    index = segment.SparseIndex(data, 64, 1 << 16, 0, crc32c(data))
    return [index.block(at) for at in range(len(index))], index.find(70), index.since(5)


def segment_ends(data: bytes) -> object:
    return segment.read_header(data[:64]), segment.read_trailer(data[-4096:], len(data))


FILE = write_segment([Part(3, [batch(at, 2) for at in range(0, 300, 2)]), Part(9, [batch(0)])])


def directory() -> bytes:
    return write_directory(everything(FILE).entries)


def blocks() -> bytes:
    entry = everything(FILE).entries[0]
    return FILE[entry.index_start : entry.index_start + entry.index_length]


def journal_bytes() -> bytes:
    fs = MemFileSystem()
    fs.makedirs("/data")
    file = journal(fs, 5, [(3, [batch(0), batch(1)]), (4, [batch(0)]), (3, [batch(2)])])
    return bytes(fs.files[file.path].data)


def scanned(data: bytes) -> object:
    return scan(memoryview(data), 5, journal_format.HEADER_BYTES, None, 0)


def states() -> bytes:
    state = segment.PartitionState(5, aborted=[Aborted(7, 1, 2)])
    return write_state([(3, state), (9, segment.PartitionState())])


def origin() -> bytes:
    topic = segment.TopicOrigin(bytes(16), 3, 1000, False, {"retention.ms": "1"})
    return write_origin(segment.Origin("cluster", 1, "class", [topic]))


NAMING = journal_format.Naming(bytes(16), "topic", 1, 2, 3, 4)
CURRENT = Current(4, (Obsolete(1, 1, 3, 1000),))
OWNER = OwnerRecord("cluster", 1, 2, "nonce", 1000)
TIER = TierRow(1, "s3://bucket/prefix", 0, 1000)
KV = (FormatError,)


def stored(key: bytes, value: bytes, unpack: Callable[[bytes, bytes], object]) -> Case:
    """A row of the key-value store: its key and its value concatenated."""
    size = len(key)
    return key + value, lambda data: unpack(data[:size], data[size:]), KV


READERS: dict[str, Case] = {
    "segment ends": (FILE, segment_ends, (FormatError,)),
    "sparse index": (blocks(), sparse_index, (FormatError,)),
    "journal": (journal_bytes(), scanned, ()),
    "segment directory": (directory(), segment.read_directory, (FormatError,)),
    "segment state": (states(), segment.read_state, (FormatError,)),
    "segment origin": (origin(), segment.read_origin, (FormatError,)),
    "leader epochs": (
        checkpoint.pack_epochs(ROW.leader_epochs), checkpoint.unpack_epochs,
        (FormatError,),
    ),
    "producers": (
        checkpoint.pack_producers(ROW.producers), checkpoint.unpack_producers,
        (FormatError,),
    ),
    "ranges": (OBJECT.ranges, unpack_ranges, (FormatError,)),
    "listeners": (
        listeners_text({"PLAINTEXT": ("h", 9092)}).encode(),
        lambda data: listeners_of(data.decode("latin-1")), (FormatError,),
    ),
    "manifest": (pack(sample()), unpack, (ValueError,)),
    "manifest/current": (pack_current(CURRENT), unpack_current, (ValueError,)),
    "owner": (OWNER.pack(), OwnerRecord.unpack, (OwnedByOther, DamagedOwner)),
    "index file": (rows_of_index(), index_file, (JournalFormatError,)),
    "naming frame": (
        journal_format.write_naming(NAMING), journal_format.read_naming, (JournalFormatError,),
    ),
    "catalog frame": (
        journal_format.write_catalog({"topics": [{"id": "a"}]}),
        lambda data: journal_format.topics_of(journal_format.read_catalog(data)),
        (JournalFormatError,),
    ),
    "run file": (
        json.dumps({"version": 1, "start": 1}).encode(), run_file, (JournalFormatError,),
    ),
    "group snapshot": (snapshot_bytes(), read_group_snapshot, ()),
    "stored checkpoint": (
        kv.pack_checkpoint(ROW, 5), lambda data: kv.unpack_checkpoint(3, data), KV,
    ),
    "stored totals": (kv.pack_totals(kv.Totals(1, 2, 3, 4)), kv.unpack_totals, KV),
    "stored mapping": stored(kv.mapping_key(3, 10), kv.pack_mapping(MAPPING), kv.unpack_mapping),
    "stored segment": stored(kv.segment_key(9), kv.pack_segment(SEGMENT), kv.unpack_segment),
    "stored object": stored(kv.object_key(bytes(16)), kv.pack_object(OBJECT), kv.unpack_object),
    "stored tier": stored(kv.tier_key(1), kv.pack_tier(TIER), kv.unpack_tier),
    "stored offsets": (kv.pack_offsets(1, 2, 3), kv.unpack_offsets, KV),
}  # fmt: skip


def damaged(rng: random.Random, sound: bytes) -> bytes:
    """Some bytes zeroed, changed, all bits set, or the end cut off."""
    data = bytearray(sound)
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.choice([1, 1, 2, 4, 8, 64]))
    match rng.randrange(4):
        case 0:
            data[start:stop] = bytes(stop - start)
        case 1:
            data[start:stop] = rng.randbytes(stop - start)
        case 2:
            data[start:stop] = b"\xff" * (stop - start)
        case _:
            del data[start:]
    return bytes(data)


@pytest.mark.parametrize("name", READERS)
def test_damaged_bytes_raise_readers_own_error(name: str) -> None:
    sound, read, allowed = READERS[name]
    read(sound)
    rng = random.Random(name)
    for data in [b"", bytes(len(sound)), *(damaged(rng, sound) for _ in range(ROUNDS))]:
        failures: list[Exception] = []
        try:
            read(data)
        except allowed as failure:
            failures.append(failure)
        assert not any(isinstance(failure, UnicodeDecodeError) for failure in failures), data
        assert all(str(failure) for failure in failures), data
