"""The objects that the manifest of a bucket names, by ranges of keys, for a scrub."""

from __future__ import annotations

import os.path
from bisect import bisect_left, bisect_right

from kafkawire.log.manifest.summary import UUID_BYTES, KeySlices
from kafkawire.manifest.keys import CURRENT
from kafkawire.manifest.reader import unpack_current
from kafkawire.tiering.manifest.bucket import BucketState
from kafkawire.tiering.manifest.owner import Owner
from kafkawire.tiering.scrub.repair import Site
from kafkawire.tiering.store.retrying import RetryingCalls


class Named:
    """Sorted uuids, packed in slices: 16 bytes each."""

    __slots__ = ("_keys", "_lasts")

    def __init__(self, slices: KeySlices) -> None:
        self._keys = slices.keys
        self._lasts = [keys[-UUID_BYTES:] for keys in slices.keys]

    def between(self, after: bytes, upper: bytes) -> set[bytes]:
        """Return the uuids above `after`, up to `upper`."""
        found: set[bytes] = set()
        for keys in self._keys[bisect_right(self._lasts, after) :]:
            if keys[:UUID_BYTES] > upper:
                break
            uuids = (keys[at : at + UUID_BYTES] for at in range(0, len(keys), UUID_BYTES))
            found.update(uuid for uuid in uuids if after < uuid <= upper)
        return found

    def __contains__(self, uuid: bytes) -> bool:
        at = bisect_left(self._lasts, uuid)
        if at == len(self._keys):
            return False
        keys = self._keys[at]
        rows = range(len(keys) // UUID_BYTES)
        row = bisect_left(rows, uuid, key=lambda n: keys[UUID_BYTES * n : UUID_BYTES * (n + 1)])
        return keys[UUID_BYTES * row : UUID_BYTES * (row + 1)] == uuid


async def read_outline(site: Site, asking: RetryingCalls) -> Named:
    """Have the worker read the objects that the manifest names now. Raises StoreError, OSError,
    WorkerError; ValueError if it is damaged."""
    owner = Owner(site.env, site.store, site.cluster_id, site.node_id)  # the bucket is not claimed
    folder = os.path.join(site.folder, "manifest")
    current = unpack_current(await asking.whole(CURRENT))
    state = BucketState(site.env, site.store, owner, site.cluster_id, site.node_id, folder, current)
    result = await asking.retry(lambda: state.read(None))
    if result.outline is None:
        raise ValueError(result.damaged)
    return Named(result.outline.objects)
