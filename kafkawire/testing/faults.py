"""Faults of a broker for tests: errors, delays, dropped connections and throttling, by API.

An API with faults has another row in the table of its host, whose hot handler decodes each request.
One without a matching fault is started as always, from the same bytes. The answer of another
consists of error responses for the parts that fail (kafkawire.handlers.failures) and of the answer
to the rest, which is a request of its own on a connection without a socket.

Runs on the broker's event loop, called by kafkawire.testing.control. An API without faults has its
own row, so other brokers do not pay for this.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from kafkawire.codec.compile import decode, encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer
from kafkawire.handlers.exchange import Exchange, Peer, Pinned
from kafkawire.handlers.failures import failed_response
from kafkawire.log.io.file_span import FileSpan
from kafkawire.messages.registry import request_class, response_class
from kafkawire.server.connection import Connection
from kafkawire.server.memory import Block
from kafkawire.testing.parts import FaultTarget, has_topics, merge_responses

if TYPE_CHECKING:
    from kafkawire.handlers.table import Api
    from kafkawire.server.host import Host

FAIL, DELAY, DROP, THROTTLE = "fail", "delay", "drop", "throttle"
PRODUCE, FETCH, METADATA = 0, 1, 3
LOG_INS = (17, 36)
"""SaslHandshake and SaslAuthenticate: most are answered before requests have handlers."""
FETCH_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""Errors of a whole Fetch: clients look for all others in its partitions."""
APPLIED_CHECK_S = 0.001
"""Interval of the check whether a Produce without an answer is written."""


@dataclass(slots=True)
class ApiFault:
    """A fault of an API. `left`: how many more requests it has, None: all."""

    kind: str
    key: int
    topic: str | None = None
    partition: int | None = None
    code: ErrorCode = ErrorCode.NONE
    seconds: float = 0.0
    left: int | None = 1
    used: int = 0

    def use(self) -> None:
        """Count a request."""
        self.used += 1
        if self.left is not None:
            self.left -= 1


@dataclass(slots=True)
class Plan:
    """How a request is answered. `rest`: what of it is served, None: nothing. `failed`: the other
    parts. `named`: faults of a topic or partition that only the response names. `no_answer`: of a
    Produce with acks=0."""

    rest: Any
    before: list[ApiFault] = field(default_factory=list)
    failed: list[tuple[ApiFault, Any]] = field(default_factory=list)
    named: list[ApiFault] = field(default_factory=list)
    no_answer: bool = False


class Faults:
    """The faults of the brokers of a test. Each counts the requests to all of them."""

    def __init__(self) -> None:
        self.inner: set[object] = set()  # connections of parts of requests
        self._hosts: list[Host] = []
        self._faults: list[ApiFault] = []  # an index is the number of a fault
        self._cleared = 0

    def attach(self, host: Host) -> None:
        """Add the faults to a broker that has just been started."""
        self._hosts.append(host)
        for key in {each.key for each in self._waiting()}:
            self._install(host, key)

    def detach(self, host: Host) -> None:
        """Forget a broker that has ended."""
        self._hosts.remove(host)

    def add(self, fault: ApiFault) -> int:
        """Add a fault and return its number. Raises ValueError if it cannot happen."""
        api = self._hosts[0].apis[fault.key]
        if fault.key in LOG_INS:
            raise ValueError(f"api={api.name}: it is part of a log-in, which has no faults")
        if fault.topic is None and fault.partition is not None:
            raise ValueError(f"partition={fault.partition}: a topic must be given with it")
        if fault.topic is not None and not has_topics(fault.key):
            raise ValueError(f"topic={fault.topic}: {api.name} has no errors of single topics")
        if fault.left is not None and fault.left < 1:
            raise ValueError(f"times={fault.left}: it must be at least 1, or None for all")
        self._faults.append(fault)
        for host in self._hosts:
            self._install(host, fault.key)
        return len(self._faults) - 1

    def _install(self, host: Host, key: int) -> None:
        """Have each request of an API seen here."""
        api = host.apis[key]
        if not isinstance(api.hot, FaultyHandler):
            faulty = copy.copy(api)
            faulty.hot = FaultyHandler(self, host, api)
            host.apis[key] = faulty
        for connection in host.connections:
            connection.repeat = connection.repeat_candidate = None

    def count_uses(self, number: int) -> int:
        """Return how many requests a fault has had."""
        return self._faults[number].used

    def clear(self) -> None:
        """End all faults; what they have delayed remains so."""
        self._cleared = len(self._faults)
        for host in self._hosts:
            for key, api in host.apis.items():
                if isinstance(api.hot, FaultyHandler):
                    host.apis[key] = api.hot.api

    def _waiting(self) -> list[ApiFault]:
        return [each for each in self._faults[self._cleared :] if each.left != 0]

    def plan(self, handler: FaultyHandler, version: int, request: Any) -> Plan | None:
        """Return how the request is answered, and count it in its faults; None: as always."""
        key = handler.api.key
        waiting = [each for each in self._waiting() if each.key == key]
        if not waiting:
            handler.host.apis[key] = handler.api
            return None
        plan = Plan(request)
        for fault in waiting:
            if plan.rest is None:
                break
            if fault.kind == FAIL:
                _plan_failure(plan, fault, handler.target(fault), version)
            elif not any(fault.kind == each.kind for each in plan.before):
                plan.before.append(fault)
                fault.use()
        found = plan.before or plan.failed or plan.named
        return plan if found else None


def _plan_failure(plan: Plan, fault: ApiFault, target: FaultTarget | None, version: int) -> None:
    if fault.key == METADATA and fault.topic is None:
        plan.named.append(fault)  # brokers always answer with the list of brokers
        return
    taken, rest = plan.rest, None
    if target is not None:
        taken, rest = target.division(plan.rest, version)
    if taken is not None:
        plan.failed.append((fault, taken))
        plan.rest = rest
        fault.use()
    elif target is not None and target.may_be_answered(plan.rest, version):
        plan.named.append(fault)


class _NoAnswer(Exception):
    """A request cannot be answered: its connection is closed. The text is the reason."""


class FaultyHandler:
    """Starts the requests of an API with faults; a HotHandler in the place of that of `api`."""

    def __init__(self, faults: Faults, host: Host, api: Api) -> None:
        self._faults = faults
        self.host = host
        self.api = api

    def target(self, fault: ApiFault) -> FaultTarget | None:
        """Return what of a request a fault is for; None: all of it."""
        if fault.topic is None and fault.key != METADATA:
            return None
        return FaultTarget(fault.topic, fault.partition, self._name_of)

    def _name_of(self, topic_id: bytes) -> str | None:
        found = self.host.broker.catalog.by_id.get(topic_id)
        return None if found is None else str(found.name)

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
        """Start a request, with its faults or as always; see HotHandler."""
        api, host, plan = self.api, self.host, None
        if peer not in self._faults.inner:  # not the rest of a request that has had its faults
            request = decode(request_class(api.key), version, bytes(buf[pos:end]))
            plan = self._faults.plan(self, version, request)
        if plan is None:
            if api.hot is None:
                connection, body = cast("Connection", peer), buf[pos:end]
                connection.start_cold(api, version, correlation_id, cast("Block", block), body)
                return True
            started = api.hot.start(peer, version, correlation_id, block, buf, pos, end)
            peer.repeat = peer.repeat_candidate = None  # each request is to be seen here
            return started
        head = bytes(buf[peer.frame_at + 4 : pos])
        flexible = version >= api.flexible_from and api.flexible_answer
        exchange = Exchange(peer, version, correlation_id, flexible)
        peer.exchanges.append(exchange)
        peer.note_started(exchange)
        plan.no_answer = api.key == PRODUCE and not request.acks
        served = self._serve(cast("Connection", peer), exchange, head, plan)
        host.broker.env.spawn(served, f"{api.name} with a fault")
        return True

    async def _serve(
        self, connection: Connection, exchange: Exchange, head: bytes, plan: Plan
    ) -> None:
        """Answer a request that has faults, or close its connection."""
        try:
            await self._respond(connection, exchange, head, plan)
        except _NoAnswer as why:
            connection.abort(f"{self.api.name} {why}")
        except Exception:  # otherwise the client would wait for an answer
            self.host.log_defect(connection, "a request with a fault cannot be answered")
            connection.abort(f"{self.api.name} with a fault cannot be answered")

    async def _respond(
        self, connection: Connection, exchange: Exchange, head: bytes, plan: Plan
    ) -> None:
        env, throttle_ms = self.host.broker.env, 0
        for fault in plan.before:
            if fault.kind == DELAY:
                await env.sleep(fault.seconds)
            elif fault.kind == THROTTLE:
                throttle_ms = int(fault.seconds * 1000)
        if any(fault.kind == DROP for fault in plan.before):
            connection.finish()
            return
        answer = await self._answer(connection, exchange, head, plan)
        if connection.closed:
            return
        exchange.pins = None
        if answer is None:
            exchange.parts = []
            connection.note_answered(exchange)
        else:
            if throttle_ms and hasattr(answer, "throttle_time_ms"):
                answer.throttle_time_ms = throttle_ms
            exchange.answer_parts([encode(answer, exchange.version)])
        connection.note_served(exchange)
        if throttle_ms:
            connection.throttle(throttle_ms)

    async def _answer(
        self, connection: Connection, exchange: Exchange, head: bytes, plan: Plan
    ) -> Any:
        """Return the response; None for a Produce with acks=0. Raises _NoAnswer."""
        answer, version = None, exchange.version
        if plan.failed and plan.no_answer:
            raise _NoAnswer("without an answer has failed")  # Kafka, too, closes the connection
        if plan.rest is not None and not connection.closed:
            inner = InnerWire(self.host, connection, self._faults)
            exchange.pins = inner.close  # when the client has disconnected
            answer = await self._serve_rest(inner, exchange, head, plan)
        for fault, part in plan.failed:
            in_items = fault.topic is not None or (
                fault.key == FETCH and fault.code not in FETCH_ERRORS
            )
            kind = response_class(fault.key)
            steps = failed_response(part, kind, version, fault.code, None, in_items=in_items)
            made = await self.host.broker.env.slices.run(steps)
            if made is None:
                raise _NoAnswer(f"v{version} has no field for {fault.code.name}")
            answer = made if answer is None else merge_responses(answer, made, version)
        return answer

    async def _serve_rest(
        self, inner: InnerWire, exchange: Exchange, head: bytes, plan: Plan
    ) -> Any:
        """Return the response to the rest of a request, with the errors of what only the response
        names."""
        version = exchange.version
        request = head + encode(plan.rest, version)
        body = await inner.ask(request, no_answer=plan.no_answer)
        if body is None:
            if plan.no_answer:
                return None
            raise _NoAnswer("has no answer to the rest of a request")
        start = 9 if exchange.flexible else 8  # frame length, correlation id, no tags
        answer = decode(response_class(self.api.key), version, memoryview(body)[start:])
        for fault in plan.named:
            target = self.target(fault)
            if fault.left != 0 and target and target.set_code(answer, fault.code, version):
                fault.use()
        return answer

    def close(self) -> None:
        """Close the API's own handler."""
        if self.api.hot is not None:
            self.api.hot.close()


class InnerWire:
    """The socket of a connection for a part of one request of another connection."""

    def __init__(self, host: Host, outer: Connection, faults: Faults) -> None:
        self._answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._received = bytearray()
        self._faults, self._env = faults, host.broker.env
        self._connection = inner = Connection(host, self, outer.client_host, outer.listener)
        faults.inner.add(inner)
        inner.set_principal(outer.principal)
        inner.opened_at, inner.withheld = outer.opened_at, outer.withheld
        inner.redirects, inner.software = outer.redirects, outer.software
        inner.client_port = outer.client_port

    async def ask(self, request: bytes, *, no_answer: bool) -> bytes | None:
        """Return the response with its header; None if the connection is closed instead."""
        rest = memoryview(len(request).to_bytes(4, "big") + request)
        inner = self._connection
        while rest and not inner.closed:
            into = inner.get_buffer(-1)
            count = min(len(into), len(rest))
            into[:count] = rest[:count]
            rest = rest[count:]
            inner.buffer_updated(count)
        try:
            while no_answer and inner.applying_bytes:
                await self._env.sleep(APPLIED_CHECK_S)
            return None if no_answer else await self._answer
        finally:
            inner.release_all()
            self._faults.inner.discard(inner)

    def write(self, parts: list[Buffer]) -> None:
        """Take a part of the response; see kafkawire.server.ports.Wire."""
        for part in parts:
            self._received += part
        size = 4 + int.from_bytes(self._received[:4], "big")
        if len(self._received) >= size > 4 and not self._answer.done():
            self._answer.set_result(bytes(self._received))

    def send_file(self, span: FileSpan) -> bool:
        """Take a part of the response from a file."""
        self.write([span.read(0, len(span))])
        return True

    def unsent_bytes(self) -> int:
        """Return 0: all is taken at once."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing: there is only one request."""

    def resume_reading(self) -> None:
        """Do nothing: there is only one request."""

    def close(self, reason: str | None = None) -> None:
        """Close the connection without a response."""
        if not self._answer.done():
            self._answer.set_result(None)
