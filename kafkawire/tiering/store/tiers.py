"""The places where this broker's objects are: one that is uploaded to, and those being left.

A tier is a row in SQL with its URL; an object's row says in which it lies. Usually there is one. A
move (kafkawire.tiering.migrate.migrate), or a start with another `tier.url`, makes a new one the
current one; the one before is being left until everything has been copied. A file in the broker's
folder says that a move is under way, so a start goes on with it. Shell.
"""

from __future__ import annotations

import json
import logging
import os.path
from collections.abc import Callable
from dataclasses import replace

from kafkawire.log.io.atomic_file import write_whole_file
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.objectstore.overlap import overlap, same_place
from kafkawire.offsets.catalog.port import BEING_LEFT, CURRENT, LEFT, SegmentCatalog, TierRow
from kafkawire.tiering.store.metering import Meter, MeteredStore
from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)

NAME = "tier-move"
MAX_MARK_BYTES = 4096
"""A URL has 2,000 at most."""

Opener = Callable[[str], ObjectStore]
"""The store of a tier's URL; nothing is asked of it yet. ValueError if the URL is none."""


class Tiers:
    """The tiers of a broker, by number. `current`: where uploads go; `refusal`: why nothing may be
    uploaded, though there is a current one; `moving`: whether a move is under way; `data_folder`:
    of this broker."""

    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        meter: Meter,
        opener: Opener,
        url: str,
        store: ObjectStore,
        folder: str,
    ) -> None:
        """`store` is that of `url`, the broker's setting."""
        self.rows: list[TierRow] = []
        self.current = TierRow(0, url)
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
        """Find out which is the current one, and say so in SQL."""
        target = await self._env.offload.submit("files", _read, self._env.fs, self.data_folder)
        self.moving = bool(target)
        self.rows = await self._storage.tiers()
        await self._take_options()
        mine = next((row for row in self.rows if row.url == self._url), None)
        current = next((row for row in self.rows if row.state == CURRENT), None)
        if mine is not None and mine.state == LEFT and current is not None:
            self.current = current
            self.refusal = (
                f"everything was moved from {self._url} to {current.url}: nothing is uploaded "
                f"until the broker is started with tier.url={current.url}"
            )
            return
        to = target or self._url
        inside = next((row for row in self.rows if row.url != to and overlap(row.url, to)), None)
        if mine is None and inside is not None and current is not None:
            self.current = current
            self.refusal = (
                f"tier.url={self._url} and the tier {inside.url} lie in one another: nothing is "
                "uploaded until the broker is started with a tier apart from it"
            )
        else:
            await self._set_current(to)

    async def _take_options(self) -> None:
        """A tier whose URL has other options now (region, sse, ...) is still that tier."""
        if any(row.url == self._url for row in self.rows):
            return
        same = next((row for row in self.rows if same_place(row.url, self._url)), None)
        if same is not None:
            await self._save(replace(same, url=self._url))

    def left(self) -> list[TierRow]:
        """Those that are being left."""
        return [row for row in self.rows if row.state == BEING_LEFT]

    def store(self, tier: int) -> ObjectStore | None:
        """The store of a tier by its number; None: there is no such tier, or its URL is none."""
        if tier == self.current.id:
            return self.store_at(self.current.url)
        row = next((row for row in self.rows if row.id == tier), None)
        try:
            return None if row is None else self.store_at(row.url)
        except ValueError as failure:
            logger.warning("objects in tier %d cannot be reached: %s", tier, failure)
            return None

    def store_at(self, url: str) -> MeteredStore:
        """The store of a URL, opened once. ValueError if the URL is none."""
        found = self._by_url.get(url)
        if found is None:
            found = self._by_url[url] = MeteredStore(self._opener(url), self._meter)
        return found

    async def begin_move(self, url: str) -> None:
        """From now on `url` is the current one, also after a crash."""
        await self._env.offload.submit("files", _write, self._env.fs, self.data_folder, url)
        self.moving = True
        await self._set_current(url)

    async def copied(self) -> None:
        """Nothing needs those that are being left any more, but for objects that wait there."""
        for row in self.left():
            await self._save(replace(row, state=LEFT))

    async def end_move(self) -> None:
        """The move is over."""
        await self._env.offload.submit("files", _remove, self._env.fs, self.data_folder)
        self.moving = False

    async def close(self) -> None:
        """Close all that were opened."""
        for store in self._by_url.values():
            await store.close()

    async def _set_current(self, url: str) -> None:
        found = next((row for row in self.rows if row.url == url), None)
        if found is None:
            number = max((row.id for row in self.rows), default=-1) + 1
            found = TierRow(number, url, CURRENT, self._env.clock.now_ms())
            await self._save(found)
        elif found.state != CURRENT:
            found = replace(found, state=CURRENT)
            await self._save(found)
        for row in self.rows:
            if row.state == CURRENT and row.id != found.id:
                logger.warning("the tier is %s now; what is in %s is being left", url, row.url)
                await self._save(replace(row, state=BEING_LEFT))
        self.current = found

    async def _save(self, row: TierRow) -> None:
        await self._storage.save_tier(row)
        self.rows = [*(each for each in self.rows if each.id != row.id), row]


def _read(fs: FileSystem, folder: str) -> str:
    """Where a move goes; empty: none is under way."""
    try:
        file = fs.open(os.path.join(folder, NAME))
    except FileNotFoundError:
        return ""
    try:
        says = json.loads(file.pread(MAX_MARK_BYTES, 0))
    except ValueError:
        return ""  # a crash while it was written: nothing had begun
    finally:
        file.close()
    return str(says.get("to", "")) if isinstance(says, dict) else ""


def _write(fs: FileSystem, folder: str, url: str) -> None:
    write_whole_file(fs, os.path.join(folder, NAME), json.dumps({"to": url}).encode())


def _remove(fs: FileSystem, folder: str) -> None:
    fs.remove(os.path.join(folder, NAME))
    fs.sync_dir(folder)
