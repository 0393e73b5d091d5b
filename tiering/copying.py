"""One object copied into another tier, and compared byte for byte. Shell; part of a move."""

from __future__ import annotations

from hashlib import blake2b

from kafkawire.codec.segment import FormatError
from kafkawire.manifest.keys import segment_key
from log.env import Env
from offsets.storage import ObjectRow
from tiering.restore.asking import Asking
from tiering.store import ObjectStore
from tiering.tails import read_tail

COMPARED_BYTES = 1 << 20
"""Compared at a time, which takes a tenth of a millisecond of the loop's time."""


class NotCopied(Exception):
    """An object could not be copied, or its copy is not the same; what a person has to look at."""


def copy_uuid(uuid: bytes, url: str) -> bytes:
    """Of the copy in the tier with this URL: whoever copies it again writes over it."""
    return blake2b(uuid + url.encode(), digest_size=16).digest()


class Copying:
    """From `source`, which is the store of `source_url`, into `target`."""

    def __init__(self, env: Env, source: ObjectStore, source_url: str, target: ObjectStore) -> None:
        self._source_url = source_url
        self._target = target
        self._old = Asking(env, source)
        self._new = Asking(env, target)

    async def copy(self, row: ObjectRow, segment: bytes, uuid: bytes) -> None:
        """Copy the object of a row under another uuid; `segment`: the uuid of its segment.
        NotCopied, NoSuchObject if there is none; other StoreErrors once it was tried enough."""
        size, key, old_key = row.size_bytes, segment_key(uuid), segment_key(row.uuid)
        found = await self._old.head(old_key)
        if found.size_bytes != size:
            raise NotCopied(f"it has {found.size_bytes} bytes, its row says {size}")
        await self._new.retry(lambda: self._target.copy_from(self._source_url, key, size, old_key))
        found = await self._new.head(key)
        if found.size_bytes != size:
            raise NotCopied(f"the copy has {found.size_bytes} bytes, it should have {size}")
        await self._check_ends(key, size, segment)
        await self._compare(old_key, key, size)

    async def _check_ends(self, key: str, size: int, segment: bytes) -> None:
        """Header, trailer and directory are those of a sound segment, and of this one."""
        try:
            tail = await read_tail(self._new, key, size)
        except FormatError as failure:
            raise NotCopied(f"it is damaged: {failure}") from None
        if tail.header.uuid != segment:
            raise NotCopied("it is another segment than its row says")

    async def _compare(self, old_key: str, key: str, size: int) -> None:
        """All bytes are the same."""
        for start in range(0, size, COMPARED_BYTES):
            length = min(COMPARED_BYTES, size - start)
            theirs, _ = await self._old.get(old_key, start, length)
            ours, _ = await self._new.get(key, start, length)
            if ours != theirs:
                raise NotCopied(f"the copy differs within {length} bytes from {start} on")
