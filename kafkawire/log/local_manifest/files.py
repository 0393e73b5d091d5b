"""The local manifest's files: `<folder>/manifest/current`, snapshots, deltas, and `ended`.

    ended    JSON: up to which delta a clean end wrote, and of which state of the metadata

Blocking: runs in a thread.
"""

from __future__ import annotations

import json
import logging
import os.path
from dataclasses import asdict, dataclass, fields

from kafkawire.codec.format_errors import FormatError
from kafkawire.log.io.atomic_file import NEW, write_whole_file
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.local_manifest.service import ENDED
from kafkawire.manifest.format import pack, read_table
from kafkawire.manifest.keys import CURRENT, delta_key, sequence_of, snapshot_key
from kafkawire.manifest.reader import Current, pack_current, unpack_current
from kafkawire.manifest.state import Delta, Snapshot

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 32
"""Largest file that is read; a larger one is no manifest."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A clean end: of which `start` (kafkawire.log.journal.run_file), at which delta. The rest
    identifies the state of SQL, so that a change by a command (a restore, a repair) is detected:
    counts of topics and of segments that are live and local, the newest partition number and
    segment id."""

    start: int
    sequence: int
    topics: int
    last_partition: int
    segments: int
    last_segment: int


class ManifestFiles:
    """The files of the local manifest. `folder`: that of the broker, to which keys are relative.
    Every method raises OSError from the disk."""

    __slots__ = ("_folder", "_fs", "_home")

    def __init__(self, fs: FileSystem, home: str) -> None:
        self._fs = fs
        self._home = home
        self._folder = self.path(CURRENT).rpartition("/")[0]

    def path(self, key: str) -> str:
        return os.path.join(self._home, key)

    def write(self, key: str, data: bytes) -> None:
        """Write a file atomically, replacing an existing one."""
        # Nothing is synced: a power failure may leave any file torn, old or missing, which the next
        # start finds out.
        write_whole_file(self._fs, self.path(key), data, durably=False)

    def write_content(self, content: Delta) -> None:
        whole = isinstance(content, Snapshot)
        key = snapshot_key(content.sequence) if whole else delta_key(content.sequence)
        self.write(key, pack(content))

    def write_current(self, current: Current) -> None:
        self.write(CURRENT, pack_current(current))

    def rename(self, path: str, key: str) -> None:
        """Move a finished temporary file to its final path."""
        self._fs.rename(path, self.path(key))

    def remove(self, keys: list[str]) -> None:
        for key in keys:
            self._fs.remove(self.path(key))

    def mark_clean_end(self, ended: Ended) -> None:
        """Mark a clean end: everything is in the manifest."""
        self.write(ENDED, json.dumps(asdict(ended)).encode() + b"\n")

    def prepare(self) -> int:
        """Create the folder; return the greatest sequence number of any file in it, 0: none."""
        self._fs.makedirs(self._folder)
        names = self._fs.listdir(self._folder)
        numbers = [sequence_of(f"manifest/{name}") or 0 for name in names]
        try:
            last = unpack_current(self._read(CURRENT)).snapshot
        except (FileNotFoundError, FormatError):
            last = -1  # nothing of it is readable
        # The chain of the manifest that readers have: it stays until the next one replaces it.
        while delta_key(last + 1).rpartition("/")[2] in names:
            last += 1
        for name, number in zip(names, numbers, strict=True):
            # Beyond the end of the chain: what failed attempts have left. A delta with such a
            # number would seem to follow.
            if number > last or name.endswith(NEW):
                self._fs.remove(os.path.join(self._folder, name))
        return max(last, *numbers, 0)

    def keep_only(self, first: int) -> None:
        """Remove files that do not belong to the manifest that begins with the snapshot `first`."""
        for name in self._fs.listdir(self._folder):
            number = sequence_of(f"manifest/{name}")
            if (number is not None and number < first) or name.endswith(NEW):
                self._fs.remove(os.path.join(self._folder, name))

    def believable(self, start: int) -> tuple[Current, Ended] | None:
        """Return the manifest in the folder, if the start `start` ended cleanly and everything up
        to its last delta is as it was written; else None."""
        try:
            text = self._read(ENDED)
        except FileNotFoundError:  # the first start, or one after a crash
            return None
        try:
            said = json.loads(text)
            ended = Ended(**{field.name: int(said[field.name]) for field in fields(Ended)})
            # Of an earlier start: the one directly before has not ended cleanly.
            if ended.start != start:
                return None
            current = unpack_current(self._read(CURRENT))
            # Checksums at the disk's speed; nothing is unpacked.
            self._check(snapshot_key(current.snapshot))
            for sequence in range(current.snapshot + 1, ended.sequence + 1):
                self._check(delta_key(sequence))
        except (FileNotFoundError, ValueError, KeyError, TypeError) as damage:
            logger.warning(
                "the local manifest in %s is damaged, it is written again from the metadata: %s",
                self._folder, damage,
            )  # fmt: skip
            return None
        # A delta after the marked end was written later: the mark is out of date.
        behind = delta_key(max(current.snapshot, ended.sequence) + 1)
        names = self._fs.listdir(self._folder)
        if current.snapshot > ended.sequence or behind.rpartition("/")[2] in names:
            return None
        return current, ended

    def _check(self, key: str) -> None:
        _, table = read_table(self._read(key))
        for row in table:
            row.check()

    def _read(self, key: str) -> bytes:
        file = self._fs.open(self.path(key))
        try:
            size = file.size()
            if size > MAX_FILE_BYTES:
                raise FormatError(f"{key} has {size} bytes")
            return file.pread(size, 0)
        finally:
            file.close()
