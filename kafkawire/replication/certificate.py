"""The certificate of a follower, with which its connections are encrypted
(replication.security.protocol=SSL).

The follower makes it for itself, and it is in the follower's row in SQL. Brokers prove to have the
key of the follower, as without encryption.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from dataclasses import dataclass

from kafkawire.replication import sealed_file
from kafkawire.replication.machine import Files

NAME = "certificate"
"""The file in the follower's folder."""
# Which certificate is accepted is decided by SQL, not by dates: clocks of machines may be wrong.
WITHOUT_END = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""RFC 5280: a certificate without an end."""
FROM_BEGINNING = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class FollowerCertificate:
    """A certificate and its private key, each as PEM."""

    certificate: str
    key: str


def load(files: Files, folder: str) -> FollowerCertificate | None:
    """Return the certificate in a folder; None if there is none. Raises OSError, FollowerError if
    it is damaged."""
    content = sealed_file.load(files, f"{folder}/{NAME}")
    return None if content is None else FollowerCertificate(content["certificate"], content["key"])


def load_or_make(files: Files, folder: str) -> FollowerCertificate:
    """Return the certificate in a folder, after making it if there is none. Raises OSError,
    FollowerError, DiskFailed."""
    found = load(files, folder)
    if found is None:
        found = make()
        content = {"certificate": found.certificate, "key": found.key}
        sealed_file.save(files, f"{folder}/{NAME}", content)
    return found


def make() -> FollowerCertificate:
    """Return a new certificate that is signed with its own key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kafkawire follower")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(FROM_BEGINNING).not_valid_after(WITHOUT_END)
    certificate = builder.sign(key, hashes.SHA256())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return FollowerCertificate(
        certificate.public_bytes(serialization.Encoding.PEM).decode(), pem.decode()
    )


def server_context(found: FollowerCertificate, folder: str) -> ssl.SSLContext:
    """Return the context of a follower. `folder`: for a file that exists during this call. Raises
    OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Both ends are kafkawire, so there are no older clients.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # OpenSSL reads keys from files only. This one has mode 0600.
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix="certificate.") as file:
        file.write(found.certificate + found.key)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def client_context(certificate: str) -> ssl.SSLContext:
    """Return the context of a broker that accepts one certificate only. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The certificate has no name to compare: it is the only one that is accepted, so there is no
    # authority that could have signed one for another name.
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context
