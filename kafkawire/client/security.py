"""How a client reaches a broker: encryption, and the log-in; read from a file of Kafka's form.

The keys are those of Kafka's clients (`security.protocol`, `sasl.mechanism`, `sasl.jaas.config`,
`ssl.truststore.location` as PEM) and of librdkafka (`sasl.username`, `sasl.password`,
`ssl.ca.location`, `ssl.certificate.location`, `ssl.key.location`).
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkawire.client.errors import ClientError

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


def read_security(option: str, path: str) -> ClientSecurity:
    """Read a file of settings. ClientError names `option`, and no value of a setting."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_BYTES)
    except (OSError, UnicodeDecodeError) as wrong:
        reason = wrong.strerror if isinstance(wrong, OSError) else "it is not UTF-8"
        raise ClientError(f"{option}={path}: it cannot be read ({reason})") from None
    try:
        return security_of(_settings(text))
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


def security_of(settings: dict[str, str]) -> ClientSecurity:
    """Return the settings of a connection; settings of other things are ignored. ValueError."""
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ValueError(f"security.protocol must be one of {', '.join(PROTOCOLS)}")
    mechanism = user = password = ""
    if protocol.startswith("SASL"):
        mechanism, user, password = _log_in(settings)
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


def _log_in(settings: dict[str, str]) -> tuple[str, str, str]:
    mechanism = settings.get("sasl.mechanism", "")
    if mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}")
    jaas = dict(_OPTION.findall(settings.get("sasl.jaas.config", "")))
    options = {name: re.sub(r"\\(.)", r"\1", value) for name, value in jaas.items()}
    user = settings.get("sasl.username", options.get("username", ""))
    password = settings.get("sasl.password", options.get("password", ""))
    if not user or not password:
        raise ValueError("sasl.username and sasl.password, or sasl.jaas.config, must be set")
    return mechanism, user, password
