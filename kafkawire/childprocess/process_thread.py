"""A thread for each child process: starts it and waits for its end, so that the event loop does
neither.

Starting a process copies page tables and waits until the new program has been loaded: 3 to 18 ms,
most of it on the core of the event loop if that is all the broker has. One thread for both, and no
pool: Linux kills a child that asked for it when the thread ends that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from subprocess import PIPE, Popen
from typing import Any

ENDS_S = 5.0
"""A killed process ends within milliseconds, unless its disk does not respond: then maybe never."""


class ProcessThread:
    """A process and its thread. `ended` is the future of its exit code. Used on the event loop."""

    def __init__(self, spawned: Callable[[], Popen[bytes]]) -> None:
        """Call `spawned` in a new thread."""
        self._loop = asyncio.get_running_loop()
        self._spawned = spawned
        self._started: asyncio.Future[Popen[bytes]] = self._loop.create_future()
        self._process: Popen[bytes] | None = None
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()  # ended, or never started
        # A daemon: a broker that ends after an error does not wait for its children.
        threading.Thread(target=self._run, name="kafkawire-child", daemon=True).start()

    async def wait_until_started(self) -> Popen[bytes]:
        """Return the process once it has started. Raises what `spawned` raises. If this is
        cancelled, it waits until the process has started, and has ended by being killed: an event
        loop that is closed next must have no report of this thread left to do."""
        try:
            return await self._started
        except asyncio.CancelledError:
            if self._process is not None:  # it was reported in the same iteration
                discard(self._process)
            await finish(self._over)
            raise

    @property
    def pid(self) -> int | None:
        """The process id; None before its start and once it has ended."""
        return None if self._process is None or self.ended.done() else self._process.pid

    def kill(self) -> None:
        """Kill it; no effect if it has ended."""
        if self.pid is not None:
            assert self._process is not None
            self._process.kill()

    def _run(self) -> None:
        """Start the process and wait for its end. The program of the thread."""
        try:
            process = self._spawned()
        except BaseException as failure:  # the caller's
            self._report(self._fail, failure)
            return
        if not self._report(self._begin, process):
            discard(process)
        self._report(self._end, process.wait())

    def _report(self, fn: Callable[[Any], None], outcome: object) -> bool:
        """Call `fn` on the event loop; return whether that is possible."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(fn, outcome)
            return True
        return False

    def _fail(self, failure: BaseException) -> None:
        if not self._started.done():
            self._started.set_exception(failure)
        self._over.set_result(None)

    def _begin(self, process: Popen[bytes]) -> None:
        self._process = process
        if self._started.done():  # the caller was cancelled
            discard(process)
        else:
            self._started.set_result(process)

    def _end(self, code: int) -> None:
        self.ended.set_result(code)
        self._over.set_result(None)


async def finish(ending: asyncio.Future[Any]) -> None:
    """Wait until a future is done, but not longer than ENDS_S, also while the caller is cancelled
    again."""
    loop = asyncio.get_running_loop()
    until = loop.time() + ENDS_S
    while not ending.done() and (left := until - loop.time()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([ending], timeout=left)


def spawn(command: Sequence[str], nice: int, pass_fds: Sequence[int]) -> Popen[bytes]:
    """Start a process with pipes to its standard input and output. Blocks. Raises OSError.

    It has a group of its own, since Ctrl-C in a terminal is for the broker, which ends its
    children. It has no session of its own: Linux gives each session the same share of a core
    (sched_autogroup), whatever the priorities of the processes in it.
    """
    process = Popen(command, bufsize=0, stdin=PIPE, stdout=PIPE, pass_fds=pass_fds, process_group=0)
    with contextlib.suppress(OSError):  # it has ended already
        # From here, since the first thing that it does is the import of its modules.
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, process.pid, own + nice)
    return process


def discard(process: Popen[bytes]) -> None:
    """Kill a process whose pipes are not in use, and close them."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
