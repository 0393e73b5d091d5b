"""The tiers of this broker: the current one, which receives uploads, and those being moved from.

A tier is a row in SQL with its URL; an object's row has its tier. Usually there is one. A move
(kafkawire.tiering.migrate.migrate), or a start with another `tier.url`, makes a new tier the
current one; the objects of the previous one are then copied. A file in the broker's folder records
a move in progress, so that the next start continues it.
"""

from __future__ import annotations

import json
import logging
import os.path
from collections.abc import Callable
from dataclasses import replace

from kafkawire.log.io.atomic_file import read_whole_file, write_whole_file
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.objectstore.overlap import overlap, same_place
from kafkawire.offsets.catalog.port import BEING_LEFT, CURRENT, LEFT, SegmentCatalog, TierRow
from kafkawire.tiering.store.metering import Meter, MeteredStore
from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)

NAME = "tier-move"
MAX_MARK_BYTES = 4096
"""Maximum size of the file; a URL has at most 2,000 bytes."""

Opener = Callable[[str], ObjectStore]
"""Opens the store of a tier's URL without a request. Raises ValueError if the URL is invalid."""


class Tiers:
    """The tiers of a broker, by number. `current`: the target of uploads; `refusal`: why nothing
    may be uploaded, although there is a current one; `moving`: whether a move is in progress;
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
        """Read the tiers from SQL and record the current one there."""
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
        """Update the URL of a tier whose options (region, sse, ...) have changed."""
        if any(row.url == self._url for row in self.rows):
            return
        same = next((row for row in self.rows if same_place(row.url, self._url)), None)
        if same is not None:
            await self._save(replace(same, url=self._url))

    def left(self) -> list[TierRow]:
        """The tiers that are being moved from."""
        return [row for row in self.rows if row.state == BEING_LEFT]

    def store(self, tier: int) -> ObjectStore | None:
        """Return the store of a tier by its number; None if there is no such tier, or its URL is
        invalid."""
        if tier == self.current.id:
            return self.store_at(self.current.url)
        row = next((row for row in self.rows if row.id == tier), None)
        try:
            return None if row is None else self.store_at(row.url)
        except ValueError as failure:
            logger.warning("objects in tier %d cannot be reached: %s", tier, failure)
            return None

    def store_at(self, url: str) -> MeteredStore:
        """Return the store of a URL, which is opened once. Raises ValueError if the URL is
        invalid."""
        found = self._by_url.get(url)
        if found is None:
            found = self._by_url[url] = MeteredStore(self._opener(url), self._meter)
        return found

    async def begin_move(self, url: str) -> None:
        """Make `url` the current tier, also after a crash."""
        await self._env.offload.submit("files", _write, self._env.fs, self.data_folder, url)
        self.moving = True
        await self._set_current(url)

    async def copied(self) -> None:
        """Record that all objects of the other tiers are copied."""
        for row in self.left():
            await self._save(replace(row, state=LEFT))

    async def end_move(self) -> None:
        """Record the end of the move."""
        await self._env.offload.submit("files", _remove, self._env.fs, self.data_folder)
        self.moving = False

    async def close(self) -> None:
        """Close all opened stores."""
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
    """Read the target of a move in progress; empty if there is none."""
    data = read_whole_file(fs, os.path.join(folder, NAME), MAX_MARK_BYTES)
    try:
        says = json.loads(data or b"")
    except ValueError:
        return ""  # absent, or left by a crash while it was written, before the move began
    return str(says.get("to", "")) if isinstance(says, dict) else ""


def _write(fs: FileSystem, folder: str, url: str) -> None:
    write_whole_file(fs, os.path.join(folder, NAME), json.dumps({"to": url}).encode())


def _remove(fs: FileSystem, folder: str) -> None:
    fs.remove(os.path.join(folder, NAME))
    fs.sync_dir(folder)
