"""The stores of the log objects of one broker: the folder `nodes/<node id>` of its tier, and those
of the tiers that logs of earlier lives are in.

Each broker has its folder, also the one whose segments are in the tier itself. The requests are
counted with those of the tier, as LOG_OBJECTS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kafkawire.objectstore.errors import Refused
from kafkawire.objectstore.overlap import same_place
from kafkawire.objectstore.port import FileRange, Listed, Stored
from kafkawire.objectstore.url import TierUrl, parse_tier
from kafkawire.tiering.store.metering import LOG_OBJECTS, Meter, MeteredStore, charging
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.storage_check import IGNORED, check_conditional_put
from kafkawire.tiering.store.store_folder import StoreFolder
from kafkawire.tiering.store.tiers import Opener, folder_of, own_url

_SHARED = {LOG_OBJECTS: 1}


class ChargedStore:
    """The LogObjectStore (kafkawire.log.objects.port) of an ObjectStore. See the port for its
    methods."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put_ranges(self, key: str, head: bytes, ranges: Sequence[FileRange]) -> Stored:
        with charging(_SHARED):
            return await self._store.put_ranges(key, head, ranges)

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored:
        with charging(_SHARED):
            return await self._store.put(key, data, if_match=if_match, if_absent=if_absent)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        with charging(_SHARED):
            return await self._store.get(key, start, length)

    async def delete(self, keys: Sequence[str]) -> int:
        with charging(_SHARED):
            return await self._store.delete(keys)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        with charging(_SHARED):
            return await self._store.list(prefix, after, limit)


class LogStores:
    """The LogObjectStores (kafkawire.log.objects.port) of a broker with a tier. See the port for
    its methods. `meter`: of the tier."""

    def __init__(
        self, store: ObjectStore, tier_url: str, node_id: int, meter: Meter, opener: Opener
    ) -> None:
        """`store` is that of `tier_url`, the broker's setting; `opener` opens other tiers."""
        self.meter = meter
        self.url = own_url(tier_url, node_id)
        self._tier_url = parse_tier(tier_url).url
        self._whole = MeteredStore(store, meter)
        self._opener = opener
        self._others: dict[str, MeteredStore] = {}
        self._checked = False

    def at(self, url: str) -> ChargedStore:
        """A folder of the broker's own tier shares its process; each other place has one."""
        place = parse_tier(url)
        folder = folder_of_node(place)
        if folder is not None and same_place(url, parse_tier(self._tier_url).inside(folder).url):
            return ChargedStore(StoreFolder(self._whole, folder))
        found = self._others.get(url)
        if found is None:
            # An empty place that is created here would look like a log without objects.
            existing = replace(place, create=False).url
            found = self._others[url] = MeteredStore(self._opener(existing), self.meter)
        return ChargedStore(found)

    async def check(self) -> str:
        # In the tier itself: all its brokers share the object that the check stores.
        if self._checked:
            return ""
        try:
            with charging(_SHARED):
                await check_conditional_put(self._whole)
        except Refused as failure:
            if failure.code == IGNORED:
                return failure.text
            raise
        self._checked = True
        return ""

    async def close(self) -> None:
        others, self._others = self._others, {}
        for store in others.values():
            await store.close()


def folder_of_node(place: TierUrl) -> str | None:
    """Return the folder of a broker, like `nodes/1`, that a place is; None if it is none."""
    name = place.path.rpartition("/")[2]
    if not (name.isascii() and name.isdigit()):
        return None
    folder = folder_of(int(name))
    return folder if place.outside(folder) is not None else None
