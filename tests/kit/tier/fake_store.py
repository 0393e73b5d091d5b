"""An object store in memory that delays, fails, throttles, loses responses and objects.

`FakeBucket` is the shared state: its objects outlive the processes that made them, and its `faults`
say which failures to inject. `FakeStore` is one process's access to it
(kafkawire.tiering.store.port.ObjectStore). A request that was sent may be done even if no caller
waits for its response any more: the caller was cancelled, or the whole process is dead (`crash`).
Delays are the loop's, so under a SimLoop they take no real time.

tests/objectstore/test_object_store.py checks it and the real stores against the same contract.
"""

from __future__ import annotations

import asyncio
import os.path
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from kafkawire.log.io.ports import FileSystem
from kafkawire.objectstore.calls import Call as StoreCall
from kafkawire.objectstore.errors import ConditionFailed, StoreError
from kafkawire.objectstore.file_ranges import ALIGNMENT, check_ranges, read_ranges
from kafkawire.objectstore.port import FileRange, Listed, Stored
from kafkawire.tiering.store.port import ObjectPart
from tests.kit.tier.fake_bucket import Call, FakeBucket, StoreFaults

T = TypeVar("T")
MAX_KEYS = 1000


class FakeStore:
    """One process's ObjectStore over a bucket. `fs`: where the files of `upload` and `download`
    are; None: on the real disk."""

    def __init__(
        self, bucket: FakeBucket, fs: FileSystem | None = None, memory_bytes: int = 1 << 20
    ) -> None:
        self.bucket = bucket
        self.memory = memoryview(bytearray(memory_bytes))
        self.closed = False
        self._fs = fs
        self._sent: dict[asyncio.Future[Any], Callable[[], None]] = {}

    @property
    def objects(self) -> dict[str, bytes]:
        """The objects of the bucket."""
        return self.bucket.objects

    @property
    def requests(self) -> Counter[str]:
        """The request counts of the bucket."""
        return self.bucket.requests

    @property
    def faults(self) -> StoreFaults:
        """The faults of the bucket."""
        return self.bucket.faults

    def crash(self) -> None:
        """End the process: each request in flight has still been done, or not."""
        self.closed = True
        sent, self._sent = self._sent, {}
        for perform in sent.values():
            if self.bucket.rng.random() < 0.5:
                perform()

    async def upload(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        size_bytes = len(self._read_file(path))
        seconds = size_bytes / bytes_per_second if bytes_per_second > 0 else 0.0

        def act() -> Stored:
            data = self._read_file(path)
            parts = -(-len(data) // self.bucket.part_bytes)
            return Stored(self.bucket.store(key, data), len(data), 1 if parts <= 1 else parts + 2)

        return await self._request("put", key, act, size_bytes, seconds)

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored:
        data = bytes(data)

        def act() -> Stored:
            return self._store(key, data, if_match, if_absent)

        return await self._request("put", key, act, len(data))

    async def put_ranges(self, key: str, head: bytes, ranges: Sequence[FileRange]) -> Stored:
        size_bytes = check_ranges(head, ranges)

        def act() -> Stored:
            return self._store(key, self._read_ranges(head, ranges), None, True)

        return await self._request("put", key, act, size_bytes)

    def _store(self, key: str, data: bytes, if_match: str | None, if_absent: bool) -> Stored:
        there = self.bucket.held.get(key)
        if if_absent and there is not None:
            raise ConditionFailed("PreconditionFailed", f"there is an object {key} already")
        if if_match is not None and (there is None or there.etag != if_match):
            raise ConditionFailed("PreconditionFailed", f"{key} is not the object expected")
        return Stored(self.bucket.store(key, data), len(data))

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        def act() -> tuple[bytes, str]:
            data = self.bucket.data(key)
            first = max(0, len(data) + start) if start < 0 else start
            part = data[first:] if length is None else data[first : first + length]
            self._end_early(key)
            return part, self.bucket.held[key].etag

        return await self._request("get", key, act, 0)

    async def read(self, key: str, parts: Sequence[ObjectPart]) -> None:
        for part in parts:
            if part.at < 0 or part.at + part.length > len(self.memory):
                raise ValueError(f"a part at {part.at} of {part.length} bytes is outside of memory")
        wanted = sum(part.length for part in parts)

        def act() -> None:
            data, early = self.bucket.data(key), None
            try:
                self._end_early(key)
            except StoreError as failure:
                data, early = data[: parts[0].start + wanted // 2], failure
            for part in parts:
                found = data[part.start : part.start + part.length]
                self.memory[part.at : part.at + len(found)] = found
                if len(found) < part.length:
                    text = f"{key} ends before byte {part.start + part.length}"
                    raise early or StoreError("IncompleteRead", text)

        await self._request("get", key, act, wanted)

    async def download(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        size_bytes = len(self.bucket.held[key].data) if key in self.bucket.held else 0
        seconds = size_bytes / bytes_per_second if bytes_per_second > 0 else 0.0

        def act() -> Stored:
            data = self.bucket.data(key)
            self._end_early(key)
            self._write_file(path, data)
            return Stored(self.bucket.held[key].etag, len(data))

        return await self._request("get", key, act, size_bytes, seconds)

    async def copy_from(
        self, source_url: str, key: str, size_bytes: int, source_key: str = ""
    ) -> Stored:
        """`source_url` names an entry of `BUCKETS`, or a folder in one."""
        url, _, node = source_url.partition("/nodes/")
        source = f"nodes/{node}/{source_key or key}" if node else source_key or key

        def act() -> Stored:
            data = BUCKETS[url].data(source)
            if len(data) != size_bytes:
                text = f"{key} has {len(data)} bytes there and not {size_bytes}"
                raise StoreError("IncompleteRead", text)
            return Stored(self.bucket.store(key, data), len(data))

        return await self._request("put", key, act, size_bytes)

    async def head(self, key: str) -> Stored:
        def act() -> Stored:
            data = self.bucket.data(key)
            return Stored(self.bucket.held[key].etag, len(data))

        return await self._request("head", key, act)

    async def delete(self, keys: Sequence[str]) -> int:
        if len(keys) > MAX_KEYS:
            raise ValueError(f"{len(keys)} keys in one deletion, {MAX_KEYS} at most")
        if not keys:
            return 0

        def act() -> int:
            for key in keys:
                self.bucket.held.pop(key, None)
            return 1

        return await self._request("delete", " ".join(keys), act)

    async def list(self, prefix: str, after: str = "", limit: int = MAX_KEYS) -> list[Listed]:
        def act() -> list[Listed]:
            keys = sorted(k for k in self.bucket.held if k.startswith(prefix) and k > after)
            found = [(key, self.bucket.held[key]) for key in keys[: min(limit, MAX_KEYS)]]
            return [Listed(k, len(held.data), held.modified_ms, held.etag) for k, held in found]

        return await self._request("list", prefix, act)

    async def close(self) -> None:
        """Fail the requests in flight, which may have been done all the same."""
        self.crash()

    async def _request(
        self,
        kind: str,
        key: str,
        act: Callable[[], T],
        body_bytes: int = 0,
        seconds: float = 0.0,
    ) -> T:
        """Send a request, perform it, return its response; each step may take time."""
        if self.closed:
            raise StoreError("Closed", "the store is closed")
        bucket, loop = self.bucket, asyncio.get_running_loop()
        bucket.hook("call", kind, key)
        bucket.requests[kind] += 1
        answer: asyncio.Future[T] = loop.create_future()
        failure = bucket.draw()
        travel = self._travel()
        if bucket.faults.bytes_per_second:
            seconds = max(seconds, body_bytes / bucket.faults.bytes_per_second)
        if failure is not None:
            travel = bucket.faults.timeout_s if bucket.faults.down else travel
            loop.call_later(travel, _settle, answer, None, failure)
        else:
            perform = partial(self._perform, answer, kind, key, act)
            self._sent[answer] = perform
            loop.call_later(travel + seconds, self._arrived, answer)
        code = "Cancelled"
        try:
            result = await answer
            code = ""
            return result
        except asyncio.CancelledError:
            if kind == "get":
                self._sent.pop(answer, None)  # the caller may use the memory or file again
            raise
        except (StoreError, OSError) as caught:
            code = caught.code if isinstance(caught, StoreError) else type(caught).__name__
            raise
        finally:
            bucket.calls.append(Call(loop.time(), kind, key, code))
            if code != "Cancelled":
                bucket.hook("answer", kind, key)

    def _arrived(self, answer: asyncio.Future[Any]) -> None:
        perform = self._sent.pop(answer, None)
        if perform is None:
            _settle(answer, None, StoreError("Closed", "the store was closed meanwhile"))
        else:
            perform()

    def _perform(
        self, answer: asyncio.Future[T], kind: str, key: str, act: Callable[[], T]
    ) -> None:
        outcome: T | None = None
        failure: BaseException | None = None
        try:
            outcome = act()
        except (StoreError, OSError) as caught:
            failure = caught
        self.bucket.hook("done", kind, key)
        faults = self.bucket.faults
        if failure is None and self.bucket.rng.random() < faults.lost_rate:
            failure = StoreError("ReadTimeoutError", "the answer did not come in time")
        if not self.closed:
            loop = asyncio.get_running_loop()
            loop.call_later(self._travel(), _settle, answer, outcome, failure)

    def _travel(self) -> float:
        least, most = self.bucket.faults.delay_s
        return least + self.bucket.rng.random() * (most - least)

    def _end_early(self, key: str) -> None:
        if self.bucket.rng.random() < self.bucket.faults.partial_rate:
            raise StoreError("IncompleteRead", f"the body of {key} ended early")

    def _read_file(self, path: str) -> bytes:
        if self._fs is None:
            with open(path, "rb") as real:
                return real.read()
        file = self._fs.open(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def _read_ranges(self, head: bytes, ranges: Sequence[FileRange]) -> bytes:
        if self._fs is None:
            return read_ranges(head, ranges, StoreCall())
        parts = [head]
        for path, start, length in ranges:
            file = self._fs.open(path)
            try:
                data = file.pread(length, start)
            finally:
                file.close()
            if len(data) < length:
                raise OSError(f"{path} ends at {start + len(data)}")
            parts += (data, bytes(-length % ALIGNMENT))
        return b"".join(parts)

    def _write_file(self, path: str, data: bytes) -> None:
        if self._fs is None:
            with open(path, "xb") as real:
                real.write(data)
            return
        file = self._fs.open(path, create=True)
        try:
            if file.pwritev([data], 0) < len(data):
                raise OSError("no space left on device")
            file.sync()
        except OSError:
            self._fs.remove(path)
            raise
        finally:
            file.close()
        self._fs.sync_dir(os.path.dirname(path))


BUCKETS: dict[str, FakeBucket] = {}
"""By URL: where `copy_from` finds other tiers."""


def _settle(answer: asyncio.Future[Any], outcome: Any, failure: BaseException | None) -> None:
    if answer.done():
        return
    if failure is None:
        answer.set_result(outcome)
    else:
        answer.set_exception(failure)
