"""The segment files that this broker reads: which exist, their readers, and their deletion.

A file is opened at its first read, and checked then: that it is the segment of its row, complete,
and of a version this program reads. It stays open as long as it is among those read last. It is
removed when no row needs it any more, its delay has passed, and no reader uses it.

A segment whose row is not local is in the remote tier and has no file, or one that is about to be
removed, or one that was downloaded for a job of the worker: readers do not use it.

A partition that another broker of this data folder led before has segments of that broker. They are
read where they are, in `<data>/brokers/<node id>/segments`: the file stays as long as a mapping
points to it, and the mappings of a partition are changed by its leader only. Their files are
written, removed and uploaded by the broker that wrote them. A partition that comes from a broker
with another data folder has only objects: what a job of the worker needs is downloaded to
`<data>/brokers/<node id>/downloads`, which is emptied at each start.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace as replace_fields

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import HEADER_BYTES, TAIL_BYTES, read_trailer
from kafkawire.hooks import SegmentRemoved
from kafkawire.log.io.ports import Env, File, FileSystem
from kafkawire.log.segments.file.open import check_file, segment_path
from kafkawire.offsets.catalog.port import LIVE, SegmentCatalog, SegmentRange, SegmentRow

logger = logging.getLogger(__name__)

MAX_HANDLES = 256
"""Open segment files; a process has a thousand handles by default, and most are for clients."""
LEARNED_AT_ONCE = 1000
"""Rows of other brokers' segments read at a time: milliseconds."""
REMOVED_AT_ONCE = 100
"""Files removed between two transactions that remove their rows."""


DOWNLOADS = "downloads"
"""Folder next to that of the segments."""


class NotLocal(KafkaError):
    """The segment has no local file: it is in the remote tier."""


class Segment:
    """One segment: its row, `pins` of its readers, its handle while it is open."""

    __slots__ = (
        "bad",
        "cut_ms",
        "file",
        "gone_at",
        "grace_s",
        "has_file",
        "listed",
        "name",
        "opening",
        "path",
        "payload_bytes",
        "pins",
        "replaced",
        "row",
        "since",
    )

    def __init__(self, row: SegmentRow, folder: str) -> None:
        self.row = row
        self.name = row.uuid.hex()
        self.path = segment_path(folder, row.uuid)
        self.pins = 0
        # When its newest part was cut, if that is known.
        self.cut_ms = row.created_ms
        # Of all batches that were written to it; -1 until that is known.
        self.payload_bytes = -1
        # Why it cannot be read.
        self.bad: KafkaError | None = None
        self.file: File | None = None
        # Handles of earlier files that readers may still use.
        self.replaced: list[File] = []
        self.opening: asyncio.Future[File] | None = None
        # Since when no row needs it (monotonic seconds); None while it is live.
        self.gone_at: float | None = None
        # How long its file stays from then on; None: the broker's setting.
        self.grace_s: float | None = None
        # Whether there may be a file, in spite of the row.
        self.has_file = row.local
        # Whether the local manifest has it, or is about to (kafkawire.log.local_manifest).
        self.listed = row.local
        # When the oldest tiered record in it arrived at the earliest (monotonic seconds), if known.
        self.since: float | None = None

    def close_replaced(self) -> None:
        for file in self.replaced:
            file.close()
        self.replaced.clear()


class SegmentStore:
    """The open segment files of a broker. `by_id` has every segment of its own with a row, also
    those that wait for their deletion; `others` those of other brokers that its partitions have.
    `folder`: that of its own, `<data>/brokers/<node_id>/segments`; `downloads`: that of files of
    other brokers' segments which were downloaded."""

    __slots__ = (
        "_env",
        "_gone",
        "_node_id",
        "_opened",
        "_renewed",
        "_storage",
        "by_id",
        "downloads",
        "folder",
        "others",
    )

    def __init__(self, env: Env, storage: SegmentCatalog, folder: str, node_id: int) -> None:
        self._env = env
        self._storage = storage
        self._node_id = node_id
        self.folder = folder
        self.downloads = os.path.join(os.path.dirname(folder), DOWNLOADS)
        self.by_id: dict[int, Segment] = {}
        self.others: dict[int, Segment] = {}
        self._gone: list[Segment] = []
        self._opened: dict[int, Segment] = {}  # in the order of last use
        # Up to which id the other brokers' segments were read again.
        self._renewed = 0

    def add(self, row: SegmentRow) -> Segment:
        segment = self.by_id[row.id] = Segment(row, self.folder)
        return segment

    def find(self, segment_id: int) -> Segment | None:
        """Return a segment, of this or another broker; None if none is known by this id."""
        segment = self.by_id.get(segment_id)
        return segment if segment is not None else self.others.get(segment_id)

    def get_segment(self, segment_id: int) -> Segment:
        """As `find`. KAFKA_STORAGE_ERROR if none is known."""
        segment = self.find(segment_id)
        if segment is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"segment {segment_id} does not exist")
        return segment

    async def learn(self, mappings: Iterable[SegmentRange]) -> None:
        """Find the segments of other brokers in the rows of partitions that are being loaded."""
        by_id, others = self.by_id, self.others
        unknown = {each.segment_id for each in mappings if each.segment_id not in by_id}
        unknown = {segment_id for segment_id in unknown if segment_id not in others}
        wanted = sorted(unknown)
        for at in range(0, len(wanted), LEARNED_AT_ONCE):
            rows = await self._storage.segments_by_id(wanted[at : at + LEARNED_AT_ONCE])
            for row in rows:
                # A row of this broker that is not in `by_id` was removed since.
                if row.node_id != self._node_id:
                    self.add_other(row)

    def add_other(self, row: SegmentRow) -> Segment:
        """Return the segment of another broker, which may be known already."""
        segment = self.others.get(row.id)
        if segment is None:
            segment = self.others[row.id] = Segment(row, self._folder_of(row.node_id))
        return segment

    def _folder_of(self, node_id: int) -> str:
        """Return the folder of segments of another broker with the same data folder."""
        brokers = os.path.dirname(os.path.dirname(self.folder))
        return os.path.join(brokers, str(node_id), os.path.basename(self.folder))

    async def renew_others(self) -> None:
        """Read some rows of other brokers' segments again, the next ones at each call: their
        brokers upload them and remove files; and forget those without mappings."""
        ids = sorted(each for each in self.others if each > self._renewed)[:LEARNED_AT_ONCE]
        # After the last ones it begins again with the first.
        self._renewed = ids[-1] if len(ids) == LEARNED_AT_ONCE else 0
        if not ids:
            return
        rows = {row.id: row for row in await self._storage.segments_by_id(ids)}
        for segment_id in ids:
            self.renew_other(segment_id, rows.get(segment_id))

    def renew_other(self, segment_id: int, row: SegmentRow | None) -> None:
        """Apply the row of another broker's segment; None: it does not exist any more."""
        segment = self.others.get(segment_id)
        if segment is None:
            return
        if row is not None:
            segment.row = row
        if row is None or row.state > LIVE:
            del self.others[segment_id]
            # A reader still has it; its handle is closed with the oldest ones.
            if not segment.pins:
                self._close(segment_id)

    async def prepare_others(self, segments: Iterable[Segment]) -> None:
        """Have other brokers' segments without a file in this data folder downloaded to
        `downloads` when they are needed. Raises CORRUPT_MESSAGE if one has no object either,
        KAFKA_STORAGE_ERROR if its broker, on another machine, has not uploaded it yet."""
        for segment in segments:
            own = segment_path(self.downloads, segment.row.uuid)
            if segment.row.node_id == self._node_id:
                continue
            if segment.path == own:  # the row in SQL is about the disk of the other broker
                segment.row = replace_fields(segment.row, local=False)
                continue
            if segment.row.local:
                path = segment.path
                # A broker with the same data folder: its file is read where it is.
                if await self._env.offload.submit("files", exists, self._env.fs, path):
                    continue
                missing = await self._other_missing(segment)
                # The row was read again: it may have an object.
                if segment.row.local:
                    raise missing
            await self._env.offload.submit("files", self._env.fs.makedirs, self.downloads)
            # Not to the folder of the other broker. Another job may have downloaded it meanwhile.
            if segment.path != own:
                segment.path, segment.has_file = own, False

    async def remove_downloads(self, segments: Collection[Segment]) -> None:
        """Remove downloaded files of other brokers' segments. No reader may have one pinned."""
        for segment in segments:
            self._close(segment.row.id)
        paths = [segment.path for segment in segments]
        await self._env.offload.submit("files", remove, self._env.fs, self.downloads, paths)
        for segment in segments:
            segment.has_file = False

    def is_local(self, segment_id: int) -> bool:
        segment = self.find(segment_id)
        return segment is not None and segment.row.local

    @asynccontextmanager
    async def open_segment(self, segment_id: int) -> AsyncIterator[tuple[Segment, File]]:
        """Return a segment, pinned and open for reading from threads.

        Raises OSError from the disk, CORRUPT_MESSAGE if the file does not match its row or is
        missing, NotLocal if it is only in the remote tier.
        """
        segment = self.get_segment(segment_id)
        if not segment.row.local:
            raise not_local(segment)
        # Before the first await: a file that is pinned is not removed.
        segment.pins += 1
        try:
            file = segment.file
            if file is None:
                file = await self._open(segment)
            # To the end: it was used last.
            self._opened.pop(segment_id, None)
            self._opened[segment_id] = segment
            yield segment, file
        finally:
            self._unpin(segment)

    def opened_already(self, segment_id: int) -> tuple[Segment, File] | None:
        """Return a local segment whose file is open, as `opened` but not pinned; None if not."""
        segment = self._opened.get(segment_id)
        if segment is None or segment.file is None or not segment.row.local:
            return None
        del self._opened[segment_id]
        self._opened[segment_id] = segment
        return segment, segment.file

    def pin(self, segment: Segment) -> Callable[[], None]:
        """Pin an open segment beyond `opened`; return the function to call once at the end."""
        segment.pins += 1

        def release() -> None:
            self._unpin(segment)

        return release

    def _unpin(self, segment: Segment) -> None:
        segment.pins -= 1
        if segment.replaced and not segment.pins:
            segment.close_replaced()
        if len(self._opened) > MAX_HANDLES:
            self._close_oldest()

    async def _open(self, segment: Segment) -> File:
        """Open and check it, once for all concurrent readers. A bad one is logged once."""
        # Damage stays: the file is not read again for every request.
        if segment.bad is not None:
            raise segment.bad
        if segment.opening is None:
            opening = self._env.offload.submit(
                "warm", check_file, self._env.fs, segment.path, segment.row
            )
            segment.opening = opening

            def note_opened(_: object) -> None:
                # A failure of the disk is tried again by the next reader; damage is kept in `bad`.
                segment.opening = None
                failure = None if opening.cancelled() else opening.exception()
                if isinstance(failure, KafkaError):
                    segment.bad = failure
                    logger.critical(
                        "%s. Reading its records returns an error; all other segments are served",
                        failure.message,
                    )
                elif failure is None and not opening.cancelled():
                    segment.file = opening.result()

            opening.add_done_callback(note_opened)
        try:
            # A reader that is cancelled must not cancel the others.
            return await asyncio.shield(segment.opening)
        except FileNotFoundError as failure:
            # Another broker removes its files itself: its row says where the segment is now.
            if segment.row.node_id != self._node_id:
                raise await self._other_missing(segment) from failure
            text = f"the file of segment {segment.name} is gone"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from failure

    async def _other_missing(self, segment: Segment) -> KafkaError:
        """Return the error for another broker's segment that has no file in this data folder. One
        with an object counts as not local from now on: its broker has removed the file, or has
        another data folder."""
        rows = await self._storage.segments_by_id([segment.row.id])
        self.renew_other(segment.row.id, rows[0] if rows else None)
        row = segment.row
        if row.object:
            segment.row = replace_fields(row, local=False)
            return not_local(segment)
        folder = os.path.dirname(segment.path)
        if row.local and not await self._env.offload.submit(
            "warm", has_folder, self._env.fs, folder
        ):
            # Of another machine: a merge or a cleaning has replaced a segment that was uploaded
            # before the partition was moved. It is no damage, by which a coordinator would lose
            # its groups or transactions: they are loaded when it is uploaded.
            text = (
                f"segment {segment.name} is on the machine of broker {row.node_id} only, until "
                "that broker has uploaded it: it is read again later"
            )
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        text = f"segment {segment.name} of broker {row.node_id} has no file {segment.path}"
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, text)

    def _close_oldest(self) -> None:
        for segment_id, segment in list(self._opened.items()):
            if len(self._opened) <= MAX_HANDLES:
                return
            # Pinned ones are skipped, so there may be more than MAX_HANDLES for a while.
            if not segment.pins:
                self._close(segment_id)

    def _close(self, segment_id: int) -> None:
        segment = self._opened.pop(segment_id, None)
        if segment is not None:
            segment.close_replaced()
            if segment.file is not None:
                segment.file.close()
                segment.file = None

    async def remove_files(self, segments: Collection[Segment]) -> None:
        """Remove files of segments that are not local, durably; their rows stay. No reader may have
        one of them pinned, or pin it later."""
        for segment in segments:
            self._close(segment.row.id)
            segment.bad = None  # it was about the removed file
        paths = [segment.path for segment in segments]
        await self._env.offload.submit("files", remove, self._env.fs, self.folder, paths)
        for segment in segments:
            segment.has_file = False

    async def replace_file(self, segment: Segment, path: str) -> None:
        """Replace the file of a segment by `path`, durably. Readers that have the old one open
        finish with it; its handle is closed after the last. OSError."""
        await self._env.offload.submit("files", replace, self._env.fs, path, segment.path)
        self._opened.pop(segment.row.id, None)
        old, segment.file, segment.bad = segment.file, None, None
        if old is not None:
            segment.replaced.append(old)
            # Only the pin of the caller: no reader uses the old handle.
            if segment.pins <= 1:
                segment.close_replaced()

    def schedule_removal(self, ids: Iterable[int]) -> None:
        """Remove these, which no row needs any more, after their delay."""
        for segment_id in ids:
            segment = self.by_id.get(segment_id)
            # The delay begins once, when the first caller reports it.
            if segment is not None and segment.gone_at is None:
                segment.gone_at = self._env.clock.monotonic()
                self._gone.append(segment)

    async def sweep(self, grace_s: float, *, now: bool = False) -> None:
        """Remove the files whose delay has passed and that no reader has open, then their rows.
        `grace_s` is the delay of segments without one of their own; `now`: remove all, since the
        disk fills up."""
        time = self._env.clock.monotonic()
        due = [
            segment
            for segment in self._gone
            # A reader that is slow keeps the file; the next sweep tries again.
            if not segment.pins and (now or _gone_until(segment, grace_s) <= time)
        ]
        for at in range(0, len(due), REMOVED_AT_ONCE):
            await self.discard(due[at : at + REMOVED_AT_ONCE])

    async def discard(self, segments: list[Segment]) -> None:
        """Remove files that no reader can open any more, durably, then their rows."""
        for segment in segments:
            # From here on no reader finds it, so none can pin it.
            self.by_id.pop(segment.row.id, None)
            self._close(segment.row.id)
        paths = [segment.path for segment in segments]
        try:
            # The file first, durably, then the row: a crash never leaves a file without a row,
            # which the next start could not tell from a stranger's.
            await self._env.offload.submit("files", remove, self._env.fs, self.folder, paths)
            await self._storage.drop_segments([segment.row.id for segment in segments])
        except BaseException:
            for segment in segments:  # tried again by the next sweep
                self.by_id[segment.row.id] = segment
                if segment.gone_at is None:
                    segment.gone_at = self._env.clock.monotonic()
                    self._gone.append(segment)
            raise
        self._gone = [segment for segment in self._gone if segment not in segments]
        if self._env.hooks is not None:
            for segment in segments:
                self._env.hooks.emit(SegmentRemoved(segment.row.uuid.hex()))

    def close(self) -> None:
        for segment_id in list(self._opened):
            self._close(segment_id)


def _gone_until(segment: Segment, grace_s: float) -> float:
    """Return until when (monotonic seconds) the file of a dead segment stays."""
    assert segment.gone_at is not None, "it is dead"
    return segment.gone_at + (grace_s if segment.grace_s is None else segment.grace_s)


def has_folder(fs: FileSystem, path: str) -> bool:
    """Return whether a folder exists. Blocks."""
    try:
        fs.listdir(path)
    except FileNotFoundError:
        return False
    return True


def not_local(segment: Segment) -> NotLocal:
    """Return the error for a segment without a local file."""
    text = f"segment {segment.name} is in the remote tier alone"
    return NotLocal(ErrorCode.KAFKA_STORAGE_ERROR, text)


def payload_bytes(fs: FileSystem, path: str) -> int:
    """Return the bytes of batches in a segment file; 0 if it cannot be read. Runs in a thread."""
    try:
        file = fs.open(path)
    except OSError:
        return 0
    try:
        size = file.size()
        at = max(0, size - TAIL_BYTES)
        return read_trailer(file.pread(size - at, at), size).batches_end - HEADER_BYTES
    except (OSError, FormatError):
        return 0
    finally:
        file.close()


def replace(fs: FileSystem, path: str, target: str) -> None:
    """Rename a file over another one, durably. Runs in a thread."""
    file = fs.open(path)
    try:
        # The content before the name: a crash must not leave the new name with missing bytes.
        file.sync()
    finally:
        file.close()
    fs.rename(path, target)
    # The rename is durable with the folder.
    fs.sync_dir(os.path.dirname(target))


def exists(fs: FileSystem, path: str) -> bool:
    """Return whether there is a file. Runs in a thread."""
    try:
        fs.open(path).close()
    except FileNotFoundError:
        return False
    return True


def empty(fs: FileSystem, folder: str) -> None:
    """Remove all files of a folder, if there is one. Runs in a thread."""
    try:
        names = fs.listdir(folder)
    except FileNotFoundError:
        return
    remove(fs, folder, [os.path.join(folder, name) for name in names])


def remove(fs: FileSystem, folder: str, paths: list[str]) -> None:
    """Remove files durably. Runs in a thread."""
    for path in paths:
        fs.remove(path)
    # Once for all files.
    fs.sync_dir(folder)
