"""Records of a topic: a search, live ones, files of them, and the search box of all pages."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from kafkawire.client.errors import ClientError
from kafkawire.console.views.copy_as import copy_as
from kafkawire.console.views.decoding import DECODERS
from kafkawire.console.views.downloads import FORMATS, MAX_FILE_RECORDS, write_records
from kafkawire.console.views.internal_records import INTERNAL, decode_pair
from kafkawire.console.views.live_records import TopicFollower
from kafkawire.console.views.records import (
    FoundRecord,
    RecordOrder,
    RecordPage,
    RecordQuery,
    read_records,
)
from kafkawire.console.views.search import find_target
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.live import repeat
from kafkawire.console.web.queries import (
    INT32,
    INT64,
    choice_param,
    client_of,
    positions_text,
    read_number,
    record_query,
    text_param,
)
from kafkawire.console.web.rendering import link

GIVEN = ("where", "at", "partition", "key", "text", "filter", "pattern")
MAX_LIVE = 10
"""Live pages of all viewers."""
KEPT_ROWS = 100
"""Newest records that a live page shows."""
LIVE_CHECKS = 5
"""A live page polls each second; see Streams."""


class RecordPages:
    """The page of records of each topic, and where the search box leads."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame
        self._live = 0

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [
            Route("/search", self.search),
            Route("/topics/{topic}/records", self.show_records),
            Route("/topics/{topic}/records/live", self.show_live_records),
            Route("/topics/{topic}/records/file", self.download_records),
            Route("/topics/{topic}/records/bytes", self.download_bytes),
        ]

    async def search(self, request: Request) -> Response:
        """Lead to what the text of the search box names."""
        known = await self._frame.read_known(request)
        path, query = find_target(known, text_param(request, "q"))
        return RedirectResponse(link(*path, **query), 303)

    async def show_records(self, request: Request) -> Response:
        """Serve records of a topic from a position on, or the place of live ones."""
        name, how = request.path_params["topic"], _decoder(request)
        query = record_query(name, request)
        live = text_param(request, "live") == "1"
        known = await self._frame.read_known(request)
        found = None
        if not live:
            found = await self._frame.ask(request, lambda cluster: read_records(cluster, query))
        given = {key: text_param(request, key) for key in GIVEN}
        return self._frame.page(
            request, "records.html", known, "_records.html",
            topic=name, found=found, query=query, decoder=how, decoders=(*DECODERS, INTERNAL),
            given=given, most=MAX_FILE_RECORDS,
            more=positions_text(found.more) if found is not None else "",
            pair=decode_pair, base=str(request.base_url), copies=copy_as,
        )  # fmt: skip

    async def show_live_records(self, request: Request) -> Response:
        """Stream the newest records of a topic."""
        name, how = request.path_params["topic"], _decoder(request)
        tail = TopicFollower(record_query(name, request))
        client = client_of(request)
        self._frame.streams.check(client)
        if self._live >= MAX_LIVE:
            raise HTTPException(
                503, f"Too many live pages are open, at most {MAX_LIVE}: close one."
            )
        rows: deque[FoundRecord] = deque(maxlen=KEPT_ROWS)
        skipped = 0

        async def render() -> str:
            nonlocal skipped
            failure = ""
            try:
                part = await self._frame.ask(request, lambda at: tail.read_new(at, self._live))
                rows.extendleft(reversed(part.records))
                skipped += part.skipped
                failure = part.error
            except ClientError as error:
                failure = str(error)
            return self._frame.render(
                "_live.html", None, topic=name, rows=rows, skipped=skipped, failure=failure,
                decoder=how, pair=decode_pair,
            )  # fmt: skip

        async def stream() -> AsyncIterator[str]:
            self._live += 1
            try:
                async for each in repeat(self._frame.streams, client, render, checks=LIVE_CHECKS):
                    yield each
            finally:
                self._live -= 1

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def download_records(self, request: Request) -> Response:
        """Serve what a search finds as a file."""
        name = request.path_params["topic"]
        kind = choice_param(request, "format", FORMATS, FORMATS[0])
        query = record_query(name, request, MAX_FILE_RECORDS)
        pool = self._frame.viewer(request).pool

        def read(wanted: RecordQuery) -> RecordPage:
            with pool.lend() as cluster:
                return read_records(cluster, wanted)

        # The first part is read before the answer begins: a failure has a status of its own.
        parts = write_records(read, query, kind)
        first = await self._frame.ask(request, lambda _: next(parts, ""))

        def all_parts() -> Iterator[str]:
            yield first
            yield from parts

        media = "application/x-ndjson" if kind == "jsonl" else "text/csv"
        return StreamingResponse(
            all_parts(), headers=_attachment(f"records.{kind}"), media_type=media
        )

    async def download_bytes(self, request: Request) -> Response:
        """Serve key or value of one record, byte for byte."""
        part = choice_param(request, "part", ("key", "value"), "value")
        index = read_number("partition", text_param(request, "partition"), 0, INT32)
        offset = read_number("offset", text_param(request, "offset"), 0, INT64)
        query = RecordQuery(
            request.path_params["topic"], RecordOrder.FORWARD, index, {index: offset}, limit=1
        )
        found = await self._frame.ask(request, lambda cluster: read_records(cluster, query))
        if not found.records or found.records[0].offset != offset:
            raise HTTPException(410, f"Partition {index} has no record at offset {offset}.")
        (record,) = found.records
        data = record.key if part == "key" else record.value
        headers = _attachment(f"{part}-{index}-{offset}.bin")
        return Response(bytes(data or b""), headers=headers, media_type="application/octet-stream")


def _decoder(request: Request) -> str:
    return choice_param(request, "decoder", (*DECODERS, INTERNAL), "auto")


def _attachment(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}
