"""Operations on records: produce, read a page, wait for new ones, and a stream of events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing, suppress
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlencode

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Send

from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.codec.errors import ErrorCode
from kafkawire.console.api.declared import (
    INTEGER,
    TEXT,
    ApiOperation,
    Param,
    fields,
    list_of,
    nullable,
)
from kafkawire.console.api.record_json import (
    NEW_RECORD,
    PRODUCED,
    RECORD,
    load_object,
    produced_json,
    read_records,
    record_json,
)
from kafkawire.console.views.produce import NewRecord
from kafkawire.console.views.records import (
    MAX_RECORDS,
    FoundRecord,
    RecordOrder,
    RecordQuery,
)
from kafkawire.console.views.records import read_records as read_page
from kafkawire.console.views.tail import RecordTail
from kafkawire.console.web.failures import status_of
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.live import MAX_STREAMS
from kafkawire.console.web.queries import (
    INT32,
    WHERE,
    WrongInput,
    choice_param,
    client_of,
    number_param,
    parse_positions,
    positions_text,
    read_number,
    record_query,
    text_param,
)
from kafkawire.console.web.security import MAX_BODY_BYTES
from kafkawire.console.web.sessions import NotLoggedIn

T = TypeVar("T")

MAX_READING_BYTES = 64 << 20
"""Bytes of the bodies that are read or produced at the same time; one more is answered with 503."""
MAX_WAIT_S = 60
"""How long a request waits for records: proxies often end one after a minute."""
STEP_MS = 500
"""How long a thread waits for the broker before it sees whether the client has gone."""
RETRY_S = 1.0
"""Pause of a stream before it asks a broker again that does not answer."""
PING_S = 15.0
"""Proxies end a stream without bytes, often after 30 s."""

SEARCH = [
    Param("where", "one of " + ", ".join(WHERE)),
    Param("at", "the offset, or the time as 2026-01-31T12:00Z or @MILLISECONDS"),
    Param("partition", "only this one; required with an offset", INTEGER),
    Param("after", "positions as PARTITION:OFFSET,... at which to begin"),
    Param("key", "only records with this key"),
    Param("text", "only records with this text in key, value or headers"),
]
ENCODING = Param("encoding", "base64: keys and values in base64, also those in UTF-8")
PAGE = fields({
    "records": list_of(RECORD), "stopped": TEXT, "next": nullable(TEXT),
    "searched": list_of(fields({
        "partition": INTEGER, "first": INTEGER, "end": INTEGER, "log_start": INTEGER,
        "log_end": INTEGER,
    }, {"error": TEXT})),
})  # fmt: skip


class EventStream(StreamingResponse):
    """A response that closes its generator, which has a connection to the broker, when the client
    has gone."""

    body_iterator: Any

    async def stream_response(self, send: Send) -> None:
        """Send the events."""
        try:
            await super().stream_response(send)
        finally:
            await self.body_iterator.aclose()


class RecordApi:
    """Records of each topic."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame
        self._reading = 0

    def operations(self) -> list[ApiOperation]:
        """Return the declarations."""
        records, events = "/api/topics/{topic}/records", "/api/topics/{topic}/events"
        return [
            ApiOperation(
                "POST", records, "produce",
                "Produce records with acks=all: a list as JSON, or the bytes of one value",
                self.produce,
                [Param("key", "of a value in bytes"),
                 Param("partition", "of a value in bytes; without it by the key", INTEGER)],
                {"application/json": fields({"records": list_of(NEW_RECORD)}),
                 "application/octet-stream": {}},
                {200: ("Every record is acknowledged", fields({"records": list_of(PRODUCED)}))},
            ),
            ApiOperation(
                "GET", records, "readRecords",
                "Read a page of records; with wait, wait for one", self.read,
                [*SEARCH, Param("before", "positions before which to end, newest first"),
                 Param("limit", f"1 to {MAX_RECORDS} records", INTEGER),
                 Param("wait", f"seconds to wait for a record, at most {MAX_WAIT_S}", INTEGER),
                 ENCODING],
                answers={200: ("A page; `next` continues", PAGE)},
            ),
            ApiOperation(
                "GET", events, "streamRecords",
                "Stream records as server-sent events; Last-Event-ID continues", self.stream,
                [*SEARCH, ENCODING], answers={200: ("text/event-stream of records", None)},
            ),
        ]  # fmt: skip

    async def produce(self, request: Request) -> Response:
        """Produce the records of the body."""
        size = int(request.headers.get("content-length", MAX_BODY_BYTES))
        if self._reading + size > MAX_READING_BYTES:
            raise HTTPException(503, "Too many records are being produced", {"retry-after": "1"})
        self._reading += size
        try:
            body = await request.body()
            if request.headers["content-type"].lower().startswith("application/json"):
                for name in request.query_params:
                    raise WrongInput(name, "", "left out: the records have it")
                new = read_records(load_object(body))
            else:
                index = text_param(request, "partition")
                key = text_param(request, "key") if "key" in request.query_params else None
                partition = read_number("partition", index, 0, INT32) if index else None
                new = [NewRecord(None if key is None else key.encode(), body, (), partition)]
            producer = self._frame.viewer(request).producer
            submitted = producer.queue(request.path_params["topic"], new)
            found = await asyncio.wrap_future(submitted)
        finally:
            self._reading -= size
        answer = {"records": [produced_json(each) for each in found]}
        failed = next((each for each in found if each.error), None)
        if failed is None:
            return JSONResponse(answer)
        return JSONResponse(
            {"error": produced_json(failed)["error"], **answer}, status_of(failed.code)
        )

    async def read(self, request: Request) -> Response:
        """Answer with a page of records."""
        topic, base64 = request.path_params["topic"], read_encoding(request)
        query = record_query(topic, request)
        wait = number_param(request, "wait", 0, 0, MAX_WAIT_S)
        page = await self._frame.ask(request, lambda cluster: read_page(cluster, query))
        if wait and not page.records:
            if query.order is RecordOrder.BACKWARD and query.positions:
                raise WrongInput("wait", str(wait), "left out with before")
            ends = {each.partition: each.end for each in page.searched}
            query = replace(query, order=RecordOrder.FORWARD, positions=ends)
            if await self._wait(request, query, wait):
                page = await self._frame.ask(request, lambda cluster: read_page(cluster, query))
        forward = query.order is RecordOrder.FORWARD
        more = {each.partition: each.end for each in page.searched} if forward else page.more
        searched = [
            {name: value for name, value in each._asdict().items() if value != ""}
            for each in page.searched
        ]
        return JSONResponse({
            "records": [record_json(each, base64) for each in page.records],
            "searched": searched, "stopped": page.stopped,
            "next": _next(request, "after" if forward else "before", positions_text(more)),
        })  # fmt: skip

    async def _wait(self, request: Request, query: RecordQuery, seconds: int) -> bool:
        """Wait for a record of a query; return whether there is one, not if the client has
        gone."""
        until = time.monotonic() + seconds
        async with aclosing(follow(self._frame, request, query)) as pages:
            async for found in pages:
                if found:
                    return True
                if time.monotonic() >= until or await request.is_disconnected():
                    break
        return False

    async def stream(self, request: Request) -> Response:
        """Answer with a stream of events."""
        base64, query = read_encoding(request), tail_query(request)
        resumed = request.headers.get("last-event-id", "")
        if resumed:
            positions = parse_positions("Last-Event-ID", resumed)
            query = replace(query, order=RecordOrder.FORWARD, positions=positions)
        events = self._events(request, query, base64)
        # It fails with a status if the topic does not exist, and is missing if the server stops.
        first = await anext(events, "")
        return EventStream(_chain(first, events), media_type="text/event-stream")

    async def _events(
        self, request: Request, query: RecordQuery, base64: bool
    ) -> AsyncGenerator[str, None]:
        """Yield the text of events: of each record with the positions after it, and of positions
        alone when a filter found nothing, or as a sign of life."""
        tail, sent = RecordTail(query), 0.0
        async with aclosing(follow(self._frame, request, query, tail)) as pages:
            async for found in pages:
                positions = dict(tail.first)
                for each in found:
                    positions[each.partition] = each.offset + 1
                    data = json.dumps(record_json(each, base64), ensure_ascii=False)
                    yield f"id: {positions_text(positions)}\ndata: {data}\n\n"
                if found or time.monotonic() - sent >= PING_S:
                    yield f"id: {positions_text(tail.positions)}\n\n"
                    sent = time.monotonic()


async def follow(
    frame: PageFrame,
    connection: HTTPConnection,
    query: RecordQuery,
    tail: RecordTail | None = None,
    counted: bool = True,
) -> AsyncGenerator[list[FoundRecord], None]:
    """Yield the records of a query as they come, and an empty list at least each STEP_MS without
    any. It counts as a stream of the client unless `counted` is False, ends when the server stops,
    and outlives a broker that restarts. HTTPException with too many streams; ClientError if the
    first read fails."""
    client = client_of(connection)
    tail = tail or RecordTail(query)
    with ExitStack() as stack:
        if counted:
            frame.streams.check(client)
            stack.enter_context(frame.streams.open(client))
        viewer, cluster, begun = frame.viewer(connection), None, False
        try:
            while not frame.streams.stopping():
                frame.viewer(connection)  # NotLoggedIn after a log-out
                try:
                    if cluster is None:
                        cluster = await run(viewer.connect)
                    yield list(await run(tail.read, cluster, STEP_MS, abandon=True))
                    begun = True
                except ClientError as failure:
                    if not begun or (isinstance(failure, BrokerError) and not will_pass(failure)):
                        raise
                    if cluster is not None:
                        cluster.close()
                        cluster = None
                    yield []
                    await asyncio.sleep(RETRY_S)
        finally:
            if cluster is not None:
                cluster.close()


def will_pass(failure: BrokerError) -> bool:
    """Return whether the broker answers otherwise later, as after a restart."""
    return failure.code in set(ErrorCode) and ErrorCode(failure.code).retriable


_THREADS = CapacityLimiter(MAX_STREAMS)
"""A thread for each stream, of 0.1 MiB, so that none waits for another."""


async def run(call: Callable[..., T], *arguments: object, abandon: bool = False) -> T:
    """Call a function that blocks, in a thread for streams. `abandon`: do not wait for it when the
    task is cancelled: the caller then closes the connection that it uses, which ends it."""
    return await to_thread.run_sync(call, *arguments, limiter=_THREADS, abandon_on_cancel=abandon)


def read_encoding(connection: HTTPConnection) -> bool:
    """Return whether keys and values are wanted in base64."""
    return choice_param(connection, "encoding", ("base64",)) == "base64"


def tail_query(connection: HTTPConnection) -> RecordQuery:
    """Return the query of a stream: without a position it begins with what is written next."""
    query = record_query(connection.path_params["topic"], connection)
    return replace(query, limit=MAX_RECORDS)


def _next(request: Request, name: str, positions: str) -> str | None:
    if not positions:
        return None
    left = ("after", "before", "where", "at")
    kept = {key: value for key, value in request.query_params.items() if key not in left}
    return f"{request.scope['raw_path'].decode()}?{urlencode({**kept, name: positions})}"


async def _chain(first: str, rest: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    async with aclosing(rest):
        with suppress(ClientError, NotLoggedIn):  # or the topic was deleted: the stream ends
            yield first
            async for each in rest:
                yield each
