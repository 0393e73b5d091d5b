"""The state machine of a log-in: which frame of a client is allowed next, and what follows from it.

As in Kafka's SaslServerAuthenticator: ApiVersions, SaslHandshake, then tokens, which are raw frames
after SaslHandshake v0, and SaslAuthenticate requests after v1. Nothing else is decoded before the
log-in is complete. A re-authentication (KIP-368) begins with SaslHandshake and must keep mechanism
and principal.

Differences from Kafka: the number of requests is limited, and a request other than SaslAuthenticate
in the middle of a log-in closes the connection without ILLEGAL_SASL_STATE, because answering it
would mean to decode it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from kafkawire.codec.compile import DecodeError, decode, decoder
from kafkawire.codec.errors import ErrorCode
from kafkawire.log_lines import shorten_for_log
from kafkawire.messages.headers import RequestHeader
from kafkawire.messages.registry import APIS, request_class, spec_of

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36

MAX_VERSIONS = 5
"""ApiVersions requests of one log-in: clients send three while they search for a version."""
MAX_TOKENS = 10
"""Tokens of one log-in: SCRAM has two, OAUTHBEARER after a refusal too."""


class FrameKind(Enum):
    """The meaning of a frame."""

    CLOSE = auto()
    VERSIONS = auto()
    HANDSHAKE = auto()
    TOKEN = auto()


@dataclass(frozen=True, slots=True)
class FrameDecision:
    """The reaction to a frame. CLOSE: `reason` is for the log; `delayed`: after the delay of failed
    log-ins. HANDSHAKE: `error` is the code. TOKEN: `token`; `raw` if it is answered by a raw frame.
    VERSIONS: `request`, or None if its version is not served."""

    kind: FrameKind
    version: int = 0
    correlation_id: int = 0
    reason: str = ""
    error: int = 0
    token: bytes = b""
    raw: bool = False
    request: Any = None
    delayed: bool = False


class _State(Enum):
    VERSIONS_OR_HANDSHAKE = auto()
    HANDSHAKE = auto()
    RAW_TOKENS = auto()
    TOKENS = auto()
    REFUSED = auto()


class LoginMachine:
    """One log-in of a connection. `mechanisms`: those that are enabled. `before`: the mechanism of
    the session, in a re-authentication."""

    __slots__ = ("_before", "_mechanisms", "_state", "_tokens", "_versions", "client_id",
                 "mechanism")  # fmt: skip

    def __init__(self, mechanisms: Sequence[str], before: str | None = None) -> None:
        self._mechanisms = mechanisms
        self._before = before
        self._state = _State.VERSIONS_OR_HANDSHAKE if before is None else _State.HANDSHAKE
        self._versions = self._tokens = 0
        self.mechanism = ""
        self.client_id: str | None = None

    @property
    def raw(self) -> bool:
        """Whether frames are tokens without a header, which may be empty."""
        return self._state is _State.RAW_TOKENS

    def frame(self, frame: memoryview) -> FrameDecision:
        """Decide on a frame, given without its length."""
        if self._state is _State.REFUSED:
            return FrameDecision(FrameKind.CLOSE, reason="it continued after a refused log-in")
        if self._state is _State.RAW_TOKENS:
            return self._token(bytes(frame), FrameDecision(FrameKind.TOKEN, raw=True))
        try:
            return self._request(frame)
        except (DecodeError, IndexError, ValueError) as wrong:
            return FrameDecision(
                FrameKind.CLOSE, reason=f"a malformed request during the log-in: {wrong!r}"
            )

    def _request(self, frame: memoryview) -> FrameDecision:
        key, version, number, at = self._header(frame)
        if self._state is _State.TOKENS:
            if key != SASL_AUTHENTICATE or not _serves(key, version):
                reason = f"API {key} version {version} in the middle of a log-in"
                return FrameDecision(FrameKind.CLOSE, reason=reason, delayed=True)
            request = decode(request_class(key), version, frame[at:])
            return self._token(request.auth_bytes, FrameDecision(FrameKind.TOKEN, version, number))
        allowed = self._state is _State.VERSIONS_OR_HANDSHAKE
        if key == API_VERSIONS and allowed:
            return self._api_versions(version, number, frame[at:])
        if key == SASL_HANDSHAKE and _serves(key, version):
            request = decode(request_class(key), version, frame[at:])
            return self._handshake(request.mechanism, version, number)
        return FrameDecision(FrameKind.CLOSE, reason=self._too_early(key, version))

    def _too_early(self, key: int, version: int) -> str:
        """Return why a request is refused that is not part of a log-in, and what to do."""
        if key not in APIS:
            return "no Kafka request before the log-in"
        return (
            f"{APIS[key].name} v{version} before the log-in that this listener requires: set "
            "security.protocol=SASL_PLAINTEXT (with TLS: SASL_SSL) and sasl.mechanism="
            f"{' or '.join(self._mechanisms)} for the client"
        )

    def _header(self, frame: memoryview) -> tuple[int, int, int, int]:
        key, version = int.from_bytes(frame[:2], "big", signed=True), int.from_bytes(frame[2:4])
        if key not in (SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE):
            return key, version, 0, 0  # refused without decoding it
        form = spec_of(key).request_header_version(version)
        header, at = decoder(RequestHeader, form)(frame, 0, len(frame))
        if self.client_id is None:
            self.client_id = header.client_id
        return key, version, header.correlation_id, at

    def _api_versions(self, version: int, number: int, body: memoryview) -> FrameDecision:
        self._versions += 1
        if self._versions > MAX_VERSIONS:
            return FrameDecision(
                FrameKind.CLOSE, reason=f"more than {MAX_VERSIONS} ApiVersions requests"
            )
        if not _serves(API_VERSIONS, version):
            return FrameDecision(FrameKind.VERSIONS, version, number)
        request = decode(request_class(API_VERSIONS), version, body)
        return FrameDecision(FrameKind.VERSIONS, version, number, request=request)

    def versions_answered(self, error: int) -> None:
        """ApiVersions was answered with this code: after an error it may be sent again."""
        if not error:
            self._state = _State.HANDSHAKE

    def _handshake(self, mechanism: str, version: int, number: int) -> FrameDecision:
        error = 0
        if mechanism not in self._mechanisms:
            error = int(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
            self._state = _State.REFUSED
        else:
            self._state = _State.RAW_TOKENS if version == 0 else _State.TOKENS
            self.mechanism = mechanism
        return FrameDecision(
            FrameKind.HANDSHAKE, version, number, error=error, delayed=bool(error),
            reason=f"{shorten_for_log(mechanism)} is none of the mechanisms "
            f"{', '.join(self._mechanisms)}" if error else "",
        )  # fmt: skip

    def _token(self, token: bytes, decision: FrameDecision) -> FrameDecision:
        if self._before is not None and self.mechanism != self._before:
            reason = f"re-authentication with {self.mechanism}, the log-in was with {self._before}"
            return FrameDecision(FrameKind.CLOSE, reason=reason)
        self._tokens += 1
        if self._tokens > MAX_TOKENS:
            return FrameDecision(
                FrameKind.CLOSE, reason=f"more than {MAX_TOKENS} tokens in one log-in"
            )
        return FrameDecision(
            FrameKind.TOKEN,
            decision.version,
            decision.correlation_id,
            token=token,
            raw=decision.raw,
        )

    def fail_login(self) -> None:
        """Accept no further frame: the log-in failed."""
        self._state = _State.REFUSED


def _serves(key: int, version: int) -> bool:
    spec = spec_of(key)
    return spec.min_version <= version <= spec.max_version
