"""Filter packs: the key filters of many objects in one, for searches by key without a broker.

The steps, between any two of which a crash may come: (1) The worker writes a pack of 64 objects
with key indexes that are in no pack, oldest first, to a local file; objects without a local file
are read from the bucket. (2) It is uploaded under the next number. (3) The list names it. After a
crash the number is used again. A pack fewer than half of whose objects are live is dropped from the
list, and its other objects wait for the next pack.

Nothing is read or written unless a topic has `index.keys.enable`.

A pack states facts about objects that never change (kafkawire.codec.segment.filter_pack), and
readers do without it, so it is written after the manifest, by one broker or by several, and no
other step waits for it. Readers only ask for the objects that the manifest names.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Callable, Iterable, Sequence

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment.format import KEYS, TAIL_BYTES, read_trailer
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.log.segments.file.pack_job import (
    MAX_OBJECTS,
    MAX_SECTION_BYTES,
    PackArguments,
    PackInput,
    PackResult,
)
from kafkawire.log.segments.file.writer import INDEX_KEYS
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore
from kafkawire.manifest.keys import PACK_LIST, pack_key, segment_key
from kafkawire.manifest.packs import FilterPack, ObsoletePack, PackList, read_packs, write_packs
from kafkawire.metadata.catalog import Catalog
from kafkawire.objectstore.backoff import wait_s
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, Refused, StoreError
from kafkawire.offsets.catalog.port import LIVE, SegmentCatalog
from kafkawire.plural import count
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.warnings import Warnings

logger = logging.getLogger(__name__)


# The list of filter packs in the bucket, changed by conditional PUTs only.
#
# It is decoded and encoded in a thread: that of a hundred thousand objects has 3 MB.


class StoredPackList:
    """`filters/current` of a bucket, as last read or written."""

    def __init__(self, env: Env, store: ObjectStore) -> None:
        self._env = env
        self._store = store
        self._known: PackList | None = None
        self._etag: str | None = None

    async def read(self) -> PackList:
        """Return the list, which is read once; an empty one if there is none. Raises StoreError,
        Refused if a newer program wrote it."""
        if self._known is None:
            self._known = await self._read()
        return self._known

    async def _read(self) -> PackList:
        try:
            data, self._etag = await self._store.get(PACK_LIST)
        except NoSuchObject:
            self._etag = None
            return PackList()
        try:
            return await self._env.offload.submit("files", read_packs, data)
        except NewerFormatError as failure:
            raise Refused("NewerFormat", f"{failure}; no filter packs are written") from None
        except FormatError as failure:
            logger.warning(
                "%s: the filter packs are written again; `kafkawire tier scrub --repair` removes "
                "the old ones",
                failure,
            )
            # Above all numbers that there ever were, which readers of the old list may still use.
            return PackList(self._env.clock.now_ms())

    async def exchange(self, packs: PackList) -> None:
        """Replace the list as it was read. Raises StoreError; it is read again then, because it may
        have been replaced nevertheless, or by another broker."""
        data = await self._env.offload.submit("files", write_packs, packs)
        # Whatever happens now, the list may have been replaced.
        self._known = None
        try:
            if self._etag is None:
                stored = await self._store.put(PACK_LIST, data, if_absent=True)
            else:
                stored = await self._store.put(PACK_LIST, data, if_match=self._etag)
        except ConditionFailed as failure:
            raise StoreError(failure.code, f"{PACK_LIST} was changed meanwhile") from None
        self._known, self._etag = packs, stored.etag


CHECKED_EVERY_S = 10.0
"""How often it is checked whether enough was uploaded: no request, no loop."""
ANYWAY_S = 3600.0
"""Maximum time between two scans: some objects may not be live any more."""
TRIED = MAX_OBJECTS + 16
"""Objects that may be read for a pack: some may have no key index after all, since their batches
were compressed or are of another topic."""
SLICE = 1000
"""Segments checked per event-loop iteration."""
PAGE = 10
"""Segments whose mappings are read at a time: each may have ten thousand."""
FIRST_BYTES = 64 << 10
"""First read from the end of an object: all of the key index of 20,000 keys."""


class Packer:
    """Writes the filter packs of a tier. `packs` and `dropped` count since the start."""

    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        segments: SegmentStore,
        store: ObjectStore,
        catalog: Catalog,
        uploads: Callable[[], int],
        is_stopped: Callable[[], bool],
        grace_ms: Callable[[], int],
        retry_max_s: Callable[[], float],
        folder: str,
        tier: int,
    ) -> None:
        """`uploads`: how many were finished; `is_stopped`: nothing may be written now."""
        self._env = env
        self._storage = storage
        self._segments = segments
        self._store = store
        self._catalog = catalog
        self._uploads = uploads
        self._is_stopped = is_stopped
        self._grace_ms = grace_ms
        self._retry_max_s = retry_max_s
        self._folder = folder
        self._tier = tier
        self.list = StoredPackList(env, store)
        self.packs = 0
        self.dropped = 0
        self._without: set[bytes] = set()
        self._scan_at = 0.0
        self._busy = asyncio.Lock()
        self._warnings = Warnings(env, logger)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._env.spawn(self._run(), "filter packs")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def rescan(self) -> None:
        self._scan_at = 0.0

    async def _run(self) -> None:
        """Scan at the start, when a pack may be full, and when an obsolete one is due."""
        failures, uploads = 0, 0
        while True:
            now = self._env.clock.monotonic()
            is_due = now >= self._scan_at or self._uploads() - uploads >= MAX_OBJECTS
            if is_due and not self._is_stopped():
                uploads = self._uploads()
                try:
                    self._scan_at = now + ANYWAY_S
                    due_s = await self.scan()
                    self._scan_at = min(self._scan_at, now + due_s)
                    failures = 0
                except Exception as failure:
                    failures += 1
                    self._warnings.warn("writing filter packs", failure)
                    jitter = self._env.random.random()
                    self._scan_at = now + wait_s(failures, self._retry_max_s(), jitter)
            await self._env.sleep(CHECKED_EVERY_S)

    async def scan(self) -> float:
        """Write the packs that are full, drop those that are not needed; return the seconds until
        the next scan is due. Raises StoreError, OSError, WorkerError and the storage's errors."""
        async with self._busy:
            return await self._scan()

    async def discard_damaged(self, numbers: set[int]) -> None:
        """Remove damaged packs from the list; their objects wait for the next. Raises
        StoreError."""
        async with self._busy:
            packs = await self.list.read()
            due_ms = self._env.clock.now_ms() + max(1, self._grace_ms())
            gone = [ObsoletePack(each, due_ms) for each in sorted(numbers)]
            kept = [each for each in packs.packs if each.number not in numbers]
            await self.list.exchange(PackList(packs.next, kept, [*packs.obsolete, *gone]))
        self.rescan()

    async def _scan(self) -> float:
        topics = await self._indexed_topics()
        if not topics:
            return ANYWAY_S
        packs = await self.list.read()
        live = await self._live()
        packs = await self._drop(packs, live)
        covered: set[bytes] = set()
        for pack in packs.packs:
            covered.update(pack.objects)
            await self._env.slices.pause()
        left = await self._waiting(live, covered, topics)
        while len(left) >= MAX_OBJECTS and not self._is_stopped():
            result = await self._write(packs.next, left)
            done = {*result.packed, *result.without}
            self._without.update(result.without)
            if result.packed:
                packs = await self._name(packs, result)
            if not done:
                break
            left = [each for each in left if each.row.object not in done]
        due = [each.delete_after_ms for each in packs.obsolete]
        wait_ms = min(due, default=1 << 62) - self._env.clock.now_ms()
        return min(ANYWAY_S, max(0.0, wait_ms / 1000))

    async def _indexed_topics(self) -> set[bytes]:
        found: set[bytes] = set()
        for at, (topic_id, configs) in enumerate(list(self._catalog.list_configured()), 1):
            if configs.get(INDEX_KEYS) == "true":
                found.add(topic_id)
            if at % SLICE == 0:
                await self._env.slices.pause()
        return found

    async def _live(self) -> dict[bytes, Segment]:
        found: dict[bytes, Segment] = {}
        for at, segment in enumerate(list(self._segments.by_id.values()), 1):
            row = segment.row
            if row.state == LIVE and row.object and row.tier == self._tier:
                found[row.object] = segment
            if at % SLICE == 0:
                await self._env.slices.pause()
        self._without &= found.keys()
        return found

    async def _drop(self, packs: PackList, live: Iterable[bytes]) -> PackList:
        """Drop packs without enough live objects, and delete those that were dropped before."""
        now_ms, known = self._env.clock.now_ms(), frozenset(live)
        due = [each for each in packs.obsolete if each.delete_after_ms <= now_ms]
        kept, obsolete = [], [each for each in packs.obsolete if each not in due]
        for pack in packs.packs:
            objects = pack.objects
            # At half: packs have at most twice the filters that are needed, and each filter is
            # written again at most once.
            if 2 * sum(uuid in known for uuid in objects) >= len(objects):
                kept.append(pack)
            else:
                obsolete.append(ObsoletePack(pack.number, now_ms + max(1, self._grace_ms())))
                self.dropped += 1
            await self._env.slices.pause()
        if not due and len(kept) == len(packs.packs):
            return packs
        # Before the list: a pack that no list names would stay until a scrub.
        if due:
            await self._store.delete([pack_key(each.number) for each in due])
        changed = PackList(packs.next, kept, obsolete)
        await self.list.exchange(changed)
        return changed

    async def _waiting(
        self, live: dict[bytes, Segment], covered: set[bytes], topics: set[bytes]
    ) -> list[Segment]:
        """Return the segments in no pack, oldest first, that may have a key index."""
        ids: list[int] = []
        for at, (uuid, segment) in enumerate(live.items(), 1):
            if uuid not in covered and uuid not in self._without:
                ids.append(segment.row.id)
            if at % SLICE == 0:
                await self._env.slices.pause()
        ids.sort()
        if len(ids) < MAX_OBJECTS:
            return []
        indexed: list[int] = []
        for at in range(0, len(ids), PAGE):
            found = set()
            for mapping in await self._storage.segment_mappings(ids[at : at + PAGE]):
                location = self._catalog.locate(mapping.number)
                if location is not None and location.topic_id in topics:
                    found.add(mapping.segment_id)
            indexed += sorted(found)
            await self._env.slices.pause()
        return [self._segments.by_id[each] for each in indexed if each in self._segments.by_id]

    async def _write(self, number: int, segments: Sequence[Segment]) -> PackResult:
        chosen = segments[:TRIED]
        pinned = [each for each in chosen if each.row.local]
        for each in pinned:
            each.pins += 1
        try:
            await self._on_disk(_clean, self._env.fs, self._folder)
            inputs = [await self._input(each) for each in chosen]
            output = os.path.join(self._folder, "pack")
            arguments = PackArguments(number, [each for each in inputs if each], output)
            result: PackResult = await self._env.worker.run("pack", arguments)
            result.without += [
                each.row.object
                for each, has in zip(chosen, inputs, strict=True)
                if has is None
            ]  # fmt: skip
            if result.packed:
                await self._store.upload(pack_key(number), output)
        finally:
            for each in pinned:
                each.pins -= 1
        await self._on_disk(_clean, self._env.fs, self._folder)
        return result

    async def _input(self, segment: Segment) -> PackInput | None:
        """Return where the key index of an object is; None if it has none."""
        row = segment.row
        if row.local:
            return PackInput(row.object, segment.path, row.size_bytes)
        key, size = segment_key(row.object), row.size_bytes
        start = max(0, size - FIRST_BYTES)
        try:
            tail, _ = await self._store.get(key, start, size - start)
            section = read_trailer(tail[-TAIL_BYTES:], size).optional(KEYS)
            if section is None or section.length > MAX_SECTION_BYTES:
                return None
            if section.body_start < start:
                start = section.body_start
                tail, _ = await self._store.get(key, start, size - start)
        # A scrub reports it. Without this object the others can still be packed.
        except (FormatError, NoSuchObject):
            return None
        path = os.path.join(self._folder, row.object.hex())
        await self._on_disk(_save, self._env.fs, path, tail)
        return PackInput(row.object, path, size, start)

    async def _name(self, packs: PackList, result: PackResult) -> PackList:
        pack = FilterPack(packs.next, result.shape, b"".join(result.packed))
        changed = PackList(packs.next + 1, [*packs.packs, pack], packs.obsolete)
        await self.list.exchange(changed)
        self.packs += 1
        size = result.shape.stripes * result.shape.stripe_bytes
        text = count(len(pack.objects), "object")
        logger.info("wrote filter pack %d of %s, %d bytes", pack.number, text, size)
        return changed

    async def _on_disk(self, fn: Callable[..., None], *args: object) -> None:
        await self._env.offload.submit("files", fn, *args)


def _clean(fs: FileSystem, folder: str) -> None:
    fs.makedirs(folder)
    for name in fs.listdir(folder):
        fs.remove(os.path.join(folder, name))


def _save(fs: FileSystem, path: str, data: bytes) -> None:
    file = fs.open(path, create=True)
    try:
        at = 0
        while at < len(data):
            at += file.pwritev([memoryview(data)[at:]], at)
    finally:
        file.close()
