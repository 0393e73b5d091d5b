"""Watch the disk: how full it is, and whether it responds.

Above `disk.warn.percent` the broker warns; above `disk.delete.percent` it deletes at once what
retention allows, and the local files of what is in a remote tier. If `disk.refuse.percent` is
exceeded all the same, or writes fail and there is no room for another journal, or a write or an
fsync takes longer than `busy.disk.ms`, Produce requests are refused. Reads continue in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.append.commit_log import CommitLog

logger = logging.getLogger(__name__)

MEASURED_EVERY_S = 5.0
"""How often the use of the disk is measured: at a gigabyte a second, five are written until the
next check."""
REFUSED_BELOW_BYTES = 16 << 30
"""With more free space nothing is refused: on a large disk one percent is much."""


class DiskWatch:
    """Measures the usage of the disk and detects a busy one. `relieve` deletes at once what may be
    deleted. `size_bytes`, `free_bytes`: the last measurement; 0: none yet."""

    __slots__ = (
        "_commit_log", "_folder", "_full", "_refused", "_relieve", "_warned", "free_bytes",
        "size_bytes",
    )  # fmt: skip

    def __init__(
        self, commit_log: CommitLog, folder: str, relieve: Callable[[], Awaitable[None]]
    ) -> None:
        self._commit_log = commit_log
        self._folder = folder
        self._relieve = relieve
        self._full: str | None = None
        self._refused: str | None = None
        self._warned = False
        self.size_bytes = 0
        self.free_bytes = 0

    def check(self) -> None:
        """Check whether the disk is busy; to be called several times in `busy.disk.ms`."""
        log = self._commit_log
        busy_s = log.busy_s()
        # Clients report this at once: they would retry a storage error until their deliveries time
        # out, without a word about the disk.
        why, code = self._full, ErrorCode.POLICY_VIOLATION
        if why is None and busy_s * 1000 > log.config.busy_disk_ms:
            # They would only wait (RocketMQ does so when its page cache is busy); clients retry
            # them.
            why = f"the disk is busy: a write has been on its way for {busy_s:.1f} s"
            code = ErrorCode.KAFKA_STORAGE_ERROR
        # Only changes are logged; the text has a duration that always changes.
        if (why is None) != (self._refused is None):
            if why is not None:
                logger.warning("Produce requests are refused: %s", why)
            else:
                logger.warning("the disk accepts Produce requests again")
        if why != self._refused:
            self._refused = why
            error = None if why is None else KafkaError(code, why)
            log.refuse_appends("disk", error)

    async def measure(self) -> None:
        """Measure how full the disk is, and act on it. Raises what `relieve` raises."""
        used, free = await self._measure_usage()
        try:
            # Retention that is due, and local files of what is in a remote tier.
            if used >= self._commit_log.config.disk_delete_percent:
                await self._relieve()
                used, free = await self._measure_usage()
        finally:
            self._judge(used, free, await self._is_stuck())

    async def _measure_usage(self) -> tuple[int, int]:
        """Return (used percent of the disk, free bytes)."""
        env = self._commit_log.env
        total, free = await env.offload.submit("files", env.fs.free_bytes, self._folder)
        self.size_bytes, self.free_bytes = total, free
        return 100 * (total - free) // max(total, 1), free

    async def _is_stuck(self) -> bool:
        """Return whether writes fail and there is no room for another journal."""
        log = self._commit_log
        # A spare needs no space.
        if not log.failing or log.journals.spares:
            return False
        return not await log.env.offload.submit("files", log.journals.has_room)

    def _judge(self, used: int, free: int, stuck: bool) -> None:
        config = self._commit_log.config
        # On a large disk one percent is much. A disk that is full to the last byte accepts no
        # transaction and no offsets of groups either.
        full = used >= config.disk_refuse_percent and free < REFUSED_BELOW_BYTES
        self._full = None
        if full or stuck:
            self._full = f"{used} % of the disk of {self._folder} is used"
            self._full += (
                f", {free >> 20} MiB are free, too few for another journal" if stuck else ""
            )
        self.check()
        if (used >= config.disk_warn_percent) != self._warned:
            self._warned = not self._warned
            if self._warned:
                logger.warning(
                    "the disk of %s is %d %% full, %d MiB are free",
                    self._folder,
                    used,
                    free >> 20,
                )
