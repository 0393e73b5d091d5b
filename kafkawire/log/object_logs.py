"""The logs of objects of one broker: what a start does with those of earlier lives, and the log of
this life.

Records of topics with durability=s3 are acknowledged when they are in a log object
(kafkawire.log.objects). Each start of a broker, on the same machine or on another one, first ends
the logs of earlier lives: it puts a fence at the next free sequence number, so that a process that
still runs cannot store, and so not acknowledge, anything more. Then it appends what these objects
have and the journals here do not (kafkawire.log.adoption), and stores what only the journals here
have. Only after that it serves requests.

A broker without topics of durability=s3 has no log of objects, and does nothing here. Created by
kafkawire.broker, run by kafkawire.log.manager.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from kafkawire.codec.errors import KafkaError
from kafkawire.log.adoption import Adoption
from kafkawire.log.earlier_logs import EarlierLogs, EarlierObject
from kafkawire.log.io.callbacks import await_callbacks
from kafkawire.log.io.ports import Env, Superseded
from kafkawire.log.maintenance.log_orphans import OrphanRemoval
from kafkawire.log.maintenance.object_release import ObjectRelease, Retained
from kafkawire.log.objects.format import NONCE_BYTES
from kafkawire.log.objects.port import LogObjectStores
from kafkawire.log.objects.writer import LogObjectWriter
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.manifest.keys import LOGS, log_prefix
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import Transactions
from kafkawire.objectstore.backoff import wait_s
from kafkawire.objectstore.errors import StoreError
from kafkawire.offsets.catalog import object_logs
from kafkawire.offsets.catalog.object_logs import ObjectLog
from kafkawire.plural import count

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.maintenance.checkpoints import Checkpoints
    from kafkawire.log.objects.format import StoredFrame
    from kafkawire.log.partition.loader import Loader
    from kafkawire.log.partition.partition import Partition
    from kafkawire.offsets.catalog.port import SegmentCatalog

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAIT_S = 5.0
"""Between two attempts to store the row of the log in SQL."""
READ_AHEAD = 8
"""Log objects that are read at the same time: a broker has hundreds that are not uploaded in
segments yet, and one request takes tens of milliseconds."""
SLICE = 256
"""Partitions per event-loop iteration: less than a millisecond."""


class ObjectLogs:
    """The logs of objects of the broker `node_id`, of which this process is the life
    `broker_epoch`. `unusable`: why the tier cannot have log objects, as far as it is known;
    `orphans` deletes objects that are not needed."""

    def __init__(
        self,
        env: Env,
        stores: LogObjectStores,
        metadata: Transactions,
        storage: SegmentCatalog,
        node_id: int,
        broker_epoch: int,
    ) -> None:
        self._env = env
        self.stores = stores
        self._metadata = metadata
        self._storage = storage
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._when_superseded: list[Callable[[str], None]] = []
        self._superseded_by = ""
        self._nonce = env.random.randbytes(NONCE_BYTES)
        self._earlier = EarlierLogs(env, stores, node_id, broker_epoch, self._nonce)
        self._needed: list[EarlierObject] = []
        self._opening: asyncio.Task[None] | None = None
        self.release: ObjectRelease | None = None
        self.orphans = OrphanRemoval(env, stores, self.load, self._forget)
        self.unusable = ""
        self._has_earlier = self._opened = False

    def when_superseded(self, fn: Callable[[str], None]) -> None:
        """Call `fn` with the reason when another life of the broker has ended the log of this one:
        the process has to end. At once if it has."""
        self._when_superseded.append(fn)
        if self._superseded_by:
            fn(self._superseded_by)

    async def check(self) -> None:
        """Check whether the tier can have the log of this life, and set `unusable`."""
        try:
            self.unusable = await self.stores.check() or await self._find_later_logs()
        # Counts as one that can: the log is opened only after a check.
        except StoreError as failure:
            logger.warning("the remote tier cannot be checked for log objects yet: %s", failure)

    async def recover(
        self, commit_log: CommitLog, loader: Loader, checkpoints: Checkpoints
    ) -> None:
        """End the logs of earlier lives, and store what only the journals here have: only then may
        a checkpoint cover it. Nothing is appended yet.

        Raises what SQL and the disk raise, Superseded, and IdentityError if a place of log objects
        cannot be used. Waits for a storage that fails as long as it takes."""
        self.release = release = ObjectRelease(
            self._env, commit_log, loader, checkpoints, self._storage, self.stores,
            self._store_release,
        )  # fmt: skip
        # 1. End the logs of earlier lives, so that no process can acknowledge anything more.
        logs = await self.load()
        self._has_earlier = bool(logs)
        for log in logs:
            if not log.done:
                await self._end(log)
        # 2. Store what only the journals here have: only then may a checkpoint cover it.
        stored: dict[int, int] = {}
        for each in self._needed:
            stored.update(each.ends)
        await self._gather_unstored(commit_log, loader.partitions, stored)
        # Only if there is something: a broker without such topics opens no log.
        if commit_log.object_sink.queue.size_bytes:
            await self._open_patiently(commit_log, release)
            try:
                await await_callbacks(
                    lambda fn: commit_log.call_when_durable((commit_log.object_sink,), fn)
                )
            except KafkaError as failure:
                raise Superseded(failure.message) from failure

    async def adopt(self, commit_log: CommitLog, loader: Loader) -> set[int]:
        """Append what objects of earlier lives have and the journals here do not; return the
        partitions that batches were appended to. Raises what SQL and the disk raise."""
        adoption = Adoption(commit_log, loader, self._storage)
        if self._needed:
            await self._adopt(commit_log, adoption)
        return set(adoption.changed)

    async def start_storing(self, commit_log: CommitLog) -> None:
        """Have what is appended from now on stored, and what is not needed any more released."""
        release = self.release
        assert release is not None, "recovered before"
        release.add_earlier(
            [
                Retained(
                    each.url, each.log, each.sequence, each.key, each.size_bytes,
                    commit_log.written, list(each.ends.items()),
                )
                for each in self._needed
            ]
        )  # fmt: skip
        commit_log.object_sink.note_retained(sum(each.size_bytes for each in self._needed))
        self._needed = []
        if release.retained or self._opened:
            release.start()
        # A broker without topics of durability=s3 has no log.
        if not self._opened:
            commit_log.object_sink.when_needed(lambda: self._open_later(commit_log, release))
        if self._has_earlier:
            self.orphans.start()

    def count_unreleased(self) -> dict[str, int]:
        """Return how many objects are needed at each place, by its URL."""
        return {} if self.release is None else dict(self.release.by_url)

    async def close(self) -> None:
        """Stop the tasks, and close the stores of other tiers."""
        await self.orphans.close()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self.release is not None:
            await self.release.close()
        await self.stores.close()

    def _open_later(self, commit_log: CommitLog, release: ObjectRelease) -> None:
        """Open the log when the first partition needs it."""

        async def open_log() -> None:
            await self._open_patiently(commit_log, release)
            release.start()

        self._opening = self._env.spawn(open_log(), "object log")

    async def _open_patiently(self, commit_log: CommitLog, release: ObjectRelease) -> None:
        failures = 0
        while True:
            try:
                # Each time: a tier that cannot be used may be changed by its operator.
                self.unusable = await self.stores.check()
                if not self.unusable:
                    await self._open(commit_log, release)
                    return
                commit_log.object_sink.refuse_batches(self.unusable)
            except (OSError, StoreError) as failure:
                logger.warning(
                    "the log of objects cannot be opened, topics with durability=s3 wait for it: "
                    "%s",
                    failure,
                )
            failures += 1
            await self._env.sleep(wait_s(failures, MAX_WAIT_S, self._env.random.random()))

    async def _open(self, commit_log: CommitLog, release: ObjectRelease) -> None:
        store, now_ms = self.stores.at(self.stores.url), self._env.clock.now_ms()
        # The row first: a later life finds the log by it.
        opened = await self._transact(
            lambda session: object_logs.open_log(
                session, self._node_id, self._broker_epoch, self.stores.url, now_ms
            )
        )
        if not opened:
            commit_log.object_sink.supersede(self._why_superseded())
            self.on_superseded(self._why_superseded())
            return
        self._opened = True
        writer = LogObjectWriter(
            self._env, store, commit_log.journals, self._node_id, self._broker_epoch,
            self._nonce,
        )  # fmt: skip
        retain = release.retain_of(self._broker_epoch)
        commit_log.object_sink.start(writer, retain, self.on_superseded)
        self._opened = True

    async def _end(self, log: ObjectLog) -> None:
        """End the log of a previous life and note its needed objects."""
        try:
            ended, found = await self._earlier.fence_log(log)
        except (StoreError, ValueError) as failure:
            raise IdentityError(
                f"{log.url} has log objects that broker {self._node_id} needs, and cannot be read: "
                f"{failure}"
            ) from failure
        # Its end is stored once: a later start need not read to find it.
        if log.ended is None:
            now_ms = self._env.clock.now_ms()
            epoch = self._broker_epoch
            stored = await self._transact(
                lambda session: object_logs.end(
                    session, self._node_id, log.broker_epoch, ended, epoch, now_ms
                )
            )
            if stored is None:
                raise Superseded(self._why_superseded())
            # Another start has ended it at a lower number.
            found = [each for each in found if each.sequence < stored]
            log = replace(log, ended=stored)
        assert log.ended is not None
        if found:  # what is missing after the last one is released with it
            found[-1] = replace(found[-1], sequence=max(found[-1].sequence, log.ended - 1))
        elif log.released < log.ended:
            await self._store_release(log.broker_epoch, log.ended)
        self._needed += found

    async def _frames(self, objects: list[EarlierObject]) -> AsyncIterator[list[StoredFrame]]:
        """Yield the frames of objects, in order; the next ones are read meanwhile."""
        ahead: deque[asyncio.Task[list[StoredFrame]]] = deque()
        try:
            for each in objects:
                # A request takes tens of milliseconds, and a broker has hundreds of objects.
                ahead.append(self._env.spawn(self._earlier.frames(each), "read a log object"))
                if len(ahead) == READ_AHEAD:
                    yield await ahead.popleft()
            while ahead:
                yield await ahead.popleft()
        finally:
            for task in ahead:
                task.cancel()

    async def _adopt(self, commit_log: CommitLog, adoption: Adoption) -> None:
        numbers = {number for each in self._needed for number in each.ends}
        await adoption.load(numbers)
        # From here on what is written is in objects already.
        commit_log.object_sink.adopt(True)
        try:
            missing = [each for each in self._needed if adoption.missing(each.ends)]
            async for frames in self._frames(missing):
                await adoption.append(frames)
            await adoption.finish()
            await commit_log.disk_sink.wait_until_durable()
        finally:
            commit_log.object_sink.adopt(False)
        if missing:
            logger.info(
                "appended what %s of earlier lives had and the journals here did not: batches of "
                "%s",
                count(len(missing), "log object"),
                count(len(adoption.changed), "partition"),
            )

    async def _gather_unstored(
        self, commit_log: CommitLog, partitions: Mapping[int, Partition], stored: Mapping[int, int]
    ) -> None:
        """Gather what only the journals here have: written, not acknowledged, and perhaps never
        stored."""
        for at, partition in enumerate(list(partitions.values())):
            if partition.sink is not commit_log.object_sink:
                continue
            # What objects or segments have, or nothing needs, is stored.
            start = max(
                stored.get(partition.number, 0), partition.commit_offset, partition.log_start
            )
            rows = partition.rows  # those not in memory are older than `uncommitted.max.bytes`
            # From the newest back: the last rows are those that may not be stored.
            for row in range(len(rows) - 1, -1, -1):
                end = rows.base[row] + rows.count[row]
                if end <= start:
                    break
            else:
                row = -1
            for each in range(row + 1, len(rows)):
                commit_log.object_sink.gather(
                    partition, rows.base[each] + rows.count[each], rows.log_position[each],
                    rows.length[each],
                )  # fmt: skip
            if at % SLICE == SLICE - 1:
                await self._env.slices.pause()

    async def _store_release(self, log: int, sequence: int) -> bool:
        """Store that the objects of a log below a sequence number are not needed any more."""
        now_ms = self._env.clock.now_ms()
        return await self._transact(
            lambda session: object_logs.release(
                session, self._node_id, log, sequence, self._broker_epoch, now_ms
            )
        )

    async def _find_later_logs(self) -> str:
        """Return a sentence if the tier has objects of this life or later ones, which this process
        has not stored; otherwise an empty string. Raises StoreError."""
        # Objects of this life are its own then.
        if self._opened:
            return ""
        store, prefix = self.stores.at(self.stores.url), log_prefix(self._broker_epoch)
        found = await store.list(LOGS, prefix, 1)
        if not found:
            return ""
        return (
            f"{self.stores.url} has {found[0].key}, a log object of a later life of broker "
            f"{self._node_id} than its metadata have: the metadata are an older copy (restore them "
            "with `kafkawire restore TIER`), or the broker was started elsewhere"
        )

    async def load(self) -> list[ObjectLog]:
        """Read the logs of this broker from SQL."""
        return await self._transact(lambda session: object_logs.load(session, self._node_id))

    async def _forget(self, log: int) -> bool:
        return await self._transact(
            lambda session: object_logs.forget(session, self._node_id, log, self._broker_epoch)
        )

    async def _transact(self, work: Callable[[Session], T]) -> T:
        return await self._metadata.transact(work)

    def on_superseded(self, why: str) -> None:
        """Have the process end, because another life of the broker has begun."""
        if self._superseded_by:
            return
        self._superseded_by = why
        for fn in self._when_superseded:
            fn(why)

    def _why_superseded(self) -> str:
        return f"broker {self._node_id} was started elsewhere: this process is superseded"
