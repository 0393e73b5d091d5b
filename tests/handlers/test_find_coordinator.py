"""FindCoordinator for coordinators of another broker.

Covers: kafkawire.handlers.find_coordinator.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.find_coordinator import STALE_S
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.metadata.catalog import BrokerInfo
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.server import port_of
from tests.kit.two_brokers import create, register

TOPICS = ("__consumer_offsets", "__transaction_state")


async def found(client: Client, kind: int, version: int) -> tuple[int, int, str, int]:
    """(code, node, host, port) of the coordinator of a key."""
    request = FindCoordinatorRequest(key_type=kind)
    if version >= 4:
        request.coordinator_keys = ["k"]
    else:
        request.key = "k"
    answer: Any = await client.call(request, version)
    one = answer.coordinators[0] if version >= 4 else answer
    return one.error_code, one.node_id, one.host, one.port


@pytest.mark.parametrize("kind", [0, 1])
async def test_coordinator_that_is_not_alive_is_not_available(
    server: Server, client: Client, kind: int
) -> None:
    broker = server.broker
    info = BrokerInfo(2, {"PLAINTEXT": ("second.example", 9093)}, None)
    await register(broker, info)
    await create(server, TOPICS[kind], [2])
    for version in range(1, 7):
        broker.catalog.set_silent(frozenset())
        assert await found(client, kind, version) == (0, 2, "second.example", 9093)
        broker.catalog.set_silent(frozenset({2}))
        absent = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)
        assert await found(client, kind, version) == absent


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("version", [3, 6])
async def test_connections_older_than_an_address_are_closed(
    server: Server, client: Client, kind: int, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka requests metadata when it loses a connection (see the handler)."""
    broker = server.broker
    first = BrokerInfo(2, {"PLAINTEXT": ("second.example", 9093)}, None)
    now_s = broker.env.clock.monotonic
    broker.catalog.update_broker(first, now_s())
    await broker.metadata.register_broker(2, first.listeners, None)
    broker.liveness.running([2])  # new topics wait for a heartbeat otherwise
    await create(server, TOPICS[kind], [2])
    assert await found(client, kind, version) == (0, 2, "second.example", 9093)
    moved = BrokerInfo(2, {"PLAINTEXT": ("third.example", 9094)}, None)
    broker.catalog.update_broker(moved, now_s() - STALE_S)
    assert await found(client, kind, version) == (0, 2, "third.example", 9094)
    broker.catalog.update_broker(moved, now_s())  # the same addresses
    assert await found(client, kind, version) == (0, 2, "third.example", 9094)
    broker.catalog.update_broker(first, now_s())
    with caplog.at_level("INFO"), pytest.raises(EOFError):
        await found(client, kind, version)
    assert "the addresses of broker 2, its coordinator, changed" in caplog.text
    absent = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)
    for _ in range(2):
        again = await Client.connect(port_of(server))
        assert await found(again, kind, version) == absent
        for _ in range(3):
            assert await found(again, kind, version) == (0, 2, "second.example", 9093)
        await again.close()


async def test_one_response_withholds_a_coordinator_for_all_keys(server: Server) -> None:
    broker = server.broker
    info = BrokerInfo(2, {"PLAINTEXT": ("second.example", 9093)}, None)
    await register(broker, info)
    await create(server, TOPICS[0], [2])
    moved = BrokerInfo(2, {"PLAINTEXT": ("third.example", 9094)}, None)
    broker.catalog.update_broker(moved, broker.env.clock.monotonic())
    client = await Client.connect(port_of(server))
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["k", "l"])
    for code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE):
        answer: Any = await client.call(request, 6)
        assert [row.error_code for row in answer.coordinators] == [code, code]
    await client.close()
