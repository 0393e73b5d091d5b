"""The scans of a statement, which threads of DuckDB read: their errors, and their end.

DuckDB passes on only the text of an error. It also stops reading whenever it has enough, and a
thread that is in a scan while the interpreter ends would end the process with SIGABRT.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class StoppableScan:
    """Batches of a scan, read by one thread at a time, until another thread stops it."""

    def __init__(self, batches: Iterator[pa.RecordBatch], running: RunningScans) -> None:
        self._batches, self._running = _generator(batches), running
        self._reading = threading.Lock()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._reading:
            try:
                return next(self._batches)
            except StopIteration:
                raise
            except Exception as error:
                self._running.failed(error)
                raise

    def stop(self) -> None:
        """Wait for the batch that is being read, and close files and connections."""
        with self._reading:
            self._batches.close()


class RunningScans:
    """The scans of a statement that have not been stopped."""

    def __init__(self) -> None:
        self._scans: list[StoppableScan] = []
        self.failures: list[Exception] = []

    def add(self, batches: Iterator[pa.RecordBatch]) -> StoppableScan:
        """Return a scan of these batches."""
        scan = StoppableScan(batches, self)
        self._scans.append(scan)
        return scan

    def failed(self, error: Exception) -> None:
        """Record the error of a scan or of its plan."""
        self.failures.append(error)

    def stop(self) -> None:
        """Stop all scans, and forget their errors."""
        for scan in self._scans:
            scan.stop()
        self._scans.clear()
        self.failures.clear()


def _generator(batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
    if isinstance(batches, Generator):
        with closing(batches):
            yield from batches
    else:
        yield from batches
