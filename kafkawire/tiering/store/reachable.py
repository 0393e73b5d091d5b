"""Waits until the storage of a tier answers.

A broker whose log objects are there must not register before: it would end the same broker on
another machine, which may reach the storage, and could not serve itself.
"""

from __future__ import annotations

import logging

from kafkawire.log.io.ports import Env
from kafkawire.objectstore.backoff import wait_s
from kafkawire.objectstore.errors import StoreError
from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)

MAX_WAIT_S = 5.0
"""Between two attempts: a start waits for the storage as long as it takes."""


async def wait_until_reachable(env: Env, store: ObjectStore) -> None:
    """Return when the storage has answered. Raises errors that do not pass by themselves."""
    failures = 0
    while True:
        try:
            await store.list("", limit=1)
            return
        except StoreError as failure:
            if not failure.retryable:
                raise
            if not failures:
                logger.warning("the start waits for the remote tier: %s", failure)
            failures += 1
        await env.sleep(wait_s(failures, MAX_WAIT_S, env.random.random()))
