"""Leaves one line out of what Java writes to standard error: a warning of each start of Spark.

Spark starts Java with an incubator module, of which Java warns: "WARNING: Using incubator modules:
jdk.incubator.vector". No option of either suppresses that. So Java, and the processes it starts,
get a pipe as their standard error, and a thread copies the rest of it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LEFT_OUT = b"WARNING: Using incubator modules: jdk.incubator.vector"
READ_BYTES = 1 << 16
STDERR = 2


@contextmanager
def without_incubator_warning() -> Iterator[None]:
    """Have the processes started in the block write to a filtered standard error as long as they
    live; afterwards this process writes to its own again."""
    sys.stderr.flush()
    own = os.dup(STDERR)
    reader, writer = os.pipe()
    os.dup2(writer, STDERR)
    os.close(writer)
    copying = threading.Thread(target=_copy, args=(reader, own), name="output of Java", daemon=True)
    copying.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(own, STDERR)


def _copy(reader: int, to: int) -> None:
    """Copy all lines but LEFT_OUT until every process has closed its end."""
    held, at_start = b"", True
    with suppress(OSError):  # this process's own standard error is closed
        while chunk := os.read(reader, READ_BYTES):
            out = bytearray()
            lines = (held + chunk).splitlines(keepends=True)
            held = b""
            for line in lines:
                ends = line.endswith((b"\n", b"\r"))
                if at_start and line.rstrip() == LEFT_OUT and ends:
                    continue
                if at_start and not ends and LEFT_OUT.startswith(line):
                    held = line  # the last one: it may become the warning
                    continue
                out += line
                at_start = ends
            os.write(to, out)
        os.write(to, held)
    os.close(reader)
    os.close(to)
