"""Deletes unused objects, in an order that keeps the bucket complete by itself.

The steps, between any two of which a crash may come: (1) The log start moves, or a rewrite leaves a
segment without mappings. (2) The row of its object becomes DELETE_STARTED. (3) A delta removes it
from the manifest, with the log starts of its partitions. (4) A grace period
(`tier.delete.delay.ms`) passes for readers of the manifest. (5) The object is deleted. (6) Its row
is deleted.

An object is only removed from the manifest when it is covered: all its mapped offsets are in
segments with finished objects of their own, or belong to partitions that are not tiered any more.

One task runs a check after a notification or when an object is due. Every check works from rows, so
a missed notification is made up by the next check.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from kafkawire.log.io.ports import Env
from kafkawire.log.segments.store.segment_store import SegmentStore
from kafkawire.manifest.keys import segment_key
from kafkawire.objectstore.backoff import wait_s
from kafkawire.offsets.catalog.port import DELETE_STARTED, ObjectRow, SegmentCatalog, unpack_ranges
from kafkawire.plural import count
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.warnings import Warnings
from kafkawire.tiering.upload.candidates import ConfigOf
from kafkawire.tiering.upload.finisher import Publisher

logger = logging.getLogger(__name__)

SCAN_INTERVAL_S = 5.0
"""Minimum time between two checks: changes in between share a delta."""
ANYWAY_S = 600.0
"""Maximum time between two checks, even without a notification."""
PAGE = 50
"""Objects checked at a time: each may have the ranges of ten thousand partitions."""
RANGES_AT_ONCE = 1000
KEYS_AT_ONCE = 1000
"""Objects deleted by one request: the limit of S3."""


class Remover:
    """Deletes objects that are not needed. `stores` returns the storage of a tier by its number, or
    None if it is not available. `foreign`: another broker owns the bucket. `removed` counts
    objects, `failures` consecutive failed attempts."""

    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        segments: SegmentStore,
        stores: Callable[[int], ObjectStore | None],
        publisher: Publisher,
        config_of: ConfigOf,
        node_id: int,
        tier: int,
        grace_ms: Callable[[], int],
        retry_max_s: Callable[[], float],
        withdraw: Callable[[], Awaitable[bool]],
    ) -> None:
        self._env = env
        self._storage = storage
        self._segments = segments
        self._stores = stores
        self._publisher = publisher
        self._config_of = config_of
        self._node_id = node_id
        self._grace_ms = grace_ms
        self._retry_max_s = retry_max_s
        self._withdraw = withdraw
        self.foreign = False
        self._warnings = Warnings(env, logger)
        self._tier = tier
        self.removed = 0
        self.failures = 0
        # Rows that are DELETE_STARTED, as of the last check.
        self._dead: dict[bytes, ObjectRow] = {}
        self._stale = True  # there may be more of these rows
        # uuid -> when an object that the manifest does not have any more may be deleted, by the
        # monotonic clock: readers have the whole delay also if the wall clock is set.
        self._reported: dict[bytes, float] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def owned_by_other(self) -> None:
        """Stop deleting: another broker owns the bucket."""
        self.foreign = True

    def start(self) -> None:
        self._wake.set()
        self._task = self._env.spawn(self._run(), "remove objects")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def schedule_check(self) -> None:
        """Schedule a check, because an object may not be needed any more."""
        self._wake.set()

    def wake(self) -> None:
        """Schedule a check that reads rows DELETE_STARTED again, which another task may have
        written."""
        self._stale = True
        self._wake.set()

    async def _run(self) -> None:
        while True:
            timer = self._env.call_later(ANYWAY_S, self.wake)
            await self._wake.wait()
            timer.cancel()
            self._wake.clear()
            try:
                due_s = await self.scan()
                self.failures = 0
                pause_s = SCAN_INTERVAL_S
            except Exception as failure:
                self.failures += 1
                due_s = 0.0
                pause_s = wait_s(self.failures, self._retry_max_s(), self._env.random.random())
                self._warnings.warn("removing objects", failure)
            if due_s is not None:
                self._env.call_later(max(due_s, pause_s), self._wake.set)
            await self._env.sleep(pause_s)

    async def scan(self) -> float | None:
        """Run one check; return in how many seconds the next object is due, None: there is none."""
        self._stale |= await self._withdraw()
        await self._condemn()
        if self.foreign:
            return None
        if self._stale:
            await self._read()
        now_ms = self._env.clock.now_ms()
        await self._notify(now_ms)
        await self._remove(now_ms)
        now_s = self._env.clock.monotonic()
        waiting = [due_s for due_s in self._reported.values() if due_s > now_s]
        return min(waiting) - now_s if waiting else None

    async def _condemn(self) -> None:
        # All pages are checked: the first may be full of objects that are not covered for long.
        after, page = b"", PAGE
        while page == PAGE:
            unneeded = await self._storage.unneeded_objects(self._node_id, PAGE, after)
            covered = [row.uuid for row in unneeded if await self.is_covered(row)]
            if covered:
                self.wake()
                # At least 1: 0 means that no manifest has ever named the object.
                after_ms = self._env.clock.now_ms() + max(1, self._grace_ms())
                await self._storage.delete_objects(covered, after_ms)
                logger.info("deleting %s, no longer needed", count(len(covered), "object"))
            page = len(unneeded)
            after = unneeded[-1].uuid if unneeded else b""

    async def _read(self) -> None:
        """Read all DELETE_STARTED rows. Their ranges are kept in memory only while needed."""
        self._stale = False
        rows: dict[bytes, ObjectRow] = {}
        try:
            while True:
                after = max(rows, default=b"")
                page = await self._storage.objects(self._node_id, (DELETE_STARTED,), PAGE, after)
                for row in page:
                    if row.uuid in self._reported or not row.delete_after_ms:
                        row.ranges = b""
                rows.update((row.uuid, row) for row in page)
                if len(page) < PAGE:
                    break
        except BaseException:
            self._stale = True
            raise
        self._dead = rows
        self._reported = {uuid: due for uuid, due in self._reported.items() if uuid in rows}

    async def _notify(self, now_ms: int) -> None:
        """Publish the delta that removes these objects, with the log starts of their partitions."""
        news: dict[bytes, int] = {}
        for row in list(self._dead.values()):
            if not row.delete_after_ms or row.uuid in self._reported or row.tier != self._tier:
                continue
            if not await self.is_covered(row):
                continue
            # In the same delta: a manifest without the object must not have an older log start.
            for number, _, _ in unpack_ranges(row.ranges):
                self._publisher.log_start_moved(number)
            # The grace period counts from the delta, if that is late, as after an outage.
            late = row.delete_after_ms <= now_ms
            news[row.uuid] = now_ms + self._grace_ms() if late else row.delete_after_ms
        if news:
            await self._publisher.publish([], news)
            now_s = self._env.clock.monotonic()
            for uuid, after_ms in news.items():
                self._reported[uuid] = now_s + (after_ms - now_ms) / 1000
                self._dead[uuid].ranges = b""

    def _is_due(self, row: ObjectRow, now_ms: int) -> bool:
        # An object of a failed attempt, which was never in a manifest.
        if not row.delete_after_ms:
            return True
        # Not in a manifest that is still read.
        if row.tier != self._tier:
            return row.delete_after_ms <= now_ms
        due_s = self._reported.get(row.uuid)
        return due_s is not None and due_s <= self._env.clock.monotonic()

    async def _remove(self, now_ms: int) -> None:
        due: dict[int, list[bytes]] = {}
        for row in self._dead.values():
            if self._is_due(row, now_ms):
                due.setdefault(row.tier, []).append(row.uuid)
        for tier, uuids in due.items():
            store = self._stores(tier)
            if store is None:
                continue
            for at in range(0, len(uuids), KEYS_AT_ONCE):
                part = uuids[at : at + KEYS_AT_ONCE]
                # The row last: only by it the next check finds the object.
                await store.delete([segment_key(uuid) for uuid in part])
                await self._storage.drop_objects(part)
                self.removed += len(part)
                for uuid in part:
                    self._reported.pop(uuid, None)
                    del self._dead[uuid]

    async def is_covered(self, row: ObjectRow) -> bool:
        """Return whether other finished objects cover an object's ranges, as far as they are mapped
        and tiered."""
        ranges = [each for each in unpack_ranges(row.ranges) if self._is_copied(each[0])]
        for at in range(0, len(ranges), RANGES_AT_ONCE):
            found = await self._storage.mappings(ranges[at : at + RANGES_AT_ONCE])
            ids = {mapping.segment_id for mappings in found for mapping in mappings}
            if not await self._have_objects(ids, row.uuid):
                return False
        return True

    def _is_copied(self, number: int) -> bool:
        config = self._config_of(number)
        return config is not None and config.copies

    async def _have_objects(self, ids: Collection[int], other_than: bytes) -> bool:
        """Return whether segments have other objects. Those of other brokers are read from SQL."""
        by_id = self._segments.by_id
        if any(by_id[each].row.object in (b"", other_than) for each in ids if each in by_id):
            return False
        others = sorted(each for each in ids if each not in by_id)
        rows = await self._storage.segments_by_id(others) if others else []
        return len(rows) == len(others) and all(row.object for row in rows)
