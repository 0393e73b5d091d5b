"""Local files of segments in the remote tier: their removal, and their download for a job.

No state would be lost by a restart: `sweep` scans for files that are not needed, and removes them
after a grace period without pins.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate

from kafkawire.codec.configs.settings import BrokerConfig, TierLevel, TopicConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.format_errors import FormatError
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.log.segments.file.open import SegmentFile, check_file
from kafkawire.log.segments.manager import Segments
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.manifest.keys import segment_key
from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.offsets.catalog.port import LIVE, NEVER, SegmentRange
from kafkawire.plural import count
from kafkawire.tiering.cost.merge_model import pays
from kafkawire.tiering.cost.prices import parse_prices
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.warnings import Warnings

logger = logging.getLogger(__name__)


# How long a segment's file is kept once the segment is in the remote tier. Pure.
#
# Kafka's local.retention.ms and local.retention.bytes apply to each partition; a file that several
# share is kept as long as one of them needs it. Sizes are those of local segments and journals.


ConfigOf = Callable[[int], TopicConfig | None]
"""Returns the settings of a partition led by this broker; None if it was deleted or belongs to
another broker."""


class LocalBytes:
    """The local size of a partition, counted from its end. `mappings` are in offset order."""

    __slots__ = ("_after", "_ends")

    def __init__(
        self, mappings: Sequence[SegmentRange], is_local: Callable[[int], bool], journals: int
    ) -> None:
        here = [row.length if is_local(row.segment_id) else 0 for row in reversed(mappings)]
        self._ends = [row.end_offset for row in mappings]
        self._after = list(accumulate(here, initial=journals))[-2::-1]

    def bytes_after(self, end_offset: int) -> int:
        """Return the bytes after the mapping that ends here; 0: none, as rows have changed."""
        at = bisect_left(self._ends, end_offset)
        found = at < len(self._ends) and self._ends[at] == end_offset
        return self._after[at] if found else 0


def stays_ms(
    mappings: Iterable[SegmentRange],
    config_of: ConfigOf,
    sizes: Mapping[int, LocalBytes],
    now_ms: int,
) -> int:
    """Return how long the file of a segment with these mappings is kept, as far as time alone
    decides; 0: it may be removed now, NEVER: time alone never removes it."""
    return max(
        (_stays_ms(row, config_of(row.number), sizes, now_ms) for row in mappings), default=0
    )


def _stays_ms(
    row: SegmentRange, config: TopicConfig | None, sizes: Mapping[int, LocalBytes], now_ms: int
) -> int:
    if config is None or not row.length:
        return 0
    # Nothing in the tier is read for this partition.
    if not config.tiered:
        return NEVER
    limit = config.local_retention_bytes
    if (
        limit >= 0
        and row.number in sizes
        and sizes[row.number].bytes_after(row.end_offset) >= limit
    ):
        return 0
    if config.local_retention_ms < 0 or row.max_timestamp < 0:
        return NEVER
    return max(0, row.max_timestamp + config.local_retention_ms + 1 - now_ms)


def by_size(mappings: Iterable[SegmentRange], config_of: ConfigOf) -> set[int]:
    """Return the partitions whose local size decides, too."""
    numbers = {row.number for row in mappings}
    found = ((number, config_of(number)) for number in numbers)
    return {n for n, config in found if config is not None and config.local_retention_bytes >= 0}


def may_be_remote(mappings: Iterable[SegmentRange], config_of: ConfigOf) -> bool:
    """Return whether a full disk may remove the file: the remote tier has all its partitions."""
    configs = [config_of(row.number) for row in mappings if row.length]
    return all(
        config is None or (config.tiered and config.tier_level is not TierLevel.DISABLE)
        for config in configs
    )


# Confirms that the tier has the object of a segment before a local file of it is removed.
#
# The rows in SQL say what was uploaded, not what is there now: a bucket may have been deleted,
# emptied or replaced, also while the broker was down. The file is the only copy then. Two HEAD
# requests for each file that is removed: before its row changes, and after the grace period.


AT_ONCE = 8
"""Concurrent requests: half of the reading threads of a store."""
OUTAGE_S = 30.0
"""Time until the tier is asked again after a request failed."""
LOST_S = 600.0
"""Time until a lost object is asked for again, which an operator may bring back."""


class ObjectPresence:
    """Asks the tiers for objects. `store_of` returns the store of a segment's object, `on_lost` is
    called with each segment whose object is lost."""

    def __init__(
        self,
        env: Env,
        store_of: Callable[[Segment], Awaitable[ObjectStore]],
        on_lost: Callable[[Segment], None],
    ) -> None:
        self._env = env
        self._store_of = store_of
        self._on_lost = on_lost
        self._lost: dict[int, float] = {}  # segment -> when (monotonic) to ask again
        self._asks_at = 0.0
        self._warnings = Warnings(env, logger)

    async def confirm(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments whose objects are there in full; none during an outage."""
        now = self._env.clock.monotonic()
        self._lost = {segment_id: at for segment_id, at in self._lost.items() if at > now}
        due = [each for each in segments if each.row.id not in self._lost]
        found: list[Segment] = []
        for at in range(0, len(due), AT_ONCE):
            part = due[at : at + AT_ONCE]
            answers = await asyncio.gather(*map(self._is_there, part))
            found += [segment for segment, there in zip(part, answers, strict=True) if there]
        return found

    def is_lost(self, segment: Segment) -> bool:
        return segment.row.id in self._lost

    async def _is_there(self, segment: Segment) -> bool:
        row, now = segment.row, self._env.clock.monotonic()
        if now < self._asks_at:
            return False
        try:
            store = await self._store_of(segment)
            size_bytes = (await store.head(segment_key(row.object))).size_bytes
        except NoSuchObject:
            why = "is gone"
        except (StoreError, KafkaError) as failure:
            self._asks_at = now + OUTAGE_S
            self._warnings.warn("asking for objects whose local files may be removed", failure)
            return False
        else:
            if size_bytes == row.size_bytes:
                return True
            why = f"has {size_bytes} of {row.size_bytes} bytes"
        logger.error(
            "the object of segment %s %s in the remote tier: its local file is kept; bring the "
            "object back, or upload the file again with `kafkawire tier scrub --repair`",
            segment.name, why,
        )  # fmt: skip
        self._lost[row.id] = now + LOST_S
        self._on_lost(segment)
        return False


DOWNLOADS_AT_ONCE = 4
"""Concurrent downloads, as many as uploads: disk and network limit jobs anyway."""
ROOM_LEFT_BYTES = 256 << 20
"""Free space (or a twentieth of the volume, if less) that downloads leave for new journals."""
SLICE = 1000
"""Segments checked per event-loop iteration: a fraction of a millisecond."""
REMOVED_AT_ONCE = 100
UNBOUNDED_RATE = 1 << 53


class LocalFiles:
    """The local files of uploaded segments; implements the log's Localizer. Counters: `removed`
    files, `downloads` and `failures` of them, `downloaded_bytes`."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        segments: Segments,
        store_of: Callable[[int], ObjectStore | None],
        config_of: ConfigOf,
        find_tier: Callable[[int], Awaitable[None]],
        on_lost: Callable[[Segment], None],
    ) -> None:
        """`find_tier` is called before the store of a tier is requested: it may be that of a broker
        that was started later. `on_lost`: see ObjectPresence."""
        self._find_tier = find_tier
        self._env = env
        self._config = config
        self._segments = segments
        self._store_of = store_of
        self._config_of = config_of
        self._prices = parse_prices(config.tier_prices)
        self._lock = asyncio.Lock()  # removal and use of a local file exclude each other
        # segment -> since when (monotonic) its file is not needed
        self._unused: dict[int, float] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._broken: set[int] = set()  # with an incomplete file
        # with a file that an earlier process left, which may be whole
        by_id = segments.store.by_id
        self._left = {each.row.id for each in by_id.values() if each.has_file != each.row.local}
        self.objects = ObjectPresence(env, self._store, on_lost)
        self._others: dict[int, Segment] = {}  # of other brokers, with a file in `downloads`
        self._room = asyncio.Semaphore(DOWNLOADS_AT_ONCE)
        self.removed = self.downloads = self.failures = self.downloaded_bytes = 0

    def copies(self, numbers: Iterable[int]) -> bool:
        """Return whether segments written from these partitions are uploaded again, so that remote
        ones may be rewritten."""
        configs = [self._config_of(number) for number in numbers]
        return any(config is not None and config.copies for config in configs)

    def pays(self, segments: Collection[Segment]) -> bool:
        """Return whether one object instead of these saves more than one read and write of them
        costs."""
        size_bytes = sum(segment.row.size_bytes for segment in segments)
        away = [segment.row.size_bytes for segment in segments if not self._is_whole(segment)]
        part_bytes = self._config.tier_part_bytes
        return pays(len(segments), size_bytes, len(away), sum(away), part_bytes, self._prices)

    async def read(self, segment: Segment, start: int, length: int) -> bytes:
        """Read a few bytes of a segment without a file; a negative start counts from its end."""
        try:
            store = await self._store(segment)
            data, _ = await store.get(segment_key(segment.row.object), start, length)
        except StoreError as failure:
            raise _unreadable(segment, failure) from failure
        if len(data) != length:
            raise _unreadable(segment, f"the object ends after {len(data)} of {length} bytes")
        return data

    async def localize(self, segments: Collection[Segment]) -> None:
        """Download segments as local files; see `Localizer.localize`. Raises OSError, also if the
        disk has no room."""
        # Whole files are not removed after this: the caller has pinned them, and `_remove` checks
        # that under the same lock.
        async with self._lock:
            wanted = [each for each in segments if not self._is_whole(each)]
        new = [each for each in wanted if each.row.id not in self._loading]
        await self._check_room(sum(each.row.size_bytes for each in new))
        tasks = [self._load(each) for each in wanted]
        results = await asyncio.gather(*map(asyncio.shield, tasks), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _is_whole(self, segment: Segment) -> bool:
        return segment.has_file and segment.row.id not in self._broken | self._left

    async def _check_room(self, size_bytes: int) -> None:
        if not size_bytes:
            return
        fs, folder = self._env.fs, self._segments.folder
        total, free = await self._env.offload.submit("files", fs.free_bytes, folder)
        if size_bytes + min(total // 20, ROOM_LEFT_BYTES) > free:
            text = f"{size_bytes} bytes of remote segments do not fit, {free} bytes are free"
            raise OSError(errno.ENOSPC, text)

    def _load(self, segment: Segment) -> asyncio.Task[None]:
        segment_id = segment.row.id
        task = self._loading.get(segment_id)
        if task is None:
            task = self._env.spawn(self._download(segment), f"download {segment.name}")
            self._loading[segment_id] = task
            task.add_done_callback(lambda _: self._loading.pop(segment_id, None))
        return task

    async def _download(self, segment: Segment) -> None:
        # Its own pin: the caller may be cancelled before the download ends.
        segment.pins += 1
        try:
            async with self._room:
                self.downloads += 1
                await self._bring(segment)
        except BaseException:
            self.failures += 1
            raise
        finally:
            segment.pins -= 1
        self.downloaded_bytes += segment.row.size_bytes
        logger.debug("downloaded segment %s for a maintenance job", segment.name)

    async def _bring(self, segment: Segment) -> None:
        store, is_other = self._segments.store, segment.row.id not in self._segments.store.by_id
        # The file that is about to be replaced may be the only copy.
        if segment.row.id in self._left and not await self.objects.confirm([segment]):
            raise _unreadable(segment, "its object is not in the tier")
        # Left by a failed download.
        if segment.has_file:
            await (store.remove_downloads if is_other else store.remove_files)([segment])
        segment.has_file = True
        if is_other:
            self._others[segment.row.id] = segment
        self._broken.add(segment.row.id)
        try:
            try:
                await self._fetch(segment)
            except NoSuchObject:
                made = segment.row.object
                await self._segments.swapper.refresh({segment.row.id})
                if segment.row.object == made:
                    raise
                await self._fetch(segment)  # the object was replaced
        except StoreError as failure:
            raise _unreadable(segment, failure) from failure
        try:
            await self._env.offload.submit("warm", verify, self._env.fs, segment)
        except FormatError as failure:
            raise _unreadable(segment, failure) from failure
        self._broken.discard(segment.row.id)

    async def _fetch(self, segment: Segment) -> None:
        rate = self._config.remote_log_manager_fetch_max_bytes_per_second
        store = await self._store(segment)
        await store.download(
            segment_key(segment.row.object), segment.path, rate if rate < UNBOUNDED_RATE else -1
        )

    async def _store(self, segment: Segment) -> ObjectStore:
        row = segment.row
        if not row.object:
            raise _unreadable(segment, "it has no object")
        await self._find_tier(row.tier)
        store = self._store_of(row.tier)
        if store is None:
            raise _unreadable(segment, f"tier {row.tier} cannot be reached from here")
        return store

    async def sweep(self, grace_s: float) -> int:
        """Remove the files that were not needed for a grace period; return their bytes. Raises the
        storage's errors, OSError."""
        due = await self._due(grace_s)
        size = await self._remove_downloads()
        for at in range(0, len(due), REMOVED_AT_ONCE):
            size += await self._remove(due[at : at + REMOVED_AT_ONCE])
        return size

    async def _due(self, grace_s: float) -> list[Segment]:
        now = self._env.clock.monotonic()
        unused: dict[int, float] = {}
        due: list[Segment] = []
        for at, segment in enumerate(list(self._segments.store.by_id.values()), 1):
            if at % SLICE == 0:
                await self._env.slices.pause()
            row = segment.row
            if row.local or row.state != LIVE or not segment.has_file:
                continue
            since = now if self._is_needed(segment) else self._unused.get(row.id, now)
            unused[row.id] = since
            if since + grace_s <= now or row.id in self._broken | self._left:
                due.append(segment)
        self._unused = unused
        self._left &= unused.keys()
        self._broken &= unused.keys() | self._loading.keys() | self._others.keys()
        return due

    async def _remove_downloads(self) -> int:
        """Remove the files of other brokers' segments that no job uses; return their bytes."""
        async with self._lock:
            gone = [each for each in self._others.values() if not self._is_needed(each)]
            if gone:
                await self._segments.store.remove_downloads(gone)
            for segment in gone:
                del self._others[segment.row.id]
                self._broken.discard(segment.row.id)
            self.removed += len(gone)
        return sum(segment.row.size_bytes for segment in gone)

    def _is_needed(self, segment: Segment) -> bool:
        return segment.pins > 0 or segment.row.id in self._loading

    async def _remove(self, segments: Collection[Segment]) -> int:
        """Remove the files of segments that SQL has as remote only and that are not pinned."""
        swapper, store = self._segments.swapper, self._segments.store
        # SQL and the tier are asked once more: the grace period has passed since the first time,
        # and after a removal there is no way back.
        await swapper.refresh({segment.row.id for segment in segments})
        broken = self._broken
        whole = [each for each in segments if each.row.object and each.row.id not in broken]
        there = await self.objects.confirm(whole)
        async with self._lock:
            gone: list[Segment] = []
            alone: list[int] = []
            for segment in segments:
                row = segment.row
                if store.by_id.get(row.id) is not segment or row.local or row.state != LIVE:
                    continue
                # Without an object its file is the only copy, and is kept as a local one.
                if not row.object and row.id not in broken:
                    alone.append(row.id)
                elif row.id in broken or segment in there:
                    if not self._is_needed(segment):
                        gone.append(segment)
                elif self.objects.is_lost(segment) and row.id not in self._left:
                    alone.append(row.id)
            if gone:
                await store.remove_files(gone)
                for removed in (self._broken, self._left):
                    removed.difference_update(segment.row.id for segment in gone)
                self.removed += len(gone)
        if alone:
            logger.error(
                "no objects in the remote tier for %s: keeping the local files",
                count(len(alone), "segment"),
            )
            storage = self._segments.storage
            await swapper.update(lambda: storage.set_local(alone, True))
        return sum(segment.row.size_bytes for segment in gone)

    def close(self) -> None:
        for task in list(self._loading.values()):
            task.cancel()


def verify(fs: FileSystem, segment: Segment) -> None:
    """Verify that a file is the whole segment with a valid directory; the jobs check its batches.
    Runs in a thread. Raises KAFKA_STORAGE_ERROR, FormatError, OSError."""
    check_file(fs, segment.path, segment.row).close()
    SegmentFile(fs, segment.path, segment.row.uuid).close()


def _unreadable(segment: Segment, why: object) -> KafkaError:
    text = f"segment {segment.name} cannot be brought back from the remote tier: {why}"
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)
