"""Copy one object into another tier and verify it byte for byte."""

from __future__ import annotations

from hashlib import blake2b

from kafkawire.manifest.keys import segment_key
from kafkawire.offsets.catalog.port import ObjectRow
from kafkawire.tiering.scrub.local_copy import local_copy, scrub_file
from kafkawire.tiering.scrub.repair import Site
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls

MAX_NAMED = 5
"""Damaged ranges listed per object."""


class NotCopied(Exception):
    """An object could not be copied, or its copy differs; an operator must check it."""


def copy_uuid(uuid: bytes, url: str) -> bytes:
    """Return the uuid of the copy in the tier with this URL; it is deterministic, so a repeated
    copy overwrites the first."""
    return blake2b(uuid + url.encode(), digest_size=16).digest()


class Copying:
    """Copies objects from `source`, the store of `source_url`, into `target`. `site`: where copies
    are checked."""

    def __init__(
        self, site: Site, source: ObjectStore, source_url: str, target: ObjectStore
    ) -> None:
        self._site = site
        self._source_url = source_url
        self._target = target
        self._old = RetryingCalls(site.env, source)
        self._new = RetryingCalls(site.env, target)

    async def copy(self, row: ObjectRow, segment: bytes, uuid: bytes) -> None:
        """Copy the object of a row under another uuid; `segment`: the uuid of its segment. Raises
        NotCopied; NoSuchObject; other StoreErrors after the retries; OSError, WorkerError."""
        size, key, old_key = row.size_bytes, segment_key(uuid), segment_key(row.uuid)
        found = await self._old.head(old_key)
        if found.size_bytes != size:
            raise NotCopied(f"it has {found.size_bytes} bytes, its row says {size}")
        await self._new.retry(lambda: self._target.copy_from(self._source_url, key, size, old_key))
        found = await self._new.head(key)
        if found.size_bytes != size:
            raise NotCopied(f"the copy has {found.size_bytes} bytes, it should have {size}")
        await self._check(uuid, size, segment)

    async def _check(self, uuid: bytes, size: int, segment: bytes) -> None:
        """Verify every byte of the copy. All of a segment is covered by checksums, so this finds
        damage from before and during the copy."""
        async with local_copy(self._site, self._new, uuid, size) as path:
            result = await scrub_file(self._site, path, segment)
        if result.problems:
            await self._new.retry(lambda: self._target.delete([segment_key(uuid)]))
        if result.damaged:
            texts = [each.text for each in result.damaged[:MAX_NAMED]]
            more = len(result.damaged) - len(texts)
            raise NotCopied("; ".join(texts) + (f" and {more} more ranges" if more else ""))
        if result.problems:
            raise NotCopied(f"it is damaged: {result.problems[0].replace(path, 'the copy')}")
