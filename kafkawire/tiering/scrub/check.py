"""The detailed check of one suspect object of a scrub, including its bytes.

A confirmed problem becomes a finding with the action that was or would be taken.
"""

from __future__ import annotations

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.log.io.ports import WorkerError
from kafkawire.log.io.worker_jobs import DamagedRange, Lost
from kafkawire.log.segments.strays import describe, find_unaccounted
from kafkawire.manifest.keys import segment_key
from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.offsets.catalog.port import COPY_FINISHED, ObjectRow, SegmentRow, StaleSwap
from kafkawire.tiering.scrub.local_copy import is_sound_here, local_copy, scrub_file, skip
from kafkawire.tiering.scrub.plan import Finding, FindingKind, Suspect, ranges_text, unlike
from kafkawire.tiering.scrub.repair import Site, discard_remote_copy, publish, schedule_deletion
from kafkawire.tiering.store.object_footer import Tail, read_tail
from kafkawire.tiering.store.retrying import RetryingCalls


class Checker:
    """Checks suspect objects of a scrub. With `repair` it repairs what it finds; with `skip_lost`
    it also rewrites segments without the records that no copy has any more."""

    def __init__(
        self, site: Site, asking: RetryingCalls, repair: bool, skip_lost: bool = False
    ) -> None:
        self._site = site
        self._asking = asking
        self._repair = repair
        self._skip_lost = repair and skip_lost

    async def verify(self, suspect: Suspect) -> list[Finding]:
        """Check an object again that seems to have no row, or a row that seems without object."""
        key = segment_key(suspect.uuid)
        try:
            if suspect.kind == FindingKind.ORPHAN:
                finding = await self._orphan(suspect.uuid, key)
                return [] if finding is None else [finding]
            return await self._check_presence(suspect.uuid, key)
        except (StoreError, OSError, WorkerError, StaleSwap) as failure:
            return [_report_unreadable(key, failure)]

    async def _orphan(self, uuid: bytes, key: str) -> Finding | None:
        site = self._site
        # It has got a row since its page was listed.
        if await site.storage.objects_by_uuid([uuid]):
            return None
        kept = ""
        try:
            size = (await self._asking.head(key)).size_bytes
            tail = await read_tail(self._asking, key, size)
            cluster_id = tail.origin.cluster_id if tail.origin is not None else site.cluster_id
            # Two clusters share the bucket by mistake: nothing of the other one is deleted.
            if cluster_id != site.cluster_id:
                text = f"an object of {size} bytes of another cluster, {cluster_id}"
                return Finding(FindingKind.ORPHAN, key, text)
            kept = await self._only_copy(tail)
        except NoSuchObject:
            return None
        except NewerFormatError as failure:
            return _report_unreadable(key, failure)
        except FormatError:
            pass  # unreadable
        if kept:
            return Finding(
                FindingKind.ORPHAN, key, f"an object of {size} bytes that no row knows, {kept}"
            )
        if self._repair:
            await schedule_deletion(site, [uuid])
        text = f"an object of {size} bytes that no row knows"
        return Finding(
            FindingKind.ORPHAN, key, text, self._describe_action("deleted after the grace")
        )

    async def _only_copy(self, tail: Tail) -> str:
        """Describe records of an object without a row that exist nowhere else; empty if none do."""
        site = self._site
        entries = tail.directory
        found = await find_unaccounted(
            entries, site.catalog, site.storage, site.known, lambda _: []
        )
        if not found:
            return ""
        return f"and the only copy of {describe(found)}: it is kept, the metadata may be older"

    async def _named_copy(self, key: str) -> str:
        """Like `_only_copy`, for an object that may be deleted meanwhile."""
        try:
            size = (await self._asking.head(key)).size_bytes
            return await self._only_copy(await read_tail(self._asking, key, size))
        except NewerFormatError as failure:
            return f"which is kept: {failure}"
        except (NoSuchObject, FormatError):
            return ""

    async def _check_presence(self, uuid: bytes, key: str) -> list[Finding]:
        row = await self._find_finished_row(uuid)
        if row is None:
            return []
        try:
            size = (await self._asking.head(key)).size_bytes
        except NoSuchObject:
            return await self._report_damaged_object(
                row, FindingKind.DANGLING, "its object is gone", [], ""
            )
        if size == row.size_bytes:
            return []
        text = f"it has {size} bytes, its row says {row.size_bytes}"
        return await self._with_copy(row, FindingKind.SIZE, text, size)

    async def _find_finished_row(self, uuid: bytes) -> ObjectRow | None:
        rows = await self._site.storage.objects_by_uuid([uuid])
        return rows[0] if rows and rows[0].state == COPY_FINISHED else None

    async def _with_copy(
        self, row: ObjectRow, kind: FindingKind, why: str, size_bytes: int
    ) -> list[Finding]:
        """Like `_report_damaged_object`, with a copy if batches may have to be left out."""
        site = self._site
        if not self._skip_lost:
            return await self._report_damaged_object(row, kind, why, [], "")
        async with local_copy(site, self._asking, row.uuid, size_bytes) as path:
            return await self._report_damaged_object(row, kind, why, [], path)

    async def _report_damaged_object(
        self, row: ObjectRow, kind: FindingKind, why: str, damaged: list[DamagedRange], path: str
    ) -> list[Finding]:
        """Report a damaged object and, with `repair`, repair it. `damaged`: its damaged batches if
        known, else `why` describes the object; `path`: of a copy of it, empty if there is none."""
        site, key = self._site, segment_key(row.uuid)
        repairable = await is_sound_here(site, row)
        if repairable and self._repair:
            repairable = await discard_remote_copy(site, row.uuid)
        action = self._describe_action("uploaded again") if repairable else ""
        lost: list[Lost] | None = None
        if not repairable and self._skip_lost:
            lost = await skip(site, row, path)
            count = sum(each.end - each.first for each in lost)
            action = f"written again without {count} offset{'' if count == 1 else 's'}"
        where = "; its file is still here" if repairable else ""
        if damaged:
            return [Finding(kind, key, each.text + where, action) for each in damaged]
        if lost is not None:
            names = ", ".join(
                f"{each.first}-{each.end - 1} of {each.topic}-{each.index}" for each in lost
            )
            return [Finding(kind, key, f"{why}; lost: offsets {names or 'none'}", action)]
        offsets = ranges_text(row.ranges, site.catalog.locate)
        if repairable:
            return [Finding(kind, key, f"{why}{where}, with offsets {offsets}", action)]
        return [Finding(kind, key, f"{why}; lost: offsets {offsets}")]

    def _describe_action(self, what: str) -> str:
        return f"{'will' if self._repair else 'would'} be {what}"

    async def differs(self, suspect: Suspect) -> Finding | None:
        """Check an object that only the manifest names, or a finished one that it does not name."""
        site, key = self._site, segment_key(suspect.uuid)
        try:
            rows = await site.storage.objects_by_uuid([suspect.uuid])
            if suspect.kind == FindingKind.NAMED:
                if rows:
                    return None
                text = "the manifest names an object that no row knows"
                kept = await self._named_copy(key)
                if kept:
                    return Finding(FindingKind.NAMED, key, f"{text}, {kept}")
                if self._repair:
                    await schedule_deletion(site, [suspect.uuid])
                return Finding(
                    FindingKind.NAMED, key, text, self._describe_action("deleted after the grace")
                )
            if not rows or rows[0].state != COPY_FINISHED:
                return None
            if self._repair:
                await publish(site, suspect.uuid)
        except (StoreError, OSError) as failure:
            return Finding(
                FindingKind.UNREADABLE, key, f"the manifest could not be updated:  {failure}"
            )
        text = "the manifest does not name it"
        return Finding(
            FindingKind.UNNAMED, key, text, self._describe_action("entered in the manifest")
        )

    async def examine(self, uuid: bytes, size_bytes: int, deep: bool) -> list[Finding]:
        """Compare an object's contents with its rows; `deep`: all of its bytes."""
        site, key = self._site, segment_key(uuid)
        try:
            row = await self._find_finished_row(uuid)
            segments = [] if row is None else await site.storage.segments_by_id([row.segment_id])
            if row is None or not segments:
                return []
            why = await self._unlike(key, size_bytes, segments[0])
            # Read again: the segment may have been replaced while its object was read.
            if why:
                row = await self._find_finished_row(uuid)
                return (
                    []
                    if row is None
                    else await self._with_copy(row, FindingKind.FORMAT, why, size_bytes)
                )
            return await self._all_bytes(row, segments[0], size_bytes) if deep else []
        except NoSuchObject:
            return []  # left to the next scrub
        except (StoreError, OSError, WorkerError, StaleSwap, NewerFormatError) as failure:
            return [_report_unreadable(key, failure)]

    async def _unlike(self, key: str, size_bytes: int, segment: SegmentRow) -> str:
        mappings = await self._site.storage.segment_mappings([segment.id])
        try:
            tail = await read_tail(self._asking, key, size_bytes)
        # It is sound, so it must not be repaired.
        except NewerFormatError:
            raise
        except FormatError as failure:
            return str(failure)
        await self._site.env.slices.pause()
        return unlike(tail, segment, mappings)

    async def _all_bytes(
        self, row: ObjectRow, segment: SegmentRow, size_bytes: int
    ) -> list[Finding]:
        site = self._site
        async with local_copy(site, self._asking, row.uuid, size_bytes) as path:
            result = await scrub_file(site, path, segment.uuid)
            still = await self._find_finished_row(row.uuid) if result.problems else None
            if still is None:
                return []
            others = result.problems[: len(result.problems) - len(result.damaged)]
            more = f" and {len(others) - 1} more problems" if len(others) > 1 else ""
            why = others[0].replace(f"{path}: ", "").replace(path, "it") + more if others else ""
            return await self._report_damaged_object(
                still, FindingKind.FORMAT, why, result.damaged, path
            )


def _report_unreadable(key: str, failure: Exception) -> Finding:
    return Finding(FindingKind.UNREADABLE, key, f"it could not be checked: {failure}")
