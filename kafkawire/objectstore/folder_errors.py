"""Errors of files, as errors of the port."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from kafkawire.objectstore.errors import Refused, StoreError
from kafkawire.own_files import SymbolicLink

_PASSING = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT,
            errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
            errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EBUSY)  # fmt: skip
"""Temporary errors."""


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise OSErrors of the folder's own files as StoreErrors about `what`, a key or a folder."""
    try:
        yield
    except OSError as failure:
        kind = StoreError if failure.errno in _PASSING else Refused
        name = errno.errorcode.get(failure.errno or 0, type(failure).__name__)
        where = failure.filename if isinstance(failure, SymbolicLink) else what
        raise kind(name, f"{where}: {failure.strerror or failure}") from None
