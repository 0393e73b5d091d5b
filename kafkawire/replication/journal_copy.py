"""One copy of a broker's commit log: a folder with its journals, byte for byte at their positions.

The folder has the files of the journals and the file `copy`. Bytes are appended; `sync` makes them
durable and returns up to where. Not thread-safe: kafkawire.replication.node_copies has the lock.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from dataclasses import dataclass, replace
from typing import Any

from kafkawire.replication import sealed_file
from kafkawire.replication.failures import DiskFailed, FollowerError
from kafkawire.replication.machine import Files
from kafkawire.replication.messages import POSITION_BITS, POSITION_MASK, Buffer

logger = logging.getLogger(__name__)


# The state of a copy, in its file `copy`: its epochs, and how much of it is durable.


NAME = "copy"
"""The file of a copy's folder that has its state."""
NO_LIMIT = (1 << 63) - 1
MAX_LINEAGE = 100
"""Number of earlier epochs in the state of a copy. A start requests the log of the last one, or of
one of a few before it if starts failed."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """The state of a copy of the log that a broker has written in `epoch`.

    `lineage`: (epoch, position) of each earlier epoch, in order, whose log this one continues: both
    have the same bytes before that log position. Journals below `first` are not needed. Before
    `durable` everything is on the disk; `committed` is the best known committed log position of the
    broker. `cut`: bytes from this log position on have been replaced by those of `epoch`; while the
    folder has the name of another epoch, they may still be there. `begun`: the epoch that `epoch`
    continues, and where, as its process has sent them; None: not known.
    """

    epoch: int
    first: int
    durable: int
    committed: int = 0
    lineage: tuple[tuple[int, int], ...] = ()
    cut: int | None = None
    begun: tuple[int, int] | None = None

    def common(self, epoch: int) -> int | None:
        """Return the log position before which this copy has the bytes of the log of an epoch; None
        if they are different logs."""
        return NO_LIMIT if epoch == self.epoch else dict(self.lineage).get(epoch)

    def continue_log(self, epoch: int, continues: int, at: int) -> CopyState:
        """Return the state after a higher epoch has continued the log of `continues` at a log
        position."""
        common = self.common(continues)
        # Two starts may both have continued that log, the first of which failed: this copy has its
        # bytes from a lower position on, which are not those of the log either.
        cut = min(at, NO_LIMIT if common is None else common)
        earlier = [(each, min(end, at)) for each, end in self.lineage if each < continues]
        return replace(
            self,
            epoch=epoch,
            durable=min(self.durable, cut),
            committed=min(self.committed, cut),
            lineage=(*earlier, (continues, at))[-MAX_LINEAGE:],
            cut=cut,
            begun=(continues, at),
        )


def save_copy_state(files: Files, folder: str, state: CopyState) -> None:
    """Store the state of the copy in a folder durably. Raises OSError, DiskFailed."""
    content = {
        "epoch": state.epoch,
        "first": state.first,
        "durable": state.durable,
        "committed": state.committed,
        "lineage": state.lineage,
        "cut": state.cut,
        "begun": state.begun,
    }
    sealed_file.save(files, f"{folder}/{NAME}", content)


def load_copy_state(files: Files, folder: str) -> CopyState:
    """Return the state of the copy in a folder. Raises OSError, FollowerError if it is damaged
    or missing."""
    content: dict[str, Any] | None = sealed_file.load(files, f"{folder}/{NAME}")
    if content is None:
        raise FollowerError(f"{folder}/{NAME} is missing")
    begun = content.get("begun")  # not in files of earlier versions
    return CopyState(
        content["epoch"],
        content["first"],
        content["durable"],
        content["committed"],
        tuple((epoch, end) for epoch, end in content["lineage"]),
        content["cut"],
        None if begun is None else (begun[0], begun[1]),
    )


RECORD_EVERY_BYTES = 32 << 20
"""The durable log position is stored after this many bytes, and at the end of a journal. After a
start at most this much is sent again: a third of a second on a network of 1 Gbit/s. Storing it
takes two fsyncs."""
RESERVED_BYTES = 16 << 20
"""Space on the volume that copies leave free, for the small files: without changes of these nothing
can be deleted, and no other process of a broker can be fenced."""
MAX_UNSYNCED_JOURNALS = 16
"""Open files of one copy. A broker that begins journals faster than it is acknowledged, each with a
few bytes, would otherwise use all descriptors of the process."""
DELETED_SUFFIX = ".deleted"
"""Suffix of a folder whose files are being deleted."""
_JOURNAL = re.compile(r"(\d{10})\.journal")
_OWN_FILES = (NAME, NAME + sealed_file.NEW_SUFFIX)


@dataclass(frozen=True, slots=True)
class CopyListing:
    """The bytes of a log that a copy has: see kafkawire.replication.messages.CopyMessage."""

    end: int
    committed: int
    files: tuple[tuple[int, int], ...]


def journal_name(number: int) -> str:
    return f"{number:010d}.journal"


def position_text(position: int) -> str:
    return f"byte {position & POSITION_MASK} of journal {position >> POSITION_BITS}"


class JournalCopy:
    """The copy in one folder. `end`: log position of the next byte. Raises OSError, DiskFailed."""

    def __init__(self, files: Files, folder: str, state: CopyState) -> None:
        self._files = files
        self._folder = folder
        self._state = state
        self._sizes: dict[int, int] = {}
        """Size of the file of each journal."""
        self._open: dict[int, int] = {}
        """Descriptors by journal: the one that is written to, and others that are not synced."""
        self._unsynced: set[int] = set()
        self._has_new_names = False
        for name in files.names(folder):
            if match := _JOURNAL.fullmatch(name):
                self._sizes[int(match[1])] = files.size(f"{folder}/{name}")
        # `mark` stores the first journal before it deletes those before it: one was interrupted.
        for number in [each for each in self._sizes if each < state.first]:
            self._remove(number)
        # Bytes after the durable log position may be wrong: a power failure may have left zeros
        # there, or a failed fsync of an earlier process bytes that are in the page cache and not on
        # the disk. So the copy continues from that position, and the broker sends them again. They
        # are not removed, since some have been acknowledged: `listing` and `read` have them
        # meanwhile.
        self._kept = self._last()
        """Bytes before this log position may have been acknowledged by an earlier process."""
        self.end = self._synced = self._find_trusted_end()

    @classmethod
    def create(
        cls, files: Files, node_folder: str, epoch: int, first: int, begun: tuple[int, int]
    ) -> JournalCopy:
        """Begin an empty copy. `begun`: see CopyState."""
        folder = f"{node_folder}/{epoch}"
        new = folder + sealed_file.NEW_SUFFIX
        # Of a process that ended here.
        if os.path.basename(new) in files.names(node_folder):
            delete_folder(files, new)
        files.make_folder(new)
        state = CopyState(epoch, first, first << POSITION_BITS, begun=begun)
        save_copy_state(files, new, state)
        # The commit point: a folder with an epoch as its name always has a state.
        files.rename(new, folder)
        files.sync_folder(node_folder)
        return cls(files, folder, state)

    @classmethod
    def open(cls, files: Files, folder: str) -> JournalCopy:
        """Open a copy, and complete a change of its epoch that was interrupted. Raises OSError,
        FollowerError if its state is damaged."""
        # An earlier process may have been killed before it did.
        files.sync_folder(folder)
        state, epoch = load_copy_state(files, folder), int(os.path.basename(folder))
        # A higher epoch than the name's, with a cut, is a change that was interrupted.
        if state.epoch < epoch or (state.epoch > epoch and state.cut is None):
            raise FollowerError(
                f"{folder}/{NAME} is that of epoch {state.epoch}: the folder was renamed"
            )
        copy = cls(files, folder, state)
        if copy.epoch != epoch:
            try:
                copy._complete_change()
            except OSError:
                copy.abandon()
                raise
        return copy

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def begun(self) -> tuple[int, int] | None:
        """The epoch that this one continues, and where; None: not known."""
        return self._state.begun

    @property
    def folder(self) -> str:
        return self._folder

    @property
    def committed(self) -> int:
        return self._state.committed

    def common(self, epoch: int) -> int | None:
        """Return the log position before which this copy has the bytes of the log of an epoch; None
        if they are different logs."""
        return self._state.common(epoch)

    # Writing

    def resume(self, first: int) -> int:
        """Return the log position from which on bytes are sent; everything before it is durable.
        `first`: the first journal that the broker needs, with which an empty copy begins."""
        self.sync()
        begin = first << POSITION_BITS
        if not self._sizes and self.end != begin:
            self._save(replace(self._state, first=first, durable=begin))
            self.end = self._synced = begin
        # Files were lost. Stored before the broker sends them again: a crash while they are written
        # must not leave a state that calls them durable.
        if self.end < self._state.durable:
            self._save(replace(self._state, durable=self.end))
        return self.end

    def write(self, position: int, data: Buffer) -> None:
        """Write bytes at the end, or at the beginning of a later journal. Raises FollowerError if
        there is no space, after which the bytes since the last sync are removed."""
        number, at = position >> POSITION_BITS, position & POSITION_MASK
        if position != self.end and (at != 0 or number <= self.end >> POSITION_BITS):
            raise FollowerError(
                f"the broker sent {position_text(position)}, which does not continue the copy: "
                f"{self._folder} ends at {position_text(self.end)}"
            )
        try:
            # Space for fences and deletions, without which the follower could not be repaired.
            if self._files.free_bytes(self._folder) < RESERVED_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if position != self.end:
                self._roll(number)
            self._files.write(self._open_for_change(number), data, at)
        except OSError as failure:
            self._roll_back()
            path = f"{self._folder}/{journal_name(number)}"
            raise FollowerError(f"{path} cannot be written: {failure.strerror}") from failure
        self.end = position + len(data)
        self._sizes[number] = max(self._sizes[number], at + len(data))

    def sync(self) -> int:
        """Make everything that was written durable and return the end."""
        if self._unsynced or self._has_new_names:
            self._sync_files()
        self._synced = self.end
        durable = self._state.durable
        rolled = self.end >> POSITION_BITS != durable >> POSITION_BITS
        if rolled or self.end - durable >= RECORD_EVERY_BYTES:
            # On a full disk the stored position stays lower, and more is sent again after a start.
            with contextlib.suppress(OSError):
                self._save(replace(self._state, durable=self.end))
        return self.end

    def mark(self, committed: int, first: int) -> None:
        """Remember the committed log position; delete journals before `first`, except the last."""
        committed = max(committed, self._state.committed)
        # Stored with the next change: a lower value after a crash is only less well known.
        self._state = replace(self._state, committed=committed)
        first = min(first, self.end >> POSITION_BITS)
        if any(number < first for number in self._sizes):
            state = replace(self._state, first=first, durable=self.sync())
            # Before the deletions: a journal that is missing must not look lost after a crash.
            try:
                self._save(state)
            # A full disk, to which the deletions give space. One journal makes room for the state.
            except OSError:
                self._remove(min(self._sizes))
                self._save(state)
            for number in sorted(self._sizes):
                if number < first:
                    self._remove(number)
            self._files.sync_folder(self._folder)

    def become(self, epoch: int, continues: int, at: int) -> None:
        """Make this the copy of a higher epoch, whose log continues that of `continues` from the
        log position `at` on."""
        self.sync()
        # Stored before bytes are removed, and complete with the rename of the folder. After a crash
        # in between the next start removes them and renames.
        self._save(replace(self._state, durable=self.end).continue_log(epoch, continues, at))
        try:
            self._complete_change()
        except OSError as failure:
            raise DiskFailed(
                f"{self._folder} cannot be changed to broker epoch {epoch} ({failure.strerror}): "
                "this follower ends, and completes the change at its next start"
            ) from failure

    def close(self) -> None:
        """Make everything durable and close the files. The copy can still be used."""
        self.sync()
        self._close_files()

    def abandon(self) -> None:
        """Close the files without a sync, as after a failed one."""
        self._unsynced.clear()
        self._close_files()

    def delete(self) -> list[str]:
        """Delete the folder. Return the names in it that are not of a copy: if there are any, it is
        left as it is."""
        unknown = [name for name in self._files.names(self._folder) if not is_own(name)]
        if not unknown:
            self.abandon()
            parent, name = os.path.split(self._folder)
            deleted = f"{parent}/{name}{DELETED_SUFFIX}"
            if os.path.basename(deleted) in self._files.names(parent):
                delete_folder(self._files, deleted)
            # Renamed first, because a folder without some of its journals is no copy.
            self._files.rename(self._folder, deleted)
            self._files.sync_folder(parent)
            delete_folder(self._files, deleted)
        return unknown

    # Reading

    def listing(self, limit: int) -> CopyListing:
        """Return the files that the copy has before a log position."""
        last, at = limit >> POSITION_BITS, limit & POSITION_MASK
        files = tuple(
            (number, min(size, at) if number == last else size)
            for number, size in sorted(self._sizes.items())
            if number <= last
        )
        begin = self._state.first << POSITION_BITS
        end = files[-1][0] << POSITION_BITS | files[-1][1] if files else min(begin, limit)
        return CopyListing(end, min(self._state.committed, limit), files)

    def read(self, position: int, length: int, limit: int) -> bytes:
        """Return bytes of one journal before a log position, fewer at its end. Raises
        FollowerError if the copy does not have this journal."""
        number, at = position >> POSITION_BITS, position & POSITION_MASK
        path = f"{self._folder}/{journal_name(number)}"
        if number not in self._sizes or position > limit:
            raise FollowerError(f"this follower does not have {path}")
        stop = self._sizes[number]
        if limit >> POSITION_BITS == number:
            stop = min(stop, limit & POSITION_MASK)
        fd = self._files.open(path)
        try:
            return self._files.read(fd, max(0, min(length, stop - at)), at)
        finally:
            self._files.close(fd)

    # Inside

    def _last(self) -> int:
        """Return the log position after the last byte of all files."""
        number = max(self._sizes, default=self._state.first)
        return number << POSITION_BITS | self._sizes.get(number, 0)

    def _find_trusted_end(self) -> int:
        """Return the durable log position, less if the files do not reach it."""
        durable = self._state.durable
        number, at = durable >> POSITION_BITS, durable & POSITION_MASK
        earlier = [each for each in self._sizes if each < number]
        if self._sizes.get(number, 0) >= at and (number in self._sizes or not earlier):
            return durable
        if number not in self._sizes:
            number = max(earlier, default=self._state.first)
        found = number << POSITION_BITS | self._sizes.get(number, 0)
        logger.error(
            "%s ends at %s, but was durable up to %s: files were removed or truncated by another "
            "program, or the disk lost them; the broker sends the missing bytes again if it has "
            "them", self._folder, position_text(found), position_text(durable),
        )  # fmt: skip
        return found

    def _open_for_change(self, number: int) -> int:
        fd = self._open.get(number)
        if fd is None:
            is_new = number not in self._sizes
            path = f"{self._folder}/{journal_name(number)}"
            fd = self._open[number] = self._files.open(path, create=is_new)
            if is_new:
                self._sizes[number] = 0
                self._has_new_names = True
        self._unsynced.add(number)
        return fd

    def _roll(self, number: int) -> None:
        """Move the end to the beginning of a later journal."""
        if len(self._unsynced) >= MAX_UNSYNCED_JOURNALS:
            self._sync_files()
        # Bytes of an earlier process between the two are not in the broker's log.
        if self.end < self._kept:
            self._cut(self.end, below=number)
        self.end = number << POSITION_BITS

    def _cut(self, position: int, below: int | None = None) -> None:
        """Remove the bytes after a log position, of journals below a number. The change of the file
        that is truncated is durable after the next sync."""
        last, at = position >> POSITION_BITS, position & POSITION_MASK
        for number in sorted(self._sizes, reverse=True):
            if number > last and (below is None or number < below):
                self._remove(number)
                self._has_new_names = True
        if last in self._sizes:
            fd = self._open_for_change(last)
            self._files.truncate(fd, min(at, self._sizes[last]))
            self._sizes[last] = min(at, self._sizes[last])

    def _roll_back(self) -> None:
        """Remove what was written since the last sync, and by the write that failed."""
        try:
            # Not what an earlier process may have acknowledged, even if it was just overwritten:
            # the broker sends the same bytes.
            self._cut(max(self._synced, self._kept))
        except OSError as failure:
            raise DiskFailed(
                f"the bytes that were written to {self._folder} before an error cannot be removed "
                f"({failure.strerror}): this follower ends, and examines them at its next start"
            ) from failure
        self.end = self._synced

    def _complete_change(self) -> None:
        """Remove what the new epoch does not continue, and rename the folder to it."""
        cut = self._state.cut
        assert cut is not None, "a state with another epoch than its folder has a cut"
        self._cut(cut)
        self._sync_files()
        self._close_files()
        parent = os.path.dirname(self._folder)
        folder = f"{parent}/{self.epoch}"
        self._files.rename(self._folder, folder)
        self._files.sync_folder(parent)
        self._folder = folder
        self._kept = min(self._kept, cut)
        self.end = self._synced = min(self.end, cut)

    def _remove(self, number: int) -> None:
        if (fd := self._open.pop(number, None)) is not None:
            self._files.close(fd)
        self._unsynced.discard(number)
        self._files.remove(f"{self._folder}/{journal_name(number)}")
        del self._sizes[number]

    def _sync_files(self) -> None:
        """Sync all files and the folder, and close those of journals before the last one."""
        # If one fails the others stay unsynced: after DiskFailed the process ends.
        for number in sorted(self._unsynced):
            path = f"{self._folder}/{journal_name(number)}"
            self._files.sync(self._open[number], path)
        if self._has_new_names:
            self._files.sync_folder(self._folder)
        self._unsynced.clear()
        self._has_new_names = False
        last = self.end >> POSITION_BITS
        for number in [each for each in self._open if each != last]:
            self._files.close(self._open.pop(number))

    def _close_files(self) -> None:
        while self._open:
            self._files.close(self._open.popitem()[1])

    def _save(self, state: CopyState) -> None:
        save_copy_state(self._files, self._folder, state)
        self._state = state


def is_own(name: str) -> bool:
    """Return whether a file of this name in the folder of a copy is one of the copy's."""
    return name in _OWN_FILES or _JOURNAL.fullmatch(name) is not None


def delete_folder(files: Files, folder: str) -> None:
    """Delete a folder that is no copy any more, or not yet. Raises OSError, also if it has files
    that are not of a copy."""
    for name in files.names(folder):
        if is_own(name):
            files.remove(f"{folder}/{name}")
    files.remove_folder(folder)
