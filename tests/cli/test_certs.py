"""kafkawire certs make.

Covers: kafkawire.cli.make_certs.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from cryptography import x509

from kafkawire.cli.app import app
from tests.kit import cli


def run(*words: str) -> Any:
    return cli.run(app, list(words))


def test_the_certificates_work_together(tmp_path: Path) -> None:
    done = run(
        "certs", "make", str(tmp_path / "c"), "--host", "kafka.example.org", "--client", "bob"
    )
    assert done.exit_code == 0, done.stderr
    assert "server.pem" in done.stdout
    folder = tmp_path / "c"
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.key")} == {0o600}
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    client = x509.load_pem_x509_certificate((folder / "client.pem").read_bytes())
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    server.verify_directly_issued_by(ca)
    client.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kafka.example.org" in names.get_values_for_type(x509.DNSName)
    assert client.subject.rfc4514_string() == "CN=bob"
    ssl.create_default_context(cafile=folder / "ca.pem").load_cert_chain(
        folder / "client.pem", folder / "client.key"
    )


def test_the_authority_is_used_again(tmp_path: Path) -> None:
    assert run("certs", "make", str(tmp_path)).exit_code == 0
    before = (tmp_path / "ca.pem").read_bytes(), (tmp_path / "server.pem").read_bytes()
    assert run("certs", "make", str(tmp_path)).exit_code == 0
    assert (tmp_path / "ca.pem").read_bytes() == before[0]
    assert (tmp_path / "server.pem").read_bytes() != before[1]
