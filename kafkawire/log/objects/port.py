"""The part of an object storage that logs of objects use, and the places of their logs.

The remote tier's store (kafkawire.tiering.store.port) has it; it is declared here, so that the log
does not depend on the tier.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from kafkawire.log.io.ports import Env
from kafkawire.objectstore.backoff import Attempts, retry_async
from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.port import FileRange, Listed, Stored

logger = logging.getLogger(__name__)


class LogObjectStore(Protocol):
    """Calls of the event loop. They do what the methods of the same names of
    kafkawire.objectstore.port do, raise the same errors, and make one attempt, too: the caller
    decides about retries. A cancelled call may have taken effect."""

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored: ...

    async def put_ranges(self, key: str, head: bytes, ranges: Sequence[FileRange]) -> Stored:
        """Store an object of `head` and these ranges of local files, each padded with zeros to a
        multiple of 8, only if there is none. It is complete when this returns, or not there.

        Uses threads of its own, which no other call uses; ranges may be of files that grow. Raises
        ConditionFailed, after which the key may still be free (S3 answers concurrent requests so):
        read it. Raises OSError for a local file, also if it is shorter than its range; ValueError
        beyond the limits of kafkawire.objectstore.file_ranges."""

    async def get(
        self, key: str, start: int = 0, length: int | None = None
    ) -> tuple[bytes, str]: ...

    async def delete(self, keys: Sequence[str]) -> int: ...

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]: ...


class LogObjectStores(Protocol):
    """The places of the logs of one broker. `url`: the place of the log of this life, in its
    tier; earlier logs may be in tiers that it was started with before."""

    url: str

    def at(self, url: str) -> LogObjectStore:
        """Return the store of a place; it is opened without a request. Raises ValueError if the
        URL is invalid."""

    async def check(self) -> str:
        """Check whether the storage at `url` obeys conditional PUTs; return a sentence if it does
        not, otherwise an empty string. Raises StoreError if that could not be checked."""

    async def close(self) -> None:
        """Close the stores of other tiers; the tier of this broker stays open."""


T = TypeVar("T")

MAX_WAIT_S = 5.0
"""Between two attempts: a start waits for the storage as long as it takes."""


async def wait_until_reachable(env: Env, store: LogObjectStore) -> None:
    """Return when the storage of a tier has answered. Raises errors that do not pass by
    themselves."""
    # Before the broker registers: it would end the same broker on another machine, which may reach
    # the storage, and could not serve itself.
    await wait_for_answer(env, lambda: store.list("", limit=1))


async def wait_for_answer(env: Env, request: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request of a start until the storage answers it. Raises errors that do not pass by
    themselves."""
    attempts = Attempts(env.random.random, MAX_WAIT_S, report=_report)
    return await retry_async(request, attempts, env.sleep)


def _report(failure: StoreError) -> None:
    logger.warning("the start waits for the remote tier: %s", failure)
