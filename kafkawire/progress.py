"""Progress callback of long work: checks, rebuilds, restores, Spark jobs.

Shown by `kafkawire.cli.shared.progress`; anything else that starts long work may leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is worked on, how many of it are done, and how many there are (0: not known;
PHASE: it has no parts, 0 are done when it begins and 1 when it ends)."""
PHASE = -1


def silent(what: str, done: int, of: int) -> None:
    """Ignore progress."""


@contextmanager
def phase(progress: Progress, what: str) -> Iterator[None]:
    """Report work without parts, such as starting Spark, when it begins and when it ends."""
    progress(what, 0, PHASE)
    yield
    progress(what, 1, PHASE)
