"""A session of the mcp package's own client with `kafkawire mcp` as a process."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from mcp import Client, StdioServerParameters


class McpSession:
    """A client in a thread of its own; used in a `with` statement."""

    def __init__(self, bootstrap: str, *words: str) -> None:
        self._parameters = StdioServerParameters(
            command=sys.executable,
            args=["-m", "kafkawire", *words, "mcp", "--server", bootstrap],
        )
        self._ready: Future[Client] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        try:
            async with Client(self._parameters, read_timeout_seconds=120) as client:
                self._ready.set_result(client)
                await self._end.wait()
        except BaseException as failure:
            if self._ready.done():
                raise
            self._ready.set_exception(failure)

    def __enter__(self) -> McpSession:
        self._thread.start()
        self._client = self._ready.result(120)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)

    def _do(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(180)

    def tools(self) -> list[Any]:
        """The tools that the server lists."""
        return list(self._do(self._client.list_tools()).tools)

    def text(self, tool: str, **arguments: Any) -> tuple[bool, str]:
        """Whether a call failed, and the text of its answer."""
        answer = self._do(self._client.call_tool(tool, arguments))
        return bool(answer.is_error), "".join(each.text for each in answer.content)

    def call(self, tool: str, **arguments: Any) -> Any:
        """The answer of a call."""
        failed, text = self.text(tool, **arguments)
        assert not failed, text
        return json.loads(text)

    def refused(self, tool: str, **arguments: Any) -> str:
        """The sentence of a call that fails."""
        failed, text = self.text(tool, **arguments)
        assert failed, text
        assert text.count("\n") == 0
        return text

    def ask(self, tool: str, **arguments: Any) -> str:
        """The text of an answer, or of an error."""
        return self.text(tool, **arguments)[1]
