"""Progress of long commands: bars on a terminal, plain lines elsewhere.

Written to standard error, so that the output of a command can be piped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafkawire.progress import PHASE, Progress

if TYPE_CHECKING:
    from rich import progress as rich_progress

PARTS = 10
"""Maximum number of plain lines per kind of work."""


@contextmanager
def bars() -> Iterator[Progress]:
    """Yield a progress callback that is shown until the end of the block."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import Progress

    # Forced: Spark is started with a pipe as standard error, which is copied to the terminal.
    with Progress(console=Console(stderr=True, force_terminal=True)) as shown:
        yield _Bars(shown)


class _Bars:
    def __init__(self, progress: rich_progress.Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, rich_progress.TaskID] = {}

    def __call__(self, what: str, done: int, of: int) -> None:
        total = done or None if of == PHASE else of or None
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)


class _Lines:
    def __init__(self) -> None:
        self._reported: dict[str, int] = {}

    def __call__(self, what: str, done: int, of: int) -> None:
        if of == PHASE:
            if what not in self._reported:
                self._reported[what] = PARTS
                print(what, file=sys.stderr)
            return
        # Without a total a line is printed whenever the count has doubled.
        part = PARTS * done // of if of else done.bit_length()
        if self._reported.get(what, 0) < part:
            self._reported[what] = part
            print(f"{what}: {done} of {of}" if of else f"{what}: {done}", file=sys.stderr)
