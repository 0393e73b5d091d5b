"""Files of a data folder or tier, which are never opened through a symbolic link.

Their names are known, so another user who can write to the folder could put a link in place of one,
and the broker, which often has more rights, would overwrite the file that it points to. The folders
may be links: only the last part of a path is checked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable


class SymbolicLink(OSError):
    """A file is a symbolic link; `str` is a sentence that names it."""

    def __init__(self, path: str) -> None:
        text = (
            "it is a symbolic link, through which no file of a data folder or tier is opened: "
            "replace it by the file itself, or remove it"
        )
        super().__init__(errno.ELOOP, text, path)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"

    def __reduce__(self) -> tuple[type[SymbolicLink], tuple[str]]:
        return type(self), (self.filename,)


def open_own(path: str, flags: int, mode: int = 0o644) -> int:
    """Return a file descriptor; an opener for `open`, too. Raises SymbolicLink, OSError."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError:
        refuse_links((path,))
        raise


def refuse_links(paths: Iterable[str]) -> None:
    """Raise SymbolicLink for the first of these paths that is one: before a library opens them."""
    for path in paths:
        if os.path.islink(path):
            raise SymbolicLink(path)
