"""Refuse a broker's folder with a file of a newer program, before anything is changed.

A start migrates SQL, cuts journals and writes files again; `fsck` and `restore` would take what
they cannot read for damaged and propose to give it up. So all of them call `refuse_newer_files`
first. It reads the version of every stored format, and not the contents: damage is left to the
readers.

Indexes of journals and the index of waiting records are not checked: their checksums do not cover
the version, and both are made again from the log.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator
from struct import error as StructError
from typing import Any

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.coordination import snapshot
from kafkawire.log.io.atomic_file import read_whole_file
from kafkawire.log.io.ports import FileSystem, LogError
from kafkawire.log.journal import ledger, run_file
from kafkawire.log.journal.format import HEADER_BYTES, JournalFormatError, read_header
from kafkawire.log.journal.run_file import read_json_line
from kafkawire.log.recovery import earlier_terms, given_up, identity
from kafkawire.log.segments.file import open as segment_file
from kafkawire.manifest.format import MAX_HEAD_BYTES
from kafkawire.manifest.format import refuse_newer as refuse_newer_manifest
from kafkawire.manifest.keys import CURRENT
from kafkawire.manifest.reader import unpack_current
from kafkawire.offsets.catalog.kv import layout
from kafkawire.offsets.storage.open import holds_rocks, rocks_folder

JSON_LINES = {
    run_file.NAME: run_file.VERSION,
    identity.NAME: identity.VERSION,
    given_up.NAME: given_up.VERSION,
    earlier_terms.NAME: earlier_terms.VERSION,
    "tier-spending": 1,  # kafkawire.tiering.cost.budget; not imported without a tier
}
MAX_LINE_BYTES = 64 << 20
"""Of a file of one line: `given-up` and `left` may name many partitions."""
SNAPSHOT_FOLDERS = ("groups", "transactions", "schedules", "share")

Check = Callable[[FileSystem, str], object]


def refuse_newer_files(fs: FileSystem, home: str) -> None:
    """Raise LogError, one sentence that names the file, if a newer program wrote one in `home`
    (`<data>/brokers/<node_id>`). Blocks."""
    for check, path in _files(fs, home):
        try:
            check(fs, path)
        except JournalFormatError:  # a LogError
            raise
        except NewerFormatError as failure:
            raise LogError(str(failure)) from failure
        except (FormatError, StructError, ValueError, KeyError, TypeError, OSError):
            pass  # damaged or absent: its reader says so


def _files(fs: FileSystem, home: str) -> Iterator[tuple[Check, str]]:
    """Yield each file whose version is known, and what checks it."""
    for name in JSON_LINES:
        yield _json_line, os.path.join(home, name)
    for name in ledger.NAMES:
        yield _ledger, os.path.join(home, name)
    for folder, suffix, check in (
        ("journals", ".journal", _journal),
        ("segments", segment_file.SUFFIX, segment_file.refuse_newer),
        ("manifest", "", _manifest),
        *((folder, ".snapshot", snapshot.refuse_newer) for folder in SNAPSHOT_FOLDERS),
    ):
        place = os.path.join(home, folder)
        try:
            names = sorted(fs.listdir(place))
        except OSError:
            continue
        for name in names:
            if name.endswith(suffix):
                yield check, os.path.join(place, name)
    if holds_rocks(home):
        yield _rocks, rocks_folder(home)


def _json_line(fs: FileSystem, path: str) -> None:
    read_json_line(fs, path, JSON_LINES[os.path.basename(path)], MAX_LINE_BYTES)


def _ledger(fs: FileSystem, path: str) -> None:
    data = read_whole_file(fs, path)
    if data is not None:
        ledger.parse_ledger(data, path)


def _journal(fs: FileSystem, path: str) -> None:
    read_header(_first_bytes(fs, path, HEADER_BYTES), path)


def _manifest(fs: FileSystem, path: str) -> None:
    try:
        if path.endswith(CURRENT):
            unpack_current(_first_bytes(fs, path, MAX_LINE_BYTES))
        else:
            refuse_newer_manifest(_first_bytes(fs, path, MAX_HEAD_BYTES))
    except NewerFormatError as failure:
        raise NewerFormatError(f"{path} cannot be read: {failure}") from None


def _rocks(_: FileSystem, path: str) -> None:
    from kafkawire.offsets.catalog.kv.rocksdb import RocksStore

    store = RocksStore(path, read_only=True)
    try:
        store.get([layout.VERSION_KEY])
    finally:
        store.close()


def _first_bytes(fs: FileSystem, path: str, count: int) -> Any:
    file = fs.open(path)
    try:
        return file.pread(min(count, file.size()), 0)
    finally:
        file.close()
