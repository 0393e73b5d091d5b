"""Checks of metadata.db: where it is, at the start, and its pages, after the broker serves and once
a day from then on.

Damage of a page that is not read at start is otherwise unnoticed (kafkawire.metadata.damage).
Brokers run for months, so one check after the start is not enough; a daily check is as frequent as
the backups that most operators restore. Damage is logged once and reported in /health and /metrics
until the restart that a repair needs. Not for PostgreSQL, which has its own checksums. Created by
`server.run`.
"""

from __future__ import annotations

import asyncio
import logging
import os.path

from kafkawire.codec.configs.durability_rules import BEYOND_FOLDER, DURABILITY
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.log.recovery.identity import rebuild_command
from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.completion import run_on_thread
from kafkawire.metadata.damage import PageCheck
from kafkawire.metadata.store import DamagedMetadata, MetadataError

logger = logging.getLogger(__name__)

FIRST_S = 5.0
"""Delay after a start, while clients connect."""
INTERVAL_S = 24 * 3600.0
MAX_S = 600.0
"""Time limit of one check. A million partitions are 200 MB and take seconds. During a check of a
far larger file, or on a hanging disk, SQLite could not checkpoint its write-ahead log."""


def warn_of_common_loss(path: str, data: str, catalog: Catalog, config: BrokerConfig) -> None:
    """Warn if the SQLite file would be lost together with the data folder, although there are, or
    will be, topics whose records survive that only with the metadata."""
    inside = os.path.realpath(path).startswith(os.path.join(os.path.realpath(data), ""))
    found = {
        catalog.by_id[topic_id].name: configs.get(DURABILITY, "").strip()
        for topic_id, configs in catalog.list_configured()
        if configs.get(DURABILITY, "").strip() in BEYOND_FOLDER
    }
    if not inside or not (found or config.durability in BEYOND_FOLDER):
        return
    what, durability = "the default of new topics", config.durability
    if found:
        name, durability = min(found.items())
        what = f"topic {name}"
    logger.warning(
        "%s has %s=%s, but the metadata %s is in the data folder: if the folder is lost, records "
        "cannot be found elsewhere; use PostgreSQL or a file elsewhere (--metadata)",
        what, DURABILITY, durability, path,
    )  # fmt: skip


class MetadataCheck:
    """The task that checks metadata.db after the start and daily. `damage`: the damage found, as a
    sentence, or empty; `completed` counts checks that read every page."""

    def __init__(self, env: Env, path: str, data: str) -> None:
        """`path`: the SQLite file; `data`: the data folder, for the command in messages."""
        self._env = env
        self._path = path
        self._data = data
        self._check: PageCheck | None = None
        self._task: asyncio.Task[None] | None = None
        self.damage = ""
        self.completed = 0

    def start(self) -> None:
        """Start the task."""
        self._task = self._env.spawn(self._run(), "check the metadata")

    async def close(self) -> None:
        """Interrupt a running check and wait for its end."""
        task, self._task = self._task, None
        if task is None:
            return
        if self._check is not None:
            self._check.stop()  # the task ends when the thread does
        else:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        """Run until damage is found or the broker stops."""
        await self._env.sleep(FIRST_S)
        while not self.damage:
            self._check = check = PageCheck(self._path)
            timer = self._env.call_later(MAX_S, check.stop)
            try:
                done = await run_on_thread(check.run)
                self.completed += done
            except DamagedMetadata as damage:
                self._report(damage)
                return
            except MetadataError as failure:
                logger.warning("daily check of the metadata skipped: %s", failure)
                done = True
            finally:
                timer.cancel()
                self._check = None
            if self._task is None:
                return
            if not done:
                logger.warning(
                    "check of %s stopped after %.0f s without a result; for a complete check stop "
                    "the broker and run `kafkawire fsck --data %s`",
                    self._path, MAX_S, self._data,
                )  # fmt: skip
            await self._env.sleep(INTERVAL_S)

    def _report(self, damage: DamagedMetadata) -> None:
        self.damage = (
            f"{damage.what}: topics, settings or offsets stored there cannot be read, and the next "
            "start may be refused; stop the broker and restore the file from a copy, or rebuild it "
            f"with {rebuild_command(self._data)}"
        )
        logger.critical("%s", self.damage)
