"""Requests that wait for their answers. One per request of kafkawire.groups.coordinator."""

from __future__ import annotations

import asyncio
from typing import Generic

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.request import GroupRequest, RequestT, Response, ResponseT


class UnansweredRequest(Generic[RequestT, ResponseT]):
    """A request that has no answer yet: `future` gets it."""

    __slots__ = ("_ask", "future")

    def __init__(self, ask: GroupRequest[RequestT, ResponseT]) -> None:
        self._ask = ask
        self.future: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()

    def answer(self, body: Response) -> None:
        """Answer the request; no effect if its connection has closed. Raises TypeError for a
        response of another request type."""
        if not isinstance(body, self._ask.kind.response):
            raise TypeError(f"{type(body).__name__} is no answer to {self._ask.request}")
        if not self.future.done():
            self.future.set_result(body)

    def fail(self, code: ErrorCode) -> None:
        """Answer the request with only an error code."""
        self.answer(self._ask.error(code))
