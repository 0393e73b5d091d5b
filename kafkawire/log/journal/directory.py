"""The folder of journals: those that exist, the next one prepared ahead, and the spares.

kafkawire.log.append.commit_log requests the next journal, kafkawire.log.maintenance.retention
returns dead ones.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os.path
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.log.journal.file import (
    POSITION_BITS,
    POSITION_MASK,
    Journal,
    index_name,
    journal_name,
)

logger = logging.getLogger(__name__)

SPARE_PREFIX = "spare-"

RESERVE_PART = 20
RESERVE_BYTES_MAX = 256 << 20
"""The space that a new journal must leave free, a twentieth of the volume and at most 256 MiB:
deleting a topic or moving a log start is a transaction, and a disk that is full to the last byte
accepts none."""


CLOSE_S = 10.0
"""How long the end of a process waits for files that are being made or retired: they take
milliseconds."""


class SpareFile(NamedTuple):
    """A file that a new journal may overwrite. `shared`: see Journal."""

    path: str
    size_bytes: int
    shared: bool = True


class Journals:
    """The journals of one broker, oldest first; the last one is `active`.

    `ready` are journals that have their final name but no frame yet.
    """

    __slots__ = (
        "_moving",
        "_retiring_bytes",
        "_tried",
        "active",
        "by_number",
        "env",
        "folder",
        "hot_bytes",
        "hot_from",
        "journal_bytes",
        "next_number",
        "preparing",
        "previous_end",
        "ready",
        "recycle_bytes",
        "rolling",
        "spares",
        "viewed_from",
    )

    def __init__(
        self,
        env: Env,
        folder: str,
        journal_bytes: int,
        hot_bytes: int,
        recycle_bytes: int,
        viewed_from: int = 0,
    ) -> None:
        self.env = env
        self.folder = folder
        self.journal_bytes = journal_bytes
        self.hot_bytes = hot_bytes
        self.recycle_bytes = recycle_bytes
        self.by_number: dict[int, Journal] = {}
        self.ready: list[Journal] = []
        self.spares: list[SpareFile] = []
        # Everything from this log position on is mapped.
        self.hot_from = 0
        # From here on it may be sent from the mapping: unverified bytes of earlier starts end
        # before.
        self.viewed_from = viewed_from
        self.preparing = False
        # The active journal takes no more frames, full or not.
        self.rolling = False
        # Spares that a thread is making; they count, so that several journals that die together do
        # not exceed `recycle.bytes`.
        self._retiring_bytes = 0
        # Files that a thread is making or retiring.
        self._moving: set[asyncio.Future[Any]] = set()
        # The active journal's number when the next one was last prepared.
        self._tried = -1
        self.next_number = 1
        self.previous_end = 0
        self.active: Journal

    def start(self, journals: list[Journal], spares: list[SpareFile], next_number: int) -> None:
        self.spares = spares
        self.next_number = next_number
        # Otherwise the last one is written further.
        if not journals or journals[-1].rolled:
            # The header of the new journal states it: recovery finds out from it how far the one
            # before must reach.
            self.previous_end = journals[-1].end_log_position if journals else 0
            journals = [*journals, self._make()]
        self.by_number = {journal.number: journal for journal in journals}
        self.active = journals[-1]
        if self.active.file is None:
            self.active.file = self.env.fs.open(self.active.path)
        # `journal.bytes` may have been raised since it was created.
        self.active.reserve(self.journal_bytes)
        self._warm()

    def __iter__(self) -> Iterator[Journal]:
        # A copy: a caller may remove journals while it iterates.
        return iter(list(self.by_number.values()))

    def upcoming(self, ahead: int) -> Journal:
        """Return the journal `ahead` positions after the active one, created now if it is not
        ready. May raise OSError."""
        while len(self.ready) < ahead:
            self.ready.append(self._make())
        return self.ready[ahead - 1]

    def find_hot_view(self, log_position: int) -> tuple[memoryview, int]:
        """Return the view of a hot journal, and the position in it."""
        view = self.by_number[log_position >> POSITION_BITS].view
        assert view is not None, "only hot log positions are checked"
        return view, log_position & POSITION_MASK

    def roll(self) -> None:
        self.rolling = True

    def advance(self) -> Journal:
        """Make the first ready journal the active one; return the previous one."""
        before = self.active
        before.rolled = True
        self.rolling = False
        self.previous_end = before.end_log_position
        self.active = self.ready.pop(0)
        assert self.active.number > before.number
        self.by_number[self.active.number] = self.active
        self._warm()
        return before

    def note_written(
        self, journal: Journal, end: int, entries: int, named: Iterable[int]
    ) -> list[Journal]:
        """Note that a journal was written up to `end`, with so many entries and with the names of
        these partition numbers; return the journal that was rolled before it, if one was."""
        rolled = []
        # Only after the whole write batch was written: until then the roll can be undone.
        if journal is not self.active:
            rolled.append(self.advance())
            assert journal is self.active, "journals are written one after the other"
        journal.end = end
        journal.entries += entries
        journal.numbers.update(named)
        return rolled

    def is_half_full(self, entries: int) -> bool:
        """Return whether to prepare the next journal now; one takes `entries`."""
        # Half full, and not at once: an idle broker needs no space for the next one.
        return self.active.end * 2 > self.journal_bytes or self.active.entries * 2 > entries

    def prepare(self, *, again: bool = False) -> None:
        """Prepare the next journal in a thread, so that rolling costs the event loop nothing.

        `again`: try also if it has failed since the active journal began.
        """
        if self.ready or self.preparing or (self._tried == self.active.number and not again):
            return
        # Once per active journal: if it fails, the roll tries again and reports the failure.
        self._tried = self.active.number
        spare: SpareFile | None = None
        try:
            # A spare takes no space that is not allocated already.
            if not self.spares and not self.has_room():
                return
            spare = self.spares.pop() if self.spares else None
            future = self.env.offload.submit(
                "files",
                make_journal,
                self.env.fs,
                self.folder,
                # Assigned now: a roll that cannot wait creates a journal under a later number, and
                # this one becomes a spare. Numbers may have gaps.
                self._number(),
                self.journal_bytes,
                spare,
            )
        except (OSError, RuntimeError) as failure:
            # The volume does not respond, or there is no thread.
            logger.warning("cannot prepare the next journal: %s", failure)
            if spare is not None:
                self.spares.append(spare)
            return
        self.preparing = True
        self._note_moving(future)
        future.add_done_callback(self._on_prepared)

    def _on_prepared(self, future: asyncio.Future[Journal]) -> None:
        self.preparing = False
        if future.cancelled():
            return
        failure = future.exception()
        if failure is not None:
            logger.warning("cannot prepare the next journal: %s", failure)
            return
        journal = future.result()
        # A roll did not wait for it. The numbers of journals must rise.
        if self.ready or self.active.number > journal.number:
            self._retire(journal)  # not waited for
        else:
            self.ready.append(journal)

    def _number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def has_room(self) -> bool:
        """Return whether a new journal leaves the reserve free. Blocks."""
        total, free = self.env.fs.free_bytes(self.folder)
        return free >= self.journal_bytes + min(total // RESERVE_PART, RESERVE_BYTES_MAX)

    def _make(self) -> Journal:
        spare = self.spares.pop() if self.spares else None
        if spare is None and not self.has_room():
            raise OSError(errno.ENOSPC, f"no room for another journal in {self.folder}")
        return make_journal(self.env.fs, self.folder, self._number(), self.journal_bytes, spare)

    def measure_views(self) -> None:
        """Find the log position from which on bytes may be sent from their mappings."""
        doubted = [
            # Ranges are sorted, so the last damaged one ends last.
            journal.log_position | max(journal.unverified, journal.bad[-1][1] if journal.bad else 0)
            for journal in self.by_number.values()
            if journal.unverified or journal.bad
        ]
        self.viewed_from = max([self.hot_from, *doubted])

    def _warm(self) -> None:
        """Map the newest journals within `hot.bytes` (the active one always), unmap the rest."""
        self._map()
        self.measure_views()

    def _map(self) -> None:
        room = self.hot_bytes
        hot = True
        # Newest first, until one does not fit; nothing older is mapped then.
        for journal in reversed(self.by_number.values()):
            # The active journal is mapped whole, with the part that is not written yet.
            size = journal.capacity if journal is self.active else journal.end
            hot = journal is self.active or (hot and size <= room)
            room -= size
            if hot:
                if journal.file is None:
                    journal.file = self.env.fs.open(journal.path)
                journal.map()
                self.hot_from = journal.log_position
            elif journal.view is None and journal.file is None:
                return  # those before it were unmapped when this one was
            # A dirty one keeps its handle for the commit that is still to come.
            elif not journal.dirty:
                journal.cool()
            else:
                journal.view = None

    def size_bytes(self) -> int:
        """Return the bytes of the journals on disk, without spares."""
        return sum(journal.capacity for journal in self.by_number.values())

    async def remove(self, journal: Journal) -> None:
        """Release a dead journal: its file becomes a spare or is deleted, in a thread."""
        self.take_out(journal)
        await self._retire(journal)

    def take_out(self, journal: Journal) -> str:
        """Forget a dead journal, whose files stay; return its path."""
        assert journal.rolled, "only rolled journals die"
        assert not journal.pins, "a reader holds this journal"
        assert not journal.dirty, "this journal is not committed"
        del self.by_number[journal.number]
        journal.cool()
        journal.stop_sending()
        return journal.path

    def _retire(self, journal: Journal) -> asyncio.Future[None]:
        """Make a spare of a file that is not needed, or delete it."""
        spare = self._spare_of(journal)
        size = journal.capacity if spare else 0
        future = self.env.offload.submit("files", retire, self.env.fs, journal, spare)
        self._retiring_bytes += size

        def on_retired(_: object) -> None:
            self._retiring_bytes -= size
            failed = future.cancelled() or future.exception() is not None
            if spare and not failed:
                self.spares.append(SpareFile(spare, size, journal.shared))

        self._note_moving(future)
        future.add_done_callback(on_retired)
        return future

    def _note_moving(self, future: asyncio.Future[Any]) -> None:
        self._moving.add(future)
        future.add_done_callback(self._moving.discard)

    async def wait_for_files(self) -> None:
        """Wait until no file is being made or retired: the next start must find each file where it
        stays. A disk that does not respond is waited for no longer than CLOSE_S."""
        # A journal that was prepared too late is retired in its turn.
        while self._moving:
            done, _ = await asyncio.wait(self._moving, timeout=CLOSE_S)
            if not done:
                logger.warning(
                    "the disk does not respond: a file of %s is still being made or deleted; the "
                    "next start may fail, and succeeds when it is repeated", self.folder,
                )  # fmt: skip
                return

    def _spare_of(self, journal: Journal) -> str:
        """Return the path as a spare of a file that is not needed; empty: there are enough."""
        kept = sum(spare.size_bytes for spare in self.spares) + self._retiring_bytes
        # Not a smaller one: making it longer would be a file's first write again.
        if journal.capacity >= self.journal_bytes and kept + journal.capacity <= self.recycle_bytes:
            return os.path.join(self.folder, f"{SPARE_PREFIX}{journal.number:010d}")
        return ""

    def make_spares(self, journals: Iterable[Journal]) -> None:
        """Make spares of files without valid content, durably. Blocks."""
        for journal in journals:
            journal.cool()
            self.env.fs.remove(os.path.join(self.folder, index_name(journal.number)))
            spare = os.path.join(self.folder, f"{SPARE_PREFIX}{journal.number:010d}")
            self.env.fs.rename(journal.path, spare)
            self.spares.append(SpareFile(spare, journal.capacity, journal.shared))
        # One sync for all, before anything is written to the log.
        self.env.fs.sync_dir(self.folder)

    async def drop_spares(self) -> None:
        """Delete the spares: the disk is full."""
        while self.spares:
            spare = self.spares.pop()
            await self.env.offload.submit("files", self.env.fs.remove, spare.path)

    def close(self) -> None:
        """Close all handles. A journal that was only prepared becomes a spare again."""
        for journal in self.ready:
            retire(self.env.fs, journal, self._spare_of(journal))
        self.ready.clear()
        for journal in self.by_number.values():
            journal.cool()
            # A thread may still send from it: the descriptor ends with the process.
            if not journal.pins:
                journal.stop_sending()


def make_journal(
    fs: FileSystem, folder: str, number: int, capacity: int, spare: SpareFile | None
) -> Journal:
    """Create a journal with space and a durable name, from a spare if there is one. May block."""
    path = os.path.join(folder, journal_name(number))
    # A spare's blocks are allocated: overwriting them is two to four times as fast as a file's
    # first write.
    if spare is not None and not (spare.shared and _is_in_use(fs, spare)):
        fs.rename(spare.path, path)
    file = fs.open(path, create=True)
    try:
        file.allocate(capacity)
        # Before anything is written under this number: the name must not be lost with a crash after
        # an acknowledged write. Old frames in it name another journal.
        fs.sync_dir(folder)
        journal = Journal(number, path, file, file.size())
        journal.shared = False
        journal.map()
    except BaseException:
        file.close()
        raise
    return journal


def _is_in_use(fs: FileSystem, spare: SpareFile) -> bool:
    """Return whether clients may still have to read bytes of a spare, and delete it then."""
    file = fs.open(spare.path)
    try:
        # Responses that the kernel sends from a file refer to its pages in the page cache. What is
        # written gets other pages once these were dropped. Deleting the file leaves them intact.
        dropped = file.drop_cached()
    finally:
        file.close()
    if not dropped:
        fs.remove(spare.path)
    return not dropped


def retire(fs: FileSystem, journal: Journal, spare: str) -> None:
    """Close a journal, delete its index file, and rename it to `spare`; delete it if that is
    empty. May block."""
    # Never truncated: reading a truncated mapping, which a reader may still hold, ends the process.
    journal.cool()
    fs.remove(os.path.join(journal.folder, index_name(journal.number)))
    if spare:
        fs.rename(journal.path, spare)
    else:
        # Deleting takes tens of milliseconds.
        fs.remove(journal.path)
