"""File descriptors of this process: how many connections may take, and what happens without any.

The system refuses to accept connections and to open files once a process has as many descriptors
as it may (RLIMIT_NOFILE). So the limit is raised at the start as far as it goes, connections get
what files do not need, and a process without descriptors reports it. A device; made by
`server.run`.
"""

from __future__ import annotations

import errno
import logging
import os
import resource

logger = logging.getLogger(__name__)

RESERVED_FOR_FILES = 512
"""Journals, SQL, pipes of child processes, and the 256 segments that stay open."""
MAX_DESCRIPTORS = 1 << 20
"""As high as the limit is raised: some systems have none, and structures of the kernel grow."""
SECONDS_BETWEEN_REPORTS = 60


def raise_limit() -> int:
    """Raise the limit of open descriptors as far as this process may; the limit then."""
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
    """How many of `limit` descriptors connections may have: what files do not need, or half."""
    return limit - min(RESERVED_FOR_FILES, limit // 2)


class DescriptorCheck:
    """Reports that no descriptor is left, and that there are some again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lacking = False
        self._reported_s = 0.0

    def check(self, now_s: float) -> None:
        """Try to open something; to be called about once a second (a few microseconds)."""
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
