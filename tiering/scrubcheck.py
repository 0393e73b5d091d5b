"""A scrub looks again, and closer: what seems wrong about one object, what its bytes say.

What turns out to be wrong becomes a finding, with what was or would be done about it. Shell.
"""

from __future__ import annotations

import os.path

from kafkawire.codec.segment import FormatError
from kafkawire.manifest.keys import segment_key
from log.env import WorkerError
from log.segments.jobs import ScrubArguments, ScrubResult
from offsets.storage import COPY_FINISHED, ObjectRow, SegmentRow
from tiering.restore.asking import Asking
from tiering.scrubplan import Finding, Kind, Suspect, ranges_text, unlike
from tiering.scrubrepair import Site, condemn, heal, publish
from tiering.store import NoSuchObject, StoreError
from tiering.tails import read_tail

ROOM_LEFT_BYTES = 256 << 20
"""Never taken by objects that a deep scrub brings here."""


class Checker:
    """See the module. With `repair` it mends what it finds."""

    def __init__(self, site: Site, asking: Asking, repair: bool) -> None:
        self._site = site
        self._asking = asking
        self._repair = repair

    async def verify(self, suspect: Suspect) -> Finding | None:
        """Look again at an object that seems to have no row, or the other way round."""
        key = segment_key(suspect.uuid)
        try:
            if suspect.kind == Kind.ORPHAN:
                return await self._orphan(suspect.uuid, key)
            return await self._lost(suspect.uuid, key)
        except (StoreError, OSError) as failure:
            return Finding(Kind.UNREADABLE, key, f"it could not be looked at: {failure}")

    async def _orphan(self, uuid: bytes, key: str) -> Finding | None:
        site = self._site
        if await site.storage.objects_by_uuid([uuid]):
            return None
        try:
            size = (await self._asking.head(key)).size_bytes
            tail = await read_tail(self._asking, key, size)
            cluster_id = tail.origin.cluster_id if tail.origin is not None else site.cluster_id
        except NoSuchObject:
            return None
        except FormatError:
            cluster_id = site.cluster_id
        if cluster_id != site.cluster_id:
            text = f"an object of {size} bytes of another cluster, {cluster_id}"
            return Finding(Kind.ORPHAN, key, text)
        if self._repair:
            await condemn(site, [uuid])
        text = f"an object of {size} bytes that no row knows"
        return Finding(Kind.ORPHAN, key, text, self._done("deleted after the grace"))

    async def _lost(self, uuid: bytes, key: str) -> Finding | None:
        row = await self._finished(uuid)
        if row is None:
            return None
        try:
            size = (await self._asking.head(key)).size_bytes
        except NoSuchObject:
            return await self._harmed(row, Kind.DANGLING, "its object is gone")
        if size == row.size_bytes:
            return None
        text = f"it has {size} bytes, its row says {row.size_bytes}"
        return await self._harmed(row, Kind.SIZE, text)

    async def _finished(self, uuid: bytes) -> ObjectRow | None:
        rows = await self._site.storage.objects_by_uuid([uuid])
        return rows[0] if rows and rows[0].state == COPY_FINISHED else None

    async def _harmed(self, row: ObjectRow, kind: Kind, why: str) -> Finding:
        """An object that cannot be read; its segment's file may be here still."""
        site, key = self._site, segment_key(row.uuid)
        mended = site.segments.is_local(row.segment_id)
        if mended and self._repair:
            mended = await heal(site, row.uuid)
        offsets = ranges_text(row.ranges, site.catalog.locate)
        if mended:
            text = f"{why}; its file is still here, with offsets {offsets}"
            return Finding(kind, key, text, self._done("uploaded anew"))
        return Finding(kind, key, f"{why}; lost: offsets {offsets}")

    def _done(self, what: str) -> str:
        return f"{'will' if self._repair else 'would'} be {what}"

    async def differs(self, suspect: Suspect) -> Finding | None:
        """An object that only the manifest knows, or a finished one that it does not."""
        site, key = self._site, segment_key(suspect.uuid)
        try:
            rows = await site.storage.objects_by_uuid([suspect.uuid])
            if suspect.kind == Kind.NAMED:
                if rows:
                    return None
                if self._repair:
                    await condemn(site, [suspect.uuid])
                text = "the manifest names an object that no row knows"
                return Finding(Kind.NAMED, key, text, self._done("deleted after the grace"))
            if not rows or rows[0].state != COPY_FINISHED:
                return None
            if self._repair:
                await publish(site, suspect.uuid)
        except (StoreError, OSError) as failure:
            return Finding(Kind.UNREADABLE, key, f"the manifest could not be told of it: {failure}")
        text = "the manifest does not name it"
        return Finding(Kind.UNNAMED, key, text, self._done("entered in the manifest"))

    # -- its bytes

    async def look_into(self, uuid: bytes, size_bytes: int, deep: bool) -> Finding | None:
        """Hold what an object says against its rows; `deep`: all of its bytes."""
        site, key = self._site, segment_key(uuid)
        try:
            row = await self._finished(uuid)
            segments = [] if row is None else await site.storage.segments_by_id([row.segment_id])
            if row is None or not segments:
                return None
            why = await self._unlike(key, size_bytes, segments[0])
            if not why and deep:
                why = await self._problem(key, size_bytes, segments[0])
            row = await self._finished(uuid) if why else None
            return None if row is None else await self._harmed(row, Kind.FORMAT, why)
        except (StoreError, OSError, WorkerError) as failure:
            return Finding(Kind.UNREADABLE, key, f"it could not be looked at: {failure}")

    async def _unlike(self, key: str, size_bytes: int, segment: SegmentRow) -> str:
        mappings = await self._site.storage.segment_mappings([segment.id])
        try:
            tail = await read_tail(self._asking, key, size_bytes)
        except FormatError as failure:
            return str(failure)
        except NoSuchObject:
            return ""  # the next scrub knows why
        await self._site.env.sleep(0)
        return unlike(tail, segment, mappings)

    async def _problem(self, key: str, size_bytes: int, segment: SegmentRow) -> str:
        """The first problem that the worker finds in a copy of the object; empty: none."""
        site = self._site
        fs, rate = site.env.fs, site.bytes_per_second()
        path = os.path.join(site.folder, f"{segment.uuid.hex()}.object")

        def prepare() -> int:
            fs.makedirs(site.folder)
            fs.remove(path)
            return fs.free_bytes(site.folder)[1]

        free = await site.env.offload.submit("files", prepare)
        if size_bytes + ROOM_LEFT_BYTES > free:
            raise OSError(f"there is no room for its {size_bytes} bytes on the local disk")
        try:
            await self._asking.retry(lambda: site.store.download(key, path, rate))
            arguments = ScrubArguments(path, segment.uuid)
            result: ScrubResult = await site.env.worker.run("scrub", arguments, rate)
        except NoSuchObject:
            return ""
        finally:
            await site.env.offload.submit("files", fs.remove, path)
        problems = result.problems
        more = f" and {len(problems) - 1} more problems" if len(problems) > 1 else ""
        return problems[0].replace(f"{path}: ", "").replace(path, "it") + more if problems else ""
