"""Compaction of the local manifest: after so many deltas one snapshot is written, in the worker.

The old files stay for a while, for current readers. Shell.
"""

from __future__ import annotations

import logging

from kafkawire.log.io.atomic_file import NEW
from kafkawire.log.io.ports import Env, WorkerError
from kafkawire.log.manifest.files import ManifestFiles
from kafkawire.log.manifest.job import ManifestArguments, ManifestResult
from kafkawire.manifest.keys import delta_key, snapshot_key
from kafkawire.manifest.reader import Current, Obsolete

logger = logging.getLogger(__name__)

FOLDED_AFTER = 100
"""Deltas before a snapshot: a reader opens so many files at most, and a busy broker writes one
every few minutes."""
KEPT_MS = 600_000
"""How long old files stay: reading a manifest takes seconds, and the files take space."""


class LocalFolding:
    """Compaction of the local manifest into snapshots. `current` is the one in the folder;
    `damaged`: the chain cannot be read."""

    def __init__(self, env: Env, files: ManifestFiles) -> None:
        self.current = Current(0)
        self.damaged = False
        self._env = env
        self._files = files

    def begin(self, current: Current) -> None:
        """Continue with the chain that the folder has now."""
        self.current = current
        self.damaged = False
        self._tried = 0

    def is_due(self, sequence: int) -> bool:
        """Return whether there are enough deltas, also since the last attempt."""
        return sequence - max(self.current.snapshot, self._tried) >= FOLDED_AFTER

    async def fold(self, sequence: int) -> None:
        """Write a snapshot of everything up to this delta. After a failure it is tried again after
        as many deltas; nothing is lost."""
        self._tried = sequence
        try:
            await self._fold(sequence)
        except (OSError, WorkerError) as failure:
            logger.warning("cannot compact the local manifest, retrying later: %s", failure)

    async def _fold(self, sequence: int) -> None:
        before, submit = self.current, self._env.offload.submit
        keys = [snapshot_key(before.snapshot)]
        keys += [delta_key(number) for number in range(before.snapshot + 1, sequence + 1)]
        key = snapshot_key(sequence)
        output = self._files.path(key) + NEW
        await submit("files", self._files.remove, [key + NEW])
        arguments = ManifestArguments([(each, self._files.path(each)) for each in keys], output)
        try:
            result: ManifestResult = await self._env.worker.run("manifest", arguments)
        except FileNotFoundError as failure:
            result = ManifestResult(damaged=str(failure))
        if result.damaged:
            logger.error("rebuilding the local manifest: %s", result.damaged)
            self.damaged = True
            return
        await submit("files", self._files.rename, output, key)
        now_ms = self._env.clock.now_ms()
        # A clock that was set back keeps them for longer, never for less.
        old = [each for each in before.obsolete if each.since_ms + KEPT_MS <= now_ms]
        kept = [each for each in before.obsolete if each not in old]
        folded = Obsolete(before.snapshot, before.snapshot + 1, sequence, now_ms)
        self.current = Current(sequence, (*kept, folded))
        await submit("files", self._files.write_current, self.current)
        for each in old:
            await submit("files", self._files.remove, each.keys())
