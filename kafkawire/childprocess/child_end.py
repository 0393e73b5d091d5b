"""Initialise a child process: output reserved for frames, exit with its parent.

Its only argument is the process id of its parent. It exits at the end of its input; a child with
long jobs is also killed by Linux with its parent, or checks between two pieces of work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable

_PR_SET_PDEATHSIG = 1


def begin(
    ignored: Iterable[signal.Signals], killed_with_parent: bool
) -> tuple[int, Callable[[], None]]:
    """Return the descriptor for responses, and a check that exits if the parent has ended.
    `ignored`: signals handled by the parent, which decides when the child ends."""
    parent = int(sys.argv[1])
    if killed_with_parent:
        kill_with_parent()

    def check_parent() -> None:
        if os.getppid() != parent:
            os._exit(1)

    check_parent()  # the parent may have ended before this process began
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)
    sink = os.dup(1)
    os.dup2(2, 1)  # printed text must not be mixed with frames
    return sink, check_parent


def kill_with_parent() -> None:
    """Request a SIGKILL from Linux when the parent ends, or the thread of it that started this
    process."""
    if sys.platform == "linux":
        import ctypes  # imported here: few children need it

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
