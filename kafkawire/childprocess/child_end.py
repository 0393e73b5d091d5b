"""First steps of a child process: it is nice, keeps its output for frames, follows its parent.

Its only argument is the process id of its parent. The end of its input is its own end; a child that
may be busy for long also asks Linux to be killed with its parent, or checks between two pieces of
work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable

_PR_SET_PDEATHSIG = 1


def begin(
    nice: int, ignored: Iterable[signal.Signals], killed_with_parent: bool
) -> tuple[int, Callable[[], None]]:
    """Return the descriptor that answers are written to, and a check that ends this process if its
    parent has ended. `ignored`: signals that are for the parent, which decides when this ends."""
    parent = int(sys.argv[1])
    if killed_with_parent:
        _ask_to_be_killed_with_parent()

    def check_parent() -> None:
        if os.getppid() != parent:
            os._exit(1)

    check_parent()  # it may have ended before this process began
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(nice)
    sink = os.dup(1)
    os.dup2(2, 1)  # nothing that prints may come between the frames
    return sink, check_parent


def _ask_to_be_killed_with_parent() -> None:
    """Ask Linux for a SIGKILL when the parent ends, however it ends."""
    if sys.platform == "linux":
        import ctypes  # only here: few children need it

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
