"""Which requests a log-in allows, in which order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.compile import encode
from kafkawire.handlers.table import ROWS
from kafkawire.messages.api_versions import ApiVersionsRequest
from kafkawire.messages.headers import RequestHeader
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.messages.registry import spec_of
from kafkawire.messages.sasl_authenticate import SaslAuthenticateRequest
from kafkawire.messages.sasl_handshake import SaslHandshakeRequest
from kafkawire.security.sasl.bearer import Bearer, TokenRefused
from kafkawire.security.sasl.machine import MAX_TOKENS, MAX_VERSIONS, FrameKind, LoginMachine
from kafkawire.security.sasl.plain import Plain
from kafkawire.security.sasl.replies import LoggedIn, LoginFailure, Mechanism
from kafkawire.security.sasl.scram import Hash, Scram, UserCredential, derive

VERSIONS = ApiVersionsRequest(client_software_name="x", client_software_version="1")
ENABLED = ["PLAIN", "SCRAM-SHA-256"]


def frame(key: int, version: int, message: Any) -> memoryview:
    header = RequestHeader(key, version, 7, "client")
    form = spec_of(key).request_header_version(version)
    return memoryview(encode(header, form) + encode(message, version))


def handshake(mechanism: str = "PLAIN", version: int = 1) -> memoryview:
    return frame(17, version, SaslHandshakeRequest(mechanism))


def token(data: bytes = b"x", version: int = 2) -> memoryview:
    return frame(36, version, SaslAuthenticateRequest(data))


def machine(before: str | None = None) -> LoginMachine:
    return LoginMachine(ENABLED, before)


def test_log_in_with_every_version() -> None:
    for version in (0, 1, 2):
        login = machine()
        found = login.frame(frame(18, 3, VERSIONS))
        assert (found.kind, found.version, found.correlation_id) == (FrameKind.VERSIONS, 3, 7)
        login.versions_answered(0)
        assert login.frame(handshake()).error == 0
        found = login.frame(token(b"abc", version))
        assert (found.kind, found.token, found.version, found.raw) == (
            FrameKind.TOKEN, b"abc", version, False,
        )  # fmt: skip
        assert login.client_id == "client"
        assert login.mechanism == "PLAIN"


def test_raw_tokens_after_handshake_0() -> None:
    login = machine()
    login.frame(handshake(version=0))
    assert login.raw
    for data in (b"", b"x", b"\0\0\0\0abc"):
        found = login.frame(memoryview(data))
        assert (found.kind, found.token, found.raw) == (FrameKind.TOKEN, data, True)


def test_mechanism_that_is_not_enabled() -> None:
    for name in ("plain", "GSSAPI", "", "x" * 1000):
        login = machine()
        found = login.frame(handshake(name))
        assert (found.kind, found.error, found.delayed) == (FrameKind.HANDSHAKE, 33, True)
        assert login.frame(token()).kind is FrameKind.CLOSE


def test_log_in_serves_the_version_that_is_advertised() -> None:
    """A client that is refused a version which the answer lists gives up (franz-go)."""
    (row,) = (each for each in ROWS if each.key == 18)
    for version in range(row.min_version, row.max_version + 1):
        found = machine().frame(frame(18, version, VERSIONS))
        assert (found.kind, found.version) == (FrameKind.VERSIONS, version)
        assert found.request is not None


def test_versions_may_be_repeated_after_error_only() -> None:
    login = machine()
    assert login.frame(frame(18, 3, VERSIONS)).request == VERSIONS
    login.versions_answered(42)
    header = encode(RequestHeader(18, 99, 8, "client"), 2)
    found = login.frame(memoryview(header + b"garbage"))
    assert (found.kind, found.request, found.version) == (FrameKind.VERSIONS, None, 99)
    login.versions_answered(35)
    login.frame(frame(18, 0, VERSIONS))
    login.versions_answered(0)
    assert login.frame(frame(18, 0, VERSIONS)).kind is FrameKind.CLOSE


def test_number_of_requests_is_limited() -> None:
    login = machine()
    for _ in range(MAX_VERSIONS):
        assert login.frame(frame(18, 3, VERSIONS)).kind is FrameKind.VERSIONS
    assert login.frame(frame(18, 3, VERSIONS)).kind is FrameKind.CLOSE
    login = machine()
    login.frame(handshake())
    for _ in range(MAX_TOKENS):
        assert login.frame(token()).kind is FrameKind.TOKEN
    assert login.frame(token()).kind is FrameKind.CLOSE


@pytest.mark.parametrize(
    "data",
    [
        bytes(frame(3, 9, MetadataRequest())), bytes(token()), b"", b"\0", b"GET / HTTP\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01", bytes(handshake())[:5],
        bytes(handshake(version=1))[:-3],
        b"\0\x11\0\x02" + bytes(20), b"\0\x12\0\x03" + b"\xff" * 30,
    ],
)  # fmt: skip
def test_everything_else_closes_connection(data: bytes) -> None:
    found = machine().frame(memoryview(data))
    assert found.kind is FrameKind.CLOSE
    assert not found.delayed


def test_other_request_between_tokens_closes_after_delay() -> None:
    for data in (frame(3, 9, MetadataRequest()), handshake(), frame(18, 3, VERSIONS)):
        login = machine()
        login.frame(handshake())
        found = login.frame(data)
        assert (found.kind, found.delayed) == (FrameKind.CLOSE, True)


def test_nothing_follows_a_refusal() -> None:
    login = machine()
    login.frame(handshake())
    login.frame(token())
    login.fail_login()
    assert login.frame(token()).kind is FrameKind.CLOSE


def test_log_in_again_has_same_mechanism() -> None:
    login = machine("PLAIN")
    assert login.frame(frame(18, 3, VERSIONS)).kind is FrameKind.CLOSE
    login = machine("PLAIN")
    assert login.frame(handshake()).error == 0
    assert login.frame(token()).kind is FrameKind.TOKEN
    login = machine("PLAIN")
    assert login.frame(handshake("SCRAM-SHA-256")).error == 0
    assert login.frame(token()).kind is FrameKind.CLOSE


PREFIXES = (b"", bytes(frame(18, 3, VERSIONS)), bytes(handshake()), bytes(token()))


@given(st.lists(st.tuples(st.sampled_from(PREFIXES), st.integers(0, 40), st.binary(max_size=60))))
def test_any_bytes_get_a_decision(frames: list[tuple[bytes, int, bytes]]) -> None:
    login = machine()
    for prefix, cut, rest in frames:
        found = login.frame(memoryview(prefix[: len(prefix) - cut] + rest))
        if found.kind is FrameKind.VERSIONS:
            login.versions_answered(0)


@given(st.lists(st.binary(max_size=80), max_size=3), st.sampled_from(["plain", "scram", "bearer"]))
def test_any_token_is_answered_or_refused(tokens: list[bytes], kind: str) -> None:
    async def no(*_: object) -> bool:
        return False

    async def refuse(_: str) -> LoggedIn:
        raise TokenRefused("no")

    credential = UserCredential(derive(Hash.SHA256, "pw", b"salt", 1), True)
    logins: dict[str, Mechanism] = {
        "plain": Plain(no),
        "scram": Scram(Hash.SHA256, lambda _: credential, "nonce"),
        "bearer": Bearer(refuse),
    }
    login = logins[kind]
    prefix = {"plain": b"", "scram": b"n,,n=a,r=b", "bearer": b"n,,\x01auth=Bearer a"}[kind]
    for each in (prefix, *tokens, *(prefix + each for each in tokens)):
        try:
            asyncio.run(login.step(each))
        except LoginFailure:
            return
