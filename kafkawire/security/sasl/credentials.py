"""The SCRAM credentials of users: the table `scram_credentials`, with a copy in memory.

A row with an empty user name is no user: it has a secret, made with the first load, from which an
unknown user gets a salt that is always the same. Without it a stranger would see which users exist.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from kafkawire.log.io import slices
from kafkawire.metadata.session import Row, Session
from kafkawire.metadata.store import Transactions
from kafkawire.security.sasl.scram import MIN_ITERATIONS, Hash, ScramCredential, UserCredential
from kafkawire.security.versions import SCRAM_CREDENTIALS, increment_version, version_of

SECRET_BYTES = 32
_SECRET = 0  # in the column `mechanism`
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
SALT_BYTES = 26
"""Length of a salt as Kafka's tools make it."""
SAMPLE = 200
"""Users that are counted to find what most have: a tenth of a millisecond."""


class CredentialChange(NamedTuple):
    """A credential to store; None: to delete."""

    user: str
    kind: Hash
    credential: ScramCredential | None


class _Loaded(NamedTuple):
    version: int
    secret: bytes
    users: dict[str, dict[Hash, ScramCredential]]


class Credentials:
    """The credentials of all users. `randbytes` makes the secret; `give_way` is awaited between
    users."""

    def __init__(
        self,
        metadata: Transactions,
        randbytes: Callable[[int], bytes],
        give_way: Callable[[], Awaitable[None]],
    ) -> None:
        self._metadata = metadata
        self._randbytes = randbytes
        self._give_way = give_way
        self._listeners: list[Callable[[set[str]], None]] = []
        self._changing = asyncio.Lock()
        self._loaded = _Loaded(-1, b"", {})
        self._usual: dict[Hash, tuple[int, int, bool]] = {}

    @property
    def users(self) -> Mapping[str, Mapping[Hash, ScramCredential]]:
        """The credentials by user, until the next change: to be read in one step."""
        return self._loaded.users

    async def names(self) -> dict[str, int]:
        """Return the names of all users, each with 1, in slices. To be freed with
        `slices.empty_slowly`."""
        async with self._changing:
            return await slices.count_keys(self._loaded.users, self._give_way)

    def when_deleted(self, fn: Callable[[set[str]], None]) -> None:
        """Have `fn` called with the users that have no credential any more."""
        self._listeners.append(fn)

    def _report_deleted(self, users: set[str]) -> None:
        if users:
            for fn in self._listeners:
                fn(users)

    async def load(self) -> None:
        """Read the table. Raises MetadataError."""
        async with self._changing:
            await self._load()

    async def _load(self) -> None:
        """Read all users and replace those in memory in one step."""
        secret = self._randbytes(SECRET_BYTES)
        version, rows = await self._metadata.transact(lambda session: _load(session, secret))
        fresh: dict[str, dict[Hash, ScramCredential]] = {}
        async for user, mechanism, salt, stored_key, server_key, iterations in slices.drain_slowly(
            rows, self._give_way
        ):
            if mechanism == _SECRET:
                secret = bytes(salt)
            elif mechanism in (Hash.SHA256, Hash.SHA512):
                fresh.setdefault(user, {})[Hash(mechanism)] = ScramCredential(
                    bytes(salt), bytes(stored_key), bytes(server_key), int(iterations)
                )
        before, self._loaded = self._loaded.users, _Loaded(version, secret, fresh)
        self._usual.clear()
        deleted: set[str] = set()
        for user in before:
            if user not in fresh:
                deleted.add(user)
            await self._give_way()
        self._report_deleted(deleted)
        await slices.empty_slowly(before, self._give_way)

    async def refresh_from(self, version: int) -> None:
        """Read the table again if `version`, the one in SQL, is not the one in memory. Raises
        MetadataError."""
        if version != self._loaded.version:
            await self.refresh()

    async def refresh(self) -> None:
        """Read the table again if another broker has changed it. Raises MetadataError."""
        async with self._changing:
            stored = await self._metadata.transact(_version)
            if stored != self._loaded.version:
                await self._load()

    async def alter(self, changes: Iterable[CredentialChange]) -> None:
        """Store changes, all or none. Raises MetadataError."""
        made = await slices.collect(changes, self._give_way)
        keys: list[Row] = []
        rows: list[Row] = []
        for user, kind, credential in made:
            keys.append((user, int(kind)))
            if credential is not None:
                salt, stored_key, server_key, iterations = credential
                rows.append((user, int(kind), salt, stored_key, server_key, iterations))
            await self._give_way()
        async with self._changing:
            version = await self._metadata.transact(lambda session: _store(session, keys, rows))
            if version != self._loaded.version + 1:
                await self._load()  # another broker has changed it, too
                return
            self._loaded = self._loaded._replace(version=version)
            await self._apply(made)

    async def _apply(self, changes: list[CredentialChange]) -> None:
        """Change the users in memory one after another: each is independent of the others."""
        users = self._loaded.users
        gone: set[str] = set()
        for user, kind, credential in changes:
            if credential is not None:
                users.setdefault(user, {})[kind] = credential
                gone.discard(user)
            elif users.get(user, {}).pop(kind, None) is not None and not users[user]:
                del users[user]
                gone.add(user)
            await self._give_way()
        self._usual.clear()
        self._report_deleted(gone)

    def find(self, kind: Hash, user: str) -> UserCredential:
        """Return the credential of a user; for an unknown one, one that looks like the others."""
        known = self._loaded.users.get(user, {}).get(kind)
        made = self._imitation(kind, user)  # for known users too: it takes the same time
        return UserCredential(made, False) if known is None else UserCredential(known, True)

    def any_kind(self, user: str) -> tuple[Hash, UserCredential]:
        """Return a credential with which to check a password that is sent as it is."""
        kinds = self._loaded.users.get(user, {})
        kind = next(iter(sorted(kinds)), self._most_used())
        return kind, self.find(kind, user)

    def _most_used(self) -> Hash:
        found = Counter(min(kinds) for kinds in self._sample())
        return found.most_common(1)[0][0] if found else Hash.SHA256

    def _sample(self) -> Iterator[Mapping[Hash, ScramCredential]]:
        return islice(self._loaded.users.values(), SAMPLE)

    def _imitation(self, kind: Hash, user: str) -> ScramCredential:
        iterations, length, digits = self._usual_form(kind)
        name = f"{kind.mechanism}:{user}".encode()
        key = hmac.digest(self._loaded.secret, name, "sha512")
        salt = key
        while len(salt) < length:
            salt += hmac.digest(self._loaded.secret, salt, "sha512")
        salt = salt[:length]
        if digits:
            salt = bytes(_DIGITS[byte % 36] for byte in salt)
        size = 32 if kind is Hash.SHA256 else 64
        return ScramCredential(salt, key[:size], key[:size], iterations)

    def _usual_form(self, kind: Hash) -> tuple[int, int, bool]:
        """Return iterations and length of salts that most credentials have, and whether these
        salts are digits, as of Kafka's tools."""
        if kind not in self._usual:
            found = Counter(
                (each.iterations, len(each.salt), set(each.salt) <= set(_DIGITS))
                for kinds in self._sample()
                if (each := kinds.get(kind)) is not None
            )
            common = found.most_common(1)
            self._usual[kind] = common[0][0] if common else (MIN_ITERATIONS, SALT_BYTES, True)
        return self._usual[kind]


def new_salt(getrandbits: Callable[[int], int]) -> bytes:
    """Return a salt like those of Kafka's tools: 26 digits of base 36."""
    number, digits = getrandbits(8 * SALT_BYTES), bytearray()
    for _ in range(SALT_BYTES):
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return bytes(digits)


def secret_of(session: Session) -> bytes | None:
    """Return the secret of which salts of unknown users are made; None if there is none yet."""
    found = session.read_checked("scram_credentials", "salt", "WHERE mechanism = ?", (_SECRET,))
    return bytes(found[0][0]) if found else None


def replace_secret(session: Session, secret: bytes) -> None:
    """Store another secret. The caller counts the change of the table (`increment_version`)."""
    session.run("DELETE FROM scram_credentials WHERE mechanism = ?", (_SECRET,))
    _insert_secret(session, secret)


def _insert_secret(session: Session, secret: bytes) -> None:
    session.run(
        "INSERT INTO scram_credentials"
        " (user_name, mechanism, salt, stored_key, server_key, iterations)"
        " VALUES ('', ?, ?, ?, ?, 0) ON CONFLICT DO NOTHING",
        (_SECRET, secret, b"", b""),
    )


def _version(session: Session) -> int:
    return version_of(session, SCRAM_CREDENTIALS)


def _load(session: Session, secret: bytes) -> tuple[int, list[list[Row]]]:
    """Return the version and the rows; the first time, store the secret."""
    _insert_secret(session, secret)
    version = version_of(session, SCRAM_CREDENTIALS)
    return version, session.checked_portions(
        "scram_credentials", "user_name, mechanism, salt, stored_key, server_key, iterations"
    )


def _store(session: Session, keys: list[Row], rows: list[Row]) -> int:
    """Replace the credentials of `keys`, users and mechanisms, by `rows`."""
    version = increment_version(session, SCRAM_CREDENTIALS)
    session.many("DELETE FROM scram_credentials WHERE user_name = ? AND mechanism = ?", keys)
    session.many(
        "INSERT INTO scram_credentials"
        " (user_name, mechanism, salt, stored_key, server_key, iterations)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        rows,
    )
    return version
