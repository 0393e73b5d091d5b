"""The first request of a version: its messages are compiled while other clients are served.

Covers: kafkawire.server.host, kafkawire.handlers.table.
"""

from __future__ import annotations

import asyncio
import threading
from struct import pack
from typing import Any

import pytest

from kafkawire.codec import compile as messages
from kafkawire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kafkawire.server.connection import Connection
from kafkawire.server.host import Host
from tests.kit.client import Client


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that compiled messages of DescribeCluster, which none had before."""
    found: list[threading.Thread] = []
    for name in ("_make_decoder", "_make_sliced_decoder", "_make_encoder"):
        original = getattr(messages, name)

        def made(*given: Any, original: Any = original, **more: Any) -> Any:
            if given[0] in (DescribeClusterRequest, DescribeClusterResponse):
                found.append(threading.current_thread())
            return original(*given, **more)

        monkeypatch.setattr(messages, name, made)
    for name in ("_decoders", "_encoders", "_sliced_decoders", "_sliced_encoders"):
        monkeypatch.setattr(messages, name, {})
    return found


async def test_messages_are_compiled_in_another_thread(
    client: Client, threads: list[threading.Thread]
) -> None:
    """A compilation takes up to 6 ms of CPU. The client of the test needs its own, here."""
    asked = DescribeClusterRequest()
    for _ in range(2):
        assert (await client.call(asked, 1)).error_code == 0
    others = [each for each in threads if each is not threading.main_thread()]
    assert len(others) == 3
    assert len(threads) - len(others) == 2, "request and response of the client"


async def test_malformed_first_request_is_not_served(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its connection stays open: there is no request to serve."""
    refused = asyncio.Event()
    served = []

    async def serve(*given: Any) -> None:
        served.append(given)

    monkeypatch.setattr(Connection, "abort", lambda self, reason: refused.set())
    monkeypatch.setattr(Host, "_serve", serve)
    head = pack(">hhih", 60, 1, 1, 4) + b"test" + b"\0"  # DescribeCluster v1 without a body
    client.writer.write(pack(">i", len(head)) + head)
    await refused.wait()
    assert served == []
