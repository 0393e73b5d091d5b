"""One storage process as the broker sees it: its calls, its responses, its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from kafkawire.childprocess.frames import pack
from kafkawire.childprocess.parent_end import ChildProcess, exit_words
from kafkawire.objectstore.errors import StoreError
from kafkawire.tiering.store.process_protocol import (
    CALLS_PER_THREAD,
    Answer,
    failure_of,
    unpack_answer,
)

MAX_WAITING = 2000
"""Maximum number of calls of one lane that wait for the child. Each has a waiting task; beyond this
limit the store is not responding, and further calls fail at once."""
PING_S = 10.0
MAX_PINGS_MISSED = 2
"""Number of missed pings, with calls in progress, after which the child is killed."""
CLOSE_S = 4.0
"""Time to wait for the child to exit by itself."""


class Lane:
    """Calls of one kind: as many as keep its threads busy are sent to the child, the rest waits
    here."""

    __slots__ = ("_name", "_slots", "_waiting", "leave")

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._slots = asyncio.Semaphore(threads * CALLS_PER_THREAD)
        self._waiting = 0
        self.leave = self._slots.release

    async def enter(self) -> None:
        """Wait for a free slot. Raises StoreError if too many calls wait."""
        if self._waiting >= MAX_WAITING:
            raise StoreError("Busy", f"{self._waiting} calls wait for the storage ({self._name})")
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1


class _Pending:
    """A call in the child. `safe`: completed when nothing writes into the call's memory any
    more."""

    __slots__ = ("answer", "leave", "safe", "stores")

    def __init__(self, leave: Callable[[], None], stores: str) -> None:
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.safe: asyncio.Future[None] = loop.create_future()
        self.leave = leave
        self.stores = stores

    def end(self) -> None:
        """Mark the call as ended in the child."""
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
        if self._failure:  # `listen` has ended, so this call would never get a response
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
        with contextlib.suppress(ConnectionError):  # reported with the response
            await self._process.drain()

    async def gone(self) -> None:
        """Wait until the process has ended."""
        await asyncio.shield(self._listening)

    async def end(self) -> None:
        """Stop the process; calls in progress are cancelled."""
        self._retire()
        await asyncio.wait([self._listening], timeout=CLOSE_S)
        self._process.kill()
        await self.gone()

    def send(self, message: object) -> None:
        """Write a message to the pipe. Raises ValueError if it is too large."""
        frame = pack(message)
        with contextlib.suppress(ConnectionError):  # it is dead: `listen` fails the calls that wait
            self._process.send(frame)

    async def listen(self) -> bool:
        """Read responses until the process has ended. Return whether it died before its first
        response."""
        why = ""
        try:
            while True:
                self._take(unpack_answer(await self._process.receive()))
        except (asyncio.IncompleteReadError, ConnectionError):
            why = ""
        except Exception as problem:  # after any error waiting calls must fail
            why = f"said what is no answer: {problem!r}"
            self._process.kill()
        intended = not self.alive
        self.alive = False
        code = await self._process.ended(CLOSE_S)
        if self._watching is not None:
            self._watching.cancel()
        self._failure = f"the storage process {why or 'ended with ' + exit_words(code)}"
        pending, self._pending = self._pending, {}
        self.left = [call.stores for call in pending.values() if call.stores]
        for call in pending.values():
            if not call.answer.done():
                call.answer.set_exception(StoreError("ChildDied", self._failure))
            call.end()
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
        pending.end()
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
        elif self._missed >= MAX_PINGS_MISSED:
            self._process.kill()
        else:
            self._missed += 1
            self.send((0, "ping", ()))
            self._watching = self._loop.call_later(PING_S, self._watch)

    def _retire(self) -> None:
        """Close its input, which ends it."""
        self.alive = False
        self._process.retire()
