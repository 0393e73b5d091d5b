"""Quarantine: a folder for files that are unknown to the metadata, and for damaged journals.

`<home>/quarantine/` has them under their names, and `report.jsonl` with a line for each: the file,
where it was, why it was moved, and when. Nothing reads them again; an operator who knows what they
are may delete the folder. Blocking: used by commands, or in a thread.
"""

from __future__ import annotations

import json
import os.path
from itertools import count

from kafkawire.log.io.atomic_file import read_whole_file, write_whole_file
from kafkawire.log.io.ports import FileSystem

FOLDER = "quarantine"
REPORT = "report.jsonl"


class Quarantine:
    """The quarantine of one broker's folder, created when the first file is moved into it."""

    def __init__(self, fs: FileSystem, home: str) -> None:
        self._fs = fs
        self.folder = os.path.join(home, FOLDER)

    def move_file(self, path: str, why: str, now_ms: int) -> str:
        """Move a file into the quarantine, durably, after its line in the report; return its new
        path. Raises OSError."""
        fs = self._fs
        fs.makedirs(self.folder)
        target = self._free(os.path.basename(path))
        line = {"file": os.path.basename(target), "from": path, "why": why, "moved_ms": now_ms}
        report = os.path.join(self.folder, REPORT)
        before = read_whole_file(fs, report) or b""
        # The line first: a crash in between leaves a line too many, never a file without one.
        write_whole_file(fs, report, before + json.dumps(line).encode() + b"\n")
        fs.rename(path, target)
        # The new name before the old one goes: the file must not be lost from both.
        fs.sync_dir(self.folder)
        fs.sync_dir(os.path.dirname(path))
        return target

    def _free(self, name: str) -> str:
        """Return a path that no file has."""
        taken = set(self._fs.listdir(self.folder))
        names = (name if not n else f"{name}.{n}" for n in count())
        return os.path.join(self.folder, next(each for each in names if each not in taken))
