"""The copies of one broker's logs: one for each of its epochs, the fence, and what is allowed when.

A broker gets a higher epoch with each start. Only the copy of the newest epoch is written to, and
none of an epoch below the fence. Each method holds the lock, so after `fence` has returned nothing
that an earlier process of the broker sends is written or acknowledged.
"""

from __future__ import annotations

import contextlib
import logging
import os.path
import re
from collections.abc import Iterator
from dataclasses import replace
from threading import Condition, Lock

from kafkawire.plural import count
from kafkawire.replication import sealed_file
from kafkawire.replication.failures import DiskFailed, Fenced, FollowerError, reason
from kafkawire.replication.journal_copy import (
    DELETED_SUFFIX,
    CopyListing,
    JournalCopy,
    delete_folder,
    position_text,
)
from kafkawire.replication.machine import Files
from kafkawire.replication.messages import Buffer

logger = logging.getLogger(__name__)

NO_EPOCH = -1
_EPOCH = re.compile(r"0|[1-9]\d*")
_LEFT = re.compile(rf"\d+(?:{re.escape(sealed_file.NEW_SUFFIX)}|{re.escape(DELETED_SUFFIX)})")


class NodeCopies:
    """All copies of one node id, in a folder that is created with the first copy or fence. Methods
    raise Fenced, FollowerError, DiskFailed, and after a DiskFailed only that. Thread-safe.

    A copy that is damaged is left out: its folder stays as it is, and its epoch is refused. So are
    all epochs if the fence is damaged, because it is not known which of them it refuses.
    """

    def __init__(self, files: Files, folder: str, node_id: int) -> None:
        """Open the copies that are there. Raises OSError, DiskFailed."""
        self._files = files
        self._folder = folder
        self._node_id = node_id
        self._lock = Lock()
        self._progress = Condition(self._lock)
        """Notified of each mark, and when more may be committed in the copy."""
        self._marks = 0
        self._failed: DiskFailed | None = None
        self._fence = NO_EPOCH
        self._copies: dict[int, JournalCopy] = {}
        self._left_out: dict[int, str] = {}
        """Why a copy is left out, by epoch."""
        self._unusable = ""
        """Why all copies are left out; empty: they are not."""
        self._reported: set[str] = set()
        """Folders that cannot be deleted, each of which is logged once."""
        if str(node_id) in files.names(os.path.dirname(folder)):
            self._open()

    def start_epoch(self, epoch: int, continues: int, at: int, first: int) -> int:
        """Make the copy of an epoch the one that is written to, and return the log position from
        which on bytes are sent: everything before it is durable.

        If there is a copy of this epoch it is resumed. Otherwise the newest copy that has the log
        of epoch `continues` becomes that of this epoch, without its bytes at and after `at`.
        Otherwise an empty copy begins with the journal `first`; earlier copies stay until
        `delete_earlier_copies`.
        """
        with self._hold_lock():
            self._check(epoch)
            copy = self._copies.get(epoch)
            if copy is None:
                copy = self._new_copy(epoch, continues, at, first)
            else:
                self._check_begun(copy, continues, at)
            # Copies of earlier epochs are only read from now on: their descriptors are not needed.
            for each in self._copies.values():
                if each is not copy:
                    each.close()
            return copy.resume(first)

    def write(self, epoch: int, position: int, data: Buffer) -> None:
        """Write bytes of the log of an epoch. They are durable after `sync`."""
        with self._hold_lock():
            self._current(epoch).write(position, data)

    def sync(self, epoch: int) -> int:
        """Make everything durable and return the end of the copy."""
        with self._hold_lock():
            end = self._current(epoch).sync()
            self._progress.notify_all()
            return end

    def mark(self, epoch: int, committed: int, first: int) -> None:
        """Remember the committed log position of the broker, and delete journals before `first`."""
        with self._hold_lock():
            self._current(epoch).mark(committed, first)
            self._marks += 1
            self._progress.notify_all()

    def delete_earlier_copies(self, epoch: int) -> None:
        """Delete the copies of lower epochs. A folder with files that are not of a copy stays."""
        with self._hold_lock():
            self._check(epoch)
            deleted = 0
            for earlier in sorted(each for each in self._copies if each < epoch):
                copy = self._copies[earlier]
                # Nothing unknown is deleted: a folder with other files stays.
                if unknown := copy.delete():
                    self._report_unknown(copy, unknown)
                else:
                    del self._copies[earlier]
                    deleted += 1
            if deleted:
                logger.info(
                    "deleted %s of logs of broker %d with epochs below %d, which the broker does "
                    "not need any more",
                    count(deleted, "copy", "copies"), self._node_id, epoch,
                )  # fmt: skip

    def fence(self, epoch: int) -> None:
        """Refuse writes of lower epochs from now on, durably."""
        with self._hold_lock():
            self._check(epoch)
            if self._fence < epoch:
                self._files.make_folder(self._folder)
                # Stored first: a fence that a restart forgets is none.
                sealed_file.save(self._files, f"{self._folder}/fence", {"epoch": epoch})
                self._fence = epoch
                logger.info(
                    "processes of broker %d with epochs below %d are fenced: their writes are "
                    "refused from now on", self._node_id, epoch,
                )  # fmt: skip

    def listing(self, epoch: int) -> CopyListing:
        with self._hold_lock():
            copy, limit = self._of(epoch)
            return copy.listing(limit)

    def wait_for_commit(self, epoch: int, known: int, limit_s: float) -> CopyListing:
        """Return what `listing` does, without bytes that an earlier process may have written
        wrongly, once more than up to the log position `known` is committed and in the copy, or the
        broker has sent another mark."""
        with self._hold_lock():
            marks = self._marks

            def has_news() -> bool:
                found = self._list_trusted(epoch)
                return self._marks > marks or min(found.end, found.committed) > known

            if not self._progress.wait_for(has_news, limit_s):
                raise FollowerError(f"broker {self._node_id} has sent nothing for {limit_s:g} s")
            return self._list_trusted(epoch)

    def read(self, epoch: int, position: int, length: int) -> bytes:
        """Return bytes of one journal of the log of an epoch, fewer at its end."""
        with self._hold_lock():
            copy, limit = self._of(epoch)
            return copy.read(position, length, limit)

    def close(self) -> None:
        with self._hold_lock():
            for copy in self._copies.values():
                copy.close()

    # Inside

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[None]:
        # One lock for writes and fences: after `fence` has returned, nothing that an earlier
        # process of the broker sends is written or acknowledged.
        with self._lock:
            # The process is about to end; no other thread may acknowledge anything until then.
            if self._failed is not None:
                raise self._failed
            try:
                yield
            except DiskFailed as failure:
                self._failed = failure
                raise
            except OSError as failure:
                raise FollowerError(
                    f"{failure.filename or self._folder}: {failure.strerror}"
                ) from failure

    def _open(self) -> None:
        # An earlier process may have been killed between a rename and its sync: what is read here
        # must not be lost later.
        self._files.sync_folder(self._folder)
        try:
            fence = sealed_file.load(self._files, f"{self._folder}/fence")
            names = self._files.names(self._folder)
        except (OSError, FollowerError) as failure:
            self._unusable = (
                f"the copies in {self._folder} are not used, and stay as they are: "
                f"{reason(failure, self._folder)}. Repair it or, if no earlier process of broker "
                f"{self._node_id} can still run on another machine, delete {self._folder}/fence; "
                "then end the process of this follower, which is started again"
            )
            logger.error(
                "%s. Until then broker %d has a replica less", self._unusable, self._node_id
            )
            return
        self._fence = NO_EPOCH if fence is None else fence["epoch"]
        # After the fence, without which it is not known which copies may be written to.
        for name in names:
            path = f"{self._folder}/{name}"
            if _EPOCH.fullmatch(name):
                self._open_copy(path, int(name))
            elif _LEFT.fullmatch(name):
                try:
                    delete_folder(self._files, path)
                except OSError as failure:
                    logger.warning("%s cannot be deleted: %s", path, failure.strerror)

    def _open_copy(self, path: str, epoch: int) -> None:
        try:
            copy = JournalCopy.open(self._files, path)
        except (OSError, FollowerError) as failure:
            self._left_out[epoch] = (
                f"the copy of the log of broker {self._node_id}, epoch {epoch}, is not used, and "
                f"its folder stays as it is: {reason(failure, path)}. Restart broker "
                f"{self._node_id}, which then sends its log again, and delete {path} after that"
            )
            logger.error(
                "%s. Until then broker %d has a replica less", self._left_out[epoch], self._node_id
            )
            return
        self._copies[copy.epoch] = copy
        logger.info(
            "copy of the log of broker %d, epoch %d: %s", self._node_id, copy.epoch, _extent(copy)
        )

    def _check(self, epoch: int) -> None:
        """Raise Fenced if there is a higher epoch, FollowerError if that is not known."""
        if self._unusable:
            raise FollowerError(self._unusable)
        # A damaged copy counts: the broker of its epoch has started, whatever its files say.
        higher = max(self._fence, *self._copies, *self._left_out, NO_EPOCH)
        if higher > epoch:
            raise Fenced(higher)

    def _check_begun(self, copy: JournalCopy, continues: int, at: int) -> None:
        """Raise FollowerError if a copy of the same epoch has the log of another process, as after
        the metadata database was replaced by an older one."""
        if copy.begun is None or copy.begun == (continues, at):
            return
        earlier, begun_at = copy.begun
        raise FollowerError(
            f"another process of broker {self._node_id} has written the log of epoch {copy.epoch} "
            f"here: it continued epoch {earlier} at {position_text(begun_at)}, and this one "
            f"continues epoch {continues} at {position_text(at)}. Restart it, so that it gets a "
            "higher epoch"
        )

    def _current(self, epoch: int) -> JournalCopy:
        self._check(epoch)
        copy = self._copies.get(epoch)
        if copy is None:
            raise FollowerError(f"no copy of epoch {epoch} of broker {self._node_id} was begun")
        return copy

    def _new_copy(self, epoch: int, continues: int, at: int, first: int) -> JournalCopy:
        """Return the copy of a higher epoch than all others: a continued one or an empty one.
        Raises FollowerError if the copy of this epoch is left out."""
        # An empty one of the same epoch would count for what the damaged one has acknowledged.
        if epoch in self._left_out:
            raise FollowerError(self._left_out[epoch])
        for earlier in sorted(self._copies, reverse=True):
            copy = self._copies[earlier]
            if copy.common(continues) is None:
                continue
            # The cut would remove acknowledged bytes, of which this may be the only good copy.
            if at < copy.committed:
                raise FollowerError(
                    f"broker {self._node_id} continues its log at {position_text(at)} with epoch "
                    f"{epoch}, before the end of what was acknowledged, which is "
                    f"{position_text(copy.committed)} in {copy.folder}: its files were damaged, or "
                    "are an older copy. This follower keeps its copy; a start of the broker with "
                    "an empty data folder uses it"
                )
            copy.become(epoch, continues, at)
            del self._copies[earlier]
            break
        else:
            self._files.make_folder(self._folder)
            begun = continues, at
            copy = JournalCopy.create(self._files, self._folder, epoch, first, begun)
        self._copies[epoch] = copy
        return copy

    def _of(self, epoch: int) -> tuple[JournalCopy, int]:
        """Return the copy with the log of an epoch, and the log position before which it has it."""
        # Its own copy first, which has the whole log; the others end where they continued it.
        for candidate in sorted(self._copies, key=lambda each: (each == epoch, each), reverse=True):
            copy = self._copies[candidate]
            limit = copy.common(epoch)
            if limit is not None:
                return copy, limit
        raise FollowerError(
            self._unusable
            or self._left_out.get(epoch)
            or f"this follower has no copy of the log of broker {self._node_id}, epoch {epoch}"
        )

    def _list_trusted(self, epoch: int) -> CopyListing:
        copy, limit = self._of(epoch)
        return replace(copy.listing(limit), end=min(copy.end, limit))

    def _report_unknown(self, copy: JournalCopy, names: list[str]) -> None:
        if copy.folder not in self._reported:
            self._reported.add(copy.folder)
            logger.warning(
                "%s is not needed any more, but has files that are not of a copy (%s, ...): it is "
                "left as it is; delete it if they are not needed", copy.folder, names[0],
            )  # fmt: skip


def _extent(copy: JournalCopy) -> str:
    listing = copy.listing((1 << 63) - 1)
    if not listing.files:
        return "no journal"
    size = sum(length for _, length in listing.files)
    journals = count(len(listing.files), "journal")
    return f"{journals} with {size:,} bytes, up to {position_text(listing.end)}"
