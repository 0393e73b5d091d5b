"""The file with the tokens of monitors, `metrics.token.file`: one in each line.

Several lines let monitors change to a new token before the old one is removed. Only digests are
kept in memory, and compared. The file is read again when it has changed.
"""

from __future__ import annotations

import logging
import re
from hashlib import sha256
from hmac import compare_digest

from kafkawire.security.secret_file import SecretFileError, read_secret

logger = logging.getLogger(__name__)

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
