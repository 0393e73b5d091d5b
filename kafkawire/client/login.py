"""The client's side of a log-in by SASL: PLAIN and SCRAM (RFC 5802)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from typing import Any, Protocol

from kafkawire.client.errors import ClientError, LoginRefused
from kafkawire.client.security import ClientSecurity

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 1_000_000
"""Fewer iterations would make the password easy to find, more would take seconds."""


class Requesting(Protocol):
    """The connection, before it is logged in."""

    address: str

    def request(self, key: int, message: object) -> Any: ...


def log_in(connection: Requesting, security: ClientSecurity) -> None:
    """Log in. ClientError if the broker refuses it, or does not know the password either."""
    from kafkawire.messages.sasl_handshake import SaslHandshakeRequest

    answer = connection.request(SASL_HANDSHAKE, SaslHandshakeRequest(security.mechanism))
    if answer.error_code:
        if not answer.mechanisms:
            raise ClientError(
                f"{connection.address} has no log-in: set security.protocol=PLAINTEXT (with TLS: "
                "SSL) in the file of --command-config"
            )
        raise ClientError(
            f"{connection.address} does not accept {security.mechanism}: set sasl.mechanism to "
            f"{' or '.join(answer.mechanisms)}"
        )
    if security.mechanism == "PLAIN":
        _send(connection, security, f"\0{security.user}\0{security.password}".encode())
    else:
        _scram(connection, security)


def _send(connection: Requesting, security: ClientSecurity, token: bytes) -> bytes:
    from kafkawire.messages.sasl_authenticate import SaslAuthenticateRequest

    answer = connection.request(SASL_AUTHENTICATE, SaslAuthenticateRequest(token))
    if answer.error_code:
        text = (answer.error_message or "the log-in was refused").rstrip(".")
        raise LoginRefused(f"{connection.address} refused user {security.user}: {text}")
    return bytes(answer.auth_bytes)


def _scram(connection: Requesting, security: ClientSecurity) -> None:
    algorithm = "sha" + security.mechanism.rpartition("-")[2]
    name = security.user.replace("=", "=3D").replace(",", "=2C")
    nonce = secrets.token_hex(16)
    bare = f"n={name},r={nonce}"
    answer = _send(connection, security, f"n,,{bare}".encode())
    try:
        parts = dict(part.split("=", 1) for part in answer.decode("ascii").split(","))
        joined, salt, iterations = parts["r"], b64decode(parts["s"]), int(parts["i"])
    except (ValueError, KeyError):
        raise ClientError(f"{connection.address} sent an invalid SCRAM message") from None
    if not joined.startswith(nonce) or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ClientError(f"{connection.address} sent an invalid SCRAM message")
    salted = hashlib.pbkdf2_hmac(algorithm, security.password.encode(), salt, iterations)
    signed = f"{bare},{answer.decode()},c=biws,r={joined}".encode()
    key = hmac.digest(salted, b"Client Key", algorithm)
    mask = hmac.digest(hashlib.new(algorithm, key).digest(), signed, algorithm)
    proof = b64encode(bytes(one ^ other for one, other in zip(key, mask, strict=True)))
    last = _send(connection, security, f"c=biws,r={joined},p={proof.decode()}".encode())
    server = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), signed, algorithm)
    if not hmac.compare_digest(last, b"v=" + b64encode(server)):
        raise ClientError(f"{connection.address} does not know the password: it is another server")
