"""One journal: a file of the commit log, its mapping, and the readers that use it.

A Journal knows where it ends and whether readers use it; kafkawire.log.journal.format and the
indexes of the partitions know its content. kafkawire.log.journal.directory creates, rolls and
recycles journals.
"""

from __future__ import annotations

import errno
import os.path
from collections.abc import Sequence
from typing import Final

from kafkawire.codec.segment.stored import Step
from kafkawire.log.io.ports import File, FileSystem

POSITION_BITS: Final = 32
POSITION_MASK: Final = (1 << POSITION_BITS) - 1
"""A log position is journal number << 32 | position, so a journal stays under 4 GiB."""


def journal_name(number: int) -> str:
    return f"{number:010d}.journal"


def index_name(number: int) -> str:
    return f"{number:010d}.index"


class Journal:
    """One file of the commit log.

    `end` is the position after the last frame written (0: not even a header), `entries` the frames
    so far, `numbers` the partitions with batches in it (each named by a naming frame), `live` how
    many of those still have batches above their log start (counted once it is rolled), `view` the
    mapping while the journal is hot, `dirty` whether it holds bytes no fsync has covered, `indexed`
    whether its index file is next to it on disk. The bytes before `unverified` were written by an
    earlier start and have not been verified since (kafkawire.log.journal.verification); `bad` are
    ranges [start, end) that are damaged. `shared`: sockets may have pages of its file, which must
    not be overwritten then; unknown, so True, for a file of an earlier start. `sending`: the handle
    for spans of it, None until there is one; `sendable`: False after one could not be read.
    `stored`: positions, each with the time at which frames from it on were written, of this start
    only.
    """

    __slots__ = (
        "bad",
        "capacity",
        "dirty",
        "end",
        "entries",
        "file",
        "indexed",
        "live",
        "number",
        "numbers",
        "path",
        "pins",
        "rolled",
        "sendable",
        "sending",
        "shared",
        "stored",
        "unverified",
        "view",
    )

    def __init__(self, number: int, path: str, file: File | None, capacity: int) -> None:
        self.number = number
        self.path = path
        self.file = file
        self.capacity = capacity
        self.end = 0
        self.entries = 0
        self.numbers: set[int] = set()
        self.live = 0
        self.rolled = False
        self.indexed = False
        self.dirty = False
        self.pins = 0
        self.unverified = 0
        self.bad: list[tuple[int, int]] = []
        self.shared = True
        self.sendable = True
        self.sending: File | None = None
        self.stored: list[Step] = []
        self.view: memoryview | None = None

    @property
    def log_position(self) -> int:
        """The log position of its first byte."""
        return self.number << POSITION_BITS

    @property
    def end_log_position(self) -> int:
        """The log position after its last frame."""
        return self.number << POSITION_BITS | self.end

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)

    def require_file(self) -> File:
        """Return the file of a journal that is being written or hot."""
        assert self.file is not None, f"journal {self.number} is closed"
        return self.file

    def map(self) -> None:
        if self.view is None:
            self.view = self.require_file().map(self.capacity)

    def warm(self, fs: FileSystem) -> memoryview:
        """Return the mapping; open and map the file first if necessary."""
        if self.file is None:
            self.file = fs.open(self.path)
        self.map()
        assert self.view is not None, "it was just mapped"
        return self.view

    def reserve(self, capacity: int) -> None:
        """Make the file at least `capacity` bytes long (one frame may be larger than a journal)."""
        if capacity > self.capacity:
            assert capacity <= POSITION_MASK, "a frame and its journal stay under 4 GiB"
            self.require_file().allocate(capacity)
            self.capacity = capacity
            if self.view is not None:
                self.view = self.require_file().map(capacity)

    def cool(self) -> None:
        """Release the mapping and the handle."""
        # Views that were passed on stay valid: they keep the mapping alive.
        self.view = None
        if self.file is not None:
            self.file.close()
            self.file = None

    def start_sending(self, file: File) -> None:
        """Take a handle for spans, which `cool` does not close; another than the first is
        closed."""
        if self.sending is None:
            self.sending = file
        else:
            file.close()

    def stop_sending(self) -> None:
        """Close the handle for spans."""
        if self.sending is not None:
            self.sending.close()
            self.sending = None

    def read(self, fs: FileSystem, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (position, length). Runs in a reader thread; the caller pins the
        journal."""
        # A handle of its own: the event loop may close the journal's while this thread reads.
        file = fs.open(self.path)
        try:
            parts = [file.pread(length, position) for position, length in spans]
        finally:
            file.close()
        for part, (position, length) in zip(parts, spans, strict=True):
            # The file is shorter than its rows say. A short read must not pass as records.
            if len(part) != length:
                raise OSError(
                    errno.EIO, f"{self.path} is truncated: it ends before byte {position + length}"
                )
        return parts


class Pins:
    """Journals that must not be recycled while their bytes are being sent."""

    __slots__ = ("journals",)

    def __init__(self) -> None:
        self.journals: list[Journal] = []

    def add(self, journal: Journal) -> None:
        journal.pins += 1
        self.journals.append(journal)

    def release(self) -> None:
        """Release all journals. A second call does nothing."""
        self()

    def __call__(self) -> None:
        for journal in self.journals:
            journal.pins -= 1
            assert journal.pins >= 0, "a journal was released more often than pinned"
        self.journals.clear()
