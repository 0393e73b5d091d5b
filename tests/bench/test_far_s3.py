"""The latency proxy: bytes are unchanged, and no byte arrives too early."""

from __future__ import annotations

import time
from http.client import HTTPConnection

import pytest

from bench.far_s3 import far
from tests.kit.s3_stub import Reply, serving

DELAY_MS = 60
MBPS = 20
BODY = bytes(range(256)) * 8000


@pytest.mark.slow
def test_responses_are_delayed_and_rate_limited() -> None:
    with serving(lambda *_: Reply(200, BODY)) as stub:
        with far(stub.endpoint, DELAY_MS, MBPS) as endpoint:
            began = time.monotonic()
            connection = HTTPConnection(endpoint.partition("//")[2], timeout=30)
            took = []
            for _ in range(3):
                asked = time.monotonic()
                connection.request("GET", "/a")
                answer = connection.getresponse()
                took.append(time.monotonic() - asked)
                assert answer.read() == BODY
            whole = time.monotonic() - began
            connection.close()
        assert min(took) > DELAY_MS / 1000
        # Connecting takes as long as a first byte does.
        assert whole > 4 * DELAY_MS / 1000 + 3 * len(BODY) / (MBPS * 1e6) * 0.8
        assert len(stub.asked) == 3
        with pytest.raises(ConnectionError):  # the proxy has ended
            connection.request("GET", "/")


def test_zero_latency_uses_no_proxy() -> None:
    with far("http://a:1", 0, MBPS) as endpoint:
        assert endpoint == "http://a:1"
