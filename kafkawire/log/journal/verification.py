"""Journals of earlier starts are verified before their first read.

The first reader of such a journal has the worker check all of it, once; others wait for the same
check. From then on reads of damaged rows get an error. Until it is verified a journal is not sent
from its mapping (Journals.viewed_from). Owned by kafkawire.log.partition.reader.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Sequence

from kafkawire.log.io.ports import Env, WorkerError
from kafkawire.log.io.worker_jobs import JournalFile
from kafkawire.log.journal.directory import Journals
from kafkawire.log.journal.file import Journal, Pins

logger = logging.getLogger(__name__)


class Verifier:
    """Verifies journals of earlier starts before their first read."""

    __slots__ = ("_closed", "_env", "_journals", "_running")

    def __init__(self, env: Env, journals: Journals) -> None:
        self._env = env
        self._journals = journals
        self._running: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    def close(self) -> None:
        """Expect the end of the worker: a check that ends with it is no failure."""
        self._closed = True

    async def verify(self, journal: Journal) -> None:
        """Return when the damaged ranges of a journal are known, or cannot be found out. Raises
        nothing but CancelledError."""
        task = self._running.get(journal.number)
        if task is None:
            task = self._env.spawn(self._run(journal), f"verify journal {journal.number}")
            self._running[journal.number] = task
            task.add_done_callback(lambda _: self._running.pop(journal.number))
        # A reader that is cancelled must not end the check of the others.
        await asyncio.shield(task)

    async def _run(self, journal: Journal) -> None:
        pins = Pins()
        # Not recycled while the worker reads it.
        pins.add(journal)
        try:
            file = JournalFile(journal.number, journal.path, journal.unverified)
            journal.bad = await self._env.worker.run("verify", file)
        except (OSError, WorkerError) as failure:
            if self._closed:  # the worker was ended with the broker
                return
            logger.warning(
                "journal %d could not be verified, serving it unverified: %s",
                journal.number,
                failure,
            )
        finally:
            pins.release()
        for start, end in journal.bad:
            logger.critical(
                "journal %d is damaged in bytes %d-%d, which were acknowledged: reading those "
                "records returns an error, all other offsets are served",
                journal.number,
                start,
                end - 1,
            )
        journal.unverified = 0
        self._journals.measure_views()


def is_bad(bad: Sequence[tuple[int, int]], position: int, length: int) -> bool:
    """Return whether [position, position + length) overlaps a damaged range."""
    at = bisect_right(bad, (position + length - 1, 1 << 62)) - 1
    return at >= 0 and bad[at][1] > position
