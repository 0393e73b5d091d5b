"""Requests of clients with quotas: they are measured, answered with a throttle time, and the
connection is muted for so long (KIP-219).

`server.connection` and `server.host` call this only while some client has a quota. The bytes of a
Produce are recorded when it is started, and nothing after it is started before the delay is over;
in Kafka, too, its response is sent at once. Time of the event loop is recorded when it was spent:
of a hot request, and of the encoding of a response, it counts for the next request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any

from kafkawire.codec.schema import fields_in
from kafkawire.codec.types import Buffer
from kafkawire.messages.registry import response_class

if TYPE_CHECKING:
    from kafkawire.handlers.context import RequestContext
    from kafkawire.handlers.exchange import HotHandler, Peer, Pinned, Repeating
    from kafkawire.handlers.table import Api
    from kafkawire.security.quotas.sensors import ClientQuotas

PRODUCE, FETCH, WRITE_TXN_MARKERS, ADD_PARTITIONS_TO_TXN = 0, 1, 27, 24
_OF_BROKERS_FROM = {WRITE_TXN_MARKERS: 0, ADD_PARTITIONS_TO_TXN: 4}
"""Requests of other brokers, by API and version: no quota counts them."""

_INT = Struct(">i")


class MeteredHandler:
    """Starts requests of a hot handler for clients with quotas. A Fetch is measured when it is
    answered (`handlers.fetch`)."""

    __slots__ = ("_handler", "_produces")

    def __init__(self, handler: HotHandler, *, produces: bool) -> None:
        self._handler = handler
        self._produces = produces

    def start(
        self,
        peer: Peer,
        version: int,
        correlation_id: int,
        block: Pinned,
        buf: memoryview,
        pos: int,
        end: int,
    ) -> bool:
        """Start a request, as `HotHandler.start`."""
        quotas = peer.client_quotas()
        size_bytes = end - peer.frame_at - _INT.size
        delay_ms = (
            quotas.record_produce(size_bytes) if self._produces else quotas.throttle_request_time()
        )
        peer.start_throttled(delay_ms)
        try:
            started = self._handler.start(peer, version, correlation_id, block, buf, pos, end)
        finally:
            peer.start_throttled(0)
        if not started:
            if self._produces:
                quotas.take_back_produce(size_bytes)
        elif delay_ms:
            peer.throttle(delay_ms)
        return started


def meter_handler(handler: HotHandler | None, key: int) -> MeteredHandler | HotHandler | None:
    """Return what starts requests of an API while some client has a quota."""
    return (
        handler
        if handler is None or key == FETCH
        else MeteredHandler(handler, produces=key == PRODUCE)
    )


class MeteredRepeat:
    """Starts repeated Produces of a client with quotas. The delay of all of them is in the response
    of the last."""

    __slots__ = ("_peer", "_repeat")

    def __init__(self, peer: Peer, repeat: Repeating) -> None:
        self._peer = peer
        self._repeat = repeat

    def start(self, block: Pinned, buf: memoryview, pos: int, end: int) -> int:
        """Start requests, as `Repeating.start`."""
        peer = self._peer
        exchanges = peer.exchanges
        before = exchanges[-1] if exchanges else None
        at = self._repeat.start(block, buf, pos, end)
        if at != pos:
            delay_ms = peer.client_quotas().record_produce(at - pos)
            if delay_ms:
                if exchanges and exchanges[-1] is not before:  # otherwise acks=0
                    exchanges[-1].throttle_ms = delay_ms
                peer.throttle(delay_ms)
        return at


class Timed:
    """Awaits `work` and measures the time of its steps: `seconds`."""

    def __init__(self, work: Awaitable[Any], now: Callable[[], float]) -> None:
        self._work = work
        self._now = now
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._work.__await__()
        failure: BaseException | None = None
        while True:
            begun = self._now()
            try:
                waits_for = next(steps) if failure is None else steps.throw(failure)
            except StopIteration as done:
                return done.value
            finally:
                self.seconds += self._now() - begun
            failure = None
            try:
                yield waits_for
            except BaseException as thrown:  # of the task, for the work
                failure = thrown


async def meter_work(
    work: Awaitable[Any], quotas: ClientQuotas | None, now: Callable[[], float]
) -> Any:
    """Await what serves a request in a task, and record its time on the event loop."""
    if quotas is None or quotas.requests is None:
        return await work
    measured = Timed(work, now)
    try:
        return await measured
    finally:
        quotas.record_loop_time(measured.seconds)


def throttle(peer: Peer, ctx: RequestContext, api: Api, answer: Any) -> Any:
    """Mute the connection if its client is over a quota, and set the delay in the response: an
    object, or already encoded."""
    quotas = ctx.quotas
    if quotas is None or ctx.version >= _OF_BROKERS_FROM.get(api.key, 1 << 15):
        return answer
    of_changes_ms = 0 if ctx.mutations is None else ctx.mutations.delay_ms()
    delay_ms = max(of_changes_ms, ctx.fetch_delay_ms, quotas.throttle_request_time())
    if not delay_ms:
        return answer
    peer.throttle(delay_ms)
    if not isinstance(answer, list | bytes):
        if hasattr(answer, "throttle_time_ms"):
            answer.throttle_time_ms = delay_ms
        return answer
    return (
        _patch_throttle_time(answer, delay_ms) if _begins_with_it(api.key, ctx.version) else answer
    )


def _patch_throttle_time(body: list[Buffer] | bytes, delay_ms: int) -> list[Buffer]:
    first, *rest = [body] if isinstance(body, bytes) else body
    return [_INT.pack(delay_ms) + bytes(first[_INT.size :]), *rest]


@cache
def _begins_with_it(key: int, version: int) -> bool:
    """Return whether responses begin with throttle_time_ms, as those of almost all APIs."""
    fields = fields_in(response_class(key), version)
    return bool(fields) and fields[0].name == "throttle_time_ms"
