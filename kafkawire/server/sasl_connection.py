"""A connection of a listener with SASL: a log-in, then requests, until the session ends.

Before the log-in is complete no byte reaches the table of APIs: `security.sasl.machine` decides
what each frame is, and a mechanism answers its tokens. A session with a limit ends at the first
request after it; SaslHandshake before that begins another log-in with the same mechanism and user
(KIP-368). Answers keep their order with those of requests before.
"""

from __future__ import annotations

import logging
from struct import Struct
from traceback import format_tb
from typing import TYPE_CHECKING

from kafkawire.codec.compile import encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.exchange import Exchange, frame
from kafkawire.messages.sasl_authenticate import SaslAuthenticateResponse
from kafkawire.messages.sasl_handshake import SaslHandshakeResponse
from kafkawire.security.principals import USER, Principal, TokenPrincipal, check_name
from kafkawire.security.sasl.machine import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    FrameDecision,
    FrameKind,
    LoginMachine,
)
from kafkawire.security.sasl.plain import PLAIN
from kafkawire.security.sasl.replies import (
    LoggedIn,
    LoginFailure,
    Mechanism,
    Overloaded,
    TokenReply,
)
from kafkawire.server.connection import Connection, other_protocol

if TYPE_CHECKING:
    from kafkawire.server.connection import ConnectionHost
    from kafkawire.server.listeners.logins import ListenerLogins
    from kafkawire.server.memory import Block
    from kafkawire.server.ports import Wire

logger = logging.getLogger(__name__)

MIN_BETWEEN_LOGINS_S = 1.0
"""Time from one log-in of a connection to the next, after the first two, as in Kafka."""
_LENGTH = Struct(">i")
_HEAD = Struct(">ih")


class SaslConnection(Connection):
    """The state of a connection with log-in. `_login` is None while requests are served."""

    __slots__ = (
        "_again_at", "_expires_at", "_login", "_logins", "_mechanism", "_mechanism_name",
        "_service",
    )  # fmt: skip

    def __init__(
        self,
        host: ConnectionHost,
        wire: Wire,
        client_host: str,
        listener: str,
        logins: ListenerLogins,
    ) -> None:
        super().__init__(host, wire, client_host, listener)
        self._logins = logins.all
        self._service = logins.service
        self._login: LoginMachine | None = LoginMachine(logins.service.mechanisms)
        self._mechanism: Mechanism | None = None
        self._mechanism_name = ""
        self._again_at: float | None = None  # the last log-in after the first
        self._expires_at: float | None = None

    def admit(self) -> bool:
        """Return whether another client may log in now."""
        return self._logins.admit(self)

    def _parse(self, block: Block, pos: int, end: int) -> int:
        """Pass frames to the log-in, or start requests; see Connection."""
        if self._login is None:
            if self._expires_at is None:
                return super()._parse(block, pos, end)
            pos = self._parse_session(block, pos, end, self._expires_at)
        view = block.view
        while (login := self._login) is not None and not self.waits and end - pos >= 4:
            (size,) = _LENGTH.unpack_from(view, pos)
            if not self._is_size(size, view[pos:end]):
                break
            stop = pos + 4 + size
            if stop > end:
                break
            self._take(login, login.frame(view[pos + 4 : stop]))
            pos = stop
        return pos

    def _is_size(self, size: int, data: memoryview) -> bool:
        """Return whether a frame of a log-in, which begins `data`, may have this size; otherwise
        close the connection."""
        if 0 <= size <= self._service.max_receive_bytes:
            return True
        self.abort(other_protocol(data) or f"a frame of {size} bytes before the log-in")
        return False

    def _parse_session(self, block: Block, pos: int, end: int, expires_at: float) -> int:
        """Start the requests of a session with a limit, up to a SaslHandshake that begins another
        log-in."""
        while pos < end and not self.waits:
            at, stop = _find_handshake(block.view, pos, end)
            if at > pos:
                if self._logins.env.clock.monotonic() >= expires_at:
                    self.finish()
                    return pos
                started = super()._parse(block, pos, at)
            elif not self._is_size(stop - at - 4, block.view[at:end]) or stop > end:
                return pos  # incomplete, or closed
            elif self._may_log_in_again():
                return pos
            else:
                started = super()._parse(block, pos, stop)
            if started == pos:
                return pos
            pos = started
        return pos

    def _may_log_in_again(self) -> bool:
        now = self._logins.env.clock.monotonic()
        if self._again_at is not None and now - self._again_at < MIN_BETWEEN_LOGINS_S:
            return False  # the handler answers ILLEGAL_SASL_STATE
        self._again_at = now
        self._login = LoginMachine(self._service.mechanisms, self._mechanism_name)
        self._mechanism = None
        self._logins.start_login(self)
        return True

    def _take(self, login: LoginMachine, decision: FrameDecision) -> None:
        """Serve one frame of a log-in."""
        if decision.kind is FrameKind.CLOSE and not decision.delayed:
            self.abort(decision.reason)
            return
        if self.client_id is None:
            self.client_id = login.client_id
        exchange = Exchange(self, decision.version, decision.correlation_id, False)
        self.exchanges.append(exchange)
        self.note_started(exchange)
        name = f"log-in of a client at {self.client_host}"
        self._logins.env.spawn(self._serve(login, exchange, decision), name)

    async def _serve(
        self, login: LoginMachine, exchange: Exchange, decision: FrameDecision
    ) -> None:
        begun = self._logins.env.clock.monotonic()
        try:
            if decision.kind is FrameKind.VERSIONS:
                await self._answer_versions(login, exchange, decision)
            elif decision.kind is FrameKind.TOKEN:
                await self._answer_token(login, exchange, decision, begun)
            else:
                await self._answer_handshake(exchange, decision, begun)
        except Exception as defect:  # its text might have what the client sent
            where = "".join(format_tb(defect.__traceback__))
            logger.error("a log-in failed with %s:\n%s", type(defect).__name__, where)
            self.abort("its log-in failed because of an error of the broker")

    async def _answer_versions(
        self, login: LoginMachine, exchange: Exchange, decision: FrameDecision
    ) -> None:
        from kafkawire.handlers.api_versions import api_versions, refuse_unsupported_version

        self._count(API_VERSIONS)
        if decision.request is None:
            answer, version = refuse_unsupported_version(), 0
        else:
            version = decision.version
            ctx = RequestContext(
                self._logins.broker, version, self.client_id, self.client_host, self.listener,
                decision.correlation_id, software=self.software,
            )  # fmt: skip
            answer = await api_versions(ctx, decision.request)
        login.versions_answered(answer.error_code)
        self._answer(exchange, frame(decision.correlation_id, encode(answer, version), False))

    async def _answer_handshake(
        self, exchange: Exchange, decision: FrameDecision, begun: float
    ) -> None:
        if decision.kind is FrameKind.CLOSE:
            await self._delay(begun)
            self.abort(decision.reason)
            return
        self._count(SASL_HANDSHAKE)
        response = SaslHandshakeResponse(decision.error, self._service.mechanisms)
        answer = frame(decision.correlation_id, encode(response, decision.version), False)
        if decision.delayed:
            self._logins.note_failed_login(self, "", "", decision.reason)
            await self._answer_last(exchange, answer, begun, decision.reason)
        else:
            self._answer(exchange, answer)

    async def _answer_token(
        self, login: LoginMachine, exchange: Exchange, decision: FrameDecision, begun: float
    ) -> None:
        self._count(SASL_AUTHENTICATE)
        if self._mechanism is None:
            self._mechanism = self._service.start_login(login.mechanism)
        try:
            reply = await self._mechanism.step(decision.token)
            lifetime_ms = 0
            if reply.logged_in is not None:
                lifetime_ms = self._complete(login, reply.logged_in)
        except Overloaded:
            self.abort("too many clients log in at the same time: it may try again")
        except LoginFailure as failure:
            login.fail_login()
            self._logins.note_failed_login(
                self, login.mechanism, self._mechanism.user, failure.cause
            )
            await self._fail(login, exchange, decision, failure, begun)
        else:
            if not self.closed:
                self._answer(exchange, _token_frame(decision, reply, lifetime_ms))

    def _complete(self, login: LoginMachine, logged_in: LoggedIn) -> int:
        """Begin the session; return its lifetime in ms, 0: without a limit. Raises LoginFailure."""
        kind = TokenPrincipal if logged_in.by_token else Principal
        principal = kind(USER, logged_in.user)
        try:
            check_name(logged_in.user)
        except ValueError as wrong:
            raise LoginFailure(None, str(wrong)) from None
        if self._mechanism_name and principal != self.principal:
            raise LoginFailure(
                "Cannot change principals during re-authentication from "
                f"{self.principal.kind}.{self.principal.name}: {principal.kind}.{principal.name}",
                f"the session is of user {self.principal.name}",
            )
        clock = self._logins.env.clock
        limits = [self._service.session_ms(login.mechanism)]
        if logged_in.expires_ms is not None:
            limits.append(logged_in.expires_ms - clock.now_ms())
        lifetime_ms = min((max(0, each) for each in limits if each is not None), default=None)
        self._expires_at = None
        if lifetime_ms is not None:
            self._expires_at = clock.monotonic() + lifetime_ms / 1000
        self._mechanism_name = login.mechanism
        self.host.counts.logged_in(login.mechanism, "succeeded")
        self._mechanism = self._login = None
        self._logins.end_login(self)
        if not self.closed:
            self.set_principal(principal)
        return lifetime_ms or 0

    async def _fail(
        self,
        login: LoginMachine,
        exchange: Exchange,
        decision: FrameDecision,
        failure: LoginFailure,
        begun: float,
    ) -> None:
        """Answer a failed log-in after the delay, and close the connection. A raw token has no
        answer that says so: Kafka closes at once, with PLAIN after the delay."""
        if decision.raw:
            if login.mechanism == PLAIN:
                await self._delay(begun)
            self.finish()
            return
        text = failure.text
        if text is None:
            again = "re-authentication" if self._mechanism_name else "authentication"
            text = (
                f"Authentication failed during {again} due to invalid credentials with SASL "
                f"mechanism {login.mechanism}"
            )
        response = SaslAuthenticateResponse(int(ErrorCode.SASL_AUTHENTICATION_FAILED), text)
        await self._answer_last(exchange, _response_frame(decision, response), begun, "")

    async def _answer_last(
        self, exchange: Exchange, answer: bytes, begun: float, reason: str
    ) -> None:
        """Send the last answer after the delay, and close the connection."""
        await self._delay(begun)
        if self.closed:
            return
        exchange.parts = [answer]
        self.collect()
        self.flush()
        if reason:
            self.abort(reason)
        else:
            self.finish()

    async def _delay(self, begun: float) -> None:
        """Wait until the delay of failed log-ins is over. It counts from the token, so that the
        time does not show what was checked."""
        limit_s = self._logins.config.connection_failed_authentication_delay_ms / 1000
        left_s = begun + limit_s - self._logins.env.clock.monotonic()
        if left_s > 0:
            await self._logins.env.sleep(left_s)

    def _answer(self, exchange: Exchange, answer: bytes) -> None:
        if not self.closed:
            exchange.parts = [answer]
            self.note_answered(exchange)
            self.note_served(exchange)

    def _count(self, key: int) -> None:
        requests = self.host.counts.requests
        requests[key] = requests.get(key, 0) + 1

    def release_all(self) -> None:
        """The socket is closed: release everything."""
        self._logins.end_login(self)
        super().release_all()


def _find_handshake(view: memoryview, pos: int, end: int) -> tuple[int, int]:
    """Return the position of the next SaslHandshake and where it stops; `end` if there is none."""
    while end - pos >= _HEAD.size:
        size, key = _HEAD.unpack_from(view, pos)
        if key == SASL_HANDSHAKE:
            return pos, pos + 4 + size
        if size < 0:
            break
        pos += 4 + size
    return end, end


def _token_frame(decision: FrameDecision, reply: TokenReply, lifetime_ms: int) -> bytes:
    if decision.raw:
        return _LENGTH.pack(len(reply.token)) + reply.token
    return _response_frame(decision, SaslAuthenticateResponse(0, "", reply.token, lifetime_ms))


def _response_frame(decision: FrameDecision, response: SaslAuthenticateResponse) -> bytes:
    body = encode(response, decision.version)
    return frame(decision.correlation_id, body, flexible=decision.version >= 2)
