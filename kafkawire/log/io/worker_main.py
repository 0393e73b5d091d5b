"""The program of a worker process: runs the jobs from its standard input until that ends.

Started by kafkawire.log.io.worker_process, whose protocol it answers.
"""

from __future__ import annotations

import contextlib
import signal

from kafkawire.childprocess.child_end import begin
from kafkawire.log.io.disk import DiskFileSystem
from kafkawire.log.io.worker_process import serve


def main() -> None:
    sink, check_parent = begin((signal.SIGHUP, signal.SIGINT), killed_with_parent=True)
    with contextlib.suppress(BrokenPipeError):
        serve(DiskFileSystem(), 0, sink, check_parent)


if __name__ == "__main__":
    main()
