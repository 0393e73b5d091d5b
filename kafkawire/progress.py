"""Progress callback of long work: checks, rebuilds, restores, Spark jobs.

Shown by `kafkawire.cli.shared.progress`; anything else that starts long work may leave it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is worked on, how many of it are done, and how many there are (0: not known)."""


def silent(what: str, done: int, of: int) -> None:
    """Ignore progress."""
