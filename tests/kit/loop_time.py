"""A broker in a thread of its own whose event loop measures the CPU time of each iteration.

CPU time and not wall time: the machine is shared, and the client of a test runs in another thread.
One request at a time, so an iteration's time is that request's.

A broker runs on uvloop, which keeps references to what it is given to write. The loop measured here
is asyncio's, because its selector can be replaced; its transport copies an answer as a whole and
moves the rest after each send. That time is not counted.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import socket
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import unpack
from typing import Any, TypeVar

from kafkawire.server.run import Server
from tests.kit.server import port_of, running

T = TypeVar("T")
ANSWER_S = 60.0


class MeasuredSelector(selectors.DefaultSelector):
    """Between two calls of `select` lies one iteration of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0
        self._since = 0.0

    def exclude(self, seconds: float) -> None:
        """Exclude this much CPU time from the current iteration."""
        self._since += seconds

    def select(self, timeout: float | None = None) -> Any:
        self.longest_s = max(self.longest_s, time.thread_time() - self._since)
        try:
            return super().select(timeout)
        finally:
            self._since = time.thread_time()


class MeasuredLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a MeasuredSelector; see the module for what is not counted."""

    def __init__(self, selector: MeasuredSelector) -> None:
        super().__init__(selector)
        self._measured = selector

    def _make_socket_transport(self, *args: Any, **options: Any) -> Any:
        transport = super()._make_socket_transport(*args, **options)  # type: ignore[misc]
        for name in ("writelines", "_write_ready"):
            setattr(transport, name, self._uncounted(getattr(transport, name)))
        return transport

    def _uncounted(self, method: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            since = time.thread_time()
            try:
                method(*args)
            finally:
                self._measured.exclude(time.thread_time() - since)

        return run


class MeasuredRun:
    """A measured event loop for parts of a broker; see `measured_run`."""

    def __init__(self, loop: MeasuredLoop, selector: MeasuredSelector) -> None:
        self._loop = loop
        self._selector = selector

    def run(self, work: Awaitable[T]) -> T:
        """Run something to its end; return its result."""

        async def awaited() -> T:
            return await work

        return self._loop.run_until_complete(awaited())

    def longest_s(self, work: Awaitable[object]) -> float:
        """Run something to its end; return the CPU seconds of the longest iteration."""

        async def counted() -> float:
            await asyncio.sleep(0)
            self._selector.longest_s = 0.0
            await work
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return self._selector.longest_s

        return self._loop.run_until_complete(counted())


@contextmanager
def measured_run() -> Iterator[MeasuredRun]:
    """A measured event loop in this thread, without garbage collections."""
    selector = MeasuredSelector()
    loop = MeasuredLoop(selector)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield MeasuredRun(loop, selector)
    finally:
        gc.enable()
        gc.unfreeze()
        loop.close()


class MeasuredBroker:
    """The broker of this module; `ask` sends a frame and returns how long the loop was blocked for
    it."""

    def __init__(self, server: Server, selector: MeasuredSelector) -> None:
        self.server = server
        self.selector = selector
        self.port = port_of(server)
        self._scrap = bytearray(1 << 20)

    def ask(self, frame: bytes, count: int = 1) -> float:
        """The longest iteration, in CPU seconds, from the request, which is pipelined `count`
        times, to its last response or the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_S) as sock:
            time.sleep(0.01)
            self.selector.longest_s = 0.0
            sending = threading.Thread(target=_send, args=(sock, frame * count))
            sending.start()
            try:
                for _ in range(count):
                    if not self.answer(sock):
                        break
            except ConnectionError:
                pass
            sending.join()
        return self.selector.longest_s

    def memory(self, frame: bytes) -> int:
        """The peak of memory, in bytes, that the request took; the broker must run with
        tracemalloc."""
        gc.collect()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        self.ask(frame)
        return tracemalloc.get_traced_memory()[1] - before

    def answer(self, sock: socket.socket) -> int:
        """Read and discard one response; return its size, 0 if the connection was closed."""
        head = sock.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return 0
        (size,) = unpack(">i", head)
        left = size
        while left > 0:
            count = sock.recv_into(self._scrap, min(left, len(self._scrap)))
            if not count:
                return 0
            left -= count
        return int(size)


def _send(sock: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        sock.sendall(data)


@contextmanager
def measured(data: Path, **settings: str) -> Iterator[MeasuredBroker]:
    """A running measured broker."""
    selector = MeasuredSelector()
    started: list[Server] = []
    ready, done = threading.Event(), []
    stop: list[asyncio.Event] = []

    async def serve() -> None:
        async with running(data, **settings) as server:
            started.append(server)
            stop.append(asyncio.Event())
            gc.collect()
            gc.freeze()
            gc.disable()
            ready.set()
            await stop[0].wait()

    loop = MeasuredLoop(selector)

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as failure:
            done.append(failure)
            raise
        finally:
            ready.set()
            gc.enable()
            loop.close()

    thread = threading.Thread(target=run, name="loop", daemon=True)
    thread.start()
    ready.wait(60)
    assert started, done
    try:
        yield MeasuredBroker(started[0], selector)
    finally:
        loop.call_soon_threadsafe(stop[0].set)
        thread.join(60)
