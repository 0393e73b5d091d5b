"""Rate-limited log lines about failures that pass: an hour without the bucket is one trouble, not a
thousand. Shell; each loop that retries has one of its own."""

from __future__ import annotations

import logging

from kafkawire.codec.errors import KafkaError
from kafkawire.log.io.ports import Env, WorkerError
from kafkawire.objectstore.errors import StoreError

EVERY_S = 60.0
"""Between two lines about the same trouble."""
EXPECTED = (StoreError, OSError, WorkerError, KafkaError)
"""The bucket, the disk or SQL, a worker process that was killed, a segment that cannot be read."""


class Warnings:
    """Rate-limited warnings about temporary failures. `count` of all failures."""

    def __init__(self, env: Env, logger: logging.Logger) -> None:
        self._env = env
        self._logger = logger
        self._reported: dict[str, float] = {}  # what failed -> when that was logged last
        self._silent = 0
        self.count = 0

    def warn(self, what: str, failure: BaseException, *, known: bool = False) -> None:
        """WARN that something failed and is tried again. A failure that is neither `known` nor one
        of EXPECTED is a defect, and logged with its traceback."""
        self.count += 1
        now = self._env.clock.monotonic()
        last = self._reported.get(what)
        if last is not None and now - last < EVERY_S:
            self._silent += 1
            return
        self._reported[what] = now
        more = f" ({self._silent} more were not written)" if self._silent else ""
        self._silent = 0
        self._logger.warning(
            "%s failed, it is tried again: %s%s",
            what,
            failure,
            more,
            exc_info=None if known or isinstance(failure, EXPECTED) else failure,
        )
