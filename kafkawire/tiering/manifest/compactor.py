"""Compaction of the manifest: folds deltas into a snapshot, which bounds what a reader reads.

The worker builds the snapshot from files; its bytes never reach the event loop. Folding the same
deltas always gives the same snapshot, so its PUT needs no condition; the PUT of `current` has one.
Folded files are kept for an hour for their readers and deleted by a later fold. `current` names
them, so no listing is needed.
"""

from __future__ import annotations

import logging
import os.path

from kafkawire.log.io.ports import Env
from kafkawire.manifest.keys import snapshot_key
from kafkawire.manifest.reader import Current, Obsolete
from kafkawire.objectstore.errors import ConditionFailed, StoreError
from kafkawire.tiering.manifest.bucket import BucketState, DamagedManifest
from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)

KEPT_MS = 3_600_000
"""How long folded files are kept; no reader takes an hour for a manifest."""
KEYS_AT_ONCE = 1000
MAX_OBSOLETE = 1000
"""Maximum number of folds whose files could not be deleted; a scrub finds older ones."""


class Folding:
    """Compaction of the bucket's manifest into snapshots."""

    def __init__(self, env: Env, store: ObjectStore, state: BucketState) -> None:
        self._env = env
        self._store = store
        self._state = state

    async def fold(self, sequence: int) -> None:
        """Fold everything up to this delta into a snapshot. Raises StoreError (including
        OwnedByOther and DamagedManifest), OSError and WorkerError; a failed call has no effect and
        may be repeated."""
        async with self._state.busy:
            if sequence > self._state.current.snapshot:
                await self._fold(sequence)

    async def _fold(self, sequence: int) -> None:
        before = self._state.current
        path = os.path.join(self._state.folder, "folded")
        try:
            result = await self._state.read(sequence, path)
            if result.damaged:
                raise DamagedManifest(result.damaged)
            await self._store.upload(snapshot_key(sequence), path)
        finally:
            await self._state.remove(path)
        now_ms = self._env.clock.now_ms()
        kept = await self._remove(now_ms)
        folded = Obsolete(before.snapshot, before.snapshot + 1, sequence, now_ms)
        try:
            await self._state.exchange(Current(sequence, (*kept, folded)))
        except ConditionFailed:
            # a fold of an earlier process arrived late; the next fold continues from it
            await self._state.find()
            return
        logger.info(
            "wrote a manifest snapshot of %d bytes, up to delta %d", result.size_bytes, sequence
        )

    async def _remove(self, now_ms: int) -> list[Obsolete]:
        """Delete files that were folded long enough ago; the others are kept. A failure to delete
        does not prevent the fold."""
        kept: list[Obsolete] = []
        for each in self._state.current.obsolete:
            # A clock that was set back only delays the deletion.
            if each.since_ms + KEPT_MS > now_ms:
                kept.append(each)
                continue
            keys = each.keys()
            try:
                for start in range(0, len(keys), KEYS_AT_ONCE):
                    await self._store.delete(keys[start : start + KEYS_AT_ONCE])
            except StoreError as failure:
                logger.warning(
                    "cannot remove old deltas of the manifest, retrying later: %s", failure
                )
                kept.append(each)
        return kept[-MAX_OBSOLETE:]
