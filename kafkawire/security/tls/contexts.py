"""TLS contexts of listeners, from PEM files that are checked before they are used.

The only module that reads certificates and keys. All of it may wait for a disk and computes for
milliseconds, so it runs in a thread or at the start.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log_lines import reason_of

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Suites of TLS 1.2: with forward secrecy and authenticated encryption; all of TLS 1.3 are."""
MAX_FILE_BYTES = 4 << 20
"""Maximum size of a PEM file: the authorities of all browsers have 220 KiB."""
_VERIFY_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED,
}  # fmt: skip
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsError(ValueError):
    """The TLS settings or their files cannot be used; the text is one sentence."""


class ExpiredCertificate(TlsError):
    """The certificate of this broker has expired; nothing else is wrong with it."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The settings of TLS listeners; paths of PEM files, empty where there is none."""

    keystore: str
    key: str
    truststore: str
    client_auth: str
    protocols: tuple[str, ...]

    @classmethod
    def from_config(cls, config: BrokerConfig) -> TlsSettings:
        """Return those of a broker. Raises TlsError if a file or version is missing."""
        settings = cls(
            config.ssl_keystore_location.strip(), config.ssl_key_location.strip(),
            config.ssl_truststore_location.strip(), config.ssl_client_auth,
            tuple(config.ssl_enabled_protocols),
        )  # fmt: skip
        if not settings.keystore:
            raise TlsError(
                "a TLS listener needs ssl.keystore.location, a PEM file with a certificate and its "
                "key (kafkawire certs make writes some to try it out)"
            )
        if not settings.protocols:
            raise TlsError("ssl.enabled.protocols must have TLSv1.2 or TLSv1.3")
        if settings.client_auth != "none" and not settings.truststore:
            raise TlsError(
                f"ssl.client.auth={settings.client_auth} needs ssl.truststore.location, the "
                "authorities that sign the certificates of clients"
            )
        return settings

    def files(self) -> list[tuple[str, str]]:
        """Return (setting, path) of each file."""
        named = (
            ("ssl.keystore.location", self.keystore),
            ("ssl.key.location", self.key),
            ("ssl.truststore.location", self.truststore),
        )
        return [(name, path) for name, path in named if path]


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts of one version of the files. `asking`: asks for client certificates, if
    `ssl.client.auth` says so; `silent`: does not. `digest` identifies the files' contents,
    `expires_s` is the end of the certificate in seconds since 1970 (0: it has passed)."""

    asking: ssl.SSLContext
    silent: ssl.SSLContext
    digest: bytes
    expires_s: float


def digest_of(settings: TlsSettings) -> bytes:
    """Return a digest of the files' contents. Raises TlsError."""
    digest = sha256()
    for name, path in settings.files():
        content = _read(name, path)
        digest.update(len(content).to_bytes(8) + content)
    return digest.digest()


def load(settings: TlsSettings, *, may_be_expired: bool = False) -> Contexts:
    """Read the files and check them with a handshake in memory. Raises TlsError, and
    ExpiredCertificate unless `may_be_expired`."""
    digest = digest_of(settings)
    silent = _context(settings, "none")
    asking = silent
    if settings.client_auth != "none":
        asking = _context(settings, settings.client_auth)
    try:
        expires_s = _try(silent, settings)
    except ExpiredCertificate:
        if not may_be_expired:
            raise
        expires_s = 0.0
    return Contexts(asking, silent, digest, expires_s)


def _read(name: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TlsError(f"{name}={path}: it cannot be read ({error.strerror})") from None
    if len(content) > MAX_FILE_BYTES:
        raise TlsError(f"{name}={path}: it must be a PEM file of at most {MAX_FILE_BYTES} bytes")
    return content


def _context(settings: TlsSettings, client_auth: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Clients of Kafka stay connected, so TLS 1.3 resumes nothing. TLS 1.2 does, with tickets:
    # without them OpenSSL would keep up to 20,480 sessions in memory, which Python cannot turn off.
    context.num_tickets = 0
    versions = sorted(_VERSIONS[name] for name in settings.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.set_ciphers(CIPHERS)
    _load_chain(context, settings)
    if client_auth != "none":
        _load_authorities(context, settings.truststore)
        context.verify_mode = _CLIENT_AUTH[client_auth]
    return context


def _load_chain(context: ssl.SSLContext, settings: TlsSettings) -> None:
    where = f"ssl.keystore.location={settings.keystore}"
    if settings.key:
        where += f", ssl.key.location={settings.key}"
    try:
        context.load_cert_chain(settings.keystore, settings.key or None, _no_password)
    except _Encrypted:
        raise TlsError(f"{where}: the key has a password; remove it with openssl pkey") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{where}: the key does not belong to the certificate") from None
        raise TlsError(
            f"{where}: a certificate and its private key in PEM format cannot be read "
            f"({error.reason or error})"
        ) from None
    except OSError as error:
        raise TlsError(f"{where}: it cannot be read ({error.strerror})") from None


class _Encrypted(Exception):
    """OpenSSL asks for the password of a key."""


def _no_password() -> str:
    """Without this OpenSSL would ask at the terminal."""
    raise _Encrypted


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    name = "ssl.truststore.location"
    try:
        context.load_verify_locations(cadata=_read(name, path).decode("ascii", "replace"))
    except ssl.SSLError as error:
        raise TlsError(
            f"{name}={path}: certificates in PEM format cannot be read ({error.reason or error})"
        ) from None


def _try(server: ssl.SSLContext, settings: TlsSettings) -> float:
    """Do a handshake as a client that trusts the certificate; return when it expires."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    chain = _read("ssl.keystore.location", settings.keystore)
    where = f"ssl.keystore.location={settings.keystore}"
    try:
        client.load_verify_locations(cadata=chain.decode("ascii", "replace"))
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        asking = client.wrap_bio(to_client, to_server)
        answering = server.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(4):
            if all([_step(asking), _step(answering)]):
                break
        facts = asking.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _VERIFY_EXPIRED:
            raise ExpiredCertificate(f"{where}: the certificate has expired") from None
        raise TlsError(f"{where}: clients would refuse it ({error.verify_message})") from None
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"{where}: a handshake with it fails ({reason_of(error)})") from None
    return float(ssl.cert_time_to_seconds(str(facts["notAfter"])))


def _step(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
