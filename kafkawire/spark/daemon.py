"""The process that Spark's Python workers fork from, with what they need imported already.

Spark starts one for each kind of worker (`spark.python.daemon.module`), with the worker's module as
its argument. pyspark's own imports nothing before it forks, so each worker would import pyarrow,
numba and the kernels again: 0.6 s of a core, more where numba has not compiled them yet. Here it
is 2 ms. What is imported before a fork must not start threads, whose locks would be taken for ever
in the child: a test looks.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

_TASKS = "pyspark.worker"
"""What runs tasks; the other modules plan, on the driver, and import what they need themselves."""
PRELOADED = (
    _TASKS,
    "pyarrow.parquet",
    "boto3",
    "kafkawire.spark.decode.decoder",
    "kafkawire.spark.reading",
)
_NO_THREADS = {
    "OMP_NUM_THREADS": "1",  # numpy's OpenBLAS; Spark sets it for its workers too
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's jemalloc
}


def preload() -> None:
    """Import what a task needs; what cannot be is left to the task, which says why."""
    for name, value in _NO_THREADS.items():
        os.environ.setdefault(name, value)
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
