"""One request and its position in the order of responses.

The connection creates an Exchange for each request with a response; its handler calls `answer`
once, immediately or later, on the event loop. The connection sends responses in request order,
whatever the order of the calls. Hot handlers get the exchange itself; cold ones are awaited, and
their response is encoded by the host (`handlers.table`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafkawire.codec.flat import Topic
from kafkawire.codec.types import Part
from kafkawire.security.principals import Principal

if TYPE_CHECKING:
    from kafkawire.broker.answer_memory import AnswerMemory
    from kafkawire.broker.broker import Broker
    from kafkawire.broker.rack_reads.redirects import Redirects
    from kafkawire.security.acls.rights import Rights
    from kafkawire.security.quotas.sensors import ClientQuotas

_HEAD: Final = Struct(">ii")  # frame length, correlation id
_INT: Final = Struct(">i")
_HEAD_TAGS: Final = Struct(">iiB")  # ... and the empty tag section of response header v1


def frame(correlation_id: int, body: bytes, flexible: bool) -> bytes:
    """Return a complete response: header v0, or v1 if `flexible`, and the body."""
    if flexible:
        return _HEAD_TAGS.pack(len(body) + 5, correlation_id, 0) + body
    return _HEAD.pack(len(body) + 4, correlation_id) + body


SMALL_ANSWER_BYTES: Final = 1 << 10
"""Responses up to this size are not counted: a connection has at most 256 unread ones."""


class Pinned(Protocol):
    """Memory in use; `unpin` is called once for each `pin`."""

    def pin(self) -> None: ...
    def unpin(self) -> None: ...


MAX_REPEATED: Final = 64
"""Maximum number of requests that one `Repeating.start` takes: the connection checks its limits
between two calls."""


MAX_SOFTWARE_CHARS: Final = 255
"""Characters kept of the name of a client library, and of its version: each connection has both."""


class ClientSoftware:
    """Name and version of a client's library, as ApiVersions v3+ says; before, as in Kafka,
    "unknown". Belongs to a connection."""

    __slots__ = ("name", "version")

    def __init__(self) -> None:
        self.name = self.version = "unknown"

    def set(self, name: str, version: str) -> None:
        """Note what the client says; most connections share a few texts."""
        self.name = sys.intern(name[:MAX_SOFTWARE_CHARS])
        self.version = sys.intern(version[:MAX_SOFTWARE_CHARS])


class Repeating(Protocol):
    """Starts requests that differ little from the previous one, faster than in the general way,
    with the same result.

    `start` takes any number of complete requests of buf[pos:end], one after another, and returns
    the position of the first that it leaves to the general way.
    """

    def start(self, block: Pinned, buf: memoryview, pos: int, end: int) -> int: ...


RepeatCandidate = tuple[int, int, Topic]
"""Version, acks and topic of a Produce of one batch."""


class Peer(Protocol):
    """The connection as seen by an exchange.

    `rights`: what its principal may do, None without an authorizer. `exchanges`: the unanswered
    ones in request order; the handler that starts one appends it.
    `more`: additional requests they represent. `frame_at`: position of the current request in its
    buffer, with its size. `repeat_candidate`: the last Produce of one batch; `repeat`: once two in
    a row were alike, the first choice for the next request. `fetching`: a Fetch is unanswered;
    `note_fetched` ends that. `held_bytes`: those of `answers` in responses that are not sent;
    `file_spans`: parts of such responses that are sent from files; `encrypted`: such parts have to
    be read. `throttle_ms`: the delay
    of the request that is being started, of a client over a quota; `throttle` mutes the connection;
    `meter_work`: what serves a request in a task, whose time counts for a quota.
    `redirects`: the partitions for which the client was sent to another broker, None before the
    first.
    """

    client_id: str | None
    client_host: str
    listener: str
    principal: Principal
    rights: Rights | None
    closed: bool
    frame_at: int
    repeat_candidate: RepeatCandidate | None
    repeat: Repeating | None
    exchanges: deque[Exchange]
    more: int
    fetching: bool
    file_spans: int
    encrypted: bool
    held_bytes: int
    throttle_ms: int
    redirects: Redirects | None
    answers: AnswerMemory

    def note_started(self, exchange: Exchange) -> None: ...
    def note_served(self, exchange: Exchange) -> None: ...
    def note_fetched(self) -> None: ...
    def note_answered(self, exchange: Exchange) -> None: ...
    def client_quotas(self) -> ClientQuotas: ...
    def meter_work(self, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]: ...
    def start_throttled(self, delay_ms: int) -> None: ...
    def throttle(self, delay_ms: int) -> None: ...
    def note_applying(self, size_bytes: int) -> None: ...
    def note_applied(self, size_bytes: int) -> None: ...
    def collect(self) -> None: ...
    def flush(self) -> None: ...
    def at_once(self, answer: Callable[[], object]) -> None: ...
    def resume(self) -> None: ...
    def abort(self, reason: str) -> None: ...


class HeldAnswerMemory:
    """Memory of a response that is counted in `peer.answers`; called once, when the response was
    sent or its client has disconnected. `also` is called then, too."""

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
    """A request being served. `flexible`: the form of the response header; `more`: additional
    requests it represents. `parts`: the response, once there is one.

    `pins` is called once, when the response was sent or its client has disconnected. `throttle_ms`:
    the delay that a hot handler's response contains.
    """

    __slots__ = (
        "correlation_id",
        "flexible",
        "more",
        "parts",
        "peer",
        "pins",
        "throttle_ms",
        "version",
    )

    def __init__(self, peer: Peer, version: int, correlation_id: int, flexible: bool) -> None:
        self.peer = peer
        self.version = version
        self.correlation_id = correlation_id
        self.flexible = flexible
        self.more = 0
        self.throttle_ms = peer.throttle_ms
        self.parts: list[Part] | None = None
        self.pins: Callable[[], None] | None = None

    def answer(self, body: bytes) -> None:
        """Answer with a body in one buffer; from version 1 on it begins with the throttle time."""
        if self.throttle_ms and self.version:
            body = _INT.pack(self.throttle_ms) + body[_INT.size :]
        if len(body) > SMALL_ANSWER_BYTES and not self.peer.closed:
            self.peer.answers.add_bytes(len(body))
            self.pins = HeldAnswerMemory(self.peer, len(body))
        self.parts = [frame(self.correlation_id, body, self.flexible)]
        self.peer.note_answered(self)

    def answer_parts(
        self,
        body: Sequence[Part],
        release: Callable[[], None] | None = None,
        file_spans: int = 0,
    ) -> None:
        """Answer with several parts, sent without a copy; `release` is called when they were
        sent, or immediately if the client has disconnected. Without it the buffers are counted as
        memory of the response. `file_spans`: how many parts are FileSpan; `release` unpins them."""
        if self.peer.closed:
            if release is not None:
                release()
            return
        size = sum(map(len, body))
        if release is None and size > SMALL_ANSWER_BYTES:
            self.peer.answers.add_bytes(size)
            release = HeldAnswerMemory(self.peer, size)
        if self.flexible:
            head = _HEAD_TAGS.pack(size + 5, self.correlation_id, 0)
        else:
            head = _HEAD.pack(size + 4, self.correlation_id)
        self.parts = [head, *body]
        if file_spans:
            self.peer.file_spans += file_spans
        self.pins = release
        self.peer.note_answered(self)


class HotHandler(Protocol):
    """Serves one API directly from the receive buffer.

    `start` parses buf[pos:end], which is valid while `block` is pinned. It appends an exchange to
    the peer's (unless there is no response) and answers it immediately or later. It returns True;
    or False without any effect, and calls `peer.resume` when it can continue; or raises DecodeError
    (the connection is closed). `close` answers waiting requests.
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
