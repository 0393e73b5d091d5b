"""The check of filter packs in a scrub: those of the list are there, sound, and no others.

Packs are derived: a damaged one is dropped from the list by a repair, and its objects wait for the
next one. Searches by key read the filters of these objects meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment.filter_pack import read_stripe
from kafkawire.manifest.keys import FILTERS, PACK_LIST, pack_key, pack_number
from kafkawire.manifest.packs import FilterPack, PackList, read_packs
from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.objectstore.port import Listed
from kafkawire.plural import count
from kafkawire.tiering.scrub.plan import Finding, FindingKind
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls

Drop = Callable[[set[int]], Awaitable[None]]
"""Drops packs from the list."""


class PackCheck:
    """Checks the filter packs of a tier. With `repair` it drops damaged packs and deletes those
    that are in no list; packs modified from `before_ms` on are not judged by that."""

    def __init__(
        self, store: ObjectStore, asking: RetryingCalls, drop: Drop, repair: bool, before_ms: int
    ) -> None:
        self._store = store
        self._asking = asking
        self._drop = drop
        self._repair = repair
        self._before_ms = before_ms

    async def run(self, deep: bool) -> list[Finding]:
        """Return the findings; `deep`: read every byte. StoreError: the bucket cannot be listed."""
        held: dict[str, Listed] = {}
        async for page in self._asking.pages(FILTERS):
            held.update((each.key, each) for each in page)
        if not held:
            return []
        try:
            packs = await self._list()
        except NewerFormatError as failure:
            text = f"it could not be checked: {failure}"
            return [Finding(FindingKind.UNREADABLE, PACK_LIST, text)]
        except FormatError as failure:
            text = f"{failure}: searches by key use no filter packs"
            return [Finding(FindingKind.FORMAT, PACK_LIST, text)]
        except StoreError as failure:
            text = f"it could not be checked: {failure}"
            return [Finding(FindingKind.UNREADABLE, PACK_LIST, text)]
        return await self._compare(packs, held, deep)

    async def _list(self) -> PackList:
        try:
            return read_packs(await self._asking.whole(PACK_LIST))
        except NoSuchObject:
            return PackList()

    async def _compare(
        self, packs: PackList, held: Mapping[str, Listed], deep: bool
    ) -> list[Finding]:
        found, harmed = [], set()
        for pack in packs.packs:
            problem = await self._problem(pack, held.get(pack_key(pack.number)), deep)
            if problem is not None:
                found.append(problem)
                harmed.add(pack.number)
        if harmed and self._repair:
            await self._drop(harmed)
        return [*found, *await self._strangers(packs, held)]

    async def _problem(self, pack: FilterPack, listed: Listed | None, deep: bool) -> Finding | None:
        key, size = pack_key(pack.number), pack.shape.stripes * pack.shape.stripe_bytes
        kind, why = FindingKind.DANGLING, "it is gone"
        try:
            if listed is not None:
                kind, why = FindingKind.SIZE, f"it has {listed.size_bytes} bytes, not {size}"
                if listed.size_bytes == size:
                    kind, why = FindingKind.FORMAT, await self._damage(pack) if deep else ""
        except NoSuchObject:
            kind, why = FindingKind.DANGLING, "it is gone"
        except StoreError as failure:
            return Finding(FindingKind.UNREADABLE, key, f"it could not be checked: {failure}")
        if not why:
            return None
        text = f"a filter pack of {count(len(pack.objects), 'object')}: {why}"
        return Finding(kind, key, text, self._describe_action("written again with the next pack"))

    async def _damage(self, pack: FilterPack) -> str:
        """Return what is wrong with the bytes of a pack; empty if nothing is."""
        size = pack.shape.stripe_bytes
        for stripe in range(pack.shape.stripes):
            data, _ = await self._asking.get(pack_key(pack.number), stripe * size, size)
            try:
                found = read_stripe(data, pack.number, pack.shape, stripe)
            except FormatError as failure:
                return str(failure)
            if found.objects != pack.objects:
                return "it has other objects than the list says"
        return ""

    async def _strangers(self, packs: PackList, held: Mapping[str, Listed]) -> list[Finding]:
        """Return the objects that the list does not name; those from the next number on may be
        about to be named."""
        known = {each.number for each in packs.packs} | {each.number for each in packs.obsolete}
        found, keys = [], []
        for key, listed in held.items():
            number = pack_number(key)
            # A young one may be about to be named.
            if key == PACK_LIST or listed.modified_ms >= self._before_ms:
                continue
            if number is None:
                text = "an object with an unknown name"
                found.append(Finding(FindingKind.ORPHAN, key, text))
            elif number < packs.next and number not in known:
                text = "a filter pack that the list does not name"
                found.append(
                    Finding(FindingKind.ORPHAN, key, text, self._describe_action("deleted"))
                )
                keys.append(key)
        # As many as one request may; the next scrub deletes more.
        if keys and self._repair:
            await self._store.delete(keys[:1000])
        return found

    def _describe_action(self, what: str) -> str:
        return f"{'will' if self._repair else 'would'} be {what}"
