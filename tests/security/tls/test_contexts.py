"""PEM files of the broker: what is refused, and with which sentence."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from kafkawire.cli.certs import issue
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.security.tls.contexts import (
    MAX_FILE_BYTES,
    ExpiredCertificate,
    TlsError,
    TlsSettings,
    load,
)
from tests.kit.tls import (
    authority,
    certificates,
    client_context,
    expired_server,
    save,
    settings,
)


def test_usable_files() -> None:
    made = load(settings("required"))
    assert made.expires_s > 0
    assert made.asking.verify_mode.name == "CERT_REQUIRED"
    assert made.silent.verify_mode.name == "CERT_NONE"
    assert made.silent.minimum_version.name == "TLSv1_2"


def test_one_version_only() -> None:
    for version in ("TLSv1.2", "TLSv1.3"):
        assert load(settings(protocols=(version,))).silent.maximum_version.name == (
            version.replace(".", "_")
        )


def test_key_and_certificate_in_one_file(tmp_path: Path) -> None:
    both = save(tmp_path, issue("x", authority(), 1, ["localhost"]))
    assert load(settings(keystore=str(both), key="")).expires_s


def refused(**given: object) -> str:
    with pytest.raises(TlsError) as caught:
        load(settings(**given))  # type: ignore[arg-type]
    return str(caught.value)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no certificate")
    assert refused(keystore="/nowhere") == (
        "ssl.keystore.location=/nowhere: it cannot be read (No such file or directory)"
    )
    assert "a certificate and its private key in PEM format" in refused(keystore=str(text))
    assert "a certificate and its private key in PEM format" in refused(key=str(text))
    assert "certificates in PEM format" in refused(truststore=str(text), client_auth="required")
    assert "a certificate and its private key" in refused(key="")  # the key is in no file
    large = tmp_path / "large"
    large.write_bytes(bytes(MAX_FILE_BYTES + 1))
    assert "at most" in refused(keystore=str(large))
    assert refused(keystore=str(tmp_path)).endswith("it cannot be read (Is a directory)")


def test_a_key_of_another_certificate() -> None:
    assert "the key does not belong to the certificate" in refused(
        key=f"{certificates()}/client.key"
    )


def test_a_key_with_a_password(tmp_path: Path) -> None:
    made = issue("x", authority(), 1, ["localhost"])
    path = tmp_path / "key"
    path.write_bytes(
        made.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    (tmp_path / "cert").write_bytes(made.certificate_pem())
    assert "has a password" in refused(keystore=f"{tmp_path}/cert", key=str(path))


def test_an_expired_certificate(tmp_path: Path) -> None:
    expired = settings(keystore=str(expired_server(tmp_path)), key="")
    with pytest.raises(ExpiredCertificate, match="has expired"):
        load(expired)
    assert load(expired, may_be_expired=True).expires_s == 0


def test_a_certificate_of_a_client_only() -> None:
    made = certificates()
    assert "clients would refuse it" in refused(
        keystore=f"{made}/client.pem", key=f"{made}/client.key"
    )


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ({}, "needs ssl.keystore.location"),
        ({"ssl.keystore.location": "x", "ssl.enabled.protocols": ""}, "must have TLSv1.2"),
        ({"ssl.keystore.location": "x", "ssl.client.auth": "required"}, "ssl.truststore.location"),
    ],
)
def test_settings_that_are_missing(texts: dict[str, str], why: str) -> None:
    with pytest.raises(TlsError, match=why):
        TlsSettings.from_config(BrokerConfig(texts))


def resumed(server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None) -> Any:
    """Return the two ends of a handshake in memory, in which the client asks to resume."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(incoming, outgoing, server_side=True)
    theirs = client.wrap_bio(outgoing, incoming, server_hostname="localhost", session=session)
    for _ in range(4):
        for each in (theirs, ours):
            with suppress(ssl.SSLWantReadError):
                each.do_handshake()
    return ours, theirs


def test_resumed_session_has_the_certificate_and_ends_with_the_context() -> None:
    client = client_context()
    client.load_cert_chain(f"{certificates()}/client.pem", f"{certificates()}/client.key")
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    before, after = load(settings("required")), load(settings("required"))
    first, theirs = resumed(before.asking, client, None)
    again, _ = resumed(before.asking, client, theirs.session)
    assert (first.session_reused, again.session_reused) == (False, True)
    assert again.getpeercert(True) == first.getpeercert(True) is not None
    for other in (after.asking, before.silent):
        assert not resumed(other, client, theirs.session)[0].session_reused
    assert before.asking.session_stats()["number"] == 0, "sessions kept in memory"
