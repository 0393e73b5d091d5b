"""Object storage in a child process: the broker's side.

boto3 would delay the event loop, so it runs in a separate process. That is started by the first
call and after it died, and stopped when it was idle for a while or when the broker stops. Calls are
small messages, many at a time. `read` uses memory that both processes map.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from kafkawire.childprocess.frames import pack
from kafkawire.childprocess.parent_end import ChildProcess, exit_words
from kafkawire.extras import need
from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.file_ranges import check_ranges
from kafkawire.objectstore.port import MAX_DELETE, MAX_LIST, FileRange, Listed, Stored
from kafkawire.objectstore.url import TierUrl, check_key
from kafkawire.tiering.store.port import ObjectPart
from kafkawire.tiering.store.process_protocol import (
    CALLS_PER_THREAD,
    LANES,
    LOG_THREADS,
    REST_THREADS,
    Answer,
    Hello,
    failure_of,
    unpack_answer,
)

# One storage process as the broker sees it: its calls, its responses, its end.


MAX_WAITING = 2000
"""Maximum number of calls of one lane that wait for the child. Each has a waiting task; beyond this
limit the store is not responding, and further calls fail at once."""
PING_S = 10.0
MAX_PINGS_MISSED = 2
"""Number of missed pings, with calls in progress, after which the child is killed."""
CLOSE_S = 4.0
"""Time to wait for the child to exit by itself."""


class Lane:
    """Calls of one kind: the child has as many as keep its threads busy, the rest waits here."""

    __slots__ = ("_name", "_slots", "_waiting", "leave")

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._slots = asyncio.Semaphore(threads * CALLS_PER_THREAD)
        self._waiting = 0
        self.leave = self._slots.release

    async def acquire_slot(self) -> None:
        if self._waiting >= MAX_WAITING:
            raise StoreError("Busy", f"{self._waiting} calls wait for the storage ({self._name})")
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1


class _Pending:
    """A call in the child. `safe`: completed when nothing writes into its memory any more."""

    __slots__ = ("answer", "leave", "safe", "stores")

    def __init__(self, leave: Callable[[], None], stores: str) -> None:
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.safe: asyncio.Future[None] = loop.create_future()
        self.leave = leave
        self.stores = stores

    def release_lane(self) -> None:
        self.leave()
        if not self.safe.done():
            self.safe.set_result(None)


def _stored_by(operation: str, arguments: tuple[Any, ...]) -> str:
    """Return the key that a multi-request upload may leave incomplete."""
    if operation == "upload":
        return str(arguments[0])
    return str(arguments[1]) if operation == "copy_from" else ""


class StorageChild:
    """One child process, from its start to its end. `answered` is called after each success."""

    def __init__(self, process: ChildProcess, idle_s: float, answered: Callable[[], None]) -> None:
        self._process = process
        self._idle_s = idle_s
        self._answered = answered
        self._pending: dict[int, _Pending] = {}
        self._number = 0
        self._missed = 0
        self._failure = ""  # how it ended, once it has
        self._loop = asyncio.get_running_loop()
        self._watching: asyncio.TimerHandle | None = None
        self._listening: asyncio.Task[Any]
        self.alive = True
        """Whether its input is open and its output has not ended."""
        self.heard = False
        """Whether it has responded to a call."""
        self.left: list[str] = []
        """Keys of objects it was storing when it died."""

    def start(self, listening: asyncio.Task[Any]) -> None:
        """Set the task that reads responses with `listen`. Called once, after the constructor."""
        self._listening = listening

    @property
    def pid(self) -> int | None:
        """The process id; None once it has ended."""
        return self._process.pid

    @property
    def takes_calls(self) -> bool:
        """Whether a call can be sent; a dead process closes its pipes one after the other."""
        return self.alive and not self._process.is_closing

    def call(
        self, operation: str, arguments: tuple[Any, ...], leave: Callable[[], None]
    ) -> tuple[int, asyncio.Future[Any]]:
        """Send a call; return its number and the future of its response. `leave()` is called when
        it has ended. Raises StoreError if the process has ended meanwhile."""
        # `listen` has ended, so this call would never get a response.
        if self._failure:
            raise StoreError("ChildDied", self._failure)
        number = self._number + 1
        self.send((number, operation, arguments))
        self._number = number
        pending = self._pending[number] = _Pending(leave, _stored_by(operation, arguments))
        self._process.busy()
        if self._watching is None:
            self._watching = self._loop.call_later(PING_S, self._watch)
        return number, pending.answer

    def cancel(self, number: int) -> asyncio.Future[None]:
        """Cancel a call; the future is done when its memory is free."""
        pending = self._pending.get(number)
        if pending is None:
            done = self._loop.create_future()
            done.set_result(None)
            return done
        pending.answer.cancel()
        self.send((number, "cancel", ()))
        return pending.safe

    async def drain(self) -> None:
        """Wait until the pipe has taken the sent data."""
        # Reported with the response.
        with contextlib.suppress(ConnectionError):
            await self._process.drain()

    async def wait_until_ended(self) -> None:
        await asyncio.shield(self._listening)

    async def close(self) -> None:
        self._retire()
        await asyncio.wait([self._listening], timeout=CLOSE_S)
        self._process.kill()
        await self.wait_until_ended()

    def send(self, message: object) -> None:
        """Write a message to the pipe. Raises ValueError if it is too large."""
        frame = pack(message)
        # It is dead: `listen` fails the calls that wait.
        with contextlib.suppress(ConnectionError):
            self._process.send(frame)

    async def listen(self) -> bool:
        """Read responses until the process has ended; return whether it never responded."""
        why = ""
        try:
            while True:
                self._take(unpack_answer(await self._process.receive()))
        except (asyncio.IncompleteReadError, ConnectionError):
            why = ""
        # After any error waiting calls must fail, or they would wait forever.
        except Exception as problem:
            why = f"said what is no answer: {problem!r}"
            self._process.kill()
        intended = not self.alive
        self.alive = False
        code = await self._process.wait_or_kill(CLOSE_S)
        if self._watching is not None:
            self._watching.cancel()
        self._failure = f"the storage process {why or 'ended with ' + exit_words(code)}"
        pending, self._pending = self._pending, {}
        self.left = [call.stores for call in pending.values() if call.stores]
        for call in pending.values():
            if not call.answer.done():
                call.answer.set_exception(StoreError("ChildDied", self._failure))
            call.release_lane()
        return not (intended or self.heard)

    def _take(self, answer: Answer) -> None:
        self._missed = 0
        self.heard = True
        number, kind = answer[:2]
        if kind == "pong":
            return
        pending = self._pending.get(number)
        if kind == "safe":
            # A call may have been cancelled at the same moment and is unknown then.
            if pending is not None and not pending.safe.done():
                pending.safe.set_result(None)
            return
        if pending is None:
            raise ValueError(f"there is no call {number}")
        failure = None if kind == "done" else failure_of(answer)
        del self._pending[number]
        pending.release_lane()
        if not self._pending and self.alive:
            self._process.rest_after(self._idle_s, self._retire)
        if not pending.answer.done():
            if failure is None:
                pending.answer.set_result(answer[2])
            else:
                pending.answer.set_exception(failure)
        if failure is None:
            self._answered()

    def _watch(self) -> None:
        """Check periodically, while there are calls, that the child responds."""
        self._watching = None
        if not self._pending:
            self._missed = 0
        # `listen` then fails the calls.
        elif self._missed >= MAX_PINGS_MISSED:
            self._process.kill()
        else:
            self._missed += 1
            self.send((0, "ping", ()))
            self._watching = self._loop.call_later(PING_S, self._watch)

    def _retire(self) -> None:
        self.alive = False
        self._process.retire()


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
            # Here, as its import would fail in the process.
            need("s3", tier.url)
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
        # Plain tuples are pickled ten times as fast.
        plain = tuple(map(tuple, ranges))
        return Stored(*await self._call("put_ranges", _key(key), head, plain))

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        data, etag = await self._call("get", _key(key), start, length)
        return data, etag

    async def read(self, key: str, parts: Sequence[ObjectPart]) -> None:
        """Read ranges into memory. ValueError: parts not contiguous or outside the memory."""
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
        # A child that is being started must be ended, too.
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        child, self._child = self._child, None
        if child is not None:
            await child.close()
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd = -1

    async def _call(self, operation: str, *arguments: Any) -> Any:
        """Make one call and return its response. A cancelled one has its lane until it ends."""
        lane = self._lanes[LANES[operation]]
        await lane.acquire_slot()
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
            # The caller will give the memory to another read: until then nothing may write there.
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
            # Two children must not write into the memory concurrently.
            if self._child is not None:
                await self._child.wait_until_ended()
            if loop.time() < self._not_before:
                raise StoreError("ChildDied", "the storage process ends as soon as it begins")
            hello = Hello(
                self._tier, self._seen, self._memory_fd, len(self.memory), self._part_bytes,
                self._threads, tuple(self._left), self._storage_class,
            )  # fmt: skip
            passed = [self._memory_fd] if len(self.memory) else []
            process = await ChildProcess.start("kafkawire.tiering.store.process_main", NICE, passed)
            child = StorageChild(process, self._idle_s, self._note_answer)
            child.start(loop.create_task(self._listen(child)))
            self._child = child
            child.send(hello)
            self._left = []
            return child
        except OSError as failure:
            raise StoreError("ChildDied", f"no storage process can be started: {failure}") from None
        finally:
            self._starting = None

    def _note_answer(self) -> None:
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
    if not parts:
        raise ValueError("no parts to read")
    end = parts[0].start
    for part in parts:
        if part.start != end or part.length <= 0 or part.start < 0:
            raise ValueError(f"{part} does not go on where the one before ends, at {end}")
        if not 0 <= part.at <= memory_bytes - part.length:
            raise ValueError(f"{part} does not lie in {memory_bytes} bytes of memory")
        end += part.length
