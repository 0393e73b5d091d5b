"""The list of filter packs in the bucket, changed by conditional PUTs only.

It is decoded and encoded in a thread: that of a hundred thousand objects has 3 MB.
"""

from __future__ import annotations

import logging

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.log.io.ports import Env
from kafkawire.manifest.keys import PACK_LIST
from kafkawire.manifest.packs import PackList, read_packs, write_packs
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, Refused, StoreError
from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)


class StoredPackList:
    """`filters/current` of a bucket, as last read or written."""

    def __init__(self, env: Env, store: ObjectStore) -> None:
        self._env = env
        self._store = store
        self._known: PackList | None = None
        self._etag: str | None = None

    async def read(self) -> PackList:
        """Return the list, which is read once; an empty one if there is none. Raises StoreError,
        Refused if a newer program wrote it."""
        if self._known is None:
            self._known = await self._read()
        return self._known

    async def _read(self) -> PackList:
        try:
            data, self._etag = await self._store.get(PACK_LIST)
        except NoSuchObject:
            self._etag = None
            return PackList()
        try:
            return await self._env.offload.submit("files", read_packs, data)
        except NewerFormatError as failure:
            raise Refused("NewerFormat", f"{failure}; no filter packs are written") from None
        except FormatError as failure:
            logger.warning(
                "%s: the filter packs are written again; `kafkawire tier scrub --repair` removes "
                "the old ones",
                failure,
            )
            # Above all numbers that ever were, which readers of the old list may still use.
            return PackList(self._env.clock.now_ms())

    async def exchange(self, packs: PackList) -> None:
        """Replace the list as it was read. Raises StoreError; it is read again then, because it may
        have been replaced nevertheless, or by another broker."""
        data = await self._env.offload.submit("files", write_packs, packs)
        self._known = None
        try:
            if self._etag is None:
                stored = await self._store.put(PACK_LIST, data, if_absent=True)
            else:
                stored = await self._store.put(PACK_LIST, data, if_match=self._etag)
        except ConditionFailed as failure:
            raise StoreError(failure.code, f"{PACK_LIST} was changed meanwhile") from None
        self._known, self._etag = packs, stored.etag
