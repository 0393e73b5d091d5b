"""Small files with a checksum, replaced atomically and durably: identity, fence, copy.

Two lines: a JSON object, whose `version` is 1, and the CRC-32C of the first line as hexadecimal
digits. A file that does not fit is reported and never replaced.
"""

from __future__ import annotations

import json
import os.path
from typing import Any

from kafkawire.crc32c import crc32c
from kafkawire.replication.failures import FollowerError
from kafkawire.replication.machine import Files

VERSION = 1
NEW_SUFFIX = ".new"
"""Suffix of a file, or a folder, that is not complete."""
MAX_FILE_BYTES = 1 << 16
"""Far more than any of these files has; more is read of none."""


def save(files: Files, path: str, content: dict[str, Any]) -> None:
    """Replace the content of a file. When this returns it is durable. Raises DiskFailed, OSError;
    then, and after a crash, the file has either content."""
    line = json.dumps({"version": VERSION, **content}).encode()
    new = path + NEW_SUFFIX
    # One that a crash has left; `create` refuses a file that exists.
    files.remove(new)
    fd = files.open(new, create=True)
    try:
        files.write(fd, b"%s\n%08x\n" % (line, crc32c(line)), 0)
        files.sync(fd, new)
    finally:
        files.close(fd)
    # After the sync of the content: a crash between the two leaves the former file.
    files.rename(new, path)
    files.sync_folder(os.path.dirname(path))


def load(files: Files, path: str) -> dict[str, Any] | None:
    """Return the content of a file; None if it does not exist. Raises OSError, FollowerError if it
    is damaged."""
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return None
    try:
        data = files.read(fd, MAX_FILE_BYTES, 0)
    finally:
        files.close(fd)
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise FollowerError(f"{path} is damaged: its checksum is wrong")
    # Its checksum fits, so it is what `save` has written.
    content = json.loads(line)
    if content["version"] != VERSION:
        raise FollowerError(
            f"{path} has format version {content['version']}, and this program reads version "
            f"{VERSION}: this needs a newer version of kafkawire"
        )
    return dict(content)
