"""Options of the JVMs that tests start: none of them lives long.

The optimizing compiler (C2) and the threads of a parallel collector cost more CPU time than they
save in processes that live for seconds or a few minutes: a third of what tests on Spark took.
"""

from __future__ import annotations

import os

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_VARIABLES = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")
"""What Spark's scripts add to the command of its launcher, its drivers, its masters and workers."""


def shorten_spark() -> None:
    """Set the options for every Spark that this process and its children start. Options of the
    caller's environment are kept."""
    for name in _VARIABLES:
        os.environ.setdefault(name, " ".join(SHORT_LIVED))
