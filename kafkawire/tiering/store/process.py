"""Object storage in a child process: the broker's side.

boto3 would delay the event loop, so it runs in a separate process. That is started by the first
call and after it died, and stopped when it was idle for a while or when the broker stops. Calls are
small messages, many at a time. `read` uses memory that both processes map, so data is copied only
once, from the socket to the memory it is sent from.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from kafkawire.childprocess.parent_end import ChildProcess
from kafkawire.extras import need
from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.file_ranges import check_ranges
from kafkawire.objectstore.keys import check_key
from kafkawire.objectstore.port import MAX_DELETE, MAX_LIST, FileRange, Listed, Stored
from kafkawire.objectstore.url import TierUrl
from kafkawire.tiering.store.port import ObjectPart
from kafkawire.tiering.store.process_client import Lane, StorageChild
from kafkawire.tiering.store.process_protocol import LANES, LOG_THREADS, REST_THREADS, Hello

IDLE_S = 600.0
"""Idle time after which the child is stopped. It takes 60 MB with boto3; starting one takes half a
second, which the first cold read would wait for. Uploads come every few minutes while there is
traffic."""
NICE = 5
"""Priority below the broker's event loop and above cutting and compaction (10)."""
STILLBORN_S = 1.0
"""Delay before another start after a child that died before its first response."""


class StoreProcess:
    """The ObjectStore in a child process; see kafkawire.tiering.store.port.

    `part_bytes`: parts of multipart uploads; `upload_threads`: concurrent long calls;
    `storage_class`: of segments in S3, empty: the bucket's default; `seen`: the bucket or folder
    existed before, so it is not created again if it is gone.
    """

    def __init__(
        self,
        tier: TierUrl,
        memory_bytes: int = 0,
        part_bytes: int = 16 << 20,
        upload_threads: int = 4,
        read_threads: int = 16,
        idle_s: float = IDLE_S,
        storage_class: str = "",
        *,
        seen: bool = False,
    ) -> None:
        if tier.is_s3:
            need("s3", tier.url)  # its import would fail in the process
        self._tier = tier
        self._storage_class = storage_class
        self._part_bytes = part_bytes
        self._threads = {
            "read": read_threads,
            "upload": upload_threads,
            "log": LOG_THREADS,
            "rest": REST_THREADS,
        }
        self._lanes = {lane: Lane(lane, count) for lane, count in self._threads.items()}
        self._memory_fd = _shared_memory(memory_bytes)
        size = memory_bytes
        self.memory = memoryview(mmap.mmap(self._memory_fd, size) if size else b"")
        self._idle_s = idle_s
        self._child: StorageChild | None = None
        self._starting: asyncio.Task[StorageChild] | None = None
        self._not_before = 0.0
        self._seen = seen
        self._left: list[str] = []
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id; None if there is none."""
        return None if self._child is None else self._child.pid

    async def upload(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        return Stored(*await self._call("upload", _key(key), path, bytes_per_second))

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored:
        return Stored(*await self._call("put", _key(key), bytes(data), if_match, if_absent))

    async def put_ranges(self, key: str, head: bytes, ranges: Sequence[FileRange]) -> Stored:
        check_ranges(head, ranges)
        plain = tuple(map(tuple, ranges))  # pickled ten times as fast
        return Stored(*await self._call("put_ranges", _key(key), head, plain))

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        data, etag = await self._call("get", _key(key), start, length)
        return data, etag

    async def read(self, key: str, parts: Sequence[ObjectPart]) -> None:
        """Read ranges of objects into memory. Raises ValueError if the parts are not contiguous or
        not in the memory."""
        _check_parts(parts, len(self.memory))
        await self._call("read", _key(key), tuple(parts))

    async def download(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        return Stored(*await self._call("download", _key(key), path, bytes_per_second))

    async def copy_from(
        self, source_url: str, key: str, size_bytes: int, source_key: str = ""
    ) -> Stored:
        source = _key(source_key or key)
        return Stored(*await self._call("copy_from", source_url, _key(key), size_bytes, source))

    async def head(self, key: str) -> Stored:
        """Return the size and ETag of an object. Raises NoSuchObject."""
        return Stored(*await self._call("head", _key(key)))

    async def delete(self, keys: Sequence[str]) -> int:
        """Delete objects. Raises ValueError beyond 1,000 keys."""
        if len(keys) > MAX_DELETE:
            raise ValueError(f"{len(keys)} objects to delete: {MAX_DELETE} are allowed")
        if not keys:
            return 0
        return int(await self._call("delete", tuple(map(_key, keys))))

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        """List objects. Raises ValueError if limit is not in 1..1,000."""
        if not 1 <= limit <= MAX_LIST:
            raise ValueError(f"a listing of {limit} objects: 1 to {MAX_LIST} are allowed")
        return [Listed(*row) for row in await self._call("list", prefix, after, limit)]

    async def close(self) -> None:
        self._closed = True
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        child, self._child = self._child, None
        if child is not None:
            await child.end()
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd = -1

    async def _call(self, operation: str, *arguments: Any) -> Any:
        """Make one call and return its response. A cancelled call occupies its lane until the child
        has ended it; writes into memory are waited for."""
        lane = self._lanes[LANES[operation]]
        await lane.enter()
        try:
            child = await self._running()
            number, answer = child.call(operation, arguments, lane.leave)
        except BaseException:
            lane.leave()
            raise
        try:
            await child.drain()
            return await answer
        except asyncio.CancelledError:
            safe = child.cancel(number)
            while operation == "read" and not safe.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([safe])
            raise

    async def _running(self) -> StorageChild:
        """Return the child; the first caller starts it for all concurrent callers."""
        if self._closed:
            raise StoreError("Closed", "the tier is being closed")
        if self._child is not None and self._child.takes_calls:
            return self._child
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> StorageChild:
        try:
            loop = asyncio.get_running_loop()
            if self._child is not None:
                await self._child.gone()  # two children must not write into the memory concurrently
            if loop.time() < self._not_before:
                raise StoreError("ChildDied", "the storage process ends as soon as it begins")
            hello = Hello(
                self._tier, self._seen, self._memory_fd, len(self.memory), self._part_bytes,
                self._threads, tuple(self._left), self._storage_class,
            )  # fmt: skip
            passed = [self._memory_fd] if len(self.memory) else []
            process = await ChildProcess.start("kafkawire.tiering.store.process_main", NICE, passed)
            child = StorageChild(process, self._idle_s, self._answered)
            child.start(loop.create_task(self._listen(child)))
            self._child = child
            child.send(hello)
            self._left = []
            return child
        except OSError as failure:
            raise StoreError("ChildDied", f"no storage process can be started: {failure}") from None
        finally:
            self._starting = None

    def _answered(self) -> None:
        self._seen = True

    async def _listen(self, child: StorageChild) -> None:
        stillborn = await child.listen()
        self._left += child.left
        if stillborn:
            self._not_before = asyncio.get_running_loop().time() + STILLBORN_S


def _shared_memory(size_bytes: int) -> int:
    """Return an anonymous memory file of this size, if the system has them; -1 for 0."""
    if size_bytes <= 0:
        return -1
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("kafkawire-tier")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size_bytes)
    return fd


def _key(key: str) -> str:
    check_key(key)
    return key


def _check_parts(parts: Sequence[ObjectPart], memory_bytes: int) -> None:
    """Raise ValueError unless the parts are one range and in the memory."""
    if not parts:
        raise ValueError("no parts to read")
    end = parts[0].start
    for part in parts:
        if part.start != end or part.length <= 0 or part.start < 0:
            raise ValueError(f"{part} does not go on where the one before ends, at {end}")
        if not 0 <= part.at <= memory_bytes - part.length:
            raise ValueError(f"{part} does not lie in {memory_bytes} bytes of memory")
        end += part.length
