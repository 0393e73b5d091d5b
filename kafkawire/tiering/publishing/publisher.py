"""The manifest publisher: writes all pending changes to the bucket in rounds, one delta each.

Changes are recorded as pending; `publish` also waits for the delta that contains them. The first
change after a pause is published at once, later ones share the next delta. Deltas are numbered
without gaps and written with "only if absent". Without changes nothing is written. There is one
publisher per tier, created by kafkawire.tiering.service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env, WorkerError
from kafkawire.log.local_manifest.delta_builder import Gathering
from kafkawire.log.local_manifest.pending_changes import Added, Changes
from kafkawire.log.partition.partition import Partition
from kafkawire.manifest.format import pack
from kafkawire.manifest.keys import delta_key
from kafkawire.metadata.catalog import Catalog, TopicInfo
from kafkawire.objectstore.backoff import wait_s
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, StoreError
from kafkawire.offsets.catalog.port import SegmentCatalog
from kafkawire.plural import count
from kafkawire.tiering.publishing.bucket import BucketState, DamagedManifest, Folding
from kafkawire.tiering.publishing.lost_objects import first_objects, present, refuse_lost
from kafkawire.tiering.publishing.owner import OwnedByOther, Owner, trust_start
from kafkawire.tiering.publishing.reconcile import OBJECTS_AT_ONCE, Comparing, uploaded_end
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls

__all__ = ["Added", "OwnedByOther", "Rounds"]

logger = logging.getLogger(__name__)

SPACING_S = 1.0
"""Minimum time between two deltas, which bounds the PUTs for many small uploads."""
LINGER_S = 10.0
"""Maximum delay of a change that no caller waits for: topics created one by one share a delta."""
LAST_S = 5.0
"""How long a clean shutdown waits for the last delta; the next start publishes the rest."""


@dataclass(slots=True)
class _Pending:
    """A delta that was sent and may have been stored."""

    sequence: int
    data: bytes
    changes: Changes


class _Behind(Exception):
    """The bucket has a delta of an earlier process of this broker that is not known yet."""


class Rounds:
    """The publisher of the manifest: writes pending changes in rounds, one delta each. When another
    broker owns the bucket, `owned` becomes False permanently, `error` has the reason and `on_lost`
    is called. Otherwise `error` is the failure of the last attempt or None; `failures`: consecutive
    failed attempts; `sequence`: the last delta known to be stored."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        catalog: Catalog,
        storage: SegmentCatalog,
        store: ObjectStore,
        partitions: Mapping[int, Partition],
        node_id: int,
        cluster_id: str,
        folder: str,
        tier: int = 0,
        check_current: Callable[[], Awaitable[None]] = trust_start,
    ) -> None:
        """`folder`: for temporary files. `tier`: the tier id of `store`. `check_current`: see
        `Owner`."""
        self.owned = True
        self.error: Exception | None = None
        self.sequence = 0
        self.failures = 0
        self.on_lost: Callable[[], None] = _no_coordinator
        self._env = env
        self._config = config
        self._storage = storage
        self._node_id = node_id
        self._tier = tier
        self._store = store
        self._calls = RetryingCalls(env, store)
        self._changes = Changes()
        self._pending: _Pending | None = None
        self._owner = Owner(env, store, cluster_id, node_id, check_current)
        self._state = BucketState(env, store, self._owner, cluster_id, node_id, folder)
        self._folding = Folding(env, store, self._state)
        self._gathering = Gathering(env, catalog, storage, partitions, node_id, uploaded_end)
        self._comparing = Comparing(
            env, catalog, storage, partitions, self._gathering, node_id, tier, lambda: self._changes
        )
        self._attached = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._not_before_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._side: dict[asyncio.Task[None], None] = {}
        self._folds: asyncio.Task[None] | None = None
        self._tried = 0

    @property
    def epoch(self) -> int:
        """Epoch of this broker's claim; 0 before the claim."""
        return self._owner.epoch

    @property
    def attached(self) -> bool:
        """Whether the manifest is known, so that changes of it can be written."""
        return self._attached

    @property
    def next_producer_id(self) -> int:
        """Producer ids from here on have not been assigned, according to leases and manifest."""
        return self._gathering.next_producer_id

    async def open(self, *, accept_loss: bool = False) -> None:
        """Claim the bucket, find its last delta, and record what the manifest lacks. May be called
        again after a failure. Raises StoreError, ObjectsLost, OwnedByOther, OSError,
        WorkerError."""
        await self._attach(accept_loss=accept_loss)
        self._arm()

    def read_again(self) -> None:
        """Compare the manifest with the broker's state again, because an object of it is lost."""
        if self._attached and self.owned and not self._closed:
            self._attached = False
            self._changes.cluster = True
            self._begin()

    def topic_changed(self, info: TopicInfo) -> None:
        """A topic is new, or has more partitions or other settings."""
        self._changes.topic(info.id)
        # Partition numbers were assigned.
        self._changes.cluster = True
        self._arm()

    def topic_deleted(self, topic_id: bytes) -> None:
        self._changes.topic_deleted(topic_id)
        self._arm()

    def log_start_moved(self, number: int) -> None:
        """A partition's log start has moved, in SQL too."""
        self.partition_changed(number)

    def partition_changed(self, number: int) -> None:
        """A partition has a new log start or new leader epochs."""
        self._changes.partitions[number] = None
        self._arm()

    def cluster_changed(self) -> None:
        self._changes.cluster = True
        self._arm()

    def producer_ids_leased(self, following: int) -> None:
        """Producer ids below `following` may have been assigned."""
        if self._gathering.note_lease(following):
            self.cluster_changed()

    async def publish(
        self,
        added: Sequence[Added] = (),
        deleted: Mapping[bytes, int] | None = None,
        commits: Mapping[int, int] | None = None,
    ) -> None:
        """Return once a delta with these and all earlier changes is in the bucket; immediately if
        nothing is pending. `deleted`: uuid -> time (ms) until which the object is kept. `commits`:
        the new commit offsets (partition number -> offset).

        Raises StoreError or OSError if the attempt failed. It is retried nevertheless, and a
        repeated call with the same arguments waits for that. After OwnedByOther nothing more is
        written.
        """
        if not self.owned or self._closed:
            raise self._find_stop_reason()
        pending = self._pending.changes if self._pending is not None else Changes()
        self._changes.objects(*pending.without(added, deleted or {}, commits or {}))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._changes:
            self._changes.waiting.append(done)
        elif self._pending is not None:
            self._pending.changes.waiting.append(done)
        else:
            return
        self._arm()
        await done

    async def close(self) -> None:
        """Write a last delta within a short time limit, then stop. Another call has no effect."""
        if self._closed:
            return
        if self._attached and self.owned and self.error is None:
            last = self._env.spawn(self._flush(), "last delta of the manifest")
            await asyncio.wait([last], timeout=LAST_S)
            last.cancel()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._task, self._folds, *self._side) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._answer_all(self._find_stop_reason())

    def publish_soon(self) -> None:
        """Write the next delta without SPACING_S: clients cannot write meanwhile."""
        self._not_before_s = 0.0
        self._arm()

    def _arm(self) -> None:
        if self._task is not None or not (self._attached and self.owned) or self._closed:
            return
        if self._pending is None and not self._changes:
            return
        now = self._env.clock.monotonic()
        waited_for = self._pending is not None or bool(self._changes.waiting)
        due = max(now if waited_for else now + LINGER_S, self._not_before_s)
        # A timer is only moved to an earlier time: otherwise each change would delay those before.
        if self._timer is not None:
            if self._due_s <= due:
                return
            self._timer.cancel()
        self._due_s = due
        self._timer = self._env.call_later(due - now, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._task is None and self.owned and not self._closed:
            self._task = self._env.spawn(self._rounds(), "manifest")

    async def _flush(self) -> None:
        try:
            await self.publish()
        # The next start compares.
        except (StoreError, OSError):
            return

    async def _rounds(self) -> None:
        """Write one delta, and all others that callers wait for; retry until each is stored."""
        try:
            while self.owned and (self._pending is not None or self._changes):
                if await self._try():
                    break
        finally:
            self._task = None
        self._arm()

    async def _try(self) -> bool:
        """Try once to store a delta. Return whether the next one may wait for its regular time."""
        try:
            if not self._attached:
                await self._attach()
            await self._round()
        except _Behind:
            self._attached = False
            return False
        except OwnedByOther as failure:
            self._lose(failure)
            return True
        except (StoreError, OSError, WorkerError) as failure:
            await self._back_off(failure)
            return False
        self.failures, self.error = 0, None
        self._not_before_s = self._env.clock.monotonic() + SPACING_S
        folded = max(self._state.current.snapshot, self._tried)
        if self._folds is None and self.sequence - folded >= self._config.tier_manifest_fold:
            self._folds = self._env.spawn(self._fold(), "fold the manifest")
        return not self._changes.sliced

    async def _back_off(self, failure: Exception) -> None:
        self.failures += 1
        self.error = failure
        known = isinstance(failure, StoreError | OSError)
        self._answer_all(failure if known else StoreError("WorkerError", str(failure)))
        bound = self._config.tier_retry_max_ms / 1000
        retryable = getattr(failure, "retryable", True)
        wait = wait_s(self.failures, bound, self._env.random.random()) if retryable else bound
        logger.warning("cannot write the manifest, retrying in %.1f s: %s", wait, failure)
        await self._env.sleep(wait)

    def _lose(self, failure: OwnedByOther) -> None:
        self.owned = False
        self.error = failure
        logger.error("uploads to and deletions in the remote tier have stopped: %s", failure.text)
        self._answer_all(failure)
        self.on_lost()

    def _answer_all(self, failure: Exception) -> None:
        if self._pending is not None:
            self._pending.changes.answer(failure)
        self._changes.answer(failure)

    def _find_stop_reason(self) -> Exception:
        if isinstance(self.error, OwnedByOther):
            return self.error
        return StoreError("Closed", "the remote tier is closed")

    async def _round(self) -> None:
        # A delta that may have been stored is written again, byte for byte, before any other.
        if self._pending is None:
            self._pending = await self._next()
        pending = self._pending
        if pending is None:
            return
        await self._put(pending)
        self.sequence = pending.sequence
        self._pending = None
        pending.changes.answer(None)

    async def _next(self) -> _Pending | None:
        """Return the next delta or snapshot to store; None if it would be empty."""
        taken = self._changes.take_all()
        try:
            sequence = self.sequence + 1
            delta = await self._gathering.delta(taken, sequence, self._owner.epoch)
            if delta.says_nothing:
                taken.answer(None)
                return None
            return _Pending(sequence, pack(delta), taken)
        except BaseException:
            self._changes.put_back(taken)
            raise

    async def _put(self, pending: _Pending) -> None:
        """Store it under its number. Raises _Behind, OwnedByOther, StoreError."""
        key = delta_key(pending.sequence)
        try:
            await self._store.put(key, pending.data, if_absent=True)
        except ConditionFailed:
            try:
                found, _ = await self._store.get(key)
            # Two concurrent PUTs conflicted (409).
            except NoSuchObject:
                raise StoreError("ConditionFailed", f"cannot store {key}") from None
            # This very delta was stored, although the response was lost.
            if found == pending.data:
                return
            # Another broker owns the bucket, which this raises, or a delta of an earlier process
            # arrived late: then the manifest is compared again.
            await self._owner.verify()
            self._pending = None
            self._changes.put_back(pending.changes)
            raise _Behind from None

    async def _attach(self, *, accept_loss: bool = False) -> None:
        # Before anything is written: a bucket without a manifest may be an empty or another one, in
        # which case the local files are the only copies.
        if not accept_loss and await self._state.is_absent():
            await self._owner.check()
            some = await first_objects(self._storage, self._node_id, self._tier)
            await refuse_lost(self._calls, some)
        outline = await self._state.attach(self.sequence)
        missing = await self._comparing.missing(outline.objects)
        if not accept_loss:
            await refuse_lost(self._calls, missing)
        # Another writer may have taken its number.
        if self._pending is not None:
            self._changes.put_back(self._pending.changes)
            self._pending = None
        self.sequence = outline.sequence
        await self._comparing.compare(outline)
        self._attached = True
        self.error = None
        if missing:
            self._aside(self._publish_missing(missing), "objects the manifest lacks")

    async def _publish_missing(self, uuids: list[bytes]) -> None:
        """Publish slice by slice, each once the one before it is in the bucket."""
        logger.warning("the manifest lacks %s, publishing again", count(len(uuids), "object"))
        for start in range(0, len(uuids), OBJECTS_AT_ONCE):
            part = uuids[start : start + OBJECTS_AT_ONCE]
            while self.owned and not self._closed:
                try:
                    there = await present(self._calls, part)
                    await self.publish(await self._comparing.load_added(there))
                    break
                except (StoreError, OSError):
                    await self._env.sleep(self._config.tier_retry_max_ms / 1000)

    async def _fold(self) -> None:
        # Noted first: after a failure the next attempt comes after as many deltas again, because
        # each attempt reads all of them.
        self._tried = self.sequence
        try:
            await self._folding.fold(self.sequence)
        except OwnedByOther as failure:
            self._lose(failure)
        except DamagedManifest as failure:
            logger.error("reading the manifest again: %s", failure)
            self.read_again()
        except (StoreError, OSError, WorkerError) as failure:
            logger.warning("cannot compact the manifest, retrying later: %s", failure)
        finally:
            self._folds = None

    def _aside(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._env.spawn(work, name)
        self._side[task] = None
        task.add_done_callback(self._side.pop)


def _no_coordinator() -> None:
    """Do nothing; the default of `on_lost`."""
