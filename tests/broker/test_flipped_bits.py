"""One flipped bit in each field of each stored file: its reader refuses it or reads it as before.

A checksum covers each byte that decides something; a bit that changes nothing (padding, a stretch
that is not read) is harmless. docs/damage.md lists who notices the damage and what happens then.
`schedules.db` is in tests/schedules/test_index_damage.py.

Covers: kafkawire.log.io.atomic_file, kafkawire.replication.sealed_file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kafkawire.cli.backup import describe
from kafkawire.cli.restore.from_backup import verify_files
from kafkawire.client.errors import ClientError
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.filter_pack import read_stripe
from kafkawire.codec.segment.lost import LostRange
from kafkawire.coordination import snapshot
from kafkawire.groups.snapshot import group_snapshot
from kafkawire.log.io.atomic_file import write_whole_file
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import ScrubArguments, find_job, no_pace
from kafkawire.log.journal.format import (
    HEADER_BYTES,
    JournalFormatError,
    JournalHeader,
    read_header,
    write_header,
)
from kafkawire.log.journal.index_columns import IndexColumns, empty_columns
from kafkawire.log.journal.index_file import Extent, JournalIndex, pack_index
from kafkawire.log.journal.ledger import (
    RECORDS_AT,
    SLOT_BYTES,
    Change,
    pack_record,
    pack_slot,
    parse_ledger,
)
from kafkawire.log.journal.run_file import RunState, read_run, write_run
from kafkawire.log.journal.scan import scan
from kafkawire.log.objects import format as log_objects
from kafkawire.log.recovery.given_up import GivenUp, read_given_up, write_given_up
from kafkawire.log.recovery.identity import Identity, read_identity, write_identity
from kafkawire.manifest.format import pack, unpack
from kafkawire.manifest.keys import log_object_key
from kafkawire.manifest.reader import Current, Obsolete, pack_current, unpack_current
from kafkawire.replication import journal_copy
from kafkawire.replication.failures import FollowerError
from kafkawire.replication.machine import Files
from kafkawire.tiering.cost import budget
from kafkawire.tiering.publishing.owner import DamagedOwner, OwnedByOther, OwnerRecord
from kafkawire.tiering.store import tiers
from kafkawire_spark.pipeline.jobs.state import DamagedState, UnknownVersion, dump_json, load_json
from kafkawire_spark.replay import record as replay
from tests.broker.test_damaged_files import journal_bytes, rows_of_index, snapshot_bytes
from tests.codec.test_filter_pack import packed, section
from tests.kit.log.log_objects import NONCE, small_object
from tests.kit.log.segments import Part, batch
from tests.kit.log.segments import segment as write_segment
from tests.kit.memfs import MemFileSystem
from tests.kit.tier.manifests import sample

HOME = "/data"
HEAD_BYTES = 64
"""Of a file: its version is there, which a checksum does not always cover."""
QUICK_BYTES = 400
"""Bytes of a file of which a bit is flipped in `make check`; in the slow test it is each byte."""


@dataclass(frozen=True)
class Kind:
    """A stored file. `read` returns what is in it; None: it is absent or damaged."""

    sound: bytes
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = ()
    on_disk: bool = False


def in_memory(name: str, data: bytes) -> FileSystem:
    fs = MemFileSystem()
    fs.makedirs(f"{HOME}/groups")
    write_whole_file(fs, f"{HOME}/{name}", data)
    return fs


def written(name: str, write: Callable[[FileSystem], object]) -> bytes:
    fs = MemFileSystem()
    fs.makedirs(f"{HOME}/groups")
    write(fs)
    return bytes(fs.files[f"{HOME}/{name}"].data)


def small(
    name: str, write: Callable[[FileSystem], object], read: Callable[[FileSystem], object]
) -> Kind:
    """A file in a broker's folder whose reader returns its empty value where it is damaged."""
    sound = written(name, write)
    empty = read(in_memory("other", b""))
    return Kind(
        sound,
        lambda data: None if (found := read(in_memory(name, data))) == empty else found,
        (JournalFormatError,),
    )


JOURNAL = journal_bytes()
JOURNAL_END = scan(memoryview(JOURNAL), 5, HEADER_BYTES, None, 0).end


def read_journal(data: bytes) -> object:
    """Its frames; None if a gap is noticed. Where it ends is known from its index, its successor
    or the ledger."""
    found = scan(memoryview(data), 5, HEADER_BYTES, JOURNAL_END, 0)
    if found.gaps:
        return None
    places = [
        (number, at & 0xFFFFFFFF, size)
        for number, rows in found.rows.items()
        for at, size in zip(rows.log_position, rows.length, strict=True)
    ]
    return [(number, data[at : at + size]) for number, at, size in places]


def read_index(data: bytes) -> object:
    index = JournalIndex(memoryview(data), 5)
    rows = {number: index.rows(number) for number in index.numbers()}
    found = [
        (number, *map(list, (each.base, each.log_position, each.length, each.count, each.newest)))
        for number, each in rows.items()
    ]
    return index.extent, index.complete, found


def columns() -> IndexColumns:
    found = empty_columns()
    parts = found.base, found.log_position, found.length, found.count, found.newest
    for column in parts:
        column.append(7)
    return found


SEGMENT = write_segment([Part(3, [batch(at, 2) for at in range(0, 12, 2)]), Part(9, [batch(0)])])


def read_segment(data: bytes) -> object:
    fs = in_memory("x.segment", data)
    found: Any = find_job("scrub")(fs, ScrubArguments(f"{HOME}/x.segment"), no_pace)
    return None if found.problems else "sound"


LEDGER = bytearray(2048)
LEDGER[0:40] = pack_slot(6, 2, 900).ljust(40, b"\0")[:40]
LEDGER[SLOT_BYTES : SLOT_BYTES + 40] = pack_slot(6, 1, 800).ljust(40, b"\0")[:40]
_FIRST = pack_record(6, 0, 700, Change({3: 4096, 4: -1}, [], {7: 90}, []))
_MORE = pack_record(6, 1, 700, Change({5: -1}, [3], {}, [7]))
LEDGER[RECORDS_AT : RECORDS_AT + len(_FIRST) + len(_MORE)] = _FIRST + _MORE


def read_ledger(data: bytes) -> object:
    """Its contents; None if it is damaged, or only has the committed position before the last."""
    found = parse_ledger(data, "ledger.0")
    if found is None or found.damaged or found.committed == 800:
        return None
    return found.generation, found.committed, found.journals, found.bounds


LOG_OBJECT = small_object()
FENCE = log_objects.write_fence(1, 7, 2, NONCE, 9, 10)


def read_log_object(data: bytes) -> object:
    head = log_objects.read_header(data, log_object_key(7, 2))
    names = log_objects.read_names(data, head)
    frames = [
        (frame.number, frame.log_position, frame.run, [bytes(view) for view in frame.batches])
        for frame in log_objects.read_frames(memoryview(data), head)
    ]
    return head, names, frames


PLACE = group_snapshot(f"{HOME}/groups", bytes(16), 2)


def read_snapshot(data: bytes) -> object:
    fs = MemFileSystem()
    fs.makedirs(f"{HOME}/groups")
    write_whole_file(fs, PLACE.path, data)
    return snapshot.read(fs, PLACE)


SCRATCH = tempfile.TemporaryDirectory()
STATE = journal_copy.CopyState(7, 3, 5000, 4096, ((5, 100), (6, 200)), None, (6, 200))


def scratch(name: str) -> Path:
    """A folder for readers that need real files."""
    folder = Path(SCRATCH.name) / name
    folder.mkdir(exist_ok=True)
    return folder


def copy_file() -> bytes:
    journal_copy.save_copy_state(Files(), str(scratch("copy")), STATE)
    return (scratch("copy") / journal_copy.NAME).read_bytes()


def read_copy(data: bytes) -> object:
    (scratch("copy") / journal_copy.NAME).write_bytes(data)
    return journal_copy.load_copy_state(Files(), str(scratch("copy")))


def backup_manifest() -> bytes:
    (scratch("backup") / "metadata.db").write_bytes(b"x" * 40)
    files = {"metadata.db": describe(scratch("backup") / "metadata.db")}
    return json.dumps({"format": 1, "rows": {"topics": 3}, "files": files}).encode()


def read_backup(data: bytes) -> object:
    (scratch("backup") / "manifest.json").write_bytes(data)
    return verify_files(scratch("backup"))["files"]


SHAPE, STRIPES = packed([section({3: [[b"a", b"b"], [b"c"]]}), section({3: [[b"d"]]})])
REPLAY = replay.Replay("x", "a", "b", "", "c", 4, 0, (replay.ReplayLane(0, 0, 900, 1, 70),))
IDENTITY = Identity("cluster", 1, "ab" * 16, 25, "s3://bucket/x")
GIVEN_UP = GivenUp({3: (bytes(16), [LostRange(10, 20, 1000, 1)])}, {(5, 64, 128)})
RUN = RunState(25, 1 << 32, "commit")

KINDS: dict[str, Kind] = {
    "journal header": Kind(
        write_header(JournalHeader(5, 1 << 32, 0, 1000)),
        lambda data: read_header(data, "journal"), (JournalFormatError,),
    ),
    "journal": Kind(JOURNAL[:JOURNAL_END], read_journal),
    "journal index": Kind(rows_of_index(), read_index, (JournalFormatError,)),
    "journal index without transactions": Kind(
        pack_index(5, Extent(4096, 1, 64, 2), {3: columns()}, complete=False), read_index,
        (JournalFormatError,),
    ),
    "ledger": Kind(bytes(LEDGER), read_ledger, (JournalFormatError,)),
    "segment": Kind(SEGMENT, read_segment, (FormatError,)),
    "log object": Kind(LOG_OBJECT, read_log_object, (JournalFormatError,)),
    "fence": Kind(FENCE, read_log_object, (JournalFormatError,)),
    "filter pack": Kind(
        STRIPES[0],
        lambda data: bytes(read_stripe(data, 7, SHAPE, 0)._view), (FormatError,),
    ),
    "coordinator snapshot": Kind(snapshot_bytes(), read_snapshot),
    "identity": small("identity", lambda fs: write_identity(fs, HOME, IDENTITY),
                      lambda fs: read_identity(fs, HOME)),
    "run file": small("run", lambda fs: write_run(fs, HOME, RUN), lambda fs: read_run(fs, HOME)),
    "given-up offsets": small("given-up", lambda fs: write_given_up(fs, HOME, GIVEN_UP),
                              lambda fs: read_given_up(fs, HOME)),
    "tier-spending": small(
        "tier-spending",
        lambda fs: budget._write(fs, HOME, b'{"version": 1, "month": "2026-11"}'),
        lambda fs: budget._read(fs, HOME),
    ),
    "tier-move": small("tier-move", lambda fs: tiers.mark_move(fs, HOME, "s3://bucket/y"),
                       lambda fs: tiers._read(fs, HOME)),
    "manifest delta": Kind(pack(sample()), unpack, (FormatError,)),
    "manifest/current": Kind(
        pack_current(Current(25, (Obsolete(1, 2, 7, 1000),))), unpack_current, (FormatError,),
    ),
    "owner": Kind(
        OwnerRecord("cluster", 1, 2, "nonce", 1000).pack(), OwnerRecord.unpack,
        (OwnedByOther, DamagedOwner),
    ),
    "copy of a follower": Kind(copy_file(), read_copy, (FollowerError,), on_disk=True),
    "backup manifest": Kind(backup_manifest(), read_backup, (ClientError,), on_disk=True),
    "state of a pipeline": Kind(
        dump_json({"number": 25, "ends": {"topic": {"0": 1000}}}),
        lambda data: load_json(data, "run"), (DamagedState, UnknownVersion),
    ),
    "replay": Kind(
        replay.dump(REPLAY), lambda data: replay.load(data, "x"), (replay.ReplayError,),
    ),
}  # fmt: skip


def check(kind: Kind, step: int) -> None:
    """Flip each bit of the head, and one bit of every `step`th byte after it."""
    before = kind.read(kind.sound)
    assert before is not None
    size = len(kind.sound)
    bits = [*range(8 * min(HEAD_BYTES, size)), *range(8 * HEAD_BYTES, 8 * size, 8 * step + 1)]
    noticed = 0
    for bit in bits:
        data = bytearray(kind.sound)
        data[bit // 8] ^= 1 << bit % 8
        try:
            found = kind.read(bytes(data))
        except kind.refusals:
            found = None
        noticed += found is None
        assert found in (None, before), f"bit {bit % 8} of byte {bit // 8}"
    assert noticed


QUICK = [name for name, kind in KINDS.items() if not kind.on_disk]


@pytest.mark.parametrize("name", QUICK)
def test_flipped_bits_are_noticed_or_harmless(name: str) -> None:
    kind = KINDS[name]
    check(kind, max(1, len(kind.sound) // QUICK_BYTES))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_bit_of_each_byte_is_noticed_or_harmless(name: str) -> None:
    check(KINDS[name], 1)
