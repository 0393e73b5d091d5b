"""A symbolic link in place of a file is refused by name, and its target stays as it is; the folders
may be links.

Covers: kafkawire.metadata.sqlite, kafkawire.objectstore.staging.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkawire.log.io.atomic_file import write_whole_file
from kafkawire.log.io.disk import DiskFileSystem
from kafkawire.metadata.sql import sqlite_metadata
from kafkawire.metadata.store import MetadataError
from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import Refused
from kafkawire.objectstore.file_ranges import read_ranges
from kafkawire.objectstore.folder import FolderProvider
from kafkawire.objectstore.port import FileRange
from kafkawire.objectstore.staging import LOCK, OwnStaging
from kafkawire.offsets.catalog.kv.rocksdb import RocksStore
from kafkawire.own_files import SymbolicLink
from kafkawire.replication.machine import Files
from kafkawire.schedules.waiting import WaitingIndex
from kafkawire.supervisor.surplus import mark_guest

FOREIGN = b"precious"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    path = tmp_path / "foreign"
    path.write_bytes(FOREIGN)
    return path


def linked(foreign: Path, name: str) -> str:
    """A link of this name in the folder `own`, which is a link itself."""
    folder = foreign.parent / "disk"
    path = folder / name
    path.parent.mkdir(parents=True)
    path.symlink_to(foreign)
    (foreign.parent / "own").symlink_to(folder)
    return str(foreign.parent / "own" / name)


OPENERS: dict[str, Callable[[str], object]] = {
    "file": lambda path: DiskFileSystem().open(path),
    "new file": lambda path: DiskFileSystem().open(path, create=True),
    "lock": lambda path: DiskFileSystem().lock(path),
    "copy of a follower": lambda path: Files().open(path),
    "lock of a follower": lambda path: Files().lock(path),
    "ranges of an object": lambda path: read_ranges(b"", [FileRange(path, 0, 1)], Call()),
    "index of schedules": lambda path: WaitingIndex(path).open(),
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("there", [True, False])
def test_link_is_not_followed(foreign: Path, opener: str, there: bool) -> None:
    path = linked(foreign, "ledger.0")
    if not there:
        foreign.unlink()
    with pytest.raises(SymbolicLink) as refused:
        OPENERS[opener](path)
    assert str(refused.value).startswith(f"{path}: it is a symbolic link, through which no file")
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    assert (foreign.read_bytes() == FOREIGN) if there else not foreign.exists()


def test_other_errors_and_files_are_as_before(foreign: Path) -> None:
    path = linked(foreign, "run")
    os.remove(path)
    with pytest.raises(FileNotFoundError):
        DiskFileSystem().open(path)
    write_whole_file(DiskFileSystem(), path, b"own")  # in a folder that is a link
    assert Path(path).read_bytes() == b"own"


def test_unfinished_file_that_is_a_link_is_removed(foreign: Path) -> None:
    path = linked(foreign, "run.new").removesuffix(".new")
    write_whole_file(DiskFileSystem(), path, b"own")
    assert foreign.read_bytes() == FOREIGN
    assert Path(path).read_bytes() == b"own"


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_metadata_file_that_is_a_link_is_refused(foreign: Path, suffix: str) -> None:
    path = linked(foreign, f"metadata.db{suffix}")
    foreign.write_bytes(b"")  # SQLite would make it a database
    with pytest.raises(MetadataError, match=f"{path}: it is a symbolic link"):
        asyncio.run(sqlite_metadata(path.removesuffix(suffix)).open())
    assert foreign.read_bytes() == b""


@pytest.mark.parametrize("name", ["CURRENT", "LOG", "LOCK", "000004.log"])
def test_link_in_a_folder_of_rocksdb_is_refused(foreign: Path, name: str) -> None:
    path = linked(foreign, f"offsets.rocksdb/{name}")
    with pytest.raises(MetadataError, match=f"{path}: it is a symbolic link"):
        RocksStore(os.path.dirname(path)).get([b"key"])
    assert foreign.read_bytes() == FOREIGN
    assert os.listdir(os.path.dirname(path)) == [name]


def test_count_of_rocksdb_that_is_a_link_is_refused(foreign: Path) -> None:
    folder = os.path.dirname(linked(foreign, "offsets.rocksdb.count")) + "/offsets.rocksdb"
    with pytest.raises(MetadataError, match=r"offsets.rocksdb.count: it is a symbolic link"):
        RocksStore(folder).get([b"key"])
    assert foreign.read_bytes() == FOREIGN


def test_mark_of_a_guest_that_is_a_link_is_refused(foreign: Path) -> None:
    path = linked(foreign, "brokers/7.guest")
    with pytest.raises(SymbolicLink, match=path):
        mark_guest(str(foreign.parent / "own"), 7)
    assert foreign.read_bytes() == FOREIGN


def test_object_that_is_a_link_is_refused(foreign: Path, tmp_path: Path) -> None:
    path = linked(foreign, "segments/a")
    folder, upload = str(tmp_path / "own"), tmp_path / "upload"
    store = FolderProvider(folder, OwnStaging(folder, True, True))
    for act in (
        lambda: store.get("segments/a", 0, None, Call()),
        lambda: store.head("segments/a", Call()),
        lambda: store.download("segments/a", str(tmp_path / "down"), 0, Call()),
    ):
        with pytest.raises(Refused, match=f"ELOOP: {path}: it is a symbolic link"):
            act()
    upload.symlink_to(foreign)
    with pytest.raises(SymbolicLink, match=str(upload)):
        store.upload("b", str(upload), 0, Call())
    store.put("segments/a", b"own", None, False, Call())  # replaces the link
    assert store.get("segments/a", 0, None, Call())[0] == b"own"
    assert foreign.read_bytes() == FOREIGN


def test_lock_of_a_tier_that_is_a_link_is_refused(foreign: Path, tmp_path: Path) -> None:
    path = linked(foreign, LOCK)
    folder = str(tmp_path / "own")
    store = FolderProvider(folder, OwnStaging(folder, True, True))
    with pytest.raises(Refused, match=f"{path}: it is a symbolic link"):
        store.put("a", b"own", None, False, Call())
    assert foreign.read_bytes() == FOREIGN
