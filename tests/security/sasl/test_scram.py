"""SCRAM's server side: RFC vectors, malformed and forged messages, unknown users."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64decode, b64encode

import pytest

from kafkawire.security.sasl.replies import LoggedIn, LoginFailure, TokenReply
from kafkawire.security.sasl.scram import (
    Hash,
    Scram,
    ScramCredential,
    UserCredential,
    derive,
    matches,
    of_salted,
    server_nonce,
)
from tests.kit.sasl import ScramClient

NONCE = "3rfcNHYJY1ZVvWVs7j"
RFC_NONCE, RFC_SERVER = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def server(credential: ScramCredential, known: bool = True, kind: Hash = Hash.SHA256) -> Scram:
    return Scram(kind, lambda _: UserCredential(credential, known), NONCE)


def run(scram: Scram, token: bytes) -> TokenReply:
    return asyncio.run(scram.step(token))


def test_rfc_7677_example() -> None:
    credential = derive(Hash.SHA256, "pencil", RFC_SALT, 4096)
    scram = Scram(Hash.SHA256, lambda _: UserCredential(credential, True), RFC_SERVER)
    first = run(scram, f"n,,n=user,r={RFC_NONCE}".encode())
    assert first == TokenReply(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    last = run(
        scram,
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    )
    assert last == TokenReply(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", LoggedIn("user"))


@pytest.mark.parametrize("kind", Hash)
@pytest.mark.parametrize("name", ["alice", "a=2Cb=3Dc", "x" * 1000])
def test_log_in_with_each_hash(kind: Hash, name: str) -> None:
    scram = server(derive(kind, "secret", b"salt", 4096), kind=kind)
    client = ScramClient(name, "secret", kind)
    reply = run(scram, client.last(run(scram, client.first).token))
    assert reply.token == b"v=" + b64encode(client.signature)
    assert reply.logged_in == LoggedIn(name.replace("=2C", ",").replace("=3D", "="))


def test_salted_password_of_admin_clients_is_same_credential() -> None:
    salted = hashlib.pbkdf2_hmac("sha512", b"pw", b"s", 5000)
    assert of_salted(Hash.SHA512, salted, b"s", 5000) == derive(Hash.SHA512, "pw", b"s", 5000)
    assert matches(Hash.SHA512, "pw", derive(Hash.SHA512, "pw", b"s", 5000))
    assert not matches(Hash.SHA512, "pW", derive(Hash.SHA512, "pw", b"s", 5000))


def test_old_librdkafka_puts_its_nonce_there_twice() -> None:
    scram = server(derive(Hash.SHA256, "secret", b"salt", 4096))
    client = ScramClient("alice", "secret")
    answer = run(scram, client.first).token
    assert run(scram, client.last(answer, prefix="abc")).logged_in


@pytest.mark.parametrize(
    "first",
    [
        b"", b"n,,", b"y,,n=a,r=b", b"p=tls-unique,,n=a,r=b", b"n,,n=a=2,r=b", b"n,,n=a",
        b"n,,n=,r=b", b"n,,n=a,r=", b"n,,n=\xc3\xa9,r=b", b"n,,n=a\0b,r=b", b"n,,n=a,r=b,x",
        b"c=biws,r=abc,p=AAAA", b"n,a=bob,n=alice,r=x", b"\xff" * 100, b"n,,n=a,r=b\n",
    ],
)  # fmt: skip
def test_malformed_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(LoginFailure):
        run(server(derive(Hash.SHA256, "secret", b"salt", 4096)), first)


def test_first_message_of_a_megabyte_is_answered_or_refused() -> None:
    scram = server(derive(Hash.SHA256, "secret", b"salt", 4096))
    assert run(scram, b"n,,n=" + b"x" * (1 << 20) + b",r=b").token
    with pytest.raises(LoginFailure):
        run(server(derive(Hash.SHA256, "s", b"s", 4096)), b"n,,n=" + b"=2C" * 300_000 + b"=,r=b")


@pytest.mark.parametrize("change", ["nonce", "short", "proof", "cut", "replayed", "empty"])
def test_forged_last_message_is_refused(change: str) -> None:
    scram = server(derive(Hash.SHA256, "secret", b"salt", 4096))
    client = ScramClient("alice", "secret")
    last = client.last(run(scram, client.first).token)
    if change == "nonce":
        last = last.replace(NONCE.encode(), NONCE.encode() + b"x")
    elif change == "short":
        last = last.replace(b"r=abc", b"r=bc")
    elif change == "proof":
        last = last[:-5] + (b"AAAA=" if last[-5:] != b"AAAA=" else b"BBBB=")
    elif change == "cut":
        last = last[: last.index(b"p=") + 6]
    elif change == "empty":
        last = last[: last.index(b"p=") + 2]
    else:
        scram = server(derive(Hash.SHA256, "secret", b"salt", 4096))
        scram._own_nonce = "another"
        run(scram, client.first)
    with pytest.raises(LoginFailure) as failure:
        run(scram, last)
    assert failure.value.text is None
    assert "secret" not in failure.value.cause


def test_unknown_user_fails_at_last_message_even_with_right_proof() -> None:
    scram = server(derive(Hash.SHA256, "secret", b"salt", 4096), known=False)
    client = ScramClient("alice", "secret")
    answer = run(scram, client.first).token
    assert answer.startswith(b"r=abc" + NONCE.encode())
    with pytest.raises(LoginFailure):
        run(scram, client.last(answer))


def test_too_few_iterations_are_refused() -> None:
    scram = server(derive(Hash.SHA256, "secret", b"salt", 1000))
    client = ScramClient("alice", "secret")
    with pytest.raises(LoginFailure):
        run(scram, client.last(run(scram, client.first).token))


def test_token_of_delegation_is_not_a_password() -> None:
    for more, good in ((",tokenauth=true", False), (",tokenauth=false,k=v", True)):
        scram = server(derive(Hash.SHA256, "secret", b"salt", 4096))
        client = ScramClient("alice", "secret", more=more)
        last = client.last(run(scram, client.first).token)
        if good:
            assert run(scram, last).logged_in
        else:
            with pytest.raises(LoginFailure):
                run(scram, last)


def test_server_nonce_is_base_36_of_all_bits() -> None:
    assert int(server_nonce(lambda bits: (1 << bits) - 1), 36) == (1 << 130) - 1
    assert server_nonce(lambda _: 0) == "0"
    assert int(server_nonce(lambda _: 123456789), 36) == 123456789


def test_credential_does_not_show_its_keys() -> None:
    credential = derive(Hash.SHA256, "secret", b"salt", 4096)
    assert repr(credential) == "ScramCredential(iterations=4096)"
