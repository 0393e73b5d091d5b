"""Deletes what the logs of earlier lives have left in a tier: once after each start.

An object is an orphan if its log is released beyond it (its deletion failed, or the process ended
before), or if it is above the fence of its log (it was being stored when the log was ended). The
fence of a log stays as long as its row. A log that has ended and has only its fence left is
forgotten after KEPT_MS, row and fence. Nothing else is deleted; of a log without a row that is only
a fence of that age which is alone.

The age of a fence is counted by the clock of the storage: some object there is so much newer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kafkawire.log.io.ports import Env, LogError
from kafkawire.log.objects.format import HEADER_BYTES, read_header
from kafkawire.log.objects.port import LogObjectStore, LogObjectStores
from kafkawire.manifest.keys import LOGS, log_object_key, parse_log_object_key
from kafkawire.objectstore.backoff import wait_s
from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.objectstore.port import Listed, list_pages
from kafkawire.offsets.catalog.object_logs import ObjectLog
from kafkawire.plural import count

logger = logging.getLogger(__name__)

KEPT_MS = 30 * 86_400_000
"""How long the fence of a log stays: far longer than a process can be stalled and continue."""
MAX_WAIT_S = 300.0
"""Between two attempts: nothing waits for this."""


def is_orphan(log: ObjectLog, sequence: int) -> bool:
    """Return whether an object of a log is not needed and never will be."""
    return sequence < log.released or (log.ended is not None and sequence > log.ended)


@dataclass(slots=True)
class _Left:
    """The remains of a log. `last`: the object with the highest sequence number."""

    objects: int
    last: Listed


@dataclass(slots=True)
class _Place:
    """The remains of all logs in a place. `logs`: by broker epoch; `newest_ms`: when the newest
    object was stored, by the clock of the storage."""

    logs: dict[int, _Left]
    newest_ms: int

    def only_old_fence(self, log: ObjectLog) -> bool:
        """Return whether a log that has ended has nothing but its fence, which is old."""
        found = self.logs.get(log.broker_epoch)
        return found is None or (found.objects == 1 and self.is_old(found.last))

    def is_old(self, listed: Listed) -> bool:
        """Return whether another object was stored KEPT_MS after this one."""
        # By the clock of the storage: clocks of machines may be wrong by years.
        return self.newest_ms - listed.modified_ms > KEPT_MS


class OrphanRemoval:
    """One removal, which is repeated until it succeeds."""

    def __init__(
        self,
        env: Env,
        stores: LogObjectStores,
        load: Callable[[], Awaitable[Sequence[ObjectLog]]],
        forget: Callable[[int], Awaitable[bool]],
    ) -> None:
        """`load` reads the logs of this broker from SQL; `forget` deletes the row of one, by its
        broker epoch, and returns whether it was deleted."""
        self._env = env
        self._stores = stores
        self._load = load
        self._forget = forget
        self._task: asyncio.Task[None] | None = None
        self.done = False

    def start(self) -> None:
        self._task = self._env.spawn(self._run(), "delete log objects that are not needed")

    async def close(self) -> None:
        """Stop; the next start begins again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run_once(self) -> int:
        """Delete orphans and forget logs; return how many objects were deleted. Raises StoreError,
        and what SQL raises."""
        logs = await self._load()
        deleted = 0
        for url in sorted({self._stores.url, *(log.url for log in logs)}):
            rows = {log.broker_epoch: log for log in logs if log.url == url}
            store = self._stores.at(url)
            orphans, left = await self._delete_orphans(store, rows)
            deleted += orphans
            for log in rows.values():
                # By both clocks: neither decides alone.
                if self._is_old(log.changed_ms) and log.done and left.only_old_fence(log):
                    deleted += await self._forget_log(store, log)
            # A log without a row: records may be needed by an older metadata database than this
            # one, so only an old fence that is alone goes.
            for epoch in left.logs.keys() - rows.keys():
                remains = left.logs[epoch]
                if remains.objects == 1 and left.is_old(remains.last):
                    deleted += await self._delete_old_fence(store, remains.last)
        if deleted:
            logger.info("deleted %s of earlier lives", count(deleted, "log object"))
        return deleted

    async def _delete_orphans(
        self, store: LogObjectStore, rows: dict[int, ObjectLog]
    ) -> tuple[int, _Place]:
        """Delete the orphans of a place; return how many, and what is left."""
        left: dict[int, _Left] = {}
        deleted = newest_ms = 0
        async for page in list_pages(store.list, LOGS):
            orphans = []
            for listed in page:
                newest_ms = max(newest_ms, listed.modified_ms)
                parsed = parse_log_object_key(listed.key)
                if parsed is None:
                    continue  # not ours: a scrub reports it
                epoch, sequence = parsed
                if epoch in rows and is_orphan(rows[epoch], sequence):
                    orphans.append(listed.key)
                else:
                    known = left.get(epoch)
                    left[epoch] = _Left(1 if known is None else known.objects + 1, listed)
            if orphans:
                await store.delete(orphans)
            deleted += len(orphans)
            await self._env.slices.pause()
        return deleted, _Place(left, newest_ms)

    async def _forget_log(self, store: LogObjectStore, log: ObjectLog) -> int:
        """Delete the row of a log, then its fence; one that stays is deleted by the next start."""
        # The row first: a fence without a row is found by the next start, a row without a fence
        # would let a stalled writer store an object in its place and acknowledge it.
        if not await self._forget(log.broker_epoch):
            return 0
        assert log.ended is not None, "the log has ended"
        await store.delete([log_object_key(log.broker_epoch, log.ended)])
        return 1

    async def _delete_old_fence(self, store: LogObjectStore, listed: Listed) -> int:
        """Delete the only object of a log without a row, which is old, if it is a fence."""
        if not self._is_old(listed.modified_ms):
            return 0
        try:
            data, _ = await store.get(listed.key, 0, HEADER_BYTES)
            # Only now its content is read: a request for each old log.
            if not read_header(data, listed.key).is_fence:
                return 0
        except (NoSuchObject, LogError):
            return 0
        await store.delete([listed.key])
        return 1

    def _is_old(self, time_ms: int) -> bool:
        return self._env.clock.now_ms() - time_ms > KEPT_MS

    async def _run(self) -> None:
        failures = 0
        while not self.done:
            try:
                await self.run_once()
                self.done = True
            except (StoreError, OSError) as failure:
                failures += 1
                logger.warning(
                    "log objects of earlier lives that are not needed cannot be deleted yet: %s",
                    failure,
                )
                await self._env.sleep(wait_s(failures, MAX_WAIT_S, self._env.random.random()))
