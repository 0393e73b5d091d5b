"""How a client reaches a broker: encryption, and the log-in; read from a file of Kafka's form.

The keys are those of Kafka's clients (`security.protocol`, `sasl.mechanism`, `sasl.jaas.config`,
`ssl.truststore.location` as PEM) and of librdkafka (`sasl.username`, `sasl.password`,
`ssl.ca.location`, `ssl.certificate.location`, `ssl.key.location`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import socket
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kafkawire.client.errors import ClientError, LoginRefused

if TYPE_CHECKING:
    import ssl


MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("PLAINTEXT", "TLS", "SSL", "SASL_PLAINTEXT", "SASL_TLS", "SASL_SSL")
MAX_BYTES = 1 << 20
"""Size of a file of settings."""
_NO_TLS = (None, "WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE")
"""Reasons of OpenSSL where the server does not speak TLS; None: it has closed the connection."""
_OPTION = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')


class NoTls(ConnectionError):
    """The server did not answer a TLS handshake with TLS."""


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """Settings of a connection. `mechanism` is empty without a log-in."""

    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    check_host: bool = True
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)

    def wrap(self, connected: socket.socket, host: str) -> socket.socket:
        """Return the encrypted form of a connected socket, or the socket itself. OSError if that
        fails, ClientError if a file cannot be used."""
        if not self.tls:
            return connected
        import ssl

        try:
            return self._context().wrap_socket(connected, server_hostname=host)
        except ClientError:
            connected.close()
            raise
        except ssl.SSLCertVerificationError as failure:
            advice = "connect to a name that it has"
            if "mismatch" not in failure.verify_message:
                advice = "set ssl.ca.location in the file of --command-config"
            raise ConnectionError(
                f"its certificate is refused ({failure.verify_message}): {advice}"
            ) from None
        except (ssl.SSLError, ConnectionError) as failure:
            if getattr(failure, "reason", None) not in _NO_TLS:
                raise
            connected.close()
            raise NoTls("it closed the connection in the TLS handshake") from None

    def _context(self) -> ssl.SSLContext:
        import ssl

        setting, path = "ssl.ca.location", self.ca_file
        try:
            context = ssl.create_default_context(cafile=path or None)
            context.check_hostname = self.check_host
            if self.certificate_file:
                setting, path = "ssl.certificate.location", self.certificate_file
                context.load_cert_chain(path, self.key_file or None)
        except OSError as wrong:
            reason = wrong.strerror or str(wrong)
            raise ClientError(f"{setting}={path}: it cannot be used ({reason})") from None
        return context


NO_SECURITY = ClientSecurity()


def read_security(option: str, path: str, login: bool = True) -> ClientSecurity:
    """Read a file of settings; without `login` user and password may be missing. ClientError names
    `option`, and no value of a setting."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_BYTES)
    except (OSError, UnicodeDecodeError) as wrong:
        reason = wrong.strerror if isinstance(wrong, OSError) else "it is not UTF-8"
        raise ClientError(f"{option}={path}: it cannot be read ({reason})") from None
    try:
        return security_of(_settings(text), login)
    except ValueError as wrong:
        raise ClientError(f"{option}={path}: {wrong}") from None


def _settings(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in re.sub(r"\\\r?\n\s*", "", text).splitlines():
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise ValueError("every line must be NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def security_of(settings: dict[str, str], login: bool = True) -> ClientSecurity:
    """Return the settings of a connection; settings of other things are ignored. ValueError."""
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ValueError(f"security.protocol must be one of {', '.join(PROTOCOLS)}")
    mechanism = user = password = ""
    if protocol.startswith("SASL"):
        mechanism, user, password = _log_in(settings, login)
    truststore = settings.get("ssl.truststore.location", "")
    return ClientSecurity(
        tls=protocol.endswith(("TLS", "SSL")),
        ca_file=settings.get("ssl.ca.location", truststore),
        certificate_file=settings.get(
            "ssl.certificate.location", settings.get("ssl.keystore.location", "")
        ),
        key_file=settings.get("ssl.key.location", ""),
        check_host=settings.get("ssl.endpoint.identification.algorithm", "https") != "",
        mechanism=mechanism,
        user=user,
        password=password,
    )


def _log_in(settings: dict[str, str], required: bool) -> tuple[str, str, str]:
    mechanism = settings.get("sasl.mechanism", "")
    if mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}")
    jaas = dict(_OPTION.findall(settings.get("sasl.jaas.config", "")))
    options = {name: re.sub(r"\\(.)", r"\1", value) for name, value in jaas.items()}
    user = settings.get("sasl.username", options.get("username", ""))
    password = settings.get("sasl.password", options.get("password", ""))
    if required and (not user or not password):
        raise ValueError("sasl.username and sasl.password, or sasl.jaas.config, must be set")
    return mechanism, user, password


# The client's side of a log-in by SASL: PLAIN and SCRAM (RFC 5802).


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
