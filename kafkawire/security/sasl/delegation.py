"""Delegation tokens: passwords that expire, which a logged-in client gets for its workers (KIP-48,
KIP-373).

The token itself, which the client gets, is the HMAC of its id with `delegation.token.secret.key`:
it is stored nowhere. The rest is in SQL, with a copy in memory, which `refresh` reads again if
another broker of the same PostgreSQL has changed it. A log-in with a token that is not known here
asks for that at once, at a bounded rate, because workers log in right after their token was
created, maybe by another broker.

Easy to get wrong:

- Another secret key makes all tokens invalid: those in the table have been made with a key whose
  fingerprint is not that of the current one, and are ignored until they expire.
- A log-in with a token is one with SCRAM whose first message has the extension `tokenauth=true`.
  Its keys are derived when the token is created.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io import slices
from kafkawire.log.io.shared_load import SharedLoad
from kafkawire.metadata.session import Row, Session
from kafkawire.metadata.store import MetadataError, Transactions
from kafkawire.plural import count
from kafkawire.security import versions
from kafkawire.security.principals import USER, Principal, check_name, parse_principal
from kafkawire.security.sasl.scram import (
    MIN_ITERATIONS,
    Hash,
    ScramCredential,
    UserCredential,
    derive,
)

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env

logger = logging.getLogger(__name__)


# The fields of a delegation token, and who may do what with one.


MAX_RENEWERS = 50
"""Principals that may renew a token: 5 to 50 KB of names for each token that is shown."""


class DelegationToken(NamedTuple):
    """One token; times in milliseconds since 1970. `credentials`: with which a log-in is checked,
    not with which to log in."""

    id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int
    credentials: Mapping[Hash, ScramCredential]

    def concerns(self, principals: Container[Principal]) -> bool:
        """Return whether one of the principals owns, requested or may renew the token."""
        return any(each in principals for each in (self.owner, self.requester, *self.renewers))

    def check_renewer(self, principal: Principal) -> None:
        """Raise KafkaError unless a principal may renew or end the token."""
        if principal != self.owner and principal not in self.renewers:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)

    def check_valid(self, now_ms: int) -> None:
        """Raise KafkaError if the token has expired."""
        if self.has_expired(now_ms):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the token can no longer be used."""
        return self.expires_ms < now_ms


def check_principals(owner: Principal, renewers: tuple[Principal, ...]) -> None:
    """Raise KafkaError unless a token may have this owner and these renewers. Their names are those
    that a log-in may have."""
    for each in (*renewers, owner):
        if each.kind != USER:
            raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    try:
        for each in (*renewers, owner):
            check_name(each.name)
    except ValueError as wrong:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(wrong)) from None
    if len(renewers) > MAX_RENEWERS:
        text = f"{len(renewers)} renewers; at most {MAX_RENEWERS} are allowed"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def until(now_ms: int, limit_ms: int, asked_ms: int) -> int:
    """Return when a period ends: a client may only ask for less than the limit."""
    return now_ms + (min(limit_ms, asked_ms) if asked_ms > 0 else limit_ms)


# The table `delegation_tokens`. Functions run inside a transaction (`Transactions.transact`).


MAX_TOKENS = 10_000
"""Tokens of a cluster: 20 MB in memory. Each running job of a cluster has one."""
MAX_PER_REQUESTER = 1_000
"""Tokens that one principal may have created, so that no client takes the room of all others."""

_COLUMNS = (
    "token_id, key_id, owner, requester, renewers, issued_ms, expires_ms, max_ms, salt, iterations,"
    " stored_key_256, server_key_256, stored_key_512, server_key_512"
)
KEY_ID = 1
"""The column with the fingerprint of the secret key."""


def row_of(token: DelegationToken, key_id: bytes) -> Row:
    """Return a token as a row."""
    small, large = (token.credentials[kind] for kind in Hash)
    return (
        token.id, key_id, str(token.owner), str(token.requester),
        json.dumps([str(each) for each in token.renewers]), token.issued_ms, token.expires_ms,
        token.max_ms, small.salt, small.iterations, small.stored_key, small.server_key,
        large.stored_key, large.server_key,
    )  # fmt: skip


def token_of(row: Row) -> DelegationToken:
    """Return the token of a row."""
    (
        token_id, _, owner, requester, renewers, issued_ms, expires_ms, max_ms, salt, iterations,
        *keys,
    ) = row  # fmt: skip
    small, large = keys[:2], keys[2:]
    return DelegationToken(
        token_id,
        parse_principal(owner),
        parse_principal(requester),
        tuple(map(parse_principal, json.loads(renewers))),
        int(issued_ms),
        int(expires_ms),
        int(max_ms),
        {
            kind: ScramCredential(bytes(salt), bytes(stored), bytes(server), int(iterations))
            for kind, (stored, server) in zip(Hash, (small, large), strict=True)
        },
    )


def load_tokens(session: Session) -> tuple[int, list[list[Row]]]:
    """Return the version of the table and all rows, in portions."""
    version = versions.version_of(session, versions.DELEGATION_TOKENS)
    return version, session.checked_portions("delegation_tokens", _COLUMNS)


def insert_token(session: Session, row: Row) -> int:
    """Insert a token; return the new version. Raises KafkaError if there are too many."""
    version = versions.increment_version(session, versions.DELEGATION_TOKENS)
    for where, values, limit, whose in (
        ("", (), MAX_TOKENS, "in the cluster"),
        (" WHERE requester = ?", (row[3],), MAX_PER_REQUESTER, "of one requester"),
    ):
        ((found,),) = session.rows(f"SELECT COUNT(*) FROM delegation_tokens{where}", values)
        if found >= limit:
            text = f"There may be {limit} delegation tokens {whose}."
            raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
    marks = ", ".join("?" * len(row))
    session.run(f"INSERT INTO delegation_tokens ({_COLUMNS}) VALUES ({marks})", row)
    return version


def set_expiry(session: Session, token_id: str, expires_ms: int) -> int:
    """Change when a token ends; return the new version. Raises KafkaError if it is gone."""
    version = versions.increment_version(session, versions.DELEGATION_TOKENS)
    sql = "UPDATE delegation_tokens SET expires_ms = ? WHERE token_id = ?"
    if not session.run(sql, (expires_ms, token_id)):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return version


def delete_token(session: Session, token_id: str) -> int:
    """Delete a token; return the new version. Raises KafkaError if it is gone."""
    version = versions.increment_version(session, versions.DELEGATION_TOKENS)
    if not session.run("DELETE FROM delegation_tokens WHERE token_id = ?", (token_id,)):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return version


def delete_expired(session: Session, now_ms: int) -> int:
    """Delete tokens that have ended, also those of other secret keys; return how many."""
    sql = "FROM delegation_tokens WHERE expires_ms < ?"
    if not session.rows(f"SELECT 1 {sql} LIMIT 1", (now_ms,)):
        return 0
    versions.increment_version(session, versions.DELEGATION_TOKENS)
    return session.run(f"DELETE {sql}", (now_ms,))


ASKED_AGAIN_S = 0.1
"""The least time between two refreshes because of unknown tokens, which a stranger can cause."""
ID_BYTES = 16
SALT_BYTES = 26
DERIVING = 8
"""Tokens whose keys are derived at the same time, 20 ms each by two threads; others wait."""


class _Loaded(NamedTuple):
    version: int
    by_id: dict[str, DelegationToken]
    by_secret: dict[bytes, str]  # ids by the hash of the token


class DelegationTokens:
    """All tokens made with the secret key of this broker, which is not empty."""

    def __init__(self, env: Env, store: Transactions, config: BrokerConfig) -> None:
        self._env = env
        self._store = store
        self._config = config
        self._key = config.delegation_token_secret_key.encode()
        self._key_id = self._sign("key", "")[:16]
        self._loaded = _Loaded(-1, {}, {})
        self._changing = asyncio.Lock()
        self._deriving = asyncio.Semaphore(DERIVING)
        self._unknown = SharedLoad(env, "look for a delegation token", self.refresh, ASKED_AGAIN_S)
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def tokens(self) -> list[DelegationToken]:
        """All tokens, expired ones until they are deleted."""
        return list(self._loaded.by_id.values())

    def secret_of(self, token_id: str) -> bytes:
        """Return the token itself: what its owner logs in with."""
        return hmac.digest(self._key, token_id.encode(), "sha512")

    def _sign(self, purpose: str, text: str) -> bytes:
        """Return an HMAC that is no token: an id has no colon."""
        return hmac.digest(self._key, f"{purpose}:{text}".encode(), "sha512")

    async def open(self) -> None:
        """Load the tokens, and delete expired ones until `close`. Raises MetadataError."""
        await self.refresh()
        self._sweeping = self._env.spawn(self._sweep(), "delete expired delegation tokens")

    async def close(self) -> None:
        """Stop what was started."""
        await self._unknown.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    async def _sweep(self) -> None:
        failing = False
        while True:
            await self._env.sleep(self._config.delegation_token_expiry_check_interval_ms / 1000)
            try:
                await self.sweep()
                failing = False
            except MetadataError as failure:
                if not failing:
                    logger.error(
                        "expired delegation tokens cannot be deleted; they stay refused, and are "
                        "deleted once the metadata can be used: %s", failure,
                    )  # fmt: skip
                failing = True

    async def refresh_from(self, version: int) -> None:
        """Load the tokens if their stored version is another. Raises MetadataError."""
        if version != self._loaded.version:
            await self.refresh()

    async def refresh(self) -> None:
        """Load the tokens if the table was changed. Raises MetadataError."""
        async with self._changing:
            version = await self._store.transact(_version)
            if version != self._loaded.version:
                await self._load()

    async def _load(self) -> None:
        version, rows = await self._store.transact(load_tokens)
        fresh = _Loaded(version, {}, {})
        give_way = self._env.slices.give_way
        async for row in slices.drain_slowly(rows, give_way):
            if bytes(row[KEY_ID]) == self._key_id:
                self._put(fresh, token_of(row))
        before, self._loaded = self._loaded, fresh
        await slices.empty_slowly(before.by_id, give_way)
        await slices.empty_slowly(before.by_secret, give_way)

    def _put(self, loaded: _Loaded, token: DelegationToken) -> None:
        loaded.by_id[token.id] = token
        loaded.by_secret[_digest(self.secret_of(token.id))] = token.id

    async def create(
        self,
        owner: Principal,
        requester: Principal,
        renewers: tuple[Principal, ...],
        max_lifetime_ms: int,
    ) -> DelegationToken:
        """Create a token. Raises KafkaError, MetadataError."""
        check_principals(owner, renewers)
        now_ms = self._env.clock.now_ms()
        max_ms = until(now_ms, self._config.delegation_token_max_lifetime_ms, max_lifetime_ms)
        expires_ms = min(max_ms, now_ms + self._config.delegation_token_expiry_time_ms)
        token_id = self._new_id()
        async with self._deriving:
            credentials = await self._env.offload.submit(
                "passwords", _derive, self.secret_of(token_id), self._salt_of(token_id)
            )
        token = DelegationToken(
            token_id, owner, requester, renewers, now_ms, expires_ms, max_ms, credentials
        )
        row = row_of(token, self._key_id)
        async with self._changing:
            version = await self._store.transact(lambda session: insert_token(session, row))
            if not await self._reload_if_missed(version):
                self._put(self._loaded, token)
        return token

    def _new_id(self) -> str:
        """Return an id as Kafka makes it: it does not begin like an option of a command."""
        while True:
            made = urlsafe_b64encode(self._env.random.randbytes(ID_BYTES)).rstrip(b"=").decode()
            if not made.startswith("-"):
                return made

    def _salt_of(self, token_id: str) -> bytes:
        """Return the salt of a token, which is the same for one that does not exist."""
        return self._sign("salt", token_id)[:SALT_BYTES]

    async def renew(self, secret: bytes, principal: Principal, period_ms: int) -> int:
        """Prolong a token; return when it ends. Raises KafkaError, MetadataError."""
        token, now_ms = self.token_of(secret), self._env.clock.now_ms()
        token.check_valid(now_ms)
        token.check_renewer(principal)
        limit_ms = self._config.delegation_token_expiry_time_ms
        return await self._set_expiry(token, min(token.max_ms, until(now_ms, limit_ms, period_ms)))

    async def expire(self, secret: bytes, principal: Principal, period_ms: int) -> int:
        """Have a token end after a period; return when. With a negative period it is deleted.
        Raises KafkaError, MetadataError."""
        token, now_ms = self.token_of(secret), self._env.clock.now_ms()
        token.check_renewer(principal)
        if period_ms < 0:
            await self._delete(token, secret)
            return now_ms
        token.check_valid(now_ms)
        return await self._set_expiry(token, min(token.max_ms, now_ms + period_ms))

    async def _delete(self, token: DelegationToken, secret: bytes) -> None:
        async with self._changing:
            version = await self._store.transact(lambda session: delete_token(session, token.id))
            if not await self._reload_if_missed(version):
                self._loaded.by_id.pop(token.id, None)
                self._loaded.by_secret.pop(_digest(secret), None)

    async def _set_expiry(self, token: DelegationToken, expires_ms: int) -> int:
        async with self._changing:
            version = await self._store.transact(
                lambda session: set_expiry(session, token.id, expires_ms)
            )
            if not await self._reload_if_missed(version):
                known = self._loaded.by_id.get(token.id, token)
                self._loaded.by_id[token.id] = known._replace(expires_ms=expires_ms)
        return expires_ms

    def token_of(self, secret: bytes) -> DelegationToken:
        """Return a token by itself. Raises KafkaError if there is none."""
        token_id = self._loaded.by_secret.get(_digest(secret), "")
        if token_id not in self._loaded.by_id:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return self._loaded.by_id[token_id]

    async def _reload_if_missed(self, version: int) -> bool:
        """Note the version after a change here; load all if other brokers have changed some, too,
        and return whether that is so."""
        if version != self._loaded.version + 1:
            await self._load()
            return True
        self._loaded = self._loaded._replace(version=version)
        return False

    async def sweep(self) -> None:
        """Delete expired tokens. Raises MetadataError."""
        now_ms = self._env.clock.now_ms()
        deleted = await self._store.transact(lambda session: delete_expired(session, now_ms))
        if deleted:
            logger.info("deleted %s that had expired", count(deleted, "delegation token"))
            await self.refresh()

    async def credential(self, kind: Hash, token_id: str) -> UserCredential:
        """Return with what a log-in with a token is checked; for a token that is unknown or has
        expired, something that looks the same."""
        if token_id not in self._loaded.by_id:  # another broker may have created it
            try:
                await self._unknown.again()
            except MetadataError as failure:
                logger.warning("cannot read whether a delegation token exists: %s", failure)
        token = self._loaded.by_id.get(token_id)
        key = self._sign("unknown", token_id)[: 32 if kind is Hash.SHA256 else 64]
        salt = self._salt_of(token_id)  # for known tokens too: it takes the same time
        if token is None or token.has_expired(self._env.clock.now_ms()):
            return UserCredential(ScramCredential(salt, key, key, MIN_ITERATIONS), False)
        return UserCredential(token.credentials[kind], True, token.owner.name, token.expires_ms)


def _version(session: Session) -> int:
    return versions.version_of(session, versions.DELEGATION_TOKENS)


def _digest(secret: bytes) -> bytes:
    """Return the key by which a token is found, so that the time does not depend on its bytes."""
    return hashlib.sha256(secret).digest()


def _derive(secret: bytes, salt: bytes) -> dict[Hash, ScramCredential]:
    """Derive the keys for both mechanisms: 20 ms. In a thread."""
    password = b64encode(secret).decode()
    return {kind: derive(kind, password, salt, MIN_ITERATIONS) for kind in Hash}
