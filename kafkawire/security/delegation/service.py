"""The delegation tokens of a cluster: created, renewed, ended, and found for log-ins.

Tokens are in SQL, with a copy in memory, which `refresh` reads again if another broker of the same
PostgreSQL has changed them. A log-in with a token that is not known here asks for that at once, at
a bounded rate, because workers log in right after their token was created, maybe by another broker.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from base64 import b64encode, urlsafe_b64encode
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io import slices
from kafkawire.log.io.shared_load import SharedLoad
from kafkawire.metadata.store import MetadataError, Transactions
from kafkawire.plural import count
from kafkawire.security import versions
from kafkawire.security.delegation import stored
from kafkawire.security.delegation.model import DelegationToken, check_principals, until
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
    from kafkawire.metadata.session import Session
    from kafkawire.security.principals import Principal

logger = logging.getLogger(__name__)

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
        version, rows = await self._store.transact(stored.load)
        fresh = _Loaded(version, {}, {})
        give_way = self._env.slices.give_way
        async for row in slices.drained(rows, give_way):
            if bytes(row[stored.KEY_ID]) == self._key_id:
                self._put(fresh, stored.token_of(row))
        before, self._loaded = self._loaded, fresh
        await slices.emptied(before.by_id, give_way)
        await slices.emptied(before.by_secret, give_way)

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
        row = stored.row_of(token, self._key_id)
        async with self._changing:
            version = await self._store.transact(lambda session: stored.insert(session, row))
            if not await self._missed(version):
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
            version = await self._store.transact(lambda session: stored.delete(session, token.id))
            if not await self._missed(version):
                self._loaded.by_id.pop(token.id, None)
                self._loaded.by_secret.pop(_digest(secret), None)

    async def _set_expiry(self, token: DelegationToken, expires_ms: int) -> int:
        async with self._changing:
            version = await self._store.transact(
                lambda session: stored.set_expiry(session, token.id, expires_ms)
            )
            if not await self._missed(version):
                known = self._loaded.by_id.get(token.id, token)
                self._loaded.by_id[token.id] = known._replace(expires_ms=expires_ms)
        return expires_ms

    def token_of(self, secret: bytes) -> DelegationToken:
        """Return a token by itself. Raises KafkaError if there is none."""
        token_id = self._loaded.by_secret.get(_digest(secret), "")
        if token_id not in self._loaded.by_id:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return self._loaded.by_id[token_id]

    async def _missed(self, version: int) -> bool:
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
        deleted = await self._store.transact(lambda session: stored.delete_expired(session, now_ms))
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
