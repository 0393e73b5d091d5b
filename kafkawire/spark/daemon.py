"""The process that Spark's Python workers fork from, with what they need imported already.

Spark starts one for each kind of worker (`spark.python.daemon.module`), with the module of the
worker as its argument. pyspark's own imports nothing before it forks, so each new worker would
import pyarrow, numba and the kernels again: those that run tasks get them from here.
Whatever is imported before a fork must not have started threads: a test looks.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

_TASKS = "pyspark.worker"
"""What runs tasks; the other modules plan, on the driver, and import what they need themselves."""
PRELOADED = ("pyspark.worker", "pyarrow", "kafkawire.spark.decode", "kafkawire.spark.reading")


def preload() -> None:
    """Import what a task needs; what cannot be is left to the task, which says why."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main() -> None:
    """What pyspark's own daemon does, after the imports."""
    from pyspark import daemon

    if sys.argv[1:2] == [_TASKS]:
        preload()
    daemon.manager()


if __name__ == "__main__":
    main()
