"""Calling callbacks that wait for a write or a commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)

Callback = Callable[[BaseException | None], None]
"""Called with None, or with the reason of a failure."""


def call_all(callbacks: Iterable[Callback], failure: BaseException | None) -> None:
    for fn in callbacks:
        try:
            fn(failure)
        # It must not keep the others from being called.
        except Exception:
            logger.exception("a callback of the commit log failed")


async def await_callbacks(*registers: Callable[[Callback], None]) -> None:
    """Wait until the callbacks given to all `registers`, at once, are called. Raises the first
    failure that one reports."""
    await asyncio.gather(*[_call_of(register) for register in registers])


def _call_of(register: Callable[[Callback], None]) -> asyncio.Future[None]:
    """Return a future of the call of the callback given to `register`."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(failure: BaseException | None) -> None:
        if done.done():
            return
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)

    register(settle)
    return done
