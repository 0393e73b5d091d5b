"""One client connection, sans I/O: bytes in, requests out; responses in, bytes out, in order.

It splits received bytes into frames, starts each request when those before it have been applied,
keeps the order of responses, and bounds the memory of one client. Instead of a socket it uses a
Wire, which tests implement too. Invalid data closes the connection, with a reason for the log.

When a request may start (in order, without needless waits):
- a Produce as soon as the one before it is queued on the log, which keeps the order;
- any other request when all earlier Produces have been written, so that it sees them;
- none while a cold request is being served, unless that is parked (JoinGroup);
- none while the client does not read its responses, or too many of them or their bytes are queued;
- a Fetch when the one before it has been answered, because its data stays in memory until sent;
- none while the client is throttled for a quota (`server.quotas`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice, takewhile
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol, cast

from kafkawire.codec.compile import DecodeError
from kafkawire.codec.flat import skip_tags
from kafkawire.codec.types import Buffer, Part
from kafkawire.handlers.exchange import (
    MAX_REPEATED,
    ClientSoftware,
    Exchange,
    RepeatCandidate,
    Repeating,
)
from kafkawire.log.io.file_span import FileSpan
from kafkawire.security.principals import ANONYMOUS, Principal
from kafkawire.server.memory import Block
from kafkawire.server.ports import Wire
from kafkawire.server.quotas.metering import MeteredRepeat, meter_handler
from kafkawire.server.receiving import BUSY, CLOSED, DRAINING, FULL, HELD, STOPPING
from kafkawire.server.throttled import Throttled, ThrottledHost

if TYPE_CHECKING:
    from kafkawire.broker.answer_memory import AnswerMemory
    from kafkawire.broker.rack_reads.redirects import Redirects
    from kafkawire.handlers.table import Api
    from kafkawire.log.io.watchdog import Watchdog
    from kafkawire.security.acls.rights import Rights

WAITING_MAX: Final = 256
"""Maximum number of unanswered requests of one connection; Kafka's clients pipeline 5 by
default."""

MAX_STARTED: Final = 256
"""Requests of one connection started at once: two milliseconds if they are small. Further ones wait
for the next event-loop iteration."""

STARTED_S: Final = 0.0005
"""How long requests of one connection are started at once: the last one, a Fetch or a Produce of
many partitions, may take two milliseconds more."""

UNTIMED_BYTES: Final = 4 << 10
"""Received bytes whose requests are started without reading the clock: a hundred partitions."""

FILE_BYTES_AT_ONCE: Final = 2 << 20
"""Bytes of files that one connection sends in an event-loop iteration: half a millisecond."""

OTHER_FRAME_BYTES_MAX: Final = 16 << 20
"""Maximum size of a request other than Produce: lists of small items take 30 times their bytes as
objects. Kafka's largest are assignments and offsets of huge groups, a few MiB."""

PRODUCE, FETCH, HEARTBEAT = 0, 1, 12
SAMPLED = frozenset({PRODUCE, FETCH, HEARTBEAT})
"""APIs with hot handlers: measuring each request would cost a hundredth of it."""

HTTP = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PRI "))
"""First bytes of requests of HTTP."""

_LENGTH: Final = Struct(">i")
_HEAD: Final = Struct(">ihhih")  # frame size, API key, version, correlation id, client id's length
_HEAD_BYTES: Final = 14


class ConnectionHost(ThrottledHost, Protocol):
    """State and limits that all connections of a server share.

    `frame_bytes_max`: maximum request size; `applying_bytes_max`: maximum bytes of one connection's
    Produces that are not written yet, and of its responses that are not sent yet.
    """

    answers: AnswerMemory
    apis: dict[int, Api]
    frame_bytes_max: int
    applying_bytes_max: int

    def serve(
        self, connection: Connection, exchange: Exchange, api: Api, block: Block, body: Buffer
    ) -> None: ...
    def rights_of(self, principal: Principal, client_host: str) -> Rights | None: ...
    def answer_unsupported_version(self, exchange: Exchange, key: int, version: int) -> bool: ...
    def log_defect(self, connection: Connection, what: str) -> None: ...
    def flush_soon(self, connection: Connection) -> None: ...
    def flush_all(self) -> None: ...
    def call_soon(self, fn: Callable[[], None], /) -> object: ...


class Connection(Throttled[ConnectionHost]):
    """The state of one connection. `closed` once the socket is closed."""

    __slots__ = (
        "answers", "applying_bytes", "client_host", "client_port", "closing", "encrypted",
        "exchanges", "fetching", "file_spans", "flush_due", "frame_at", "held_bytes", "last_key",
        "listener", "more", "opened_at", "pins", "redirects", "repeat", "repeat_candidate",
        "rights", "sampled", "sampled_at", "sampled_key", "sampled_tick", "sending_since",
        "serving", "software", "unsent", "withheld",
    )  # fmt: skip

    def __init__(self, host: ConnectionHost, wire: Wire, client_host: str, listener: str) -> None:
        super().__init__(host, wire)
        self.client_host = client_host
        self.client_port = 0
        self.software = ClientSoftware()
        self.listener = listener
        self.rights = host.rights_of(ANONYMOUS, client_host)
        self.exchanges: deque[Exchange] = deque()
        self.answers = host.answers
        self.held_bytes = 0
        self.fetching = False
        self.encrypted = False
        self.file_spans = 0  # in `exchanges` and `out`
        self.sending_since = -1  # tick of the first byte of the file that is being sent; -1: none
        self.unsent = 0  # bytes at the last call of `moves`
        self.more = 0  # additional requests they represent
        self.pins: list[Callable[[], None]] = []
        self.flush_due = False
        self.serving: Exchange | None = None  # the cold request of BUSY
        self.repeat_candidate: RepeatCandidate | None = None
        self.repeat: Repeating | None = None
        self.redirects: Redirects | None = None
        self.opened_at = host.now()
        self.withheld: dict[int, float] = {}  # by node id: at most one for each broker
        # Called when it is closed: at most one for each unanswered request, and one for sessions.
        self.closing: dict[Callable[[], None], None] = {}
        self.frame_at = 0
        self.last_key = -1  # the API of the last request
        self.applying_bytes = 0  # of Produces queued on the log; 0: none is
        self.sampled: Exchange | None = None  # the request whose latency is measured
        self.sampled_key = 0
        self.sampled_tick = -1
        self.sampled_at = 0.0

    def set_client_host(self, client_host: str, client_port: int) -> None:
        """Set the address of the client, once it is known."""
        self.client_host, self.client_port = client_host, client_port
        self.rights = self.host.rights_of(self.principal, client_host)

    def set_principal(self, principal: Principal) -> None:
        """Set the client's principal, by its certificate or its log-in. Called before the first
        request that depends on it, and again when the client authenticates again."""
        self.principal = principal
        self.rights = self.host.rights_of(principal, self.client_host)
        self.repeat = None
        self.quotas = None

    def admit(self) -> bool:
        """Return whether this kind of connection is allowed now; the host has its own limits."""
        return True

    def refuse_connection(self) -> None:
        """Serve nothing: there are too many connections, and the socket is closed."""
        self.closed = True

    def _parse(self, block: Block, pos: int, end: int) -> int:  # noqa: C901 (hot: no calls)
        """Start the requests in [pos, end); return the position of the first that was not
        started."""
        view = block.view
        apis, limited = self.host.apis, self.host.quotas.of_clients
        room = MAX_STARTED
        until = self.host.now() + STARTED_S if end - pos > UNTIMED_BYTES else 0.0
        try:
            while end - pos >= _HEAD_BYTES and not self.waits:
                if room <= 0:
                    self.waits |= HELD  # others first
                    self.host.call_soon(self.resume)
                    break
                room -= 1
                if self.repeat is not None:
                    repeat = MeteredRepeat(self, self.repeat) if limited else self.repeat
                    at = repeat.start(block, view, pos, end)
                    if at == end:
                        return end
                    if at != pos:
                        pos = at
                        room -= MAX_REPEATED
                        continue
                size, key, version, correlation_id, length = _HEAD.unpack_from(view, pos)
                stop = pos + 4 + size
                if stop > end or size < _HEAD_BYTES - 4:
                    break
                self.last_key = key
                api = apis.get(key)
                if api is None or not api.min_version <= version <= api.max_version:
                    self._refuse(key, version, correlation_id)
                    pos = stop
                    continue
                if not api.may_follow_produce:
                    if size > OTHER_FRAME_BYTES_MAX:
                        raise DecodeError(f"{api.name}: a frame of {size} bytes")
                    if self.applying_bytes:
                        self.waits |= HELD  # until `note_applied`
                        break
                body = pos + _HEAD_BYTES
                if length > 0:
                    body += length
                if (limited or self.client_id is None) and body <= stop:
                    self.identify(view[pos + _HEAD_BYTES : body])
                if version >= api.flexible_from and body < stop:
                    body = body + 1 if view[body] == 0 else skip_tags(view, body, stop)
                if body > stop:
                    raise DecodeError(
                        f"the client id has {length} bytes, more than the request frame"
                    )
                hot = meter_handler(api.hot, key) if limited else api.hot
                self.frame_at = pos
                if hot is None:
                    self.start_cold(api, version, correlation_id, block, view[body:stop])
                elif not hot.start(self, version, correlation_id, block, view, body, stop):
                    self.waits |= HELD  # until `resume`
                    break
                pos = stop
                if self._is_full():
                    self.waits |= FULL
                if until and self.host.now() >= until:
                    room = 0
            if end - pos >= 4:
                self._check_size(view, pos, end)
        except DecodeError as wrong:
            self.abort(str(wrong))
        except Exception as wrong:  # any error closes only this connection
            if not isinstance(wrong, IndexError):  # truncated varints of a header
                self.host.log_defect(self, "a request cannot be started")
            self.abort(f"a request cannot be read: {wrong!r}")
        return pos

    def _check_size(self, view: memoryview, pos: int, end: int) -> None:
        """Close the connection if the size of the frame that begins at `pos` is not allowed."""
        (size,) = _LENGTH.unpack_from(view, pos)
        if not _HEAD_BYTES - 4 <= size <= self.host.frame_bytes_max:
            self.abort(other_protocol(view[pos:end]) or f"a frame of {size} bytes")

    def start_cold(self, api: Api, version: int, number: int, block: Block, body: Buffer) -> None:
        """Start a request that is served in a task."""
        flexible = version >= api.flexible_from and api.flexible_answer
        exchange = Exchange(self, version, number, flexible)
        self.exchanges.append(exchange)
        self.note_started(exchange)
        self.host.serve(self, exchange, api, block, body)

    def _refuse(self, key: int, version: int, correlation_id: int) -> None:
        exchange = Exchange(self, version, correlation_id, False)
        self.exchanges.append(exchange)
        if not self.host.answer_unsupported_version(exchange, key, version):
            self.abort(f"API {key} version {version} is not served")

    def note_answered(self, exchange: Exchange) -> None:
        """Schedule `flush` after a response was set."""
        waiting = self.exchanges
        if waiting and waiting[0] is exchange:
            self.collect()
            if not self.receiving and not self.flush_due:
                self.flush_due = True
                self.host.flush_soon(self)
        elif self._is_full():
            self.waits |= FULL

    def at_once(self, answer: Callable[[], object]) -> None:
        """Call a function that may answer, and send the response without waiting for the end of the
        event-loop iteration. Hot."""
        self.receiving = True
        try:
            answer()
        finally:
            self.receiving = False
        if self.out:
            self.flush()

    def collect(self) -> None:
        """Take the responses at the head of the queue, for `flush`. Hot."""
        waiting = self.exchanges
        while waiting:
            first = waiting[0]
            if first.parts is None:
                break
            waiting.popleft()
            self.out += first.parts
            if first.more:
                self.more -= first.more
            if first.pins is not None:
                self.pins.append(first.pins)
        if self.waits & FULL:
            self._check_if_full()

    def _check_if_full(self) -> None:
        if not self._is_full():
            self.waits &= ~FULL
            self._go_on_soon()

    def _is_full(self) -> bool:
        return (
            self.applying_bytes > self.host.applying_bytes_max
            or len(self.exchanges) + self.more >= WAITING_MAX
            or self.held_bytes > self.host.applying_bytes_max
        )

    def note_applying(self, size_bytes: int) -> None:
        """Produces of this connection are queued on the log with these bytes. Hot."""
        self.applying_bytes += size_bytes
        if (
            self.applying_bytes > self.host.applying_bytes_max
            or len(self.exchanges) + self.more >= WAITING_MAX
        ):
            self.waits |= FULL

    def note_applied(self, size_bytes: int) -> None:
        """The queued Produces have been written or have failed: `flush` sends their responses.
        Hot."""
        self.applying_bytes -= size_bytes
        self.collect()
        if self.waits & HELD and not self.applying_bytes:
            self.waits &= ~HELD
            self._go_on_soon()

    def note_started(self, exchange: Exchange) -> None:
        """A request is served in a task: the next may start after `note_served`."""
        self.waits |= BUSY
        self.serving = exchange

    def note_served(self, exchange: Exchange) -> None:
        """A cold request is answered or parked: the next may start."""
        if self.serving is exchange:
            self.serving = None
            self.waits &= ~BUSY
            self._go_on_soon()

    def note_fetched(self) -> None:
        """Its Fetch is answered: the next may start, one after another as in Kafka."""
        self.fetching = False
        if self.waits & HELD:
            self.resume()

    def resume(self) -> None:
        """Start the next request if it was delayed."""
        self.waits &= ~HELD
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if self.kept is not None or not self.reading:
            self.host.call_soon(self._go_on)

    def stop(self) -> None:
        """Start no further request: the broker stops."""
        self.waits |= STOPPING

    def is_done(self) -> bool:
        """Return whether every started request is answered and its response sent."""
        return not (self.exchanges or self.out or self.flush_due or self.waits & DRAINING)

    def abort(self, reason: str) -> None:
        """Close this connection and log the reason."""
        if not self.closed:
            self.wire.close(reason)
            self.release_all()

    def finish(self) -> None:
        """Close this connection without an error of its client."""
        if not self.closed:
            self.wire.close(None)
            self.release_all()

    def flush(self) -> None:
        """Send responses that are ready. Hot."""
        out = self.out
        self.flush_due = False
        if not out or self.waits & (DRAINING | CLOSED):
            return
        self.out = []
        if self.file_spans:
            self._write_parts(out)
        else:
            self.wire.write(cast("list[Buffer]", out))
        if self.sampled is not None and self.sampled.parts is not None:
            self._measure(self.sampled)
        if self.pins and not self.waits & DRAINING:
            self._unpin()

    def _write_parts(self, parts: list[Part]) -> None:
        """Write buffers and send spans of files in their order, until the client must read first;
        `resume_writing` continues."""
        at = sent = 0
        while at < len(parts) and not self.waits & (DRAINING | CLOSED):
            part = parts[at]
            if isinstance(part, FileSpan):
                at += 1
                self.file_spans -= 1
                if not self.wire.send_file(part):
                    self.waits |= DRAINING
                    self.sending_since = self.host.tick
                    break
                sent += len(part)
                if sent >= FILE_BYTES_AT_ONCE and at < len(parts):
                    self.waits |= DRAINING  # others first
                    self.host.call_soon(self.resume_writing)
            else:
                buffers = list(takewhile(_in_memory, islice(parts, at, None)))
                at += len(buffers)
                self.wire.write(cast("list[Buffer]", buffers))
        if not self.closed:
            self.out[:0] = parts[at:]

    def sample(self, begun: float, now: float) -> None:
        """Measure the latency of the last request in the bytes received at `begun`, if its API has
        a hot handler; the host measures all others. One request of a connection per second."""
        key = self.last_key
        if key not in SAMPLED or self.sampled is not None:
            return
        self.sampled_tick = self.tick
        if self.exchanges:
            self.sampled, self.sampled_key = self.exchanges[-1], key
            self.sampled_at = begun
        elif self.kept is None and key != PRODUCE:  # answered already; acks=0 has no answer
            self.host.counts.took(key, now - begun)

    def _measure(self, sampled: Exchange) -> None:
        """Add the latency of the sampled request, whose response is sent unless an earlier one is
        missing."""
        if sampled not in self.exchanges:
            self.sampled = None
            self.host.counts.took(self.sampled_key, self.host.now() - self.sampled_at)

    def pause_writing(self) -> None:
        """The socket's buffer is full, or a file is being sent: start no further request."""
        self.waits |= DRAINING

    def resume_writing(self) -> None:
        """The socket's buffer is empty again, or the file was sent."""
        self.waits &= ~DRAINING
        self.sending_since = -1
        self.tick = self.host.tick
        if not self.out:  # otherwise `pins` are of what is still to be written, too
            self._unpin()
        self.flush()
        self._go_on()

    def moves(self) -> bool:
        """Return whether its client has read any bytes of its responses since the last call."""
        before, self.unsent = self.unsent, self.wire.unsent_bytes() + sum(map(len, self.out))
        return self.unsent != before

    def _unpin(self) -> None:
        pins = self.pins
        self.pins = []
        for release in pins:
            try:
                release()
            except Exception:
                self.host.log_defect(self, "what an answer held cannot be released")
        if self.waits & FULL:
            self._check_if_full()

    def release_all(self) -> None:
        """The socket is closed: release everything."""
        if self.closed:
            return
        self.closed = True
        self.waits |= CLOSED
        self.out = []
        if self.muted is not None:
            self.muted.cancel()
            self.muted = None
        for exchange in self.exchanges:
            if exchange.pins is not None:
                self.pins.append(exchange.pins)
        self.exchanges.clear()
        self._unpin()
        self._drop_kept()
        for closing in tuple(self.closing):
            try:
                closing()
            except Exception:
                self.host.log_defect(self, "a session of the connection cannot be ended")
        self.closing.clear()


class MeasuredReads:
    """Passes received bytes on with `receive`, and measures the time the connection takes for them;
    tasks that it starts are measured separately. The latency of hot requests is sampled with the
    same clock readings. `last_request` describes the request that was too slow."""

    __slots__ = ("_connection", "_last_request", "_receive", "_watchdog")

    def __init__(
        self,
        connection: Connection,
        receive: Callable[[int], None],
        watchdog: Watchdog,
        last_request: Callable[[], str],
    ) -> None:
        self._connection = connection
        self._receive = receive
        self._watchdog = watchdog
        self._last_request = last_request

    def buffer_updated(self, count: int) -> None:
        """`count` bytes were received into the result of `get_buffer`. Hot."""
        connection, watchdog = self._connection, self._watchdog
        begun = watchdog.start_call()
        self._receive(count)
        now = watchdog.end_call(begun, self._last_request)
        if connection.host.quotas.of_requests and not connection.closed:
            connection.client_quotas().record_loop_time(now - begun)
        if connection.sampled_tick != connection.tick:
            connection.sample(begun, now)


def other_protocol(data: memoryview) -> str:
    """Return what a client speaks instead of Kafka's protocol, and what to do; empty if these first
    bytes do not show it. As a frame's length they are over 300 MB."""
    first = bytes(data[:4])
    if first[:2] == b"\x16\x03":
        return (
            "it speaks TLS, which this listener does not: set security.protocol=PLAINTEXT or "
            "SASL_PLAINTEXT for the client, or connect it to a listener with TLS"
        )
    if first in HTTP:
        return (
            "it sent an HTTP request to a listener for Kafka's clients: metrics and health are at "
            "metrics.listener"
        )
    return ""


def _in_memory(part: Part) -> bool:
    return not isinstance(part, FileSpan)
