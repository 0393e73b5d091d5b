"""A sans-I/O connection whose APIs respond when a test says so, and a client that feeds it
bytes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from struct import pack, unpack_from
from typing import Any, cast

from kafkawire.broker.answer_memory import AnswerMemory
from kafkawire.codec.types import Buffer
from kafkawire.handlers.exchange import Exchange, Pinned
from kafkawire.log.io.file_span import FileSpan
from kafkawire.metric_counters import Counts
from kafkawire.security.principals import Principal
from kafkawire.security.quotas.arithmetic import SampleWindow
from kafkawire.security.quotas.service import Quotas
from kafkawire.server.connection import Connection
from kafkawire.server.memory import Memory
from tests.kit.waiting import no_wait

ECHO, SLOW, COLD = 0, 1, 3  # keys: a hot one that answers at once, one that waits, a cold one


class Hot:
    """A hot handler that records its requests; `hold` keeps exchanges unanswered."""

    def __init__(self, *, hold: bool = False) -> None:
        self.hold = hold
        self.ready = True
        self.seen: list[bytes] = []
        self.held: deque[tuple[Exchange, Pinned, int]] = deque()

    def start(
        self,
        peer: Any,
        version: int,
        correlation_id: int,
        block: Pinned,
        buf: memoryview,
        pos: int,
        end: int,
    ) -> bool:
        if not self.ready:
            return False
        exchange = Exchange(peer, version, correlation_id, version >= 9)
        peer.exchanges.append(exchange)
        self.seen.append(bytes(buf[pos:end]))
        if self.hold:
            block.pin()
            exchange.peer.note_applying(end - pos)
            self.held.append((exchange, block, end - pos))
        else:
            exchange.answer(bytes(buf[pos:end]))
        return True

    def write(self) -> None:
        """Called after the batch was written: respond to the oldest exchange."""
        exchange, block, size = self.held.popleft()
        block.unpin()
        exchange.peer.note_applied(size)
        exchange.answer(b"ok")

    def close(self) -> None:
        pass


class FakeApi:
    def __init__(self, key: int, hot: Hot | None, *, produce: bool = False) -> None:
        self.key, self.name, self.hot = key, f"api{key}", hot
        self.min_version, self.max_version = 0, 9
        self.flexible_from, self.flexible_answer = 9, True
        self.may_follow_produce = produce


class FakeTimer:
    def __init__(self, due_s: float, fn: Callable[[], None]) -> None:
        self.due_s, self.fn = due_s, fn
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeHost:
    def __init__(self, bound: int = 64 << 20) -> None:
        self.memory = Memory(bound)
        self.soon: deque[Callable[[], None]] = deque()
        self.answers = AnswerMemory(bound, self.soon.append)
        self.echo, self.slow = Hot(), Hot(hold=True)
        self.apis: dict[int, Any] = {
            ECHO: FakeApi(ECHO, self.echo),
            SLOW: FakeApi(SLOW, self.slow, produce=True),
            COLD: FakeApi(COLD, None),
        }
        self.frame_bytes_max = 8 << 20
        self.applying_bytes_max = 4 << 20
        self.tick = 0
        self.much = 0
        self.now_s = 0.0
        self.now = lambda: self.now_s
        self.counts = Counts()
        window = SampleWindow(11, 1000)
        self.quotas = Quotas(cast("Any", None), self.now, window, window, no_wait)
        self.timers: list[FakeTimer] = []
        self.cold: deque[tuple[Connection, Exchange, bytes]] = deque()

    def serve(
        self, connection: Connection, exchange: Exchange, api: Any, block: Any, body: Buffer
    ) -> None:
        self.cold.append((connection, exchange, bytes(body)))

    def rights_of(self, principal: Principal, client_host: str) -> None:
        return None

    def answer_unsupported_version(self, exchange: Exchange, key: int, version: int) -> bool:
        if key == 18:
            exchange.answer(b"35")
        return key == 18

    def log_defect(self, connection: Connection, what: str) -> None:
        logging.getLogger("tests.kit").exception("%s", what)

    def received_much(self) -> None:
        self.much += 1

    def flush_soon(self, connection: Connection) -> None:
        self.soon.append(connection.flush)

    def flush_all(self) -> None:
        pass

    def call_soon(self, fn: Callable[[], None]) -> None:
        self.soon.append(fn)

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.now_s + delay_s, fn)
        self.timers.append(timer)
        return timer

    def pass_time(self, seconds: float) -> None:
        """Call the timers that are due then."""
        self.now_s += seconds
        due = [timer for timer in self.timers if timer.due_s <= self.now_s]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            if not timer.cancelled:
                timer.fn()
        self.run()

    def run(self) -> None:
        while self.soon:
            self.soon.popleft()()


class FakeWire:
    """A socket whose client reads at once; of files it takes `file_bytes`, then calls wait."""

    def __init__(self) -> None:
        self.file_bytes = 1 << 60
        self.sending: tuple[FileSpan, int] | None = None
        self.sent = bytearray()
        self.unsent = 0
        self.writes = 0
        self.reading = True
        self.closed: list[str | None] = []

    def write(self, parts: list[Buffer]) -> None:
        self.writes += 1
        for part in parts:
            self.sent += part

    def send_file(self, span: FileSpan) -> bool:
        assert self.sending is None, "one span at a time"
        taken = min(len(span), self.file_bytes)
        self.sent += span.read(0, taken)
        self.file_bytes -= taken
        if taken == len(span):
            return True
        span.pin()
        self.sending = span, taken
        return False

    def take(self, count: int) -> bool:
        """Take more of the span that is being sent; return whether that was the rest."""
        assert self.sending is not None
        span, at = self.sending
        data = span.read(at, count)
        self.sent += data
        self.sending = span, at + len(data)
        if at + len(data) < len(span):
            return False
        self.sending = None
        span.unpin()
        return True

    def unsent_bytes(self) -> int:
        rest = 0 if self.sending is None else len(self.sending[0]) - self.sending[1]
        return self.unsent + rest

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self, reason: str | None) -> None:
        if self.sending is not None:
            self.sending[0].unpin()
            self.sending = None
        self.closed.append(reason)


class Client:
    """A connection with its fakes; `feed` gives it bytes as a socket would."""

    def __init__(self, host: FakeHost | None = None) -> None:
        self.host = host or FakeHost()
        self.wire = FakeWire()
        self.connection = Connection(self.host, self.wire, "127.0.0.1", "PLAINTEXT")

    def feed(self, data: bytes, step: int = 1 << 30) -> int:
        """The number of bytes received: fewer where the connection stopped reading."""
        at = 0
        while at < len(data) and not self.wire.closed and self.wire.reading:
            room = self.connection.get_buffer(-1)
            count = min(len(room), step, len(data) - at)
            assert count > 0
            room[:count] = data[at : at + count]
            at += count
            self.connection.buffer_updated(count)
            self.host.run()
        return at

    def answers(self) -> list[tuple[int, bytes]]:
        """(correlation id, body) of each response sent so far."""
        found, pos = [], 0
        while pos < len(self.wire.sent):
            size, correlation = unpack_from(">ii", self.wire.sent, pos)
            found.append((correlation, bytes(self.wire.sent[pos + 8 : pos + 4 + size])))
            pos += 4 + size
        return found


def frame(key: int, correlation: int, body: bytes, version: int = 1) -> bytes:
    head = pack(">hhih", key, version, correlation, 4) + b"test"
    if version >= 9:
        head += b"\0"
    return pack(">i", len(head) + len(body)) + head + body
