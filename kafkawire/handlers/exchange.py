"""One request and its place in the order of answers.

The connection makes an Exchange for each request that is to be answered; a caller that serves it
calls `answer` once, now or later, from the loop. Answers leave in request order whatever the order
they come in: that is the connection's business, not the handler's. Hot handlers get the exchange
itself; cold ones are awaited and their response is encoded for them (`handlers.table`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from kafkawire.codec.types import Buffer

if TYPE_CHECKING:
    from kafkawire.broker.answer_memory import AnswerMemory
    from kafkawire.broker.broker import Broker

_HEAD = Struct(">ii")  # frame length, correlation id
_HEAD_TAGS = Struct(">iiB")  # ... and the empty tag section of response header v1


def frame(correlation_id: int, body: bytes, flexible: bool) -> bytes:
    """A whole answer: response header v0, or v1 if `flexible`, and the body."""
    if flexible:
        return _HEAD_TAGS.pack(len(body) + 5, correlation_id, 0) + body
    return _HEAD.pack(len(body) + 4, correlation_id) + body


SMALL_ANSWER_BYTES = 1 << 10
"""Answers up to this size are not counted: a connection has 256 at most that are not read."""


class Pinned(Protocol):
    """Memory that is still in use; `unpin` once for each `pin`."""

    def pin(self) -> None: ...
    def unpin(self) -> None: ...


MAX_REPEATED = 64
"""Requests that one `Repeating.start` takes: the connection checks its bounds between two calls."""


class Repeating(Protocol):
    """Starts requests that differ little from the one before: faster than from the beginning, with
    the same result.

    `start` takes as many as it likes of those that lie whole in buf[pos:end], one after the
    other, and says where the first begins that it leaves to the general way.
    """

    def start(self, block: Pinned, buf: memoryview, pos: int, end: int) -> int: ...


class Peer(Protocol):
    """The connection as an exchange sees it.

    `exchanges` are the unanswered ones in request order: who starts one appends it. `more` is how
    many requests they stand for beyond one each. `frame_at` is where the request that is being
    started begins in its buffer, with its size. `memo` is the hot handlers' to remember something
    between the requests of one connection, `repeat` what they want to be asked first. `fetching`:
    a Fetch of it is not answered; `fetched` says that it is. `held_bytes` are those of `answers`
    that belong to answers which have not left.
    """

    client_id: str | None
    client_host: str
    listener: str
    closed: bool
    frame_at: int
    memo: object
    repeat: Repeating | None
    exchanges: deque[Exchange]
    more: int
    fetching: bool
    held_bytes: int
    answers: AnswerMemory

    def begin(self, exchange: Exchange) -> None: ...
    def served(self, exchange: Exchange) -> None: ...
    def fetched(self) -> None: ...
    def answered(self, exchange: Exchange) -> None: ...
    def applying(self, size_bytes: int) -> None: ...
    def applied(self, size_bytes: int) -> None: ...
    def collect(self) -> None: ...
    def flush(self) -> None: ...
    def resume(self) -> None: ...
    def abort(self, reason: str) -> None: ...


class HeldAnswerMemory:
    """Memory of an answer that is counted in `peer.answers`; to be called once, when the answer
    has left or its client is gone. `also` is called then too."""

    __slots__ = ("_also", "_peer", "_size_bytes")

    def __init__(self, peer: Peer, size_bytes: int, also: Callable[[], None] | None = None) -> None:
        self._peer = peer
        self._size_bytes = size_bytes
        self._also = also
        peer.held_bytes += size_bytes

    def __call__(self) -> None:
        self._peer.held_bytes -= self._size_bytes
        self._peer.answers.release(self._size_bytes)
        if self._also is not None:
            self._also()


class Exchange:
    """A request being served. `flexible` is the response header's form, `more` how many requests
    it stands for beyond one. `parts` is the answer, once there is one.

    `pins` is called once: when the answer has been sent, or when its client has gone before.
    """

    __slots__ = ("correlation_id", "flexible", "more", "parts", "peer", "pins", "version")

    def __init__(self, peer: Peer, version: int, correlation_id: int, flexible: bool) -> None:
        self.peer = peer
        self.version = version
        self.correlation_id = correlation_id
        self.flexible = flexible
        self.more = 0
        self.parts: list[Buffer] | None = None
        self.pins: Callable[[], None] | None = None

    def answer(self, body: bytes) -> None:
        """Answer with a body that is one buffer."""
        if len(body) > SMALL_ANSWER_BYTES and not self.peer.closed:
            self.peer.answers.hold(len(body))
            self.pins = HeldAnswerMemory(self.peer, len(body))
        self.parts = [frame(self.correlation_id, body, self.flexible)]
        self.peer.answered(self)

    def answer_parts(self, body: list[Buffer], release: Callable[[], None] | None = None) -> None:
        """Answer with many buffers, sent as they are; `release` is called when they are gone, or
        now where the client is. Without one the buffers are counted as memory of the answer."""
        if self.peer.closed:
            if release is not None:
                release()
            return
        size = sum(map(len, body))
        if release is None and size > SMALL_ANSWER_BYTES:
            self.peer.answers.hold(size)
            release = HeldAnswerMemory(self.peer, size)
        if self.flexible:
            head = _HEAD_TAGS.pack(size + 5, self.correlation_id, 0)
        else:
            head = _HEAD.pack(size + 4, self.correlation_id)
        self.parts = [head, *body]
        self.pins = release
        self.peer.answered(self)


class HotHandler(Protocol):
    """Serves one API straight from the receive buffer.

    `start` reads buf[pos:end], which stays valid while `block` is pinned. It appends an exchange
    to the peer's (unless there will be no answer) and answers it sooner or later. It returns
    True, or False with nothing done and calls `peer.resume` when it can go on, or raises
    DecodeError (the connection ends). `close` answers what waits.
    """

    def __init__(self, broker: Broker) -> None: ...

    def start(
        self,
        peer: Peer,
        version: int,
        correlation_id: int,
        block: Pinned,
        buf: memoryview,
        pos: int,
        end: int,
    ) -> bool: ...

    def close(self) -> None: ...
