"""Certificates to try TLS out: an authority, a server and a client.

P-256 keys, because a handshake with them takes a fifth of the time of one with RSA.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY, SERVER, CLIENT = "ca", "server", "client"
"""Names of the files, with .pem for certificates and .key for keys."""
_CLOCKS = datetime.timedelta(hours=1)
"""Certificates are valid from an hour ago, as clocks of machines differ."""


class Issued(NamedTuple):
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def write(folder: Path, hosts: Sequence[str], client: str, days: int) -> None:
    """Write all files. OSError, and ValueError if the authority in the folder is not usable."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = _authority(folder, days)
    names = dict.fromkeys(("localhost", "127.0.0.1", "::1", *hosts))
    _save(folder, SERVER, issue(hosts[0] if hosts else "localhost", authority, days, list(names)))
    _save(folder, CLIENT, issue(client, authority, days))
    settings = (
        "security.protocol=SSL\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={folder.absolute()}/{AUTHORITY}.pem\n"
    )
    (folder / "client.properties").write_text(settings, encoding="utf-8")


def _authority(folder: Path, days: int) -> Issued:
    certificate, key = folder / f"{AUTHORITY}.pem", folder / f"{AUTHORITY}.key"
    if not certificate.exists():
        made = issue("kafkawire authority", None, days)
        _save(folder, AUTHORITY, made)
        return made
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not an elliptic one")
    return Issued(x509.load_pem_x509_certificate(certificate.read_bytes()), loaded)


def issue(
    name: str,
    authority: Issued | None,
    days: int,
    hosts: Iterable[str] = (),
    subject: x509.Name | None = None,
    ends: datetime.datetime | None = None,
) -> Issued:
    """Issue a certificate: of a server if it has `hosts`, of an authority if `authority` is None,
    else of a client."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = (
        subject
        if subject is not None
        else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    now = datetime.datetime.now(datetime.UTC)
    ends = ends or now + datetime.timedelta(days=days)
    names = [_general(host) for host in hosts]
    usage = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
    signer = authority.key if authority is not None else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, ends) - _CLOCKS)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(authority is None, None), critical=True)
        .add_extension(_key_usage(authority is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
    )
    if authority is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Issued(builder.sign(signer, hashes.SHA256()), key)


def _key_usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _save(folder: Path, name: str, issued: Issued) -> None:
    """Write a certificate and its key, which only the owner may read."""
    (folder / f"{name}.pem").write_bytes(issued.certificate_pem())
    path = folder / f"{name}.key"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(issued.key_pem())
