"""The process from which Spark's Python workers fork, with their modules already imported.

Spark starts one for each kind of worker (`spark.python.daemon.module`), with the worker's module as
its argument. pyspark's own daemon imports nothing before it forks, so each worker would import
pyarrow, numba and the kernels again: 0.6 s of a core, more if numba has not compiled them yet. Here
it is 2 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import sys
from typing import Any

_TASKS = "pyspark.worker"
"""Modules that run tasks; other modules plan, on the driver, and import what they need
themselves."""
# None of them may start a thread: in a forked child the locks of a thread would be held forever. A
# test checks that.
PRELOADED = (
    _TASKS,
    "pyarrow.parquet",
    "boto3",
    "kafkawire.reading.decode.decoder",
    "kafkawire.reading.read_task",
)
_SETTINGS = {
    "OMP_NUM_THREADS": "1",  # numpy's OpenBLAS: no threads; Spark also sets it for its workers
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's jemalloc: no thread
    "MIMALLOC_PURGE_DELAY": "-1",  # pyarrow's mimalloc: keep freed memory longer than 10 ms
}
"""Environment variables that libraries read when they are loaded. Arrow's kept memory is bounded by
a task's peak (writing.WAITING_BYTES), and freed with the worker, a minute after its last task."""
_KEPT_BYTES = 256 << 20
"""Free memory that malloc keeps: more than a task uses at a time."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_MMAP_BYTES = 32 << 20
"""Maximum for the mmap threshold of glibc; larger buffers come from the kernel."""


def preload() -> None:
    """Import the modules of tasks. A failed import is left to the task, which reports it; if the
    daemon ended, Spark would only wait for it."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in PRELOADED:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # pyspark collects garbage after each task, which takes 75 ms with all these modules unless they
    # are frozen.
    gc.collect()
    gc.freeze()
    # Large buffers that are returned to the kernel are faulted in again page by page, which takes a
    # tenth of a task's time.
    keep_memory()


def keep_memory() -> None:
    """Configure glibc to keep freed memory; no effect with another libc."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def main() -> None:
    """Run pyspark's own daemon after the imports."""
    from pyspark import daemon

    if sys.argv[1:2] == [_TASKS]:
        preload()
    work: Any = daemon.worker

    def worker(sock: object, authenticated: bool) -> int:
        try:
            code: int = work(sock, authenticated)
        except BrokenPipeError:  # its task was cancelled: no traceback
            return 1
        return code

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
