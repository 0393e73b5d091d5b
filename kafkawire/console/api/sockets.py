"""WebSockets of a topic: records as they come, acknowledgements of a group's member, and produce.

Messages are JSON objects in text frames. The server sends {"record"}, {"assigned"}, {"committed"},
{"produced", "id"} and {"error", "id"}; the client sends {"ack"} and {"produce", "id"}.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

from anyio import (
    CancelScope,
    create_memory_object_stream,
    create_task_group,
    fail_after,
    move_on_after,
)
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.offsets import EARLIEST, LATEST, leaders
from kafkawire.console.api.declared import ApiOperation, Param
from kafkawire.console.api.record_json import (
    check_names,
    found_record,
    load_object,
    produced_json,
    read_integer,
    read_record,
    record_json,
)
from kafkawire.console.api.records import (
    ENCODING,
    RETRY_S,
    SEARCH,
    follow,
    read_encoding,
    run,
    tail_query,
    will_pass,
)
from kafkawire.console.views.group_member import TopicMember
from kafkawire.console.views.plans import NotAllowed
from kafkawire.console.views.produce import Produced
from kafkawire.console.views.records import RecordQuery
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import INT32, INT64, WrongInput, client_of, text_param
from kafkawire.console.web.sessions import NotLoggedIn

MAX_UNACKNOWLEDGED = 1000
"""Offsets that a group's member has delivered and are not acknowledged: then it waits, so that
other members are not left without the records of one that is slow."""
MAX_ACK_S = 300.0
"""How long a client may take for an acknowledgement: Kafka's max.poll.interval.ms."""
MAX_PRODUCING = 1000
"""Records of a socket that wait for the broker; then its messages wait in the network."""
GROUP_STEP_MS = 250
"""How long a member waits for records before it commits what was acknowledged meanwhile."""
GOING_AWAY, NO_JSON, TOO_SLOW, FAILED = 1001, 1003, 1008, 1011
"""Codes with which a WebSocket is closed (RFC 6455, 7.4.1)."""

Replies = tuple[Any, "Future[list[Produced]]"]


class RecordSockets:
    """The WebSockets of all topics."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def operation(self) -> ApiOperation:
        """Return the declaration."""
        return ApiOperation(
            "GET", "/api/topics/{topic}/socket", "openSocket",
            "Open a WebSocket that reads records, as a group's member if it has a group, and "
            "produces", None,
            [*SEARCH, ENCODING,
             Param("group", "join this group; with where=oldest or newest where nothing is "
                   "committed"),
             Param("read", "0: only produce")],
            answers={101: ("A WebSocket", None)}, socket=True,
        )  # fmt: skip

    async def serve_socket(self, socket: WebSocket) -> None:
        """Serve a socket until one side closes it. HTTPException, WrongInput and ClientError before
        it is accepted."""
        query, group = tail_query(socket), text_param(socket, "group")
        base64, reads = read_encoding(socket), text_param(socket, "read") != "0"
        start = EARLIEST if text_param(socket, "where") == "oldest" else LATEST
        for name in ("at", "partition", "after", "key", "text") if group else ():
            if name in socket.query_params:
                raise WrongInput(name, text_param(socket, name), "left out with a group")
        if group and text_param(socket, "where") not in ("", "oldest", "newest"):
            raise WrongInput("where", text_param(socket, "where"), "oldest or newest with a group")
        client = client_of(socket)
        self._frame.streams.check(client)
        with self._frame.streams.open(client):
            await self._frame.ask(socket, lambda cluster: leaders(cluster, [query.topic]))
            session = _Session(self._frame, socket, query, base64)
            if group:
                await session.open_group(group, start)
            await session.serve_messages(reads)


class _Session:
    """One open socket."""

    def __init__(
        self, frame: PageFrame, socket: WebSocket, query: RecordQuery, base64: bool
    ) -> None:
        self._frame = frame
        self._socket = socket
        self._query = query
        self._base64 = base64
        self._producer = frame.viewer(socket).producer
        self._member: TopicMember | None = None
        self._acked = asyncio.Event()
        self._scope = CancelScope()
        self._closing: tuple[int, str] = (GOING_AWAY, "the console stops")

    async def open_group(self, group: str, start: int) -> None:
        """Open the connections of a member. ClientError."""
        cluster = await run(self._frame.viewer(self._socket).connect)
        self._member = TopicMember(cluster, group, self._query.topic, start)

    async def serve_messages(self, reads: bool) -> None:
        """Accept the socket, and serve it until one side closes it."""
        try:
            await self._socket.accept()
            replies, waiting = create_memory_object_stream[Replies](MAX_PRODUCING)
            with self._scope:
                async with create_task_group() as tasks:
                    tasks.start_soon(self._receive, replies)
                    tasks.start_soon(self._reply, waiting)
                    await self._deliver(reads)
                    self._scope.cancel()
            replies.close()
            waiting.close()
        finally:
            if self._member is not None:
                with CancelScope(shield=True):
                    await run(self._member.close)
        if self._socket.application_state is WebSocketState.CONNECTED:
            try:
                with fail_after(1):
                    await self._socket.close(*self._closing)
            except (TimeoutError, RuntimeError, WebSocketDisconnect):
                pass  # its client reads nothing, or has gone

    def _end(self, code: int, reason: str) -> None:
        self._closing = code, reason
        self._scope.cancel()

    async def _send(self, message: Mapping[str, Any]) -> None:
        """Send a message. It waits while the client reads slowly: a connection of which nothing is
        read is closed (kafkawire.console.web.connections)."""
        try:
            await self._socket.send_text(json.dumps(message, ensure_ascii=False))
        except (WebSocketDisconnect, RuntimeError):  # closed, or being closed
            self._end(GOING_AWAY, "")

    async def _fail(self, failure: Exception, name: Any = None) -> None:
        named = {} if name is None else {"id": name}
        await self._send({"error": f"{str(failure).rstrip('.')}.", **named})

    async def _receive(self, replies: MemoryObjectSendStream[Replies]) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                self._end(GOING_AWAY, "")
                return
            if message.get("text") is None:
                self._end(NO_JSON, "a message is JSON in a text frame")
                return
            name: Any = None
            try:
                body = load_object(message["text"])
                name = _name(body)
                if "produce" in body:
                    check_names("message", body, ("produce", "id"))
                    record = read_record(body["produce"], "produce")
                    await replies.send((name, self._producer.queue(self._query.topic, [record])))
                else:
                    check_names("message", body, ("ack", "id"))
                    self._acknowledge(body.get("ack"))
            except (ClientError, WrongInput, NotAllowed) as failure:
                await self._fail(failure, name)

    async def _reply(self, waiting: MemoryObjectReceiveStream[Replies]) -> None:
        """Answer records that were produced, in their order."""
        async for name, submitted in waiting:
            (result,) = await asyncio.wrap_future(submitted)
            named = {} if name is None else {"id": name}
            await self._send({"produced": produced_json(result), **named})

    def _acknowledge(self, ack: Any) -> None:
        if self._member is None:
            raise WrongInput("ack", "", "left out without a group")
        if not isinstance(ack, dict):
            raise WrongInput("ack", str(ack), "an object with partition and offset")
        check_names("ack", ack, ("partition", "offset"))
        partition = read_integer(ack, "partition", INT32, "ack")
        offset = read_integer(ack, "offset", INT64, "ack")
        if partition is None or offset is None:
            raise WrongInput("ack", str(ack), "an object with partition and offset")
        if not self._member.acknowledge(partition, offset):
            raise WrongInput("ack", str(ack), "a record that this socket was sent and still has")
        self._acked.set()

    async def _deliver(self, reads: bool) -> None:
        try:
            if self._member is not None:
                await self._deliver_group(self._member)
            elif reads:
                pages = follow(self._frame, self._socket, self._query, counted=False)
                async with aclosing(pages):
                    async for found in pages:
                        for each in found:
                            await self._send({"record": record_json(each, self._base64)})
            while not (reads or self._frame.streams.stopping()):
                await self._pause()
        except NotLoggedIn:
            self._closing = TOO_SLOW, "the user has logged out"
        except ClientError as failure:
            await self._fail(failure)
            self._closing = FAILED, "see the last message"

    async def _deliver_group(self, member: TopicMember) -> None:
        """Deliver the records of a member. ClientError if the broker refuses it."""
        acked_at, assigned = time.monotonic(), None
        while not self._frame.streams.stopping():
            self._frame.viewer(self._socket)  # NotLoggedIn after a log-out
            room = member.unacknowledged < MAX_UNACKNOWLEDGED
            self._acked.clear()
            found = await self._poll(member, room)
            if self._acked.is_set() or not member.unacknowledged:
                acked_at = time.monotonic()
            elif time.monotonic() - acked_at > MAX_ACK_S:
                self._end(TOO_SLOW, f"no acknowledgement for {MAX_ACK_S:.0f} s")
            if sorted(member.positions) != assigned:
                assigned = sorted(member.positions)
                await self._send({"assigned": assigned})
            for index, record in found:
                if member.heartbeat_due:
                    await self._poll(member, False)
                if index in member.positions:  # else another member has it now
                    shown = record_json(found_record(index, record), self._base64)
                    await self._send({"record": shown})
            if not room:
                await self._pause()

    async def _pause(self) -> None:
        """Wait for an acknowledgement, a short time at most."""
        with move_on_after(GROUP_STEP_MS / 1000):
            await self._acked.wait()

    async def _poll(self, member: TopicMember, read: bool) -> list[Any]:
        """Poll once; a broker that does not answer is asked again later."""
        try:
            committed, found = await run(member.poll, GROUP_STEP_MS if read else 0, read)
        except ClientError as failure:
            if isinstance(failure, BrokerError) and not will_pass(failure):
                raise
            await asyncio.sleep(RETRY_S)
            return []
        if committed:
            rows = [{"partition": index, "offset": end} for index, end in committed.items()]
            await self._send({"committed": rows})
        return found


def _name(body: Mapping[str, Any]) -> Any:
    name = body.get("id")
    if name is not None and (not isinstance(name, str | int) or len(str(name)) > 100):
        raise WrongInput("id", str(name), "a string or number of at most 100 characters")
    return name
