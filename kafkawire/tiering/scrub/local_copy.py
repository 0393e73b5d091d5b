"""Verification of both copies of a segment: its file, and its object, which is downloaded.

Used by scrubs, moves and repairs; runs the worker's jobs `scrub` and `skip`.
"""

from __future__ import annotations

import os.path
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kafkawire.log.io.worker_jobs import Lost, ScrubArguments, ScrubResult
from kafkawire.manifest.keys import segment_key
from kafkawire.objectstore.errors import NoSuchObject
from kafkawire.offsets.catalog.port import ObjectRow
from kafkawire.tiering.scrub.repair import Site, discard_remote_copy
from kafkawire.tiering.store.retrying import RetryingCalls

ROOM_LEFT_BYTES = 256 << 20
"""Free space that downloads for verification leave."""


@asynccontextmanager
async def local_copy(
    site: Site, asking: RetryingCalls, uuid: bytes, size_bytes: int
) -> AsyncIterator[str]:
    """Download the object `uuid` from the store of `asking`; yield its path. Raises StoreError, and
    OSError if the disk has no room."""
    fs, rate, key = site.env.fs, site.bytes_per_second(), segment_key(uuid)
    path = os.path.join(site.folder, f"{uuid.hex()}.object")

    def prepare() -> int:
        fs.makedirs(site.folder)
        # What a crash has left.
        fs.remove(path)
        return fs.free_bytes(site.folder)[1]

    free = await site.env.offload.submit("files", prepare)
    if size_bytes + ROOM_LEFT_BYTES > free:
        raise OSError(f"the local disk has no room for its {size_bytes} bytes")
    try:
        await asking.download(key, path, rate)
        yield path
    finally:
        await site.env.offload.submit("files", fs.remove, path)


async def scrub_file(site: Site, path: str, segment: bytes) -> ScrubResult:
    """Return the problems of a file that should be this segment. Raises OSError, WorkerError."""
    arguments = ScrubArguments(path, segment)
    result: ScrubResult = await site.env.worker.run("scrub", arguments, site.bytes_per_second())
    return result


async def is_sound_here(site: Site, row: ObjectRow) -> bool:
    """Return whether the file of an object's segment exists and every byte is sound."""
    segment = site.segments.by_id.get(row.segment_id)
    if segment is None or not segment.has_file:
        return False
    # Its file is not removed meanwhile.
    segment.pins += 1
    try:
        return not (await scrub_file(site, segment.path, segment.row.uuid)).problems
    except OSError:
        return False
    finally:
        segment.pins -= 1


async def upload_again(site: Site, row: ObjectRow) -> bool:
    """Discard an object whose segment has a sound file, so that the file is uploaded again; return
    whether it was discarded."""
    return await is_sound_here(site, row) and await discard_remote_copy(site, row.uuid)


async def skip(site: Site, row: ObjectRow, path: str) -> list[Lost]:
    """Rewrite the segment of an object without the unreadable parts of `path`, a copy of it (empty:
    its own file, or there is none). See Skipper."""
    segment = site.segments.by_id[row.segment_id]
    own = segment.path if segment.row.local else ""
    return await site.skipper.skip(segment, path or own)


async def skip_object(site: Site, row: ObjectRow, asking: RetryingCalls) -> list[Lost]:
    """Call `skip` with a copy of the object, if the store of `asking` has one."""
    try:
        found = await asking.head(segment_key(row.uuid))
    except NoSuchObject:
        return await skip(site, row, "")
    async with local_copy(site, asking, row.uuid, found.size_bytes) as path:
        return await skip(site, row, path)
