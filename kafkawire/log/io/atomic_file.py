"""Files that are replaced atomically: a reader finds the whole new file or the whole old one.

A file is written next to the old one, synced unless the caller opts out, then renamed over it. Runs
in a thread, or before anything is served.
"""

from __future__ import annotations

import os.path

from kafkawire.log.io.ports import FileSystem

NEW = ".new"
"""Suffix of the name while a file is written; one that a crash has left is ignored."""


def read_whole_file(fs: FileSystem, path: str, max_bytes: int | None = None) -> bytes | None:
    """Return the bytes of a file, `max_bytes` of them at most; None if there is none. OSError."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        return file.pread(size if max_bytes is None else min(size, max_bytes), 0)
    finally:
        file.close()


def write_whole_file(fs: FileSystem, path: str, data: bytes, durably: bool = True) -> None:
    """Replace a file, durably. If it raises OSError the old one is still there.

    Without `durably` the file survives a crash of the process, but not one of the machine."""
    # Left by a write that was interrupted.
    fs.remove(path + NEW)
    file = fs.open(path + NEW, create=True)
    try:
        if file.pwritev([data], 0) != len(data):
            raise OSError(f"short write of {path}{NEW}")
        # The content before the name: after a crash of the machine the new name must not have
        # missing bytes.
        if durably:
            file.sync()
    finally:
        file.close()
    fs.rename(path + NEW, path)
    if durably:
        fs.sync_dir(os.path.dirname(path))
