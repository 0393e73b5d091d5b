"""Local retention: when files of uploaded segments are removed from the local disk.

The file of a segment with a finished object is removed when all partitions in it are past their
local retention, and earlier if the disk fills up. Its row is marked as not local, and readers use
the remote tier from then on. The file is deleted after `file.delete.delay.ms`, when it has no
readers (kafkawire.tiering.retention.local_files). Every check works from the current state, so a
step that failed or was cut off by a crash is repeated by a later check.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.manager import Segments
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.offsets.catalog.port import LIVE, NEVER, SegmentCatalog, SegmentRange
from kafkawire.plural import count
from kafkawire.tiering.retention.local_files import (
    ConfigOf,
    LocalBytes,
    LocalFiles,
    by_size,
    may_be_remote,
    stays_ms,
)
from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)

SCAN_INTERVAL_S = 5.0
RESCAN_INTERVAL_S = 3600.0
"""Maximum time until a segment is checked again."""
PAGE = 8
"""Segments whose mappings are read in one transaction: at most ten thousand rows each."""
SLICE = 1000
"""Segments checked per event-loop iteration: a fraction of a millisecond."""


class LocalTier:
    """Local retention of uploaded segments. Counters: `evicted` segments, `relieved_bytes` removed
    because of a full disk; `files` counts files and downloads."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        segments: Segments,
        storage: SegmentCatalog,
        store_of: Callable[[int], ObjectStore | None],
        partitions: Mapping[int, Partition],
        config_of: ConfigOf,
        find_tier: Callable[[int], Awaitable[None]],
        on_lost: Callable[[Segment], None],
    ) -> None:
        self._env = env
        self._config = config
        self._segments = segments
        self._storage = storage
        self._partitions = partitions
        self._config_of = config_of
        self.files = LocalFiles(env, config, segments, store_of, config_of, find_tier, on_lost)
        self._not_before: dict[int, float] = {}  # segment -> when (monotonic) to check it again
        self._task: asyncio.Task[None] | None = None
        self.evicted = self.relieved_bytes = 0

    def start(self) -> None:
        """Start; from now on the log may request files."""
        self._segments.remote.attach_files(self.files, self.relieve)
        self._task = self._env.spawn(self._run(), "local retention")

    async def close(self) -> None:
        """Stop. Another call has no effect."""
        self._segments.remote.detach_files()
        self.files.close()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def settings_changed(self) -> None:
        self._not_before.clear()

    async def _run(self) -> None:
        while True:
            interval_s = self._config.log_retention_check_interval_ms / 1000
            await self._env.sleep(min(SCAN_INTERVAL_S, interval_s))
            try:
                await self.scan()
            except Exception:  # retried; ERROR is for failures that need an operator
                logger.warning("local retention failed, retrying later", exc_info=True)

    async def scan(self) -> None:
        """Evict segments past their local retention. Raises the storage's errors, OSError."""
        await self._retain()
        await self.files.sweep(self._config.file_delete_delay_ms / 1000)

    async def relieve(self) -> None:
        """Evict the oldest uploaded segments of a full disk at once, until less than
        `disk.delete.percent` is used. Raises the storage's errors, OSError."""
        need = await self._count_needed_bytes()
        if need > 0:
            need -= await self.files.sweep(0)
        candidates = await self._candidates()
        candidates.sort(key=lambda segment: (segment.row.max_timestamp, segment.row.id))
        for at in range(0, len(candidates), PAGE):
            if need <= 0:
                return
            part = candidates[at : at + PAGE]
            mappings = await self._mappings(part)
            gone = []
            for segment in part:
                if need > 0 and may_be_remote(mappings[segment.row.id], self._config_of):
                    gone.append(segment)
                    need -= segment.row.size_bytes
            size = sum(segment.row.size_bytes for segment in gone)
            await self._evict(gone)
            freed = await self.files.sweep(0)
            # Some are still being read: others are evicted in their place.
            need += size - freed
            self.relieved_bytes += freed

    async def _count_needed_bytes(self) -> int:
        fs, folder = self._env.fs, self._segments.folder
        total, free = await self._env.offload.submit("files", fs.free_bytes, folder)
        # One percent more than the limit, so that the next records do not exceed it again.
        return total * (101 - self._config.disk_delete_percent) // 100 - free

    async def _candidates(self) -> list[Segment]:
        found = []
        for at, segment in enumerate(list(self._segments.store.by_id.values()), 1):
            row = segment.row
            if row.local and row.object and row.state == LIVE:
                found.append(segment)
            if at % SLICE == 0:
                await self._env.slices.pause()
        return found

    async def _retain(self) -> None:
        now = self._env.clock.monotonic()
        candidates = await self._candidates()
        known = self._not_before
        kept = {s.row.id: known[s.row.id] for s in candidates if s.row.id in known}
        self._not_before = kept
        due = [segment for segment in candidates if kept.get(segment.row.id, now) <= now]
        for at in range(0, len(due), PAGE):
            await self._scan_part(due[at : at + PAGE])

    async def _scan_part(self, segments: Sequence[Segment]) -> None:
        mappings = await self._mappings(segments)
        rows = [row for some in mappings.values() for row in some]
        sizes = await self._sizes(by_size(rows, self._config_of))
        now, now_ms = self._env.clock.monotonic(), self._env.clock.now_ms()
        often_s = self._config.log_retention_check_interval_ms / 1000
        gone = []
        for segment in segments:
            some = mappings[segment.row.id]
            wait_ms = stays_ms(some, self._config_of, sizes, now_ms)
            if not wait_ms:
                gone.append(segment)
                continue
            sized = any(row.number in sizes for row in some)
            wait_s = min(wait_ms / 1000, often_s if sized else RESCAN_INTERVAL_S)
            self._not_before[segment.row.id] = now + wait_s
            await self._env.slices.pause()
        await self._evict(gone)

    async def _mappings(self, segments: Iterable[Segment]) -> dict[int, list[SegmentRange]]:
        found: dict[int, list[SegmentRange]] = {segment.row.id: [] for segment in segments}
        for row in await self._storage.segment_mappings(list(found)):
            found[row.segment_id].append(row)
        return found

    async def _sizes(self, numbers: Iterable[int]) -> dict[int, LocalBytes]:
        """Return the local sizes of partitions: from memory, or from rows if they are not in memory
        and so have nothing in the journals."""
        is_local = self._segments.store.is_local
        made: dict[int, LocalBytes] = {}
        others = []
        for number in numbers:
            partition = self._partitions.get(number)
            if partition is None:
                others.append(number)
                continue
            rows = list(partition.segments.mappings(number))
            journals = partition.size_bytes - sum(partition.segments.length)
            made[number] = LocalBytes(rows, is_local, journals)
        found = await self._storage.mappings([(number, 0, NEVER) for number in others])
        for number, rows in zip(others, found, strict=True):
            made[number] = LocalBytes(rows, is_local, 0)
        return made

    async def _evict(self, segments: Sequence[Segment]) -> None:
        """Mark these segments as remote only; their files are removed later."""
        # The tier is asked: SQL says what was uploaded, not what is there now.
        ids = [segment.row.id for segment in await self.files.objects.confirm(segments)]
        if not ids:
            return
        rows = await self._segments.swapper.update(lambda: self._storage.set_local(ids, False))
        gone = sum(not row.local for row in rows)
        self.evicted += gone
        logger.info(
            "local retention: removed the local files of %s in the remote tier",
            count(gone, "segment"),
        )
