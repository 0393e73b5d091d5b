"""File descriptors of this process: the share of connections, and a check for exhaustion.

At RLIMIT_NOFILE the system can neither accept connections nor open files. So the limit is raised at
start as far as allowed, connections get the descriptors that files do not need, and exhaustion is
logged. Created by `server.run`.
"""

from __future__ import annotations

import errno
import logging
import os
import resource

logger = logging.getLogger(__name__)

RESERVED_FOR_FILES = 512
"""Descriptors for journals, SQL, pipes of child processes, and 256 open segments."""
MAX_DESCRIPTORS = 1 << 20
"""Maximum to which the limit is raised, because kernel structures grow with it."""
SECONDS_BETWEEN_REPORTS = 60


def raise_limit() -> int:
    """Raise the limit of open descriptors as far as possible; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY:
        return MAX_DESCRIPTORS
    if soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # a sandbox may forbid it
            return soft
    return max(soft, most)


def for_connections(limit: int) -> int:
    """Return how many of `limit` descriptors connections may use: those that files do not need, or
    half."""
    return limit - min(RESERVED_FOR_FILES, limit // 2)


class DescriptorCheck:
    """Logs when no descriptor is left, and when there are some again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lacking = False
        self._reported_s = 0.0

    def check(self, now_s: float) -> None:
        """Try to open a file; called about once a second (a few microseconds)."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._report(now_s, error)
            return
        if self._lacking:
            self._lacking = False
            logger.warning("file descriptors are available again")

    def _report(self, now_s: float, error: OSError) -> None:
        if not self._lacking or now_s - self._reported_s >= SECONDS_BETWEEN_REPORTS:
            logger.error(
                "out of file descriptors (%s; the limit is %d): new connections are closed and "
                "files cannot be opened until some are free; raise the limit (ulimit -n) or "
                "lower max.connections",
                error.strerror,
                self._limit,
            )
            self._reported_s = now_s
        self._lacking = True
