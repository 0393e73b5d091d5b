"""A fresh data folder of a broker that had another one: everything it needs is in SQL and the tier.

A folder is fresh if it is empty, or if another folder was used by a later life of the broker, so
that its journals are superseded: their files are moved to `<home>/superseded/`, where nothing reads
them. The file `<home>/adopting` exists until the records of log objects are in the journals here
and SQL is paired with the folder; a start that finds it begins again with an empty folder.
Blocking.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Iterator
from itertools import count

from kafkawire.log.io.atomic_file import read_whole_file, write_whole_file
from kafkawire.log.io.ports import FileSystem

logger = logging.getLogger(__name__)

MARK = "adopting"
BEGUN, EMPTY = b"begun\n", b"empty\n"
"""Contents of the mark: files may have to be moved; everything there is from the adoption."""
SUPERSEDED = "superseded"
KEPT = {MARK, "lock", SUPERSEDED}


def is_begun(fs: FileSystem, home: str) -> bool:
    """Return whether an adoption was begun in a folder and not completed."""
    return read_whole_file(fs, os.path.join(home, MARK), len(BEGUN)) is not None


def begin(fs: FileSystem, home: str) -> None:
    """Mark a folder as superseded: the next start moves its files. Raises OSError."""
    write_whole_file(fs, os.path.join(home, MARK), BEGUN)


def prepare(fs: FileSystem, home: str) -> None:
    """Mark a folder as fresh and empty it: superseded files are moved. Raises OSError."""
    mark = os.path.join(home, MARK)
    # Everything there is from an adoption that was interrupted.
    if read_whole_file(fs, mark, len(EMPTY)) == EMPTY:
        for path in _files(fs, home):
            fs.remove(path)
        return
    # Durable before the first file moves: a start that finds it continues.
    begin(fs, home)
    target = _target(fs, home)
    moved = 0
    for path in list(_files(fs, home)):
        new = os.path.join(target, os.path.relpath(path, home))
        fs.makedirs(os.path.dirname(new))
        fs.rename(path, new)
        # The new name before the old one goes.
        fs.sync_dir(os.path.dirname(new))
        fs.sync_dir(os.path.dirname(path))
        moved += 1
    if moved:
        logger.warning(
            "%d files of %s are superseded and were moved to %s, which may be deleted once the "
            "broker serves: another data folder was used since, or they lack records",
            moved,
            home,
            target,
        )
    # From here on files are those of the adoption.
    write_whole_file(fs, mark, EMPTY)


def complete(fs: FileSystem, home: str) -> None:
    """Remove the mark, durably."""
    fs.remove(os.path.join(home, MARK))
    fs.sync_dir(home)


def _files(fs: FileSystem, folder: str, top: bool = True) -> Iterator[str]:
    """Yield the paths of all files that a fresh folder does not keep."""
    for name in fs.listdir(folder):
        path = os.path.join(folder, name)
        # Only at the top: a file of that name in a folder is moved.
        if top and name in KEPT:
            continue
        try:
            fs.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            yield path
        else:
            yield from _files(fs, path, top=False)


def _target(fs: FileSystem, home: str) -> str:
    """Return the folder to move files to; that of a move which was interrupted is continued."""
    root = os.path.join(home, SUPERSEDED)
    fs.makedirs(root)
    taken = set(fs.listdir(root))
    return os.path.join(root, next(str(n) for n in count(1) if str(n) not in taken))
