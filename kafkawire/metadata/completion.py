"""Transactions that end before their cancelled caller continues; calls on a thread; functions that
wait for the event loop inside a greenlet."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

T = TypeVar("T")


async def run_on_thread(call: Callable[[], T]) -> T:
    """Run `call` on a thread; see `run_to_end` for a caller that is cancelled."""
    return await run_to_end(asyncio.get_running_loop().run_in_executor(None, call))


async def run_to_end(work: Awaitable[T], patience_s: float | None = None) -> T:
    """Run a transaction to its end, also when the caller is cancelled, who then gets the
    CancelledError after it.

    Without that the next transaction could commit first, and an older checkpoint would then
    replace a newer one; and a driver that is cancelled while it rolls back leaves its connection
    in an unknown state. `patience_s`: how long after a cancellation the work is cancelled too, for
    a server that does not answer; None for work on a thread, which cannot be cancelled.
    """
    running: asyncio.Future[T] = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            done, _ = await asyncio.wait([running], timeout=patience_s if cancelled else None)
            if not done:
                running.cancel()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return running.result()
    if not running.cancelled():
        running.exception()  # retrieved, or asyncio would log it
    raise cancelled


async def in_greenlet(work: Callable[[], T]) -> T:
    """Run `work` in a greenlet, where it can call `wait`. SQLAlchemy has the same, and takes a
    fifth of a start to import."""
    caller = getcurrent()
    running = greenlet(work, caller)
    running.gr_context = caller.gr_context
    result: Any = running.switch()
    while not running.dead:
        try:
            value = await result
        except BaseException:
            result = running.throw(*sys.exc_info())
        else:
            result = running.switch(value)
    done: T = result
    return done


def wait(awaited: Awaitable[T]) -> T:
    """Suspend the greenlet of `in_greenlet` until `awaited` is done; return its result."""
    loop = getcurrent().parent
    assert loop is not None, "not in a greenlet of in_greenlet"
    done: T = loop.switch(awaited)
    return done
