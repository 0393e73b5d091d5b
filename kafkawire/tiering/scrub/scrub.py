"""The scrub: compares bucket, rows and manifest while the broker runs.

Three sorted streams are merged, one page of the listing at a time (LIST is allowed here): objects,
rows, and the manifest's outline. A suspect object is checked again before it is reported, because
uploads and deletions continue. Header and footer of every finished object are compared with its
rows; `deep` verifies all bytes, in the worker, at a limited rate. A dry run changes nothing;
otherwise kafkawire.tiering.scrub.repair repairs what it can. Created by kafkawire.tiering.service.
"""

from __future__ import annotations

import asyncio
import os.path
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator

from kafkawire.log.io.ports import WorkerError
from kafkawire.log.local_manifest.job import UUID_BYTES, KeySlices
from kafkawire.log.object_logs import ObjectLogs
from kafkawire.manifest.keys import CURRENT, SEGMENTS, segment_uuid
from kafkawire.manifest.reader import unpack_current
from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.port import MAX_LIST, Listed
from kafkawire.offsets.catalog.port import COPY_FINISHED, COPY_STARTED, DELETE_STARTED, ObjectRow
from kafkawire.tiering.publishing.bucket import BucketState
from kafkawire.tiering.publishing.owner import Owner
from kafkawire.tiering.scrub.check import Checker
from kafkawire.tiering.scrub.logs import LogCheck
from kafkawire.tiering.scrub.packs import PackCheck
from kafkawire.tiering.scrub.plan import (
    AGE_FLOOR_MS,
    Finding,
    FindingKind,
    ScrubProgress,
    ScrubReport,
    Seen,
    Suspect,
    compare,
)
from kafkawire.tiering.scrub.repair import Site
from kafkawire.tiering.store.retrying import AT_ONCE, RetryingCalls

# The objects that the manifest of a bucket names, by ranges of keys, for a scrub.


class Named:
    """Sorted uuids, packed in slices: 16 bytes each."""

    __slots__ = ("_keys", "_lasts")

    def __init__(self, slices: KeySlices) -> None:
        self._keys = slices.keys
        self._lasts = [keys[-UUID_BYTES:] for keys in slices.keys]

    def between(self, after: bytes, upper: bytes) -> set[bytes]:
        found: set[bytes] = set()
        for keys in self._keys[bisect_right(self._lasts, after) :]:
            if keys[:UUID_BYTES] > upper:
                break
            uuids = (keys[at : at + UUID_BYTES] for at in range(0, len(keys), UUID_BYTES))
            found.update(uuid for uuid in uuids if after < uuid <= upper)
        return found

    def __contains__(self, uuid: bytes) -> bool:
        at = bisect_left(self._lasts, uuid)
        if at == len(self._keys):
            return False
        keys = self._keys[at]
        rows = range(len(keys) // UUID_BYTES)
        row = bisect_left(rows, uuid, key=lambda n: keys[UUID_BYTES * n : UUID_BYTES * (n + 1)])
        return keys[UUID_BYTES * row : UUID_BYTES * (row + 1)] == uuid


async def read_outline(site: Site, asking: RetryingCalls) -> Named:
    """Have the worker read the objects that the manifest names now. Raises StoreError, OSError,
    WorkerError; ValueError if it is damaged."""
    owner = Owner(site.env, site.store, site.cluster_id, site.node_id)  # the bucket is not claimed
    folder = os.path.join(site.folder, "manifest")
    current = unpack_current(await asking.whole(CURRENT))
    state = BucketState(site.env, site.store, owner, site.cluster_id, site.node_id, folder, current)
    result = await asking.retry(lambda: state.read(None))
    if result.outline is None:
        raise ValueError(result.damaged)
    return Named(result.outline.objects)


ROWS_AT_ONCE = 50
"""Rows read at a time: each may have the ranges of ten thousand partitions."""
LAST = b"\xff" * 17
"""Above every uuid."""
STATES = (COPY_STARTED, COPY_FINISHED, DELETE_STARTED)

ScrubEvent = ScrubProgress | ScrubReport


class Scrub:
    """One run of the scrub."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._asking = RetryingCalls(site.env, site.store)
        young_ms = max(AGE_FLOOR_MS, site.grace_ms())
        self._report = ScrubReport(young_ms=young_ms)
        self._before_ms = site.env.clock.now_ms() - young_ms
        self._doubtful: list[Suspect] = []  # differences of the manifest and the rows

    async def run(
        self, repair: bool, deep: bool, skip_lost: bool = False
    ) -> AsyncIterator[ScrubEvent]:
        """Yield the progress, then the report. `skip_lost`: with `repair`, rewrite segments without
        records that no copy has any more. Raises StoreError if the bucket cannot be listed, and the
        storage's errors."""
        report = self._report
        refusal = self._site.refusal() if repair else ""
        if refusal:
            report.add(Finding(FindingKind.UNREADABLE, "", f"nothing is repaired: {refusal}"))
        report.repaired = repair and not refusal
        self._checker = Checker(self._site, self._asking, report.repaired, skip_lost)
        named = await self._outline()
        after = b""
        async for page in self._asking.pages(SEGMENTS):
            uuids = [uuid for listed in page if (uuid := segment_uuid(listed.key)) is not None]
            # Rows after the last object of the last page have no object, and are checked with it.
            upper = LAST if len(page) < MAX_LIST else uuids[-1] if uuids else after
            async for reported in self._stretch(page, after, upper, named, deep):
                yield reported
            after = upper
        async for reported in self._last(named):
            yield reported
        site = self._site
        packs = PackCheck(
            site.store, self._asking, site.drop_packs, report.repaired, self._before_ms
        )
        for finding in await packs.run(deep):
            report.add(finding)
        if site.logs is not None:
            yield ScrubProgress("log objects", 0, 0)
            await self._check_logs(site.logs, deep)
        yield report

    async def _check_logs(self, logs: ObjectLogs, deep: bool) -> None:
        report = self._report
        check = LogCheck(self._site.env, logs, report.repaired, self._before_ms)
        for finding in await check.run(deep):
            report.add(finding)
        report.objects += check.objects
        report.bytes += check.size_bytes

    async def _outline(self) -> Named | None:
        """Return the objects that the manifest names; None if it cannot be read."""
        try:
            return await read_outline(self._site, self._asking)
        except (StoreError, OSError, WorkerError, ValueError) as failure:
            text = f"the manifest cannot be read, and is not compared: {failure}"
            self._report.add(Finding(FindingKind.UNREADABLE, "", text))
            return None

    async def _stretch(
        self, page: list[Listed], after: bytes, upper: bytes, named: Named | None, deep: bool
    ) -> AsyncIterator[ScrubEvent]:
        report = self._report
        seen = []
        for listed in page:
            uuid = segment_uuid(listed.key)
            report.bytes += listed.size_bytes
            if uuid is not None:
                seen.append(Seen(uuid, listed.size_bytes, listed.modified_ms))
            else:
                text = "an object with an unknown name"
                report.add(Finding(FindingKind.ORPHAN, listed.key, text))
        report.objects += len(page)
        rows = await self._rows(after, upper)
        report.rows += len(rows)
        uuids = None if named is None else named.between(after, upper)
        compared = compare(seen, rows, uuids, self._before_ms)
        report.young += compared.young
        for suspect in compared.suspects:
            # Uploads and deletions change manifest and rows one after the other: these are compared
            # again at the end.
            if suspect.kind in (FindingKind.NAMED, FindingKind.UNNAMED):
                self._doubtful.append(suspect)
                continue
            for finding in await self._checker.verify(suspect):
                report.add(finding)
        yield ScrubProgress("compared", report.objects, 0)
        sizes = {each.uuid: each.size_bytes for each in seen}
        # A deep check downloads the object.
        width = 1 if deep else AT_ONCE
        for at in range(0, len(compared.sound), width):
            part = compared.sound[at : at + width]
            scans = [self._checker.examine(uuid, sizes[uuid], deep) for uuid in part]
            for found in await asyncio.gather(*scans):
                for finding in found:
                    report.add(finding)
            yield ScrubProgress("read", report.objects - len(page) + at + len(part), 0)

    async def _rows(self, after: bytes, upper: bytes) -> list[ObjectRow]:
        """Return the rows of this tier in a range of keys, without their offset ranges."""
        site = self._site
        rows: list[ObjectRow] = []
        while True:
            found = await site.storage.objects(site.node_id, STATES, ROWS_AT_ONCE, after)
            for row in found:
                if row.uuid > upper:
                    return rows
                row.ranges = b""
                if row.tier == site.tier:
                    rows.append(row)
            if len(found) < ROWS_AT_ONCE:
                return rows
            after = found[-1].uuid

    async def _last(self, named: Named | None) -> AsyncIterator[ScrubEvent]:
        """Yield the differences of rows and manifest that remain after a wait."""
        if not self._doubtful or named is None:
            return
        yield ScrubProgress("manifest", 0, len(self._doubtful))
        now = await self._outline()
        if now is None:
            return
        for at, suspect in enumerate(self._doubtful, 1):
            is_named = suspect.uuid in now
            if is_named == (suspect.kind == FindingKind.NAMED):
                finding = await self._checker.differs(suspect)
                if finding is not None:
                    self._report.add(finding)
            yield ScrubProgress("manifest", at, len(self._doubtful))
