"""The run file: how often this broker has started, and whether it last ended cleanly.

One line of JSON and its checksum, replaced by a rename and durable before anything else happens: a
start writes its run number before the first frame, so that no two starts share one; a clean end
writes the log position where the log ended. The mark is believed only if the log really ends there
(see kafkawire.log.recovery.recover), and it only saves time: the next offsets never depend on it.

Format version 1.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kafkawire.crc32c import crc32c
from kafkawire.log.io.atomic_file import read_whole_file, write_whole_file
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.journal.format import check_version

# Small files of one line of JSON and its checksum, replaced whole and durably.


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


NAME = "run"
VERSION = 1
MAX_RUN_BYTES = 4096
"""A line of four short fields; a longer one is damaged."""


@dataclass(frozen=True, slots=True)
class RunState:
    """`start` counts the starts; `end` is the log position where the log ended cleanly, -1 while
    open. `ledger`: this start kept a ledger; older versions remove the field, and then the ledger's
    files of an earlier start are out of date."""

    start: int
    end: int
    flush: str
    ledger: bool = True


def read_run(fs: FileSystem, folder: str) -> RunState | None:
    """Read the run file; None if there is none or it is damaged."""
    try:
        body = read_json_line(fs, os.path.join(folder, NAME), VERSION, MAX_RUN_BYTES)
        if body is None:
            return None
        kept = bool(body.get("ledger", False))
        return RunState(int(body["start"]), int(body["end"]), str(body["flush"]), kept)
    except (ValueError, KeyError, TypeError):
        return None


def write_run(fs: FileSystem, folder: str, run: RunState) -> None:
    """Replace the file, durably. If it raises OSError the old one is still there."""
    write_json_line(fs, os.path.join(folder, NAME), VERSION, asdict(run))
