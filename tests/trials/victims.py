"""A broker in the test's own process as the broker under trial, in which tests inject defects.

A trial sees the same of it as of a broker process: a port, a log, memory and descriptors. Memory
and descriptors are those of the test process, so only large differences mean anything.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kafkawire.log_format import TextFormatter
from tests.kit.server import port_of, running
from tests.trials.process import Log, Usage, usage


class LogHandler(logging.Handler):
    """Passes every line of the broker's log to a trial's Log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(TextFormatter())
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            self.log.add(line)


class InProcessVictim:
    """The part of a Victim that checks use."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.log = Log()
        self.process: Any = SimpleNamespace(pid=os.getpid(), running=True)

    def usage(self) -> Usage:
        return usage(os.getpid())


def release_freed_memory() -> None:
    """Return memory that earlier tests have freed to the kernel: a trial measures how the process
    grows, and reused memory would not be counted. Without glibc nothing happens."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@asynccontextmanager
async def in_process(data: Path, **settings: str) -> AsyncIterator[Any]:
    """A running broker as an InProcessVictim; its log is read at INFO."""
    logger = logging.getLogger("kafkawire")
    level = logger.level
    release_freed_memory()
    async with running(data, **settings) as server:
        victim = InProcessVictim(port_of(server))
        handler = LogHandler(victim.log)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield victim
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
