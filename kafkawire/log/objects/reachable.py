"""Wait until the storage of a tier answers.

A broker whose log objects are there must not register before: it would end the same broker on
another machine, which may reach the storage, and could not serve itself.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kafkawire.log.io.ports import Env
from kafkawire.log.objects.port import LogObjectStore
from kafkawire.objectstore.backoff import Attempts, retry_async
from kafkawire.objectstore.errors import StoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAIT_S = 5.0
"""Between two attempts: a start waits for the storage as long as it takes."""


async def wait_until_reachable(env: Env, store: LogObjectStore) -> None:
    """Return when the storage has answered. Raises errors that do not pass by themselves."""
    await wait_for_answer(env, lambda: store.list("", limit=1))


async def wait_for_answer(env: Env, request: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request of a start until the storage answers it. Raises errors that do not pass by
    themselves."""
    attempts = Attempts(env.random.random, MAX_WAIT_S, report=_report)
    return await retry_async(request, attempts, env.sleep)


def _report(failure: StoreError) -> None:
    logger.warning("the start waits for the remote tier: %s", failure)
