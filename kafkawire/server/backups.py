"""Scheduled backups of metadata and offsets: `kafkawire backup` in a child, then an upload.

If `backup.url` is set, a backup is made every `backup.interval.ms`, and the newest `backup.keep`
are kept. The time of the last one is in the store's index, so a restart does not change the
schedule. A failure is logged as a warning and retried; an interval without any backup is an error.
Created by `server.run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable

from kafkawire.childprocess.process_thread import finish
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.objectstore.backoff import wait_s
from kafkawire.objectstore.errors import StoreError
from kafkawire.plural import count
from kafkawire.tiering.backups import read_index, store_backup
from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)

FIRST_S = 60.0
"""Delay after a start, while clients connect."""
MAX_RETRY_S = 600.0
TIMEOUT_S = 3_600.0
"""Time limit of one child: a million partitions take minutes."""
MADE = "made"
"""The folder of a backup below the one that is deleted afterwards: a child that was killed leaves a
temporary folder next to it."""
MAX_OUTPUT_BYTES = 64 << 10
"""Maximum output read from a child."""

Make = Callable[[str], Awaitable[None]]
"""Makes a backup in a new folder. Raises BackupError."""


class BackupError(Exception):
    """Why a backup could not be made: one sentence."""


class ScheduledBackups:
    """The task that makes backups at intervals. `last_ms`: start of the newest complete backup, 0
    if there is none."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        cluster_id: str,
        folder: str,
        store: ObjectStore,
        make: Make,
        is_due_here: Callable[[], bool] = lambda: True,
    ) -> None:
        """`folder`: where a backup is built before its upload; `is_due_here`: whether this broker
        makes the backups of its cluster now."""
        self._env = env
        self._config = config
        self._cluster_id = cluster_id
        self._folder = folder
        self._store = store
        self._make = make
        self._is_due_here = is_due_here
        self.last_ms = 0
        self.failures = 0
        self._in_a_row = 0

    async def run(self) -> None:
        """Run until cancelled."""
        await self._env.sleep(FIRST_S)
        while True:
            try:
                if not self.last_ms or not self._is_due_here():
                    index = await read_index(self._store)
                    newest = None if index is None else index.newest()
                    self.last_ms = 0 if newest is None else newest.created_ms
                if not self._is_due_here():
                    await self._env.sleep(MAX_RETRY_S)
                    continue
                due_s = self._due_s()
                if due_s <= 0:
                    await self._once()
                    due_s = self._due_s()
                self._in_a_row = 0
                wait = min(max(due_s, 1.0), FIRST_S)  # the interval may be changed meanwhile
            except (BackupError, StoreError, OSError) as failure:
                wait = self._note_failure(failure)
            await self._env.sleep(wait)

    def _due_s(self) -> float:
        # The newest one may be of the future: a wall clock was ahead when it was made.
        age_ms = abs(self._env.clock.now_ms() - self.last_ms)
        return (self._config.backup_interval_ms - age_ms) / 1000

    async def _once(self) -> None:
        created_ms, folder = self._env.clock.now_ms(), self._folder
        submit = self._env.offload.submit
        await submit("files", _remove, folder)
        try:
            dest = os.path.join(folder, MADE)
            await self._make(dest)
            files = await submit("files", _files, dest)
            made = await store_backup(
                self._store, self._cluster_id, created_ms, files, self._config.backup_keep
            )
        finally:
            await submit("files", _remove, folder)
        self.last_ms = created_ms
        logger.info(
            "backup %s stored in %s: %s",
            made.name,
            self._config.backup_url,
            count(len(made.files), "file"),
        )

    def _note_failure(self, failure: Exception) -> float:
        self.failures += 1
        self._in_a_row += 1
        wait = wait_s(self._in_a_row, MAX_RETRY_S, self._env.random.random())
        late = self._due_s() * 1000 < -self._config.backup_interval_ms
        logger.log(
            logging.ERROR if late else logging.WARNING,
            "backup to %s failed, retrying in %.0f s%s: %s",
            self._config.backup_url,
            wait,
            "; no backup completed in the last two intervals" if late else "",
            failure,
        )
        return wait

    async def close(self) -> None:
        """Release the store."""
        await self._store.close()


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _files(folder: str) -> dict[str, str]:
    """Return the files of a folder, by their path below it."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            found[os.path.relpath(path, folder).replace(os.sep, "/")] = path
    return found


async def make_backup(
    server: str, data: str, metadata_url: str, dest: str, client_config: str = ""
) -> None:
    """Run `kafkawire backup` for the broker at `server` in a child process, with the settings of a
    client in the file `client_config`. Raises BackupError."""
    environment = {**os.environ, "KAFKAWIRE_METADATA": metadata_url}  # may contain a password
    if client_config:
        environment["KAFKAWIRE_COMMAND_CONFIG"] = client_config
    command = (sys.executable, "-P", "-m", "kafkawire", "backup", dest, "--scheduled")
    child = await asyncio.create_subprocess_exec(
        *command, "--data", data, "--server", server, stdout=PIPE, stderr=PIPE, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, said = await child.communicate()
    except TimeoutError:
        raise BackupError(f"it did not finish within {TIMEOUT_S:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await finish(
            asyncio.get_running_loop().create_task(child.wait())
        )  # its pipes are closed then
    if child.returncode:
        text = said[-MAX_OUTPUT_BYTES:].decode("utf-8", "replace").strip()
        raise BackupError(
            text.rpartition("\n")[2] or f"the backup process exited with code {child.returncode}"
        )
