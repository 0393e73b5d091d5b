"""Tokens of OAUTHBEARER: what is accepted, and forged, foreign and expired ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from joserfc.jwk import RSAKey

from kafkawire.security.sasl.bearer import Bearer, TokenRefused
from kafkawire.security.sasl.replies import LoggedIn, LoginFailure
from kafkawire.security.sasl.tokens import Key, TokenRules, TokenValidator, parse_keys
from tests.kit.issuer import NOW_S, Issuer

ISSUER = Issuer()


def validator(rules: TokenRules | None = None, issuer: Issuer = ISSUER) -> TokenValidator:
    keys: dict[str | None, Key] = dict(parse_keys(issuer.key_set()))

    async def find(kid: str | None) -> Key | None:
        return keys.get(kid)

    strict = TokenRules(frozenset({"kafka", "other"}), "https://issuer", frozenset())
    return TokenValidator(rules or strict, find, lambda: NOW_S * 1000)


def validate(token: str, rules: TokenRules | None = None, issuer: Issuer = ISSUER) -> LoggedIn:
    return asyncio.run(validator(rules, issuer).validate(token))


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES384", "Ed25519"])
def test_token_with_each_kind_of_key(algorithm: str) -> None:
    issuer = Issuer(algorithm=algorithm)
    found = validate(issuer.token(), issuer=issuer)
    assert found == LoggedIn("alice", (NOW_S + 3600) * 1000)


def test_token_within_skew_is_valid() -> None:
    assert validate(ISSUER.token(exp=NOW_S - 29)).expires_ms == (NOW_S - 29) * 1000
    assert validate(ISSUER.token(nbf=NOW_S + 29, iat=NOW_S + 29))


def test_audience_may_be_list_and_rules_may_be_open() -> None:
    assert validate(ISSUER.token(aud=["x", "kafka"]))
    assert validate(ISSUER.token(aud=None, iss="anyone"), TokenRules())


def test_scopes_and_user_of_other_claims() -> None:
    rules = TokenRules(scopes=frozenset({"a", "b"}), user_claim="login", scope_claim="scp")
    assert validate(ISSUER.token(scp="b c a", login="bob"), rules).user == "bob"
    assert validate(ISSUER.token(scp=["a", "b"], login="bob"), rules).user == "bob"
    with pytest.raises(TokenRefused) as refused:
        validate(ISSUER.token(scp="a", login="bob"), rules)
    assert (refused.value.status, refused.value.scope) == ("insufficient_scope", "a b")


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://other"}, {"iss": None}, {"aud": "else"}, {"aud": None}, {"aud": 7},
        {"exp": NOW_S - 31}, {"exp": None}, {"iat": None}, {"nbf": NOW_S + 31},
        {"iat": NOW_S + 31}, {"exp": "soon"}, {"exp": True}, {"exp": 1e300}, {"sub": None},
        {"sub": " "}, {"sub": 7},
    ],
)  # fmt: skip
def test_foreign_or_expired_token_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(TokenRefused):
        validate(ISSUER.token(**claims))


def forged(header: dict[str, Any], claims: Any = None, secret: bytes | None = None) -> str:
    payload = claims if claims is not None else {"sub": "alice", "iat": NOW_S, "exp": NOW_S + 9}
    parts = [json.dumps(header).encode(), payload if isinstance(payload, bytes) else b""]
    parts[1] = parts[1] or json.dumps(payload).encode()
    text = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    signature = b"" if secret is None else hmac.digest(secret, text.encode(), hashlib.sha256)
    return f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def test_unsigned_token_is_refused() -> None:
    for algorithm in ("none", "None", "", None):
        with pytest.raises(TokenRefused):
            validate(forged({"alg": algorithm, "kid": "one"}), TokenRules())


def test_public_key_as_secret_of_hmac_is_refused() -> None:
    issuer = Issuer(algorithm="RS256")
    key: RSAKey = issuer.key
    for secret in (key.as_pem(private=False), issuer.key_set()):
        with pytest.raises(TokenRefused):
            validate(forged({"alg": "HS256", "kid": "one"}, None, secret), TokenRules(), issuer)


def test_keys_named_by_token_are_ignored() -> None:
    mine = Issuer()
    own = {"jku": "https://evil/keys", "x5u": "https://evil/x", "jwk": mine.key.as_dict()}
    for name, value in own.items():
        with pytest.raises(TokenRefused):
            validate(mine.token(header={name: value}), TokenRules())


def test_changed_or_cut_token_is_refused() -> None:
    token = ISSUER.token()
    head, body, signature = token.split(".")
    other = ISSUER.token(sub="admin").split(".")[1]
    changed = (
        f"{head}.{other}.{signature}", f"{head}.{body}.", f"{head}.{body}", token[:-4], "a.b.c",
        "", "..", "\xff", f"{'a' * 100_000}.b.c", f"{token}.x.y",
    )  # fmt: skip
    for each in changed:
        with pytest.raises(TokenRefused):
            validate(each, TokenRules())


def test_deep_json_is_refused_without_recursion() -> None:
    deep = b"[" * 30_000 + b"]" * 30_000
    header = base64.urlsafe_b64encode(deep).decode().rstrip("=")
    for token in (f"{header}.e30.AAAA", forged({"alg": "ES256", "kid": "one"}, deep)):
        with pytest.raises(TokenRefused):
            validate(token, TokenRules())


def test_unusable_key_ids_are_refused() -> None:
    for kid in ("x" * 1001, 7, ["one"], "unknown"):
        with pytest.raises(TokenRefused):
            validate(forged({"alg": "ES256", "kid": kid}), TokenRules())


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"keys": 7}', b'{"keys": [7]}', b'{"keys": [{"kty": "RSA"}]}']
)
def test_malformed_key_set_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_keys(text)


def test_keys_for_encryption_and_secrets_are_left_out() -> None:
    rows = [{"kty": "oct", "k": "AAAA"}, {"kty": "RSA", "use": "enc"}]
    assert parse_keys(json.dumps({"keys": rows}).encode()) == []


# the messages around the token


def step(bearer: Bearer, token: bytes) -> Any:
    return asyncio.run(bearer.step(token))


def message(token: str, authorization: str = "", more: str = "") -> bytes:
    return f"n,{authorization},\x01auth=Bearer {token}\x01{more}\x01".encode()


def test_message_with_extensions() -> None:
    bearer = Bearer(validator().validate)
    reply = step(bearer, message(ISSUER.token(), "a=alice", "host=h\x01port=9092\x01"))
    assert reply.token == b""
    assert reply.logged_in.user == "alice"
    assert step(Bearer(validator().validate), b"n,,\x01auth=bearer " + ISSUER.token().encode() +
                b"\x01\x01").logged_in  # fmt: skip


def test_refused_token_is_described_then_fails() -> None:
    bearer = Bearer(validator().validate)
    reply = step(bearer, message(ISSUER.token(iss="x")))
    assert reply == (b'{"status":"invalid_token"}', None)
    with pytest.raises(LoginFailure) as failure:
        step(bearer, b"\x01")
    assert failure.value.text == '{"status":"invalid_token"}'


@pytest.mark.parametrize(
    "first",
    [
        b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Basic abc\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a\x01", b"n,,auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
    ],
)  # fmt: skip
def test_malformed_message_is_refused(first: bytes) -> None:
    with pytest.raises(LoginFailure) as failure:
        step(Bearer(validator().validate), first)
    assert failure.value.text is None


def test_authorization_id_must_be_the_principal() -> None:
    with pytest.raises(LoginFailure) as failure:
        step(Bearer(validator().validate), message(ISSUER.token(), "a=bob"))
    assert "bob" in str(failure.value.text)
