"""Files with passwords or tokens: who may read them, and whether they have changed.

The rule is PostgreSQL's for keys: only the owner may have access, except that the group may
read a file of root's, as Kubernetes mounts secrets.
"""

from __future__ import annotations

import os
import stat

Stamp = tuple[int, int, int, int]
"""Identity, size and time of a file: a change of any of them is a change of the file."""


class SecretFileError(ValueError):
    """The file cannot be used; one sentence without anything of its content."""


def read_secret(path: str, max_bytes: int, before: Stamp | None) -> tuple[Stamp, bytes | None]:
    """Return the stamp of a file and its content; None if the stamp is the one before. Raises
    SecretFileError."""
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            stamp = info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
            if stamp == before:
                return stamp, None
            if info.st_mode & _forbidden(info):
                raise SecretFileError(
                    f"{path}: other users of this machine can read it (mode "
                    f"{stat.S_IMODE(info.st_mode):04o}): it must be 0600 or less (chmod 600)"
                )
            content = file.read(max_bytes + 1)
    except OSError as wrong:
        raise SecretFileError(f"{path}: it cannot be read ({wrong.strerror})") from None
    if len(content) > max_bytes:
        raise SecretFileError(f"{path}: it has more than {max_bytes} bytes")
    return stamp, content


def _forbidden(info: os.stat_result) -> int:
    """Return the bits that the mode of a file must not have."""
    of_root = info.st_uid == 0 and os.geteuid() != 0
    return stat.S_IRWXO | (stat.S_IWGRP | stat.S_IXGRP if of_root else stat.S_IRWXG)
