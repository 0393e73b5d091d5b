"""Releases log objects: deletes those whose records are all in uploaded segments.

An object is needed until the commit offset of each partition in it has passed its records (or the
partition is deleted, or its log start has passed them), and a checkpoint in SQL covers them, since
the state of idempotent producers is found again from it and the records after it. The fence of a
log that has ended is never deleted here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from kafkawire.codec.errors import KafkaError
from kafkawire.log.append.object_sink import Gathered, Retain
from kafkawire.log.io.ports import Env
from kafkawire.log.maintenance.upload_check import UploadCheck
from kafkawire.log.objects.port import LogObjectStores
from kafkawire.manifest.keys import log_object_key
from kafkawire.objectstore.errors import StoreError

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.maintenance.checkpoints import Checkpoints
    from kafkawire.log.partition.loader import Loader
    from kafkawire.offsets.catalog.port import SegmentCatalog

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Between two checks: an upload takes longer, and a check of the oldest object costs little."""
MAX_AT_ONCE = 500
"""Objects of one transaction and one request that deletes them."""
EARLY_PART = 4
"""A checkpoint is saved early when it alone holds back this part of `log.unreleased.max.bytes`."""


@dataclass(frozen=True, slots=True)
class Retained:
    """A stored object that is still needed. `url`: of its place; `log`: its broker epoch;
    `log_position`: the end of the journals after its records; `ends`: (partition number, end
    offset) of what is in it."""

    url: str
    log: int
    sequence: int
    key: str
    size_bytes: int
    log_position: int
    ends: list[tuple[int, int]]


class ObjectRelease:
    """The retained objects of one broker, oldest first. `by_url`: their number at each place."""

    def __init__(
        self,
        env: Env,
        commit_log: CommitLog,
        loader: Loader,
        checkpoints: Checkpoints,
        storage: SegmentCatalog,
        stores: LogObjectStores,
        released: Callable[[int, int], Awaitable[bool]],
    ) -> None:
        """`released` stores in SQL that the objects of a log below a sequence number are not
        needed; it returns False if this process was superseded."""
        self._env = env
        self._commit_log = commit_log
        self._uploads = UploadCheck(loader, storage, env.slices)
        self._checkpoints = checkpoints
        self._stores = stores
        self._released = released
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self.retained: deque[Retained] = deque()
        self.by_url: Counter[str] = Counter()

    def add_earlier(self, objects: Sequence[Retained]) -> None:
        """Add the objects of previous lives, oldest first: they come before those of this one."""
        self.retained.extendleft(reversed(objects))
        self.by_url.update(each.url for each in objects)

    def retain_of(self, broker_epoch: int) -> Retain:
        """Return what adds the objects of the log of this life."""

        def retain(sequence: int, gathered: Gathered) -> None:
            ends = [(partition.number, end) for partition, end in gathered.ends.items()]
            key = log_object_key(broker_epoch, sequence)
            self.retained.append(
                Retained(
                    self._stores.url, broker_epoch, sequence, key, gathered.size_bytes,
                    gathered.log_position, ends,
                )
            )  # fmt: skip
            self.by_url[self._stores.url] += 1

        return retain

    def start(self) -> None:
        if self._task is None:
            self._task = self._env.spawn(self._run(), "release log objects")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run_once(self) -> int:
        """Release what may be released now; return how many objects. Raises what SQL, the storage
        and a commit raise."""
        done: list[Retained] = []
        for each in list(islice(self.retained, MAX_AT_ONCE)):
            if done and each.log != done[0].log:
                break
            # Oldest first: SQL has one number per log, below which nothing is needed.
            if not await self._uploads.is_uploaded(each.ends):
                break
            # The state of idempotent producers is found again from the checkpoint and the records
            # after it.
            if each.log_position > self._checkpoints.log_position:
                if not self._holds_much():
                    break
                await self._checkpoints.save()
            done.append(each)
        # SQL first: a crash after it leaves objects that the next start deletes; the other order
        # would leave a log with missing objects.
        if not done or not await self._released(done[-1].log, done[-1].sequence + 1):
            return 0
        await self._stores.at(done[0].url).delete([each.key for each in done])
        for each in done:
            self.retained.popleft()
            self.by_url[each.url] -= 1
        self.by_url += Counter()  # without those that have none left
        self._commit_log.object_sink.note_released(len(done), sum(each.size_bytes for each in done))
        return len(done)

    def _holds_much(self) -> bool:
        config = self._commit_log.config
        return (
            self._commit_log.object_sink.unreleased_bytes * EARLY_PART
            >= config.log_unreleased_max_bytes
        )

    async def _run(self) -> None:
        while True:
            try:
                while await self.run_once():
                    pass
                self._failing = False
            except (StoreError, OSError, KafkaError) as failure:
                if not self._failing:
                    logger.warning("log objects cannot be released, retrying: %s", failure)
                self._failing = True
            await self._env.sleep(INTERVAL_S)
