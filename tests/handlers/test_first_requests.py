"""The first request of a version: its messages are compiled while other clients are served.

Covers: kafkawire.server.host, kafkawire.handlers.table.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kafkawire.codec import compile as messages
from kafkawire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
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
