"""A broker with a listener for log-ins, and the client's side of each mechanism, written from the
RFCs."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kafkawire.broker.options import Listener, SecurityProtocol
from kafkawire.log.io.disk import real_env
from kafkawire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kafkawire.messages.sasl_authenticate import SaslAuthenticateRequest
from kafkawire.messages.sasl_handshake import SaslHandshakeRequest
from kafkawire.security.sasl.scram import Hash
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.server import _make_tables, options

SASL = "SASL_PLAINTEXT"
ALL = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"


class ScramClient:
    """One log-in with SCRAM."""

    def __init__(self, user: str, password: str, kind: Hash = Hash.SHA256, more: str = "") -> None:
        self.kind, self.password = kind, password
        self.bare = f"n={user},r=abc{more}"
        self.first = f"n,,{self.bare}".encode()
        self.signature = b""

    def last(self, answer: bytes, nonce: str | None = None, prefix: str = "") -> bytes:
        """The last message, after the server's first one."""
        parts = dict(part.split("=", 1) for part in answer.decode().split(","))
        algorithm = self.kind.algorithm
        salted = hashlib.pbkdf2_hmac(
            algorithm, self.password.encode(), b64decode(parts["s"]), int(parts["i"])
        )
        without = f"c=biws,r={prefix}{nonce or parts['r']}"
        signed = f"{self.bare},{answer.decode()},{without}".encode()
        key = hmac.digest(salted, b"Client Key", algorithm)
        mask = hmac.digest(hashlib.new(algorithm, key).digest(), signed, algorithm)
        proof = bytes(a ^ b for a, b in zip(key, mask, strict=True))
        server_key = hmac.digest(salted, b"Server Key", algorithm)
        self.signature = hmac.digest(server_key, signed, algorithm)
        return f"{without},p={b64encode(proof).decode()}".encode()


@asynccontextmanager
async def running_sasl(
    data: Path, *, metadata_url: str = "", **settings: str
) -> AsyncIterator[Server]:
    """A broker with a listener PLAINTEXT and one SASL_PLAINTEXT."""
    data.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 (a test may block its loop)
    if not any(data.iterdir()):  # noqa: ASYNC240
        await _make_tables(data)
    settings = {"sasl_enabled_mechanisms": ALL, **settings}
    plain = options(data, **settings)
    made = replace(
        plain,
        metadata_url=metadata_url or plain.metadata_url,
        listeners=[
            *plain.listeners, Listener(SASL, "127.0.0.1", 0, SecurityProtocol.SASL_PLAINTEXT),
        ],
        advertised={**plain.advertised, SASL: ("127.0.0.1", 0)},
    )  # fmt: skip
    server = await Server.start(made, real_env())
    try:
        yield server
    finally:
        await server.close()


def sasl_port(server: Server) -> int:
    """The port of the listener for log-ins."""
    return server.broker.listeners[SASL][1]


def upsertion(
    user: str, password: str, kind: Hash = Hash.SHA256, iterations: int = 4096
) -> ScramCredentialUpsertion:
    """The item that an admin client sends for a password."""
    salt = f"salt of {user}".encode()
    salted = hashlib.pbkdf2_hmac(kind.algorithm, password.encode(), salt, iterations)
    return ScramCredentialUpsertion(user, int(kind), iterations, salt, salted)


async def alter(port: int, *items: ScramCredentialUpsertion | ScramCredentialDeletion) -> Any:
    """Change users through a listener without log-in; return the results by user."""
    client = await Client.connect(port)
    request = AlterUserScramCredentialsRequest(
        [each for each in items if isinstance(each, ScramCredentialDeletion)],
        [each for each in items if isinstance(each, ScramCredentialUpsertion)],
    )
    answer = await client.call(request, 0)
    await client.close()
    return {row.user: (row.error_code, row.error_message) for row in answer.results}


async def handshake(client: Client, mechanism: str, version: int = 1) -> Any:
    """Name the mechanism."""
    return await client.call(SaslHandshakeRequest(mechanism), version)


async def authenticate(client: Client, token: bytes, version: int = 2) -> Any:
    """Send a token."""
    return await client.call(SaslAuthenticateRequest(token), version)


async def log_in_plain(client: Client, user: str, password: str, version: int = 2) -> Any:
    """Log in with PLAIN; return the last answer."""
    assert (await handshake(client, "PLAIN")).error_code == 0
    return await authenticate(client, f"\0{user}\0{password}".encode(), version)


async def log_in_scram(
    client: Client, user: str, password: str, kind: Hash = Hash.SHA256, version: int = 2
) -> Any:
    """Log in with SCRAM; return the last answer."""
    assert (await handshake(client, kind.mechanism)).error_code == 0
    scram = ScramClient(user, password, kind)
    first = await authenticate(client, scram.first, version)
    assert first.error_code == 0
    last = await authenticate(client, scram.last(first.auth_bytes), version)
    if not last.error_code:
        assert last.auth_bytes == b"v=" + b64encode(scram.signature)
    return last


async def is_closed(client: Client) -> bool:
    """Return whether the broker closes the connection without another byte, and close it here."""
    try:
        found = await asyncio.wait_for(client.reader.read(1), 20)
    except ConnectionError:
        found = b""
    client.writer.close()
    with suppress(ConnectionError):
        await client.writer.wait_closed()
    return not found
