"""Small files of one line of JSON and its checksum, replaced whole and durably."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kafkawire.crc32c import crc32c
from kafkawire.log.io.atomic_file import read_whole_file, write_whole_file
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.journal.format import check_version


def write_json_line(fs: FileSystem, path: str, version: int, body: Mapping[str, Any]) -> None:
    """Replace the file. Raises OSError, and then the old one is still there."""
    line = json.dumps({"version": version, **body}).encode()
    write_whole_file(fs, path, b"%s\n%08x\n" % (line, crc32c(line)))


def read_json_line(
    fs: FileSystem, path: str, version: int, max_bytes: int
) -> dict[str, Any] | None:
    """Read the file; None if there is none.

    ValueError, KeyError or TypeError if it is damaged, JournalFormatError if its format is newer
    than `version`; OSError."""
    data = read_whole_file(fs, path, max_bytes)
    if data is None:
        return None
    lines = data.split(b"\n")
    if len(lines) < 2 or int(lines[1], 16) != crc32c(lines[0]):
        raise ValueError("wrong checksum")
    body: dict[str, Any] = json.loads(lines[0])
    check_version(path, body["version"], version)
    return body
