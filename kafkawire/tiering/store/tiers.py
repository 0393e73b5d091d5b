"""The tiers of this broker: the current one, which receives uploads, and those being moved from;
those of the other brokers of the cluster, whose objects it reads.

A tier is a row in SQL with its URL and the broker that writes there; an object's row has its tier.
Of the brokers that are started with one URL the first uses the URL itself, each other one the
folder `nodes/<node id>` in it. Usually a broker has one tier. A move
(kafkawire.tiering.migrate), or a start with another `tier.url`, makes a new tier the
current one; the objects of the previous one are then copied. A file in the broker's folder records
a move in progress, so that the next start continues it.
"""

from __future__ import annotations

import json
import logging
import os.path
from collections.abc import Callable
from dataclasses import replace

from kafkawire.codec.format_errors import FormatError
from kafkawire.log.io.atomic_file import read_whole_file, write_whole_file
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.log.io.shared_load import SharedLoad
from kafkawire.manifest.sealed_json import seal, unseal
from kafkawire.objectstore.overlap import overlap, same_place
from kafkawire.objectstore.url import parse_tier
from kafkawire.offsets.catalog.port import BEING_LEFT, CURRENT, LEFT, SegmentCatalog, TierRow
from kafkawire.tiering.store.metering import Meter, MeteredStore
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.store_folder import StoreFolder

logger = logging.getLogger(__name__)

NODES = "nodes"
"""Folder in a tier for the tiers of other brokers."""
RELOAD_INTERVAL_S = 1.0
"""Minimum time between two searches for an unknown tier."""
NAME = "tier-move"
MARK_FORMAT = 2
"""Of the file; format 1 has no checksum."""
MAX_MARK_BYTES = 4096
"""Maximum size of the file; a URL has at most 2,000 bytes."""

Opener = Callable[[str], ObjectStore]
"""Opens the store of a tier's URL without a request. Raises ValueError if the URL is invalid."""


def folder_of(node_id: int) -> str:
    """Return the folder of a broker in a tier that another broker uses, too."""
    return f"{NODES}/{node_id}"


def own_url(url: str, node_id: int) -> str:
    """Return the URL of the tier of a broker in the tier of a valid URL."""
    return parse_tier(url).inside(folder_of(node_id)).url


class Tiers:
    """All tiers, by number. `current`: the target of uploads; `refusal`: why nothing may be
    uploaded, although there is a current one; `moving`: whether a move is in progress;
    `data_folder`: of this broker."""

    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        meter: Meter,
        opener: Opener,
        url: str,
        store: ObjectStore,
        folder: str,
        node_id: int,
    ) -> None:
        """`store` is that of `url`, the broker's setting."""
        self.rows: list[TierRow] = []
        self.current = TierRow(0, url)
        self._node_id = node_id
        self._searching = SharedLoad(env, "find a tier", self._load, RELOAD_INTERVAL_S)
        self.refusal = ""
        self.moving = False
        self._env = env
        self._storage = storage
        self._meter = meter
        self._opener = opener
        self._url = url
        self.data_folder = folder
        self._by_url: dict[str, MeteredStore] = {url: MeteredStore(store, meter)}

    async def open(self) -> None:
        """Read the tiers from SQL and record the current one there."""
        target = await self._env.offload.submit("files", _read, self._env.fs, self.data_folder)
        self.moving = bool(target)
        self.rows = await self._storage.tiers()
        # Rows of earlier programs, which knew one broker only.
        if any(row.node_id is None for row in self.rows):
            self.rows = await self._storage.adopt_tiers()
        await self._take_options()
        mine = self._own_at(self._url)
        current = next((row for row in self.own() if row.state == CURRENT), None)
        # The setting still names the tier that was moved from. Uploads to it would bring it back.
        if mine is not None and mine.state == LEFT and current is not None:
            self.current = current
            now = self.setting(current)
            self.refusal = (
                f"everything was moved from {self._url} to {now}: nothing is uploaded "
                f"until the broker is started with tier.url={now}"
            )
            return
        to = target or self._url
        inside = next((url for url in map(self.setting, self.rows) if overlaps(url, to)), None)
        if mine is None and inside is not None and current is not None:
            self.current = current
            self.refusal = (
                f"tier.url={self._url} and the tier {inside} lie in one another: nothing is "
                "uploaded until the broker is started with a tier apart from it"
            )
        else:
            await self._set_current(to)

    async def _take_options(self) -> None:
        """Update the URL of a tier whose options (region, sse, ...) have changed."""
        for url in (self._url, own_url(self._url, self._node_id)):
            if any(row.url == url for row in self.rows):
                continue
            same = next((row for row in self.own() if same_place(row.url, url)), None)
            if same is not None:
                await self._save(replace(same, url=url))

    def own(self) -> list[TierRow]:
        return [row for row in self.rows if row.node_id == self._node_id]

    def list_left(self) -> list[TierRow]:
        return [row for row in self.own() if row.state == BEING_LEFT]

    def setting(self, row: TierRow) -> str:
        """Return the value of tier.url with which brokers use a tier: its URL, or the one that it
        is a broker's folder of."""
        outer = self._outer(row.url)
        return row.url if outer is None else outer[0]

    def is_current(self, url: str) -> bool:
        return url in (self.current.url, self.setting(self.current))

    def find_store(self, tier: int) -> ObjectStore | None:
        """Return the store of a tier by number; None if there is none, or its URL is invalid."""
        if tier == self.current.id:
            return self.store_at(self.current.url)
        row = next((row for row in self.rows if row.id == tier), None)
        try:
            return None if row is None else self.store_at(row.url)
        except ValueError as failure:
            logger.warning("objects in tier %d cannot be reached: %s", tier, failure)
            return None

    async def reload(self, tier: int) -> None:
        """Read the tiers of brokers that were started later, if this one is not known. Raises the
        storage's errors."""
        if not any(row.id == tier for row in self.rows):
            await self._searching.again()

    async def _load(self) -> None:
        self.rows = await self._storage.tiers()

    def store_at(self, url: str) -> ObjectStore:
        """Return the store of a URL, which is opened once; that of a folder of another broker is
        the store of the tier around it. Raises ValueError if the URL is invalid."""
        outer = self._outer(url)
        if outer is not None:
            return StoreFolder(self._open_store(outer[0]), outer[1])
        return self._open_store(url)

    def _open_store(self, url: str) -> MeteredStore:
        found = self._by_url.get(url)
        if found is None:
            found = self._by_url[url] = MeteredStore(self._opener(url), self._meter)
        return found

    def _outer(self, url: str) -> tuple[str, str] | None:
        """Return the URL of the tier that a URL is a broker's folder of, and that folder."""
        try:
            tier = parse_tier(url)
        # A URL of an older version.
        except ValueError:
            return None
        node = tier.path.rpartition("/")[2]
        folder = f"{NODES}/{node}"
        outer = tier.outside(folder) if node.isdigit() else None
        known = {self._url, *(row.url for row in self.rows)}
        return None if outer is None or outer.url not in known else (outer.url, folder)

    def _own_at(self, url: str) -> TierRow | None:
        """Return the tier that this broker uses if started with a URL; None if it never was."""
        places = url, own_url(url, self._node_id)
        return next((row for row in self.own() if row.url in places), None)

    async def begin_move(self, url: str) -> None:
        # The mark first: with it the next start continues the move after a crash.
        await self._env.offload.submit("files", mark_move, self._env.fs, self.data_folder, url)
        self.moving = True
        await self._set_current(url)

    async def mark_copied(self) -> None:
        for row in self.list_left():
            await self._save(replace(row, state=LEFT))

    async def end_move(self) -> None:
        await self._env.offload.submit("files", _remove, self._env.fs, self.data_folder)
        self.moving = False

    async def close(self) -> None:
        await self._searching.close()
        for store in self._by_url.values():
            await store.close()

    async def close_others(self) -> None:
        """Close all opened stores but the one that was given."""
        for url, store in self._by_url.items():
            if url != self._url:
                await store.close()

    async def _set_current(self, url: str) -> None:
        found = self._own_at(url)
        if found is None:
            now_ms = self._env.clock.now_ms()
            own = own_url(url, self._node_id)
            found = await self._storage.claim_tier(url, own, now_ms)
            self.rows = await self._storage.tiers()
        if found.state != CURRENT:
            found = replace(found, state=CURRENT)
            await self._save(found)
        for row in self.own():
            if row.state == CURRENT and row.id != found.id:
                logger.warning(
                    "the tier is %s now; what is in %s is being left", found.url, row.url
                )
                await self._save(replace(row, state=BEING_LEFT))
        self.current = found

    async def _save(self, row: TierRow) -> None:
        await self._storage.save_tier(row)
        self.rows = [*(each for each in self.rows if each.id != row.id), row]


def overlaps(url: str, other: str) -> bool:
    """Return whether two different tiers share keys."""
    return url != other and overlap(url, other)


def _read(fs: FileSystem, folder: str) -> str:
    """Read the target of a move in progress; empty if there is none."""
    # More important than the setting: a move that has begun continues after a start.
    path = os.path.join(folder, NAME)
    data = read_whole_file(fs, path, MAX_MARK_BYTES)
    if not data:
        return ""
    try:
        return str(unseal(data, path, MARK_FORMAT)["to"])
    except (FormatError, KeyError) as failure:
        logger.warning(
            "%s is damaged (%s), so uploads go to tier.url: move the tier again", path, failure
        )
        return ""


def mark_move(fs: FileSystem, folder: str, url: str) -> None:
    """Note in a broker's folder that a move to a tier is in progress."""
    data = seal(json.dumps({"format": MARK_FORMAT, "to": url}))
    write_whole_file(fs, os.path.join(folder, NAME), data)


def _remove(fs: FileSystem, folder: str) -> None:
    fs.remove(os.path.join(folder, NAME))
    fs.sync_dir(folder)
