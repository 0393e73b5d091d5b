"""Folding: after so many deltas one snapshot, so that a reader never has far to go.

The worker makes the snapshot out of files; the loop sees none of its bytes. A caller that folds the
same deltas writes the same snapshot, so it needs no condition; `current` is exchanged with one.
What was folded stays for an hour for those who are reading it, and goes with a later fold:
`current` names it, so nothing is ever listed. Shell; called by
kafkawire.tiering.manifest.publisher.
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
"""A reader that takes longer than an hour for a manifest has another problem."""
KEYS_AT_ONCE = 1000
MAX_OBSOLETE = 1000
"""Folds whose files could not be removed, as when nothing may be: scrub finds what is older."""


class Folding:
    """Compaction of the bucket's manifest into snapshots."""

    def __init__(self, env: Env, store: ObjectStore, state: BucketState) -> None:
        self._env = env
        self._store = store
        self._state = state

    async def fold(self, sequence: int) -> None:
        """Make a snapshot of everything up to this delta. Raises StoreError (OwnedByOther,
        DamagedManifest among them), OSError and WorkerError; then nothing is lost, and it may be
        tried again."""
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
            await self._state.find()  # an earlier life's fold came late; the next one goes on
            return
        logger.info(
            "wrote a manifest snapshot of %d bytes, up to delta %d", result.size_bytes, sequence
        )

    async def _remove(self, now_ms: int) -> list[Obsolete]:
        """Remove what was folded long enough ago; what stays for another time. That it cannot be
        removed is no reason not to fold."""
        kept: list[Obsolete] = []
        for each in self._state.current.obsolete:
            # A clock that was set back leaves it for longer, never for less.
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
