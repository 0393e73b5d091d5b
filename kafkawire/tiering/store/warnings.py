"""Rate-limited log lines about temporary failures, so that an outage does not fill the log.

Each loop that retries has its own instance.
"""

from __future__ import annotations

import logging

from kafkawire.codec.errors import KafkaError
from kafkawire.log.io.ports import Env, WorkerError
from kafkawire.objectstore.errors import StoreError

EVERY_S = 60.0
"""Minimum time between two log lines about the same failure."""
EXPECTED = (StoreError, OSError, WorkerError, KafkaError)
"""Errors of the bucket, the disk or SQL, a killed worker process, a segment that cannot be read."""


class Warnings:
    """Rate-limited warnings about temporary failures. `count`: number of all failures."""

    def __init__(self, env: Env, logger: logging.Logger) -> None:
        self._env = env
        self._logger = logger
        self._reported: dict[str, float] = {}  # what failed -> time of its last log line
        self._silent = 0
        self.count = 0

    def warn(self, what: str, failure: BaseException, *, known: bool = False) -> None:
        """Log at WARN that something failed and will be retried. A failure that is neither `known`
        nor one of EXPECTED is a defect and logged with its traceback."""
        self.count += 1
        now = self._env.clock.monotonic()
        last = self._reported.get(what)
        if last is not None and now - last < EVERY_S:
            self._silent += 1
            return
        self._reported[what] = now
        more = f" ({self._silent} more failures were not logged)" if self._silent else ""
        self._silent = 0
        self._logger.warning(
            "%s failed and will be retried: %s%s",
            what,
            failure,
            more,
            exc_info=None if known or isinstance(failure, EXPECTED) else failure,
        )
