"""Options of the JVMs that tests start: none of them lives long.

The optimizing compiler (C2) and the threads of a parallel collector cost more CPU time than they
save in processes that live for seconds or a few minutes: a third of what tests on Spark took. An
archive of loaded classes (tests.kit.spark.class_archive) halves the rest of a start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
SPARK_CLASSES = Path(sys.prefix) / "spark-classes.jsa"
"""Written by `make test`. In the environment of Spark's jars, whose paths it contains."""


def spark_options() -> str:
    """Options for a driver, executor, master or worker of Spark.

    A JVM checks that the archive fits its version and class path, and runs without it if not: the
    warning would be among the output that tests read.
    """
    shared = ["-Xlog:disable", f"-XX:SharedArchiveFile={SPARK_CLASSES}"]
    return " ".join([*SHORT_LIVED, *(shared if SPARK_CLASSES.exists() else [])])


def shorten_spark() -> None:
    """Set the options for every Spark that this process and its children start. Options of the
    caller's environment are kept.

    The variables are added by Spark's scripts to the command of its launcher, which has another
    class path and no archive, its drivers, its masters and workers.
    """
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(SHORT_LIVED))
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
        os.environ.setdefault(name, spark_options())
