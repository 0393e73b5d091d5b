"""SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677), the server's side.

As in Kafka's ScramSaslServer and ScramMessages: no channel binding, no preparation of names, which
are ASCII. Two differences. An unknown user gets a salt that depends on the name, and fails at the
last message like a wrong password (in Kafka at the first one, so that names can be guessed). The
client's last nonce must end with the one that the server sent, and may have more before it:
librdkafka before 2.6.1, so kcat 1.7.1, puts its own nonce there twice. Everything that the client
sent is part of what both sides sign, so nothing can be replayed.

A log-in needs no key derivation: two HMACs and a hash. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import NamedTuple

from kafkawire.security.sasl.replies import LoggedIn, LoginFailure, TokenReply

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
"""Bounds of AlterUserScramCredentials, as in Kafka."""

_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64 = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS = rf"(?:,[a-zA-Z]+={_VALUE})*"
_FIRST = re.compile(
    rf"n,(?:a=(?P<authorization>{_NAME}))?,"
    rf"(?P<bare>(?:m={_VALUE},)?n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE})"
    rf"(?P<extensions>{_EXTENSIONS}))"
)
_LAST = re.compile(
    rf"(?P<signed>c={_BASE64},r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_TOKEN_AUTH = re.compile(r",tokenauth=(?i:true)(?:,|\Z)")
_SERVER_NONCE_BITS = 130
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Hash(IntEnum):
    """The hash of a mechanism, as numbered by APIs 50 and 51."""

    SHA256 = 1
    SHA512 = 2

    @property
    def mechanism(self) -> str:
        """The name of the SASL mechanism."""
        return "SCRAM-SHA-256" if self is Hash.SHA256 else "SCRAM-SHA-512"

    @property
    def algorithm(self) -> str:
        """The name in hashlib."""
        return "sha256" if self is Hash.SHA256 else "sha512"

    def digest(self, data: bytes) -> bytes:
        """Hash bytes."""
        return hashlib.new(self.algorithm, data).digest()

    def sign(self, key: bytes, message: bytes) -> bytes:
        """Return the HMAC of a message."""
        return hmac.digest(key, message, self.algorithm)


MECHANISMS = {each.mechanism: each for each in Hash}


class ScramCredential(NamedTuple):
    """The stored form of a password, with which no client can log in."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


def derive(kind: Hash, password: str, salt: bytes, iterations: int) -> ScramCredential:
    """Derive a credential from a password: 10 ms and more, without the interpreter lock."""
    salted = salted_password(kind, password, salt, iterations)
    return of_salted(kind, salted, salt, iterations)


def salted_password(kind: Hash, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password, which admin clients send: 10 ms and more."""
    return hashlib.pbkdf2_hmac(kind.algorithm, password.encode(), salt, iterations)


def of_salted(kind: Hash, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a password that the client has salted (API 51)."""
    stored_key = kind.digest(kind.sign(salted, b"Client Key"))
    return ScramCredential(salt, stored_key, kind.sign(salted, b"Server Key"), iterations)


def matches(kind: Hash, password: str, credential: ScramCredential) -> bool:
    """Return whether a credential is of this password; derives keys like `derive`."""
    made = derive(kind, password, credential.salt, credential.iterations)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


def server_nonce(getrandbits: Callable[[int], int]) -> str:
    """Return 130 random bits in base 36, as Kafka does."""
    number, digits = getrandbits(_SERVER_NONCE_BITS), ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.rjust(1, "0")


class UserCredential(NamedTuple):
    """The credential for a log-in; `known` is False if it belongs to no user. Of a delegation
    token: its owner, and when it expires."""

    credential: ScramCredential
    known: bool
    owner: str | None = None
    expires_ms: int | None = None


FindToken = Callable[[str], Awaitable[UserCredential]]
"""Return the credential of a delegation token, known or not."""


class Scram:
    """One log-in with SCRAM. `find` returns the credential of a user, known or not; `find_token`
    that of a delegation token, None without such tokens."""

    def __init__(
        self,
        kind: Hash,
        find: Callable[[str], UserCredential],
        nonce: str,
        find_token: FindToken | None = None,
    ) -> None:
        self._kind = kind
        self._find = find
        self._find_token = find_token
        self._own_nonce = nonce
        self.user = ""
        self._nonce = ""
        self._signed = ""  # client-first-bare and server-first, once they were exchanged
        self._found: UserCredential | None = None

    async def step(self, token: bytes) -> TokenReply:
        """Answer the first message, then the last."""
        if self._found is None:
            return await self._first(token)
        return self._last(token, self._found)

    async def _first(self, token: bytes) -> TokenReply:
        message = _match(_FIRST, token)
        self.user = _plain_name(message["name"])
        authorization = message["authorization"]
        if authorization and _plain_name(authorization) != self.user:
            raise LoginFailure(
                "Authentication failed: Client requested an authorization id that is different "
                "from username",
                "the authorization id is not the user name",
            )
        self._found = await self._credential(message["extensions"])
        credential = self._found.credential
        self._nonce = message["nonce"] + self._own_nonce
        salt = b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._signed = f"{message['bare']},{answer}"
        return TokenReply(answer.encode())

    async def _credential(self, extensions: str) -> UserCredential:
        if not _TOKEN_AUTH.search(extensions):
            return self._find(self.user)
        if self._find_token is None:  # a delegation token's id is not a user's name
            return self._find(self.user)._replace(known=False)
        return await self._find_token(self.user)

    def _last(self, token: bytes, found: UserCredential) -> TokenReply:
        message = _match(_LAST, token)
        if not message["nonce"].endswith(self._nonce):
            raise LoginFailure(None, "the last message has another nonce")
        kind, credential = self._kind, found.credential
        try:
            proof = b64decode(message["proof"], validate=True)
        except Base64Error:
            raise LoginFailure(None, "the proof is not base64") from None
        signed = f"{self._signed},{message['signed']}".encode()
        signature = kind.sign(credential.stored_key, signed)
        if len(proof) != len(signature):
            raise LoginFailure(None, "the proof has another length")
        key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        same = hmac.compare_digest(kind.digest(key), credential.stored_key)
        final = kind.sign(credential.server_key, signed)
        if not (same and found.known and credential.iterations >= MIN_ITERATIONS):
            raise LoginFailure(None, "unknown user or wrong password")
        user = self.user if found.owner is None else found.owner
        logged_in = LoggedIn(user, found.expires_ms, by_token=found.owner is not None)
        return TokenReply(b"v=" + b64encode(final), logged_in)


def _match(pattern: re.Pattern[str], token: bytes) -> re.Match[str]:
    try:
        found = pattern.fullmatch(token.decode("ascii"))
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise LoginFailure(None, "a message that is not SCRAM's, or with channel binding")
    return found


def _plain_name(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
