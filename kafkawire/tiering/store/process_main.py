"""The storage process: `python -P -m kafkawire.tiering.store.process_main PARENT`.

It runs calls in the threads of their lanes and responds to each when it is done, in any order. When
its input ends, the broker has closed it or has died. Then calls in progress are cancelled, so that
no incomplete multipart upload is left in a bucket, and after a time limit the process exits.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import starmap
from threading import Condition, Lock
from typing import Any

from kafkawire.childprocess.child_end import begin
from kafkawire.childprocess.frames import FrameError, pack, read_frame, write_frame
from kafkawire.manifest.keys import SEGMENTS
from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.file_ranges import put_ranges
from kafkawire.objectstore.open import make_provider
from kafkawire.objectstore.port import FileRange, Provider, Stored, expect_size
from kafkawire.objectstore.url import parse_tier
from kafkawire.tiering.store.port import ObjectPart
from kafkawire.tiering.store.process_protocol import (
    CALLS_PER_THREAD,
    LANES,
    Answer,
    Hello,
    answer_of,
)

GRACE_S = 2.0
"""Time limit for calls in progress to end: a request that aborts a multipart upload."""


class Storage:
    """The calls in progress and their threads. `send` may be called by any thread."""

    def __init__(self, hello: Hello, memory: memoryview, send: Callable[[Answer], None]) -> None:
        self._hello = hello
        self._memory = memory
        self._send = send
        self._making = Lock()
        self._provider: Provider | None = None
        self._calls: dict[int, Call] = {}
        self._ended = Condition()
        self._pools = {
            lane: ThreadPoolExecutor(count, f"tier-{lane}") for lane, count in hello.threads.items()
        }
        # Limits that the broker never exceeds; a cancelled call counts until it has ended.
        self._calls_at_most = CALLS_PER_THREAD * sum(hello.threads.values())

    def start_call(self, number: int, operation: str, arguments: tuple[Any, ...]) -> None:
        """Start one call without waiting. Raises ValueError if the message is malformed."""
        if operation == "ping":
            self._send((number, "pong"))
        elif operation == "cancel":
            with self._ended:
                known = self._calls.get(number)
            if known is not None and known.cancel():
                self._send((number, "safe"))
        elif operation not in LANES or len(self._calls) >= self._calls_at_most:
            raise ValueError(f"{operation!r} is no operation, or one too many")
        else:
            call = Call()
            with self._ended:
                self._calls[number] = call
            self._pools[LANES[operation]].submit(self._run, number, operation, arguments, call)

    def close(self, grace_s: float) -> None:
        with self._ended:
            calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        with self._ended:
            self._ended.wait_for(lambda: not self._calls, grace_s)

    def _run(self, number: int, operation: str, arguments: tuple[Any, ...], call: Call) -> None:
        try:
            call.check()
            answer: Answer = number, "done", self._do(operation, arguments, call)
        except Exception as failure:
            answer = answer_of(number, failure)
        # The broker has died, and this process will exit.
        with contextlib.suppress(OSError):
            self._send(answer)
        with self._ended:
            del self._calls[number]
            self._ended.notify_all()

    def _do(self, operation: str, arguments: tuple[Any, ...], call: Call) -> Any:
        provider = self._open_provider()
        if operation == "read":
            return self._read(provider, call, *arguments)
        if operation == "copy_from":
            url, key, size_bytes, source_key = arguments
            return copy_object(provider, url, source_key, key, size_bytes, call)
        if operation == "put_ranges":
            key, head, ranges = arguments
            return put_ranges(provider, key, head, list(starmap(FileRange, ranges)), call)
        return getattr(provider, operation)(*arguments, call)

    def _open_provider(self) -> Provider:
        with self._making:
            if self._provider is None:
                hello = self._hello
                self._provider = make_provider(
                    hello.tier, hello.part_bytes, sum(hello.threads.values()),
                    hello.threads["upload"], hello.seen, hello.storage_class, SEGMENTS,
                )  # fmt: skip
                # Multipart uploads of the child before this one. If that fails they are left as
                # after a crash.
                if hello.left:
                    with contextlib.suppress(StoreError):
                        self._provider.clear_up(hello.left)
            return self._provider

    def _read(self, provider: Provider, call: Call, key: str, parts: Sequence[ObjectPart]) -> None:
        views = [self._memory[part.at : part.at + part.length] for part in parts]
        provider.read(key, parts[0].start, views, call)


@lru_cache(maxsize=4)
def _source(url: str) -> Provider:
    """The tier to copy from; a move uses one or two, for many objects."""
    return make_provider(parse_tier(url), 1 << 24, 4, 4, seen=True)


def copy_object(
    provider: Provider, url: str, source_key: str, key: str, size_bytes: int, call: Call
) -> Stored:
    """Copy an object from another tier, within the storage if possible, otherwise through this
    process."""
    source = _source(url)
    stored = provider.copy(source, source_key, key, call)
    if stored is None:
        with source.reading(source_key, call) as body:
            stored = provider.upload_from(key, body, size_bytes, call)
    expect_size(key, stored.size_bytes, size_bytes)
    return stored


def serve(source: int, sink: int) -> None:
    """Answer requests from one pipe to the other until the input ends or is malformed."""
    sending = Lock()

    def send(answer: Answer) -> None:
        # A result that fits into no frame fails its call only.
        try:
            head, body = pack(answer)
        except FrameError as problem:
            head, body = pack(answer_of(answer[0], StoreError("TooLarge", str(problem))))
        with sending:
            write_frame(sink, head, body)

    hello = _next(source)
    if not isinstance(hello, Hello):
        return
    size = hello.memory_bytes
    memory = memoryview(mmap.mmap(hello.memory_fd, size)) if size else memoryview(b"")
    storage = Storage(hello, memory, send)
    while (request := _next(source)) is not None:
        try:
            number, operation, arguments = request
            storage.start_call(number, operation, arguments)
        except (TypeError, ValueError):
            break
    storage.close(GRACE_S)


def _next(source: int) -> Any:
    """Return the next message; None at the end of the input or if it is malformed."""
    body = read_frame(source)
    return None if body is None else pickle.loads(body)


def main() -> None:
    ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    # It exits when its input ends, after calls in progress were cancelled: signals are ignored.
    sink, _ = begin(ignored, killed_with_parent=False)
    try:
        serve(0, sink)
    # At once, without waiting for threads that hang in a request.
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
