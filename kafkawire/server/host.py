"""State shared by all connections of one broker: the table of APIs, receive memory, dispatch,
sweeps.

It passes a framed request to its handler and encodes the handler's response. It handles all
failures of handlers: a KafkaError becomes the response's code, a defect UNKNOWN_SERVER_ERROR with a
logged traceback. `server.listener` has the sockets.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafkawire.codec.compile import DecodeError, encode
from kafkawire.codec.errors import KafkaError, code_of
from kafkawire.codec.types import Buffer
from kafkawire.handlers.access import check
from kafkawire.handlers.context import (
    ClientGone,
    MalformedRequest,
    ReconnectNeeded,
    RequestContext,
)
from kafkawire.handlers.exchange import Exchange, HeldAnswerMemory, Pinned
from kafkawire.handlers.failures import failed_response
from kafkawire.handlers.slices import (
    MAX_ANSWER_BYTES,
    AnswerTooLarge,
    decode_in_slices,
    encode_in_slices,
    free_in_steps,
)
from kafkawire.handlers.table import Api, serve_all
from kafkawire.log.io.disk import untouched_memory
from kafkawire.log_lines import LineLimit, shorten_for_log
from kafkawire.messages.registry import request_class, response_class
from kafkawire.plural import count
from kafkawire.security.principals import USER
from kafkawire.server.memory import Memory
from kafkawire.server.quotas.arrivals import Arrivals
from kafkawire.server.quotas.metering import meter_work, throttle
from kafkawire.server.slow import Sweeper

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.security.acls.rights import Rights
    from kafkawire.security.principals import Principal
    from kafkawire.server.connection import Connection

logger = logging.getLogger(__name__)

API_VERSIONS = 18
SWEEP_S = 1.0
"""Interval of the search for idle connections; the unit of `tick`."""

DRAIN_STEP_S = 0.01
TICKS_BETWEEN_REPORTS = 60
"""Interval of log lines about refused connections, because refused clients retry at once."""

CLOSED_BURST, CLOSED_PER_S = 100, 1.0
"""Lines about closed connections at once, and per second after that: 100 bytes each."""

LARGE_BODY_BYTES = 16 << 10
LARGE_AT_ONCE = 8
"""Minimum size of requests that are decoded and served at most eight at a time, except for parked
ones: more would take up to 100 MB each, and none would be answered sooner."""

SMALL_BODY_BYTES = 2048
"""Requests up to this size are decoded at once, in less than half a millisecond; larger ones in
slices, while their receive memory is pinned."""


class Host:
    """The shared state of all connections of a broker. `connections`: the open ones, `descriptors`:
    their maximum number."""

    def __init__(self, broker: Broker, descriptors: int = sys.maxsize) -> None:
        self.broker = broker
        self.watchdog = broker.env.watchdog
        self.memory = Memory(broker.config.inflight_bytes, untouched_memory)
        self.answers = broker.answer_memory
        self.apis = serve_all(broker)
        self._log = broker.log.commit_log
        self.quotas = broker.quotas
        self.frame_bytes_max = broker.config.socket_request_max_bytes
        self.applying_bytes_max = broker.config.connection_inflight_bytes
        self.tick = 0
        self.counts = broker.counts
        self.now = broker.env.clock.monotonic
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self.connections: set[Connection] = set()
        self._sweeper = Sweeper(self, self.connections)
        self._descriptors = descriptors
        self._refused = 0  # refused connections since the last report
        self._reported_tick = -TICKS_BETWEEN_REPORTS
        self._closed_lines = LineLimit(self.now, CLOSED_BURST, CLOSED_PER_S)
        self._dirty: list[Connection] = []
        self.call_later = broker.env.call_later
        self.arrivals = Arrivals(broker.config, self.quotas, self.counts, self.now, self.call_later)
        self.call_soon: Callable[[Callable[[], None]], object] = broker.env.call_soon

    def received_much(self) -> None:
        """Answer many small requests of one event-loop iteration before its end."""
        self._log.write_many()

    def rights_of(self, principal: Principal, client_host: str) -> Rights | None:
        """Return what a client may do; None without an authorizer."""
        acls = self.broker.security.acls
        return None if acls is None else acls.rights(principal, client_host)

    def flush_soon(self, connection: Connection) -> None:
        """Send this connection's answers at the end of the event-loop iteration: one write for all
        of them."""
        dirty = self._dirty
        dirty.append(connection)
        if len(dirty) == 1:
            self.call_soon(self.flush_all)

    def flush_all(self) -> None:
        """Send the ready responses of every connection."""
        dirty = self._dirty
        self._dirty = []
        timed = self.quotas.of_requests
        for connection in dirty:
            begun = self.now() if timed else 0.0
            try:
                connection.flush()
                if timed and not connection.closed:
                    connection.client_quotas().record_loop_time(self.now() - begun)
            except Exception:  # one broken socket must not affect the others
                self.log_defect(connection, "answers cannot be sent")
                connection.abort("its answers cannot be sent")

    def log_defect(self, connection: Connection, what: str) -> None:
        """Log the exception that is being handled: a defect for which one client gets an error."""
        logger.exception("%s: %s", self.last_request(connection), what)

    def log_closed(self, connection: Connection, reason: str) -> None:
        """Log why a connection is closed, at a bounded rate: clients connect again at once. The
        level DEBUG has a line for each."""
        omitted = self._closed_lines.admit()
        level = logging.DEBUG if omitted is None else logging.INFO
        more = f" ({omitted} more since the last line are logged at DEBUG only)" if omitted else ""
        logger.log(
            level, "closing the connection %s on listener %s: %s%s", _sender(connection),
            connection.listener, reason, more,
        )  # fmt: skip

    def serve(
        self, connection: Connection, exchange: Exchange, api: Api, block: Pinned, body: Buffer
    ) -> None:
        """Serve a request in a task. Raises DecodeError if a small one is malformed."""
        requests = self.counts.requests
        requests[api.key] = requests.get(api.key, 0) + 1
        begun = self.now()
        decode = api.decoders.get(exchange.version)
        if decode is None or len(body) > SMALL_BODY_BYTES:
            block.pin()
            work = self._serve_large(connection, exchange, api, block, body, begun)
        else:
            request, _ = decode(body, 0, len(body))
            if api.answer_now is not None and not self.quotas.of_clients:
                answer = api.answer_now(self.broker, connection, exchange.version, request)
                if answer is not None:
                    exchange.answer(answer)
                    connection.note_served(exchange)
                    self.counts.took(api.key, self.now() - begun)
                    return
            work = self._serve(connection, exchange, api, [request], begun)
        self.broker.env.spawn(work, f"{api.name} v{exchange.version} {_sender(connection)}")

    async def _serve_large(
        self,
        connection: Connection,
        exchange: Exchange,
        api: Api,
        block: Pinned,
        body: Buffer,
        begun: float,
    ) -> None:
        """Decode in slices, then serve: a large request, and the first one of its version."""
        slot = _Slot(self._large if len(body) >= LARGE_BODY_BYTES else None)
        await slot.acquire()
        try:
            await self._decode_and_serve(connection, exchange, api, block, body, begun, slot)
        finally:
            slot.release()

    async def _decode_and_serve(
        self,
        connection: Connection,
        exchange: Exchange,
        api: Api,
        block: Pinned,
        body: Buffer,
        begun: float,
        slot: _Slot,
    ) -> None:
        slices, cls = self.broker.env.slices, request_class(api.key)
        asked: list[Any] = []
        try:
            if exchange.version not in api.decoders:
                # Importing the handler and compiling takes up to tens of milliseconds, in which
                # other clients are served.
                await self.broker.env.offload.submit("files", api.compile, exchange.version)
            asked = await decode_in_slices(slices, cls, exchange.version, body)
        except DecodeError as wrong:
            connection.abort(f"{api.name} of {len(body)} bytes: {wrong}")
        except Exception as defect:
            logger.exception(
                "cannot decode %s request of client %s", api.name, connection.client_id
            )
            connection.abort(f"{api.name} of {len(body)} bytes: {defect!r}")
        finally:
            block.unpin()
        if asked and not connection.closed:
            await self._serve(connection, exchange, api, asked, begun, slot)
        await slices.run(free_in_steps(asked))

    async def _serve(
        self,
        connection: Connection,
        exchange: Exchange,
        api: Api,
        asked: list[Any],
        begun: float,
        slot: _Slot | None = None,
    ) -> None:
        """Have the only request in `asked` served, and answer it. It was received at `begun`."""

        def on_parked() -> None:
            connection.note_served(exchange)
            if slot is not None:
                slot.release()

        ctx = RequestContext(
            broker=self.broker,
            version=exchange.version,
            client_id=connection.client_id,
            client_host=connection.client_host,
            listener=connection.listener,
            principal=connection.principal,
            api=api.name,
            rights=connection.rights,
            correlation_id=exchange.correlation_id,
            park=on_parked,
            is_gone=lambda: connection.closed,
            quotas=connection.client_quotas() if self.quotas.of_clients else None,
            connected_at=connection.opened_at,
            withheld=connection.withheld,
            client_port=connection.client_port,
            software=connection.software,
            connection=connection,
            closing=connection.closing,
        )
        parts = await self._answer_of(connection, exchange, ctx, api, asked)
        release: Callable[[], None] | None = ctx.release_held if ctx.releases else None
        if ctx.held_bytes:
            release = HeldAnswerMemory(connection, ctx.held_bytes, release)
        if connection.closed or parts is None:
            if release is not None:
                release()
            return
        exchange.answer_parts(parts, release)
        connection.note_served(exchange)
        self.counts.took(api.key, self.now() - begun)

    async def _answer_of(
        self,
        connection: Connection,
        exchange: Exchange,
        ctx: RequestContext,
        api: Api,
        asked: list[Any],
    ) -> list[Buffer] | None:
        """Return the encoded response; None if there is none."""
        try:
            handler = api.handler
            assert handler is not None, "imported when its messages were compiled"
            if ctx.rights is not None:
                check(ctx, api.key, asked[0])
            work = handler(ctx, asked[0])
            if ctx.quotas is None:
                answer = [await work]
            else:
                answer = [await meter_work(work, ctx.quotas, self.now)]
                answer[0] = throttle(connection, ctx, api, answer[0])
            del work
            return await encode_in_slices(self.broker.env.slices, answer, exchange.version)
        except ClientGone:
            return None
        except ReconnectNeeded:
            connection.finish()
            return None
        except (AnswerTooLarge, MalformedRequest) as wrong:
            large = f"the answer is over {MAX_ANSWER_BYTES} bytes"
            connection.abort(f"{api.name}: {str(wrong) or large}")
            return None
        except Exception as failure:  # the outermost handler: no exception may escape
            return await self._refusal(connection, exchange, ctx, api, asked, failure)

    async def _refusal(
        self,
        connection: Connection,
        exchange: Exchange,
        ctx: RequestContext,
        api: Api,
        asked: list[Any],
        failure: Exception,
    ) -> list[Buffer] | None:
        """Return the response of a request that failed; None after closing its connection, if there
        is none."""
        if not isinstance(failure, KafkaError):
            logger.exception("%s v%d from %s failed", api.name, ctx.version, ctx.client_id)
        self.counts.count_error(api.name, int(code_of(failure)))
        why = "has no way to say so"
        try:
            parts = await self._encode_failure(api, exchange.version, asked, failure)
            if parts is not None:
                answer: list[Buffer] = throttle(connection, ctx, api, parts)
                return answer
        except AnswerTooLarge:
            why = f"its error response is over {MAX_ANSWER_BYTES} bytes"
        except Exception:
            logger.exception("cannot encode the error response for %s", api.name)
        connection.abort(f"{api.name} failed and {why}")
        return None

    async def _encode_failure(
        self, api: Api, version: int, asked: list[Any], failure: Exception
    ) -> list[Buffer] | None:
        """Return a response with the error, if one can be built."""
        message = failure.message if isinstance(failure, KafkaError) else None
        request = asked[0] if asked else None
        kind, slices = response_class(api.key), self.broker.env.slices
        response = await slices.run(
            failed_response(request, kind, version, int(code_of(failure)), message)
        )
        return None if response is None else await encode_in_slices(slices, [response], version)

    def answer_unsupported_version(self, exchange: Exchange, key: int, version: int) -> bool:
        """KIP-511: only ApiVersions answers unknown versions."""
        if key != API_VERSIONS:
            return False
        from kafkawire.handlers.api_versions import refuse_unsupported_version

        exchange.answer(encode(refuse_unsupported_version(), 0))
        return True

    def last_request(self, connection: Connection) -> str:
        """Describe the last request of a connection, for log lines."""
        api = self.apis.get(connection.last_key)
        return f"{api.name if api else 'a request'} {_sender(connection)}"

    def admit(self) -> bool:
        """Return whether another connection is allowed by `max.connections` and the file
        descriptors."""
        bound = min(self.broker.config.max_connections, self._descriptors)
        if len(self.connections) < bound or self._sweeper.make_room():
            return True
        self.counts.connections_refused += 1
        self._refused += 1
        if self.tick - self._reported_tick >= TICKS_BETWEEN_REPORTS:
            self._report_refused()
        return False

    def _report_refused(self) -> None:
        wanted = self.broker.config.max_connections
        few = self._descriptors < wanted
        logger.warning(
            "%d connections are open, %s: closed %s; %s",
            len(self.connections),
            "the most that the file descriptor limit allows" if few else "max.connections",
            count(self._refused, "new connection"),
            "raise the limit (ulimit -n)"
            if few
            else "raise it, or find the client that opens so many",
        )
        self._refused = 0
        self._reported_tick = self.tick

    def sweep(self) -> None:
        """Called every SWEEP_S: close connections that are idle or that block others."""
        self.tick += 1
        self._sweeper.sweep(self.broker.config.connections_max_idle_ms / 1000 / SWEEP_S)
        self.memory.favour()

    def disconnect_users(self, names: set[str]) -> None:
        """Close the connections of users that were deleted."""
        for connection in list(self.connections):
            principal = connection.principal
            if principal.kind == USER and principal.name in names:
                connection.abort(f"user {shorten_for_log(principal.name)} was deleted")

    async def drain(self, linger_s: float) -> None:
        """Start no further request, and close each connection once its last responses are sent, or
        after `linger_s`."""
        clock = self.broker.env.clock
        until = clock.monotonic() + linger_s
        for api in self.apis.values():
            if api.hot is not None:
                api.hot.close()  # requests parked during the stop
        while self.connections and clock.monotonic() < until:
            for connection in list(self.connections):
                connection.stop()
                if connection.is_done():
                    connection.finish()
            await self.broker.env.sleep(DRAIN_STEP_S)
        for connection in list(self.connections):
            connection.abort("the broker is closing")


class _Slot:
    """Permission to serve one large request; a parked request returns it."""

    __slots__ = ("_gate", "_open")

    def __init__(self, gate: asyncio.Semaphore | None) -> None:
        self._gate = gate
        self._open = False

    async def acquire(self) -> None:
        """Wait for the permission; first come, first served."""
        if self._gate is not None:
            await self._gate.acquire()
            self._open = True

    def release(self) -> None:
        """Return the permission. Another call has no effect."""
        if self._open and self._gate is not None:
            self._open = False
            self._gate.release()


def _sender(connection: Connection) -> str:
    client = connection.client_id
    name = "a client" if client is None else f"client {shorten_for_log(client)}"
    return f"of {name} at {connection.client_host}"
