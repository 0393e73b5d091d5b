"""`manifest/current` and the files it names, as written by the owner of a bucket.

Creates a manifest if there is none, downloads its files for the worker, and replaces `current` by
conditional PUTs. A PUT that succeeded although its response was lost is recognised by its bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os.path
from collections.abc import Callable

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.log.io.ports import Env
from kafkawire.log.local_manifest.job import ManifestArguments, ManifestResult, Outline
from kafkawire.manifest.fold import empty
from kafkawire.manifest.format import pack
from kafkawire.manifest.keys import CURRENT, delta_key, snapshot_key
from kafkawire.manifest.reader import Current, Obsolete, pack_current, unpack_current
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, StoreError
from kafkawire.tiering.publishing.owner import OwnedByOther, Owner
from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)


MAX_DELTAS = 100_000
"""Maximum number of deltas after one snapshot. A fold comes after some dozens; a larger number
means damage."""


class DamagedManifest(StoreError):
    """A snapshot or delta of the bucket cannot be read; the manifest must be rewritten."""

    def __init__(self, text: str) -> None:
        super().__init__("DamagedManifest", text)


class BucketState:
    """The manifest state of a bucket, owned by this broker. `current` is the version last read or
    written. Files are downloaded to `folder`, which only this object uses: the caller of `read`
    holds `busy` while it needs them."""

    def __init__(
        self,
        env: Env,
        store: ObjectStore,
        owner: Owner,
        cluster_id: str,
        node_id: int,
        folder: str,
        current: Current | None = None,
    ) -> None:
        self.current = current or Current(0)
        self.folder = folder
        self.busy = asyncio.Lock()
        self._etag = ""
        self._env = env
        self._store = store
        self._owner = owner
        self._cluster_id = cluster_id
        self._node_id = node_id

    async def attach(self, after: int) -> Outline:
        """Claim the bucket and return the contents of its manifest. A manifest that cannot be read
        is created again, with numbers above `after`. Raises StoreError, OwnedByOther, OSError,
        WorkerError."""
        await self._owner.claim()
        async with self.busy:
            await self.find()
            result = await self.read(None)
            # Rewriting it would destroy what a newer program knows.
            if result.newer:
                raise OwnedByOther(result.damaged)
            if result.damaged:
                logger.error("rebuilding the manifest: %s", result.damaged)
                # Above all numbers that files of the damaged manifest may have.
                sequence = max(self._env.clock.now_ms(), after + 1, result.sequence + 1)
                await self._begin(sequence, self._etag)
                result = await self.read(None)
        if result.outline is None:
            raise DamagedManifest(result.damaged)
        return result.outline

    async def is_absent(self) -> bool:
        """Return whether the bucket has no manifest. Raises StoreError, and OwnedByOther if a newer
        program wrote it."""
        try:
            data, _ = await self._store.get(CURRENT)
        except NoSuchObject:
            return True
        # Damaged: `find` begins another one.
        with contextlib.suppress(FormatError):
            _decode_current(data)
        return False

    async def find(self) -> None:
        """Read `current`, or create it. Raises StoreError, and OwnedByOther if a newer program
        wrote it."""
        try:
            data, etag = await self._store.get(CURRENT)
        except NoSuchObject:
            # Above the first epoch there may be files of a manifest whose `current` was lost. Their
            # numbers must not be used again.
            await self._begin(0 if self._owner.epoch == 1 else self._env.clock.now_ms(), None)
            return
        try:
            self.current, self._etag = _decode_current(data), etag
        except FormatError as failure:
            logger.error("%s: rebuilding the manifest", failure)
            await self._begin(self._env.clock.now_ms(), etag)

    async def _begin(self, sequence: int, etag: str | None) -> None:
        """Write an empty snapshot, then `current` if it has this ETag (None: if there is none)."""
        now_ms = self._env.clock.now_ms()
        nothing = empty(self._cluster_id, self._node_id, self._owner.epoch, sequence, now_ms)
        # The snapshot first: `current` never names a file that is missing.
        await self._store.put(snapshot_key(sequence), pack(nothing))
        await self._exchange(Current(sequence), etag)

    async def exchange(self, current: Current) -> None:
        """Replace the known `current`. Raises OwnedByOther if this broker is not the owner any
        more, and ConditionFailed if `current` changed nevertheless: read it again."""
        await self._exchange(current, self._etag)

    async def _exchange(self, current: Current, etag: str | None) -> None:
        data = pack_current(current)
        try:
            stored = await self._put(data, etag)
            self.current, self._etag = current, stored
        except ConditionFailed:
            found, found_etag = await self._store.get(CURRENT)
            # The same bytes: the PUT succeeded although its response was lost.
            if found != data:
                await self._owner.verify()
                raise
            self.current, self._etag = current, found_etag

    async def _put(self, data: bytes, etag: str | None) -> str:
        if etag is None:
            stored = await self._store.put(CURRENT, data, if_absent=True)
        else:
            stored = await self._store.put(CURRENT, data, if_match=etag)
        return stored.etag

    async def read(self, last: int | None, output: str = "") -> ManifestResult:
        """Have the worker read the snapshot and the deltas up to `last` (None: all deltas, and
        return an outline), and fold them into the file `output`.

        Raises StoreError and OSError; a missing snapshot counts as damaged.
        """
        await self._on_disk(self._clean)
        files: list[tuple[str, str]] = []
        key = snapshot_key(self.current.snapshot)
        stop = last if last is not None else self.current.snapshot + MAX_DELTAS
        sequence = self.current.snapshot
        try:
            files.append((key, await self._download(key)))
            while sequence < stop:
                key = delta_key(sequence + 1)
                files.append((key, await self._download(key)))
                sequence += 1
        # With `last` None the first missing delta is the end; every other file must be there.
        except NoSuchObject:
            if last is not None or not files:
                return ManifestResult(sequence, damaged=f"{key} is not there")
        try:
            arguments = ManifestArguments(files, output, last is None)
            result: ManifestResult = await self._env.worker.run("manifest", arguments)
        finally:
            for _, path in files:
                await self.remove(path)
        return result

    async def _download(self, key: str) -> str:
        path = os.path.join(self.folder, key.rpartition("/")[2])
        await self._store.download(key, path)
        return path

    async def remove(self, path: str) -> None:
        await self._on_disk(self._env.fs.remove, path)

    async def _on_disk(self, fn: Callable[..., None], *args: str) -> None:
        await self._env.offload.submit("files", fn, *args)

    def _clean(self) -> None:
        fs = self._env.fs
        fs.makedirs(self.folder)
        for name in fs.listdir(self.folder):
            fs.remove(os.path.join(self.folder, name))


def _decode_current(data: bytes) -> Current:
    """Decode `current`. Raises FormatError, and OwnedByOther if a newer program wrote it."""
    try:
        return unpack_current(data)
    except NewerFormatError as failure:
        raise OwnedByOther(str(failure)) from None


# Compaction of the manifest: folds deltas into a snapshot, which bounds what a reader reads.
#
# The worker builds the snapshot from files; its bytes never reach the event loop. Folded files are
# kept for an hour for their readers and deleted by a later fold. `current` names them, so no
# listing is needed.


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
            # Without a condition: folding the same deltas always gives the same bytes.
            await self._store.upload(snapshot_key(sequence), path)
        finally:
            await self._state.remove(path)
        now_ms = self._env.clock.now_ms()
        kept = await self._remove(now_ms)
        folded = Obsolete(before.snapshot, before.snapshot + 1, sequence, now_ms)
        try:
            await self._state.exchange(Current(sequence, (*kept, folded)))
        except ConditionFailed:
            # A fold of an earlier process arrived late; the next fold continues from it.
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
