"""Files with passwords or tokens: who may read them, and whether they have changed.

The rule is PostgreSQL's for keys: only the owner may have access, except that the group may
read a file of root's, as Kubernetes mounts secrets.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from hashlib import sha256
from hmac import compare_digest

logger = logging.getLogger(__name__)


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


# The file with the tokens of monitors, `metrics.token.file`: one in each line.
#
# Several lines let monitors change to a new token before the old one is removed. Only digests are
# kept in memory, and compared. The file is read again when it has changed.


MAX_BYTES = 64 << 10
MAX_TOKENS = 16
"""Each request is compared with all of them."""
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,4096}=*")  # token68 of RFC 9110


class TokenFile:
    """The tokens of a file, as last read without an error."""

    def __init__(self, path: str) -> None:
        """Read the file. Raises SecretFileError."""
        self._path = path
        self._stamp, content = read_secret(path, MAX_BYTES, None)
        self._digests = _digests_of(path, content or b"")

    def reload(self) -> None:
        """Read the file again if it has changed; in any thread. After an error the tokens stay as
        they were."""
        try:
            self._stamp, content = read_secret(self._path, MAX_BYTES, self._stamp)
            if content is None:
                return
            self._digests = _digests_of(self._path, content)
        except SecretFileError as wrong:
            logger.error("metrics.token.file: %s; the tokens read before stay in force", wrong)
            return
        logger.info("metrics.token.file: %s was read again", self._path)

    def accepts(self, token: bytes) -> bool:
        """Return whether this is one of the tokens. The time does not depend on them."""
        given = sha256(token).digest()
        return sum(compare_digest(digest, given) for digest in self._digests) > 0


def _digests_of(path: str, content: bytes) -> list[bytes]:
    digests: list[bytes] = []
    for number, line in enumerate(content.splitlines(), 1):
        token = line.strip()
        if not token:
            continue
        if not _TOKEN.fullmatch(token):
            raise SecretFileError(
                f"{path}: line {number} is no token: 16 to 4096 letters, digits and ._~+/- are "
                "allowed (openssl rand -hex 32)"
            )
        digests.append(sha256(token).digest())
    if not 0 < len(digests) <= MAX_TOKENS:
        raise SecretFileError(f"{path}: it must have 1 to {MAX_TOKENS} tokens, a line for each")
    return digests
