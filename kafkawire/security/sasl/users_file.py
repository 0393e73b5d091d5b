"""The file with users and passwords for PLAIN: a line `name:password` each.

Empty lines and lines that begin with # are skipped; a password may contain colons. The file is read
again when it has changed. Only its owner may be able to read it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kafkawire.security.principals import check_name
from kafkawire.security.secret_files import SecretFileError, Stamp, read_secret

logger = logging.getLogger(__name__)

MAX_BYTES = 4 << 20
"""Size of the file: 100,000 users."""


class UsersFileError(ValueError):
    """The file cannot be used; one sentence without a password."""


def read_users(path: str, before: Stamp | None = None) -> tuple[Stamp, dict[str, str] | None]:
    """Return the stamp of a file and its passwords by user; None if the stamp is the one before.
    Raises UsersFileError."""
    try:
        stamp, text = read_secret(path, MAX_BYTES, before)
    except SecretFileError as wrong:
        raise UsersFileError(str(wrong)) from None
    return stamp, None if text is None else _parse(path, text)


def _parse(path: str, text: bytes) -> dict[str, str]:
    users: dict[str, str] = {}
    try:
        lines = text.decode().splitlines()
    except UnicodeDecodeError:
        raise UsersFileError(f"{path}: it is not UTF-8") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not colon or not password:
            raise UsersFileError(f"{path}: line {number} is not name:password")
        try:
            check_name(name)
        except ValueError as wrong:
            raise UsersFileError(f"{path}: line {number}: {wrong}") from None
        if name in users:
            raise UsersFileError(f"{path}: line {number}: user {name} is there twice")
        users[name] = password
    return users


class UsersFile:
    """The users of a file, as last read without an error."""

    def __init__(self, path: str) -> None:
        """Read the file. Raises UsersFileError."""
        self._path = path
        self._stamp, users = read_users(path)
        self.users: Mapping[str, str] = users or {}

    def reload(self) -> None:
        """Read the file again if it has changed; in any thread. After an error the users stay as
        they were."""
        try:
            self._stamp, users = read_users(self._path, self._stamp)
        except UsersFileError as wrong:
            logger.error("%s; the users read before stay in force", wrong)
            return
        if users is not None:
            self.users = users
            logger.info("%s: read %d users for PLAIN", self._path, len(users))
