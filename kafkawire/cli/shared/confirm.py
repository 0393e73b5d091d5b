"""The question before a command writes, answered at a terminal."""

from __future__ import annotations

import sys


class NotConfirmed(Exception):
    """Nothing was done; the text is one sentence with the reason."""


def confirm(question: str) -> None:
    """Ask a question. Raises NotConfirmed unless the answer is yes."""
    if not sys.stdin.isatty():
        raise NotConfirmed(
            "standard input is not a terminal, so the restore cannot be confirmed: check it with "
            "--dry-run, then use --yes"
        )
    print(f"{question} [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed("not confirmed: nothing was restored")
