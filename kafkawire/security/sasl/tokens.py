"""Validation of JSON Web Tokens (RFC 7519) for OAUTHBEARER, with Kafka's rules.

Only keys of the issuer's key set count, found by the header `kid`; everything else in the header
that points to keys is ignored. Only signatures with asymmetric keys are allowed, so neither `none`
nor an HMAC with a public key passes. `exp` and `iat` are required. Imported with the first broker
that enables OAUTHBEARER, because it needs joserfc and cryptography.
"""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from joserfc import jws
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from kafkawire.security.sasl.bearer import TokenRefused
from kafkawire.security.sasl.replies import LoggedIn

logger = logging.getLogger(__name__)


ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519",
)  # fmt: skip
"""Signatures that are accepted."""
warnings.filterwarnings("ignore", "EdDSA is deprecated", SecurityWarning)  # issuers still use it
MAX_KID = 1000
"""Characters of a key's id, as in Kafka."""
MAX_HEADER = 8192
"""Characters of a token's header, before base64 is undone: a header with certificates has a few
thousand."""
MAX_KEYS = 100
"""Keys of one issuer: a few are usual, and each takes a millisecond to import."""

Key = RSAKey | ECKey | OKPKey
KeyRows = list[tuple[str | None, Key]]
"""Keys by id."""
FindKey = Callable[[str | None], Awaitable[Key | None]]


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The requirements for a token. Empty `audiences`, `issuer` or `scopes`: any."""

    audiences: frozenset[str] = frozenset()
    issuer: str = ""
    scopes: frozenset[str] = frozenset()
    user_claim: str = "sub"
    scope_claim: str = "scope"
    skew_s: int = 30


class TokenValidator:
    """Validates tokens. `find` returns a key by its id; `now_ms`: the wall clock."""

    def __init__(self, rules: TokenRules, find: FindKey, now_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._find = find
        self._now_ms = now_ms
        self._registry = jws.JWSRegistry(algorithms=list(ALGORITHMS))
        # the size of a frame is the limit
        self._registry.max_header_length = MAX_HEADER
        self._registry.max_payload_length = 1 << 20

    async def validate(self, token: str) -> LoggedIn:
        """Return the user of a token and when it expires. Raises TokenRefused."""
        kid = self._kid(token)
        key = await self._find(kid)
        if key is None:
            raise TokenRefused("the token's key is not in the issuer's key set")
        return self._check_claims(_claims(token, key, self._registry))

    def _kid(self, token: str) -> str | None:
        """Return the id of the key. Only what chooses a key is read before the signature."""
        encoded, _, rest = token.partition(".")
        if rest.count(".") != 1 or len(encoded) > MAX_HEADER:
            raise TokenRefused("no signed token")
        try:
            header = json.loads(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        except (ValueError, RecursionError):
            raise TokenRefused("the token's header cannot be read") from None
        if not isinstance(header, dict) or header.get("alg") not in ALGORITHMS:
            raise TokenRefused("the token's signature algorithm is not allowed")
        kid = header.get("kid")
        if kid is not None and not (isinstance(kid, str) and len(kid) <= MAX_KID):
            raise TokenRefused("the token's key id is not valid")
        return kid

    def _check_claims(self, claims: dict[str, Any]) -> LoggedIn:
        rules, now_s = self._rules, self._now_ms() / 1000
        expires_s, issued_s = _time(claims, "exp"), _time(claims, "iat")
        if expires_s is None or issued_s is None:
            raise TokenRefused("the token has no exp or no iat")
        if expires_s + rules.skew_s <= now_s:
            raise TokenRefused("the token has expired")
        before_s = _time(claims, "nbf")
        if before_s is not None and before_s - rules.skew_s > now_s:
            raise TokenRefused("the token is not valid yet")
        if issued_s - rules.skew_s > now_s:
            raise TokenRefused("the token is issued in the future")
        if rules.issuer and claims.get("iss") != rules.issuer:
            raise TokenRefused("the token is of another issuer")
        audiences = _texts(claims.get("aud"))
        if rules.audiences and not rules.audiences.intersection(audiences):
            raise TokenRefused("the token is for another audience")
        self._check_scopes(claims)
        user = claims.get(rules.user_claim)
        if not isinstance(user, str) or not user.strip():
            raise TokenRefused(f"the token has no claim {rules.user_claim}")
        return LoggedIn(user, int(expires_s * 1000))

    def _check_scopes(self, claims: dict[str, Any]) -> None:
        given = claims.get(self._rules.scope_claim)
        scopes = given.split() if isinstance(given, str) else _texts(given)
        if not self._rules.scopes.issubset(scopes):
            wanted = " ".join(sorted(self._rules.scopes))
            raise TokenRefused("the token lacks a scope", "insufficient_scope", wanted)


def _claims(token: str, key: Key, registry: jws.JWSRegistry) -> dict[str, Any]:
    try:
        payload = jws.deserialize_compact(token, key, registry=registry).payload
        claims = json.loads(payload)
    except (JoseError, ValueError, TypeError, RecursionError) as wrong:
        raise TokenRefused(f"the token cannot be verified ({type(wrong).__name__})") from None
    if not isinstance(claims, dict):
        raise TokenRefused("the token's claims are no object")
    return claims


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TokenRefused(f"the token's {name} is no time")
    return float(value)


def _texts(value: object) -> list[str]:
    """Return a claim that is a text or a list of texts as a list."""
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def parse_keys(text: bytes) -> KeyRows:
    """Read a key set (RFC 7517): the public keys for signatures, by id. Raises ValueError."""
    try:
        found = json.loads(text)
        rows = found["keys"]
        if not isinstance(rows, list) or len(rows) > MAX_KEYS:
            raise ValueError(f"more than {MAX_KEYS} keys, or none")
        return [
            (row.get("kid"), key)
            for row in rows
            if row.get("use", "sig") == "sig" and row.get("kty") in ("RSA", "EC", "OKP")
            for key in KeySet.import_key_set({"keys": [row]}).keys
            if isinstance(key, RSAKey | ECKey | OKPKey)
        ]
    except (JoseError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise ValueError(f"no key set ({type(wrong).__name__})") from None


# The keys of an issuer of tokens: read from a file or an https URL, cached, refreshed.
#
# A token whose key is not known makes the keys be read again, at most once in MIN_INTERVAL_S
# whatever clients send. When they cannot be read, the ones read before stay, with a log line.


MAX_BYTES = 1 << 20
"""Size of a key set: a hundred keys with certificates take less."""
MIN_INTERVAL_S = 10.0
"""Time between two attempts to read the keys, Kafka's longest delay between retries."""
TIMEOUT_S = 10.0
"""For connecting and for each read: a log-in that waits has 30 s."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Read(Protocol):
    """Reads the key set from its source, in a thread: each key takes a millisecond to import."""

    def __call__(self) -> Awaitable[KeyRows]: ...


class KeySource:
    """Finds keys by id. `refresh_s`: how long keys are used before they are read again."""

    def __init__(self, where: str, read: Read, now: Callable[[], float], refresh_s: float) -> None:
        self._where = where
        self._read = read
        self._now = now
        self._refresh_s = refresh_s
        self._keys: dict[str | None, Key] = {}
        self._read_at: float | None = None  # the last success
        self._tried_at: float | None = None
        self._reading = asyncio.Lock()

    async def find(self, kid: str | None) -> Key | None:
        """Return a key. Without an id: the only key, if there is one."""
        now = self._now()
        old = self._read_at is None or now - self._read_at >= self._refresh_s
        if old or self._get(kid) is None:
            await self._refresh(now)
        return self._get(kid)

    def _get(self, kid: str | None) -> Key | None:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _refresh(self, asked_at: float) -> None:
        async with self._reading:
            tried = self._tried_at
            if tried is not None and (tried >= asked_at or self._now() - tried < MIN_INTERVAL_S):
                return
            self._tried_at = self._now()
            try:
                rows = await self._read()
            except (OSError, ValueError) as wrong:
                logger.error(
                    "the keys of the token issuer cannot be read from %s (%s): log-ins with "
                    "OAUTHBEARER use the %d keys read before; the next attempt is in %d s",
                    self._where, wrong, len(self._keys), MIN_INTERVAL_S,
                )  # fmt: skip
                return
            self._keys = dict(rows)
            self._read_at = self._tried_at


def check_source(text: str) -> str:
    """Return the scheme of the location of a key set: https, http (loopback only) or file. Raises
    ValueError with one sentence."""
    parts = urlsplit(text)
    if parts.scheme == "https" and parts.hostname:
        return "https"
    if parts.scheme == "http" and parts.hostname in _LOOPBACK:
        return "http"
    if parts.scheme == "file" or text.startswith("/"):
        return "file"
    raise ValueError(
        "it must be an https:// URL, a file:// URL, the absolute path of a file, or an http:// URL "
        "of this machine's loopback address"
    )


def read_keys(text: str) -> KeyRows:
    """Read the keys from their location; waits. Raises OSError or ValueError."""
    return parse_keys(read_source(text))


def read_source(text: str) -> bytes:
    """Read a key set from its location; waits. Raises OSError or ValueError."""
    if check_source(text) == "file":
        path = text if text.startswith("/") else urlsplit(text).path
        with open(path, "rb") as file:
            found = file.read(MAX_BYTES + 1)
    else:
        found = _download(text)
    if len(found) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return found


def _download(url: str) -> bytes:
    from http.client import HTTPException
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """Refuse redirects: the location is a setting, checked before it is used."""

        def redirect_request(self, *_: object) -> None:
            return None

    try:
        with build_opener(NoRedirects).open(url, timeout=TIMEOUT_S) as answer:
            found: bytes = answer.read(MAX_BYTES + 1)
            return found
    except HTTPException as wrong:
        raise OSError(f"no answer of HTTP ({type(wrong).__name__})") from None
