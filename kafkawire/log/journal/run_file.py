"""The run file: how often this broker has started, and whether it last ended cleanly.

One line of JSON and its checksum, replaced by a rename and durable before anything else happens: a
start writes its run number before the first frame, so that no two starts share one; a clean end
writes the log position where the log ended. The mark is believed only if the log really ends there
(see kafkawire.log.recovery.recover), and it only saves time: the next offsets never rest on it.

Format version 1. Called by kafkawire.log.manager.
"""

from __future__ import annotations

import json
import os.path
from dataclasses import asdict, dataclass

from crc32c import crc32c

from kafkawire.log.io.atomic_file import write_whole_file
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.journal.format import JournalFormatError

NAME = "run"
VERSION = 1


@dataclass(frozen=True, slots=True)
class RunState:
    """`start` counts the starts; `end` is the log position where the log ended cleanly, -1 while
    open. `ledger`: this start kept a ledger; older versions drop the field, and then what an
    earlier start left in the ledger's files is out of date."""

    start: int
    end: int
    flush: str
    ledger: bool = True


def read_run(fs: FileSystem, folder: str) -> RunState | None:
    """Read the run file; None if there is none or it is damaged."""
    try:
        file = fs.open(os.path.join(folder, NAME))
    except FileNotFoundError:
        return None
    try:
        lines = file.pread(file.size(), 0).split(b"\n")
    finally:
        file.close()
    try:
        if len(lines) < 2 or int(lines[1], 16) != crc32c(lines[0]):
            return None
        body = json.loads(lines[0])
        if body["version"] > VERSION:
            raise JournalFormatError(
                f"{os.path.join(folder, NAME)} has format version {body['version']}, this "
                f"kafkawire reads up to {VERSION}: start the newer version that wrote it"
            )
        kept = bool(body.get("ledger", False))
        return RunState(int(body["start"]), int(body["end"]), str(body["flush"]), kept)
    except (ValueError, KeyError, TypeError):
        return None


def write_run(fs: FileSystem, folder: str, run: RunState) -> None:
    """Replace the file, durably. Raises OSError, and then the old one is still there."""
    line = json.dumps({"version": VERSION, **asdict(run)}).encode()
    data = b"%s\n%08x\n" % (line, crc32c(line))
    write_whole_file(fs, os.path.join(folder, NAME), data)
