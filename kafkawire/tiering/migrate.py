"""Moves all objects to another bucket or provider while the broker runs.

The steps, between any two of which a crash may come: (1) The new tier is checked. (2) A file
records that a move is in progress, and the new tier becomes the current one, which receives all new
uploads. (3) Each object of the old tier is copied under a uuid derived from its own and the new
tier's URL, so a copy after a crash overwrites the first. (4) Every byte of the copy is verified
against the checksums of the segment. (5) One transaction makes the new row finished and the old one
DELETE_STARTED; from then on the copy is read. (6) The new tier's manifest names the copy. (7) The
old object is deleted after the grace period. When no object is left, the old tier's manifest and
then its owner are deleted. A broker started with the old URL uploads nothing. Log objects are not
moved: they are in the new tier from the next start on, those before it are read where they are.

Every pass works from rows. An object that cannot be copied is reported, the others are moved, and
the old tier is kept until a later pass succeeds. Started by `kafkawire tier move`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env, WorkerError
from kafkawire.log.local_manifest.pending_changes import Added
from kafkawire.manifest.keys import CONDITIONAL_PUT, FILTERS, OWNER, segment_key
from kafkawire.objectstore.backoff import wait_s
from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.objectstore.overlap import tier_in_data
from kafkawire.objectstore.url import parse_tier
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    DELETE_STARTED,
    LEFT,
    LIVE,
    ObjectRow,
    SegmentRange,
    SegmentRow,
    StaleSwap,
)
from kafkawire.tiering.publishing.owner import DamagedOwner, Owner, read_owner
from kafkawire.tiering.scrub.local_copy import local_copy, scrub_file, skip_object, upload_again
from kafkawire.tiering.scrub.repair import Site
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls
from kafkawire.tiering.store.tiers import Tiers, overlaps

logger = logging.getLogger(__name__)


# Copy one object into another tier and verify it byte for byte.


MAX_NAMED = 5
"""Damaged ranges listed per object."""


class NotCopied(Exception):
    """An object could not be copied, or its copy differs; an operator must check it."""


def copy_uuid(uuid: bytes, url: str) -> bytes:
    """Return the uuid of the copy in the tier with this URL."""
    # Deterministic, so that a copy after a crash overwrites the first one.
    return blake2b(uuid + url.encode(), digest_size=16).digest()


class Copying:
    """Copies objects from `source`, the store of `source_url`, to `target`; `site`: checks them."""

    def __init__(
        self, site: Site, source: ObjectStore, source_url: str, target: ObjectStore
    ) -> None:
        self._site = site
        self._source_url = source_url
        self._target = target
        self._old = RetryingCalls(site.env, source)
        self._new = RetryingCalls(site.env, target)

    async def copy(self, row: ObjectRow, segment: bytes, uuid: bytes) -> None:
        """Copy the object of a row under another uuid; `segment`: the uuid of its segment. Raises
        NotCopied; NoSuchObject; other StoreErrors after the retries; OSError, WorkerError."""
        size, key, old_key = row.size_bytes, segment_key(uuid), segment_key(row.uuid)
        found = await self._old.head(old_key)
        if found.size_bytes != size:
            raise NotCopied(f"it has {found.size_bytes} bytes, its row says {size}")
        await self._new.retry(lambda: self._target.copy_from(self._source_url, key, size, old_key))
        found = await self._new.head(key)
        if found.size_bytes != size:
            raise NotCopied(f"the copy has {found.size_bytes} bytes, it should have {size}")
        await self._check(uuid, size, segment)

    async def _check(self, uuid: bytes, size: int, segment: bytes) -> None:
        """Verify every byte of the copy."""
        # All of a segment is covered by checksums, so this finds damage from before and during the
        # copy.
        async with local_copy(self._site, self._new, uuid, size) as path:
            result = await scrub_file(self._site, path, segment)
        # Deleted at once: no row names it.
        if result.problems:
            await self._new.retry(lambda: self._target.delete([segment_key(uuid)]))
        if result.damaged:
            texts = [each.text for each in result.damaged[:MAX_NAMED]]
            more = len(result.damaged) - len(texts)
            raise NotCopied("; ".join(texts) + (f" and {more} more ranges" if more else ""))
        if result.problems:
            raise NotCopied(f"it is damaged: {result.problems[0].replace(path, 'the copy')}")


PAGE = 32
"""Objects per transaction: each may have the ranges of ten thousand partitions."""
AT_ONCE = 4
CHECKED_AT_ONCE = 1
"""Copies on the local disk for verification: each may have a gigabyte."""
GRACE_MS_AT_LEAST = 3_600_000
"""Minimum time an old object is kept, so that the new tier's manifest names its copy first."""
SCAN_INTERVAL_S = 5.0
MAX_FAILED = 20
"""Maximum number of objects listed that could not be copied."""
MANIFEST = "manifest/"
PROBE = "probe"
"""Key of the test object written into a new tier; the next move deletes one left by a crash."""
NO_LIMIT = (1 << 63) - 1


class MoveError(Exception):
    """Why nothing is moved, in one sentence."""


@dataclass(slots=True)
class MigrationProgress:
    """Progress of a move. `state`: idle, copying, stuck (some objects could not be copied), waiting
    (all are copied; the old objects wait for the end of their grace period), done."""

    state: str = "idle"
    to: str = ""
    objects: int = 0
    bytes: int = 0
    left: int = 0
    left_bytes: int = 0
    error: str = ""
    failed: list[str] = field(default_factory=list)


class Mover:
    """Moves all objects to another bucket or provider. One per broker; one move at a time."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        tiers: Tiers,
        site: Callable[[], Site],
        switch: Callable[[str], Awaitable[None]],
        is_paused: Callable[[], bool],
    ) -> None:
        """`site` returns the components of the current tier, which `switch` replaces by those of
        another URL; `is_paused`: whether an operator has paused uploads."""
        self.progress = MigrationProgress()
        self._env = env
        self._config = config
        self._tiers = tiers
        self._site = site
        self._switch = switch
        self._is_paused = is_paused
        self._task: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._checking = asyncio.Semaphore(CHECKED_AT_ONCE)
        self._skip_lost = False

    async def start_move(self, url: str, skip_lost: bool = False) -> None:
        """Start a move to `url`; if empty, move the objects of other tiers to the current one.
        Continues a move in progress. `skip_lost`: leave out damaged records that have no other
        copy. Raises MoveError."""
        async with self._beginning:
            self._skip_lost = skip_lost
            tiers = self._tiers
            to = self._target(url)
            now = tiers.is_current(to)
            if self._task is not None and not self._task.done() and now:
                return
            if tiers.refusal:
                raise MoveError(tiers.refusal)
            if not now:
                await self._check(to)
                await self.close()
                await self._switch(to)
            elif not tiers.list_left():
                raise MoveError(f"all objects are in {to} already")
            else:
                await tiers.begin_move(to)
            self.start()

    def start(self) -> None:
        """Continue a move that is in progress."""
        if self._task is None or self._task.done():
            tiers = self._tiers
            self.progress = MigrationProgress("copying", tiers.setting(tiers.current))
            self._task = self._env.spawn(self._run(), "move the tier")

    async def close(self) -> None:
        """Stop; the next start continues the move."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def report_progress(self) -> dict[str, Any]:
        """Return the progress as plain values. `log_objects`: how many are needed, which stay
        where they are."""
        logs = self._site().logs
        needed = 0 if logs is None else sum(logs.count_unreleased().values())
        return {**asdict(self.progress), "log_objects": needed}

    def _target(self, url: str) -> str:
        if not url:
            return self._tiers.setting(self._tiers.current)
        try:
            return parse_tier(url).url
        except ValueError as wrong:
            raise MoveError(str(wrong)) from None

    async def _check(self, url: str) -> None:
        """Check that the new tier shares no files with another tier or the data folder, belongs to
        no other cluster, and can be written, read and deleted in. Raises MoveError."""
        tiers = self._tiers
        for other in map(tiers.setting, tiers.rows):
            if overlaps(other, url):
                raise MoveError(
                    f"{url} cannot be moved to: it and the tier {other} lie in one another"
                )
        if tier_in_data(url, tiers.data_folder):
            raise MoveError(
                f"{url} cannot be moved to: it and the broker's folder {tiers.data_folder} lie in "
                "one another"
            )
        store, cluster_id = tiers.store_at(url), self._site().cluster_id
        # Random, so that an object of an earlier probe is not taken for this one.
        probe = self._env.random.randbytes(16)
        try:
            await store.put(PROBE, probe)
            data, _ = await store.get(PROBE)
            await store.delete([PROBE])
            found = await read_owner(store)
        except StoreError as failure:
            raise MoveError(f"{url} cannot be moved to: {failure}") from None
        if data != probe:
            raise MoveError(
                f"{url} cannot be moved to: reading a stored test object returned other bytes"
            )
        if found is not None and found[0].cluster_id != cluster_id:
            raise MoveError(
                f"{url} cannot be moved to: it belongs to the cluster {found[0].cluster_id}"
            )

    async def _run(self) -> None:
        env, tries = self._env, 0
        while True:
            try:
                await self._take_over()
                if await self._pass():
                    break
                tries = 0
            except Exception as failure:
                tries += 1
                self.progress.error = str(failure)
                defect = not isinstance(failure, StoreError | OSError | WorkerError)
                logger.warning(
                    "moving the tier interrupted, continuing later: %s", failure, exc_info=defect
                )
            if self.progress.state == "stuck":
                return
            bound = self._config.tier_retry_max_ms / 1000
            await env.sleep(wait_s(tries, bound, env.random.random()) if tries else SCAN_INTERVAL_S)
        await self._tiers.mark_copied()
        self.progress.state, self.progress.error = "waiting", ""
        logger.info(
            "moved all objects to %s: set tier.url to it before the next start", self.progress.to
        )
        await self._leave()

    async def _take_over(self) -> None:
        """Claim the tiers to be left that another broker owns, which were restored into this one,
        so that it stops writing. Raises StoreError."""
        site = self._site()
        for row in self._tiers.list_left():
            store = self._tiers.store_at(row.url)
            try:
                found = await read_owner(store)
                others = found is not None and found[0].node_id != site.node_id
            except DamagedOwner:
                others = True
            if others:
                owner = Owner(self._env, store, site.cluster_id, site.node_id)
                await owner.claim()

    async def _pass(self) -> bool:
        """Copy the objects of all tiers that are being left; return whether none remains."""
        self.progress.failed = []
        await self._count()
        after, found = b"", False
        site = self._site()
        while rows := await site.storage.objects(site.node_id, (COPY_FINISHED,), PAGE, after):
            after = rows[-1].uuid
            mine = [row for row in rows if row.tier != self._tiers.current.id]
            found = found or bool(mine)
            # The new tier is not attached yet, or an operator has paused uploads.
            while self._is_paused() or site.refusal():
                await self._env.sleep(SCAN_INTERVAL_S)
            await self._batch([row for row in mine if self._is_live(row)])
        if self.progress.failed:
            self.progress.state = "stuck"
            self.progress.error = f"{len(self.progress.failed)} objects could not be copied"
            logger.error("moving the tier stopped: %s", self.progress.error)
        return not found

    def _is_live(self, row: ObjectRow) -> bool:
        segment = self._site().segments.by_id.get(row.segment_id)
        return segment is not None and segment.row.state == LIVE

    async def _count(self) -> None:
        site, after = self._site(), b""
        left = left_bytes = 0
        while rows := await site.storage.objects(site.node_id, (COPY_FINISHED,), PAGE, after):
            after = rows[-1].uuid
            mine = [row for row in rows if row.tier != self._tiers.current.id]
            left += len(mine)
            left_bytes += sum(row.size_bytes for row in mine)
        self.progress.left, self.progress.left_bytes = left, left_bytes

    async def _batch(self, rows: Sequence[ObjectRow]) -> None:
        """Copy some objects, replace their rows, then publish them in the manifest."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(row: ObjectRow) -> ObjectRow | None:
            async with gate:
                return await self._copy(row)

        tasks = [self._env.spawn(one(row), "copy an object") for row in rows]
        try:
            copies = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        moved = {row.uuid: copy for row, copy in zip(rows, copies, strict=True) if copy is not None}
        if moved:
            await self._exchange(moved)

    async def _copy(self, row: ObjectRow) -> ObjectRow | None:
        """Return the row of a verified copy; None if the copy failed."""
        site, tiers = self._site(), self._tiers
        source = tiers.find_store(row.tier)
        source_url = next((each.url for each in tiers.rows if each.id == row.tier), "")
        uuid = copy_uuid(row.uuid, tiers.current.url)
        segment = site.segments.by_id.get(row.segment_id)
        try:
            if source is None or segment is None:
                raise NotCopied(f"there is no tier {row.tier}, or no segment {row.segment_id}")
            target = tiers.store_at(tiers.current.url)
            copying = Copying(site, source, source_url, target)
            async with self._checking:
                await copying.copy(row, segment.row.uuid, uuid)
        except (NoSuchObject, NotCopied) as failure:
            await self._rescue(row, source, failure)
            return None
        await self._pace(row.size_bytes)
        now_ms = self._env.clock.now_ms()
        # The old object is deleted then: the new manifest must name its copy before that.
        grace_ms = max(GRACE_MS_AT_LEAST, self._config.tier_delete_delay_ms)
        return ObjectRow(
            uuid=uuid,
            segment_id=row.segment_id,
            node_id=row.node_id,
            tier=tiers.current.id,
            state=COPY_FINISHED,
            size_bytes=row.size_bytes,
            created_ms=now_ms,
            delete_after_ms=now_ms + grace_ms,
            ranges=row.ranges,
        )

    async def _rescue(
        self, row: ObjectRow, source: ObjectStore | None, failure: NoSuchObject | NotCopied
    ) -> None:
        """Handle an object that cannot be copied: its segment's sound file is uploaded to the new
        tier, or with --skip-lost the segment is rewritten without the lost records."""
        site, key = self._site(), segment_key(row.uuid)
        if await upload_again(site, row):
            logger.warning("cannot move %s, uploading its local file instead: %s", key, failure)
            return
        if self._skip_lost and source is not None:
            # The next pass reads the changed row.
            with suppress(StaleSwap):
                await skip_object(site, row, RetryingCalls(self._env, source))
            return
        if len(self.progress.failed) < MAX_FAILED:
            self.progress.failed.append(f"{key}: {failure}")
        logger.error("cannot move %s: %s", key, failure)

    async def _exchange(self, moved: dict[bytes, ObjectRow]) -> None:
        site = self._site()
        rows = await site.swapper.update(lambda: site.storage.relocate_objects(moved))
        by_object = {row.object: row for row in rows}
        done = [copy for copy in moved.values() if copy.uuid in by_object]
        lost = [copy for copy in moved.values() if copy.uuid not in by_object]
        for copy in done:
            self.progress.objects += 1
            self.progress.bytes += copy.size_bytes
            self.progress.left -= 1
            self.progress.left_bytes -= copy.size_bytes
        site.wake()
        # Their segments were replaced meanwhile: no row names these copies.
        if lost:
            await site.store.delete([segment_key(copy.uuid) for copy in lost])
        if done:
            await self._publish(done, by_object)

    async def _publish(self, done: Sequence[ObjectRow], rows: dict[bytes, SegmentRow]) -> None:
        # After a crash before the delta the next start finds the difference.
        site, mappings = self._site(), dict[int, list[SegmentRange]]()
        ids = sorted(copy.segment_id for copy in done)
        for mapping in await site.storage.segment_mappings(ids):
            mappings.setdefault(mapping.segment_id, []).append(mapping)
        added = [
            Added(copy, rows[copy.uuid], mappings[copy.segment_id])
            for copy in done
            if copy.segment_id in mappings
        ]
        tries = 0
        while True:
            try:
                await self._site().publisher.publish(added, {})
                return
            except (StoreError, OSError, WorkerError) as failure:
                tries += 1
                self.progress.error = str(failure)
                bound = self._config.tier_retry_max_ms / 1000
                await self._env.sleep(wait_s(tries, bound, self._env.random.random()))

    async def _pace(self, size_bytes: int) -> None:
        rate = self._config.remote_log_manager_copy_max_bytes_per_second
        if rate < NO_LIMIT:
            await self._env.sleep(AT_ONCE * size_bytes / rate)

    async def _leave(self) -> None:
        """Wait until the old objects are deleted, then remove what else is in the old tiers."""
        tries = 0
        while True:
            try:
                old = [row for row in self._tiers.own() if row.state == LEFT]
                if not await self._wait_there({row.id for row in old}):
                    for row in old:
                        await self._clear(row.url)
                    await self._tiers.end_move()
                    self.progress.state, self.progress.error = "done", ""
                    return
                tries = 0
            except Exception as failure:
                tries += 1
                self.progress.error = str(failure)
                if not isinstance(failure, StoreError | OSError | ValueError):
                    logger.warning(
                        "removing objects from the old tier interrupted, continuing later",
                        exc_info=True,
                    )
            bound = self._config.tier_retry_max_ms / 1000
            await self._env.sleep(bound if tries else SCAN_INTERVAL_S)

    async def _wait_there(self, tiers: set[int]) -> bool:
        """Return whether objects of these tiers have not been deleted yet."""
        site, after = self._site(), b""
        while rows := await site.storage.objects(site.node_id, (DELETE_STARTED,), PAGE, after):
            if any(row.tier in tiers for row in rows):
                return True
            after = rows[-1].uuid
        return False

    async def _clear(self, url: str) -> None:
        """Remove the manifest, the filter packs and the owner of an abandoned tier, if it still
        belongs to this broker."""
        store = self._tiers.store_at(url)
        found = await read_owner(store)
        site = self._site()
        mine = site.cluster_id, site.node_id
        if found is None or (found[0].cluster_id, found[0].node_id) != mine:
            return
        for prefix in (MANIFEST, FILTERS):
            while listed := await store.list(prefix):
                await store.delete([each.key for each in listed])
        # The owner last, by which a repeated attempt knows that the tier is still this broker's.
        await store.delete([CONDITIONAL_PUT, OWNER])
