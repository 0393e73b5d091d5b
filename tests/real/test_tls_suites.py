"""Suites and versions of the TLS listeners, tried one by one with OpenSSL, as scanners do.

A refusal counts only with the broker's alert: a client that could not even ask proves nothing.
"""

from __future__ import annotations

import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_port
from tests.kit.tls import certificates

ALL = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"
HANDSHAKE_FAILURE, PROTOCOL_VERSION, INAPPROPRIATE_FALLBACK = 40, 70, 86
KEYS = ("ECDSA", "RSA")
STRONG = ("AES256-GCM-SHA384", "CHACHA20-POLY1305", "AES128-GCM-SHA256")
SUITES_OF_13 = (
    "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256",
    "TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256",
)  # fmt: skip
SHARED_SECRET = ("-psk", "00", "-srpuser", "user", "-srppass", "pass:password")
"""Without them the client would leave out the suites that need them."""


class Answer(NamedTuple):
    """The answer to OpenSSL's client: a suite, or an alert."""

    suite: str
    alert: int
    text: str


class Offer:
    """A broker whose certificate has a key of this kind."""

    def __init__(self, kind: str, port: int, process: BrokerProcess) -> None:
        self.kind = kind
        self.port = port
        self.process = process

    def ask(self, *options: str, data: str = "") -> Answer:
        """Return the answer to OpenSSL's client, which ends after the handshake and `data`."""
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{self.port}", *options],
            input=data, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        text = done.stdout + done.stderr
        suite = re.search(r"Cipher is ([A-Z][\w-]+)", text)
        alert = re.search(r"SSL alert number (\d+)", text)
        return Answer(suite[1] if suite else "", int(alert[1]) if alert else 0, text)


@pytest.fixture(scope="module", params=KEYS)
def offer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Offer]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder, made, port = tmp_path_factory.mktemp("suites"), certificates(), free_port()
    certificate, key = made / "server.pem", made / "server.key"
    if request.param == "RSA":
        certificate, key = rsa(folder)
    settings = {"ssl.keystore.location": certificate, "ssl.key.location": key}
    with BrokerProcess(
        folder / "data", settings=settings, listeners=[f"TLS://127.0.0.1:{port}"]
    ) as process:
        yield Offer(request.param, port, process)
        assert "Traceback" not in process.output


def rsa(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "rsa.pem", folder / "rsa.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return certificate, key


def known_suites() -> list[str]:
    """Return the suites up to TLS 1.2 that OpenSSL's client can ask for, the weakest included."""
    done = subprocess.run(
        ["openssl", "ciphers", "-s", "-psk", "-srp", "-tls1_2", ALL],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return [name for name in done.stdout.strip().split(":") if not name.startswith("TLS_")]


def test_each_suite_is_offered_only_if_it_is_strong(offer: Offer) -> None:
    def ask(suite: str) -> Answer:
        return offer.ask("-tls1_2", "-cipher", f"{suite}:@SECLEVEL=0", *SHARED_SECRET)

    suites = known_suites()
    assert len(suites) > 60
    assert {"AES128-SHA", "NULL-SHA256", "ADH-AES128-SHA", "PSK-AES128-CBC-SHA"} <= {*suites}
    with ThreadPoolExecutor(4) as pool:
        answers = dict(zip(suites, pool.map(ask, suites), strict=True))
    offered = {suite for suite, answer in answers.items() if answer.suite == suite}
    assert offered == {f"ECDHE-{offer.kind}-{each}" for each in STRONG}
    others = {suite: a.alert for suite, a in answers.items() if suite not in offered}
    assert {*others.values()} == {HANDSHAKE_FAILURE}, others


def test_each_suite_of_tls_13(offer: Offer) -> None:
    answers = {name: offer.ask("-tls1_3", "-ciphersuites", name) for name in SUITES_OF_13}
    assert [name for name, answer in answers.items() if answer.suite == name] == [*SUITES_OF_13[:3]]
    assert [answers[name].alert for name in SUITES_OF_13[3:]] == [HANDSHAKE_FAILURE] * 2


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_old_versions_are_refused(offer: Offer, version: str) -> None:
    answer = offer.ask(version, "-cipher", ALL)
    assert (answer.suite, answer.alert) == ("", PROTOCOL_VERSION), answer.text


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_old_versions_are_refused_to_any_client(offer: Offer, minor: int) -> None:
    """SSL 3.0, TLS 1.0 and 1.1, with a first message that OpenSSL's client may not send."""
    suites = b"\xc0\x09\xc0\x13\x00\x2f\x00\x0a"
    fields = bytes((3, minor)) + bytes(32) + b"\0" + struct.pack(">H", len(suites)) + suites
    fields += b"\1\0"  # no compression
    hello = b"\1" + len(fields).to_bytes(3) + fields
    record = b"\x16" + bytes((3, minor)) + struct.pack(">H", len(hello)) + hello
    with socket.create_connection(("127.0.0.1", offer.port), 30) as client:
        client.sendall(record)
        found = b""
        while more := client.recv(100):
            found += more
    alert = PROTOCOL_VERSION if minor else HANDSHAKE_FAILURE
    assert (found[:1], found[5:]) == (b"\x15", bytes((2, alert)))


@pytest.mark.parametrize(
    ("options", "alert"),
    [
        (("-fallback_scsv",), INAPPROPRIATE_FALLBACK),
        (("-sigalgs", "ECDSA+SHA1:RSA+SHA1", "-cipher", ALL), HANDSHAKE_FAILURE),
        (("-curves", "secp192r1:secp256k1", "-cipher", ALL), HANDSHAKE_FAILURE),
    ],
)
def test_weak_parameters_are_refused(offer: Offer, options: tuple[str, ...], alert: int) -> None:
    answer = offer.ask("-tls1_2", *options)
    assert (answer.suite, answer.alert) == ("", alert), answer.text


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_properties_of_a_connection(offer: Offer, version: str) -> None:
    said = offer.ask(version, "-comp").text
    assert "Compression: NONE" in said
    assert re.search("Server Temp Key: (X25519|ECDH, prime256v1)", said), said
    assert "Peer signing digest: SHA256" in said
    assert version == "-tls1_3" or "Secure Renegotiation IS supported" in said
    assert "Early data was not sent" in said or version == "-tls1_2"


def test_certificate_is_verified_by_name(offer: Offer) -> None:
    if offer.kind == "RSA":
        pytest.skip("its certificate has no authority")
    ca = f"{certificates()}/ca.pem"
    for name, code in (("localhost", 0), ("other.test", 62)):
        said = offer.ask("-CAfile", ca, "-verify_hostname", name).text
        assert f"Verify return code: {code} " in said


def test_renegotiation_is_refused(offer: Offer) -> None:
    said = offer.ask("-tls1_2", data="R\n").text
    assert "RENEGOTIATING" in said
    assert "no renegotiation" in said


def test_only_tls_12_resumes(offer: Offer) -> None:
    """With tickets, for which the broker keeps nothing."""
    assert "Reused, TLSv1.2" in offer.ask("-tls1_2", "-reconnect").text
    assert "Reused" not in offer.ask("-tls1_3", "-reconnect").text
