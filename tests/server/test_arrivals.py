"""Limits of new connections: per address, per second, and the quota of an address."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from kafkawire.codec.configs.parse import ConfigError, address_limits
from kafkawire.codec.configs.settings import BrokerConfig, check_broker
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.security.quotas.alterations import Entity, QuotaChange
from kafkawire.server.quotas.arrivals import Arrivals
from kafkawire.server.receiving import THROTTLED
from tests.kit.client import Client
from tests.kit.connections import ECHO, FakeHost, frame
from tests.kit.connections import Client as FakeClient
from tests.kit.quotas import set_quotas
from tests.kit.server import port_of, running

EVERY_ADDRESS: Entity = (("ip", None),)


class Arriving:
    """Arrivals in the time of a FakeHost."""

    def __init__(self, **settings: str) -> None:
        self.host = FakeHost()
        config = BrokerConfig({name.replace("_", "."): text for name, text in settings.items()})
        host = self.host
        self.arrivals = Arrivals(config, host.quotas, host.counts, host.now, host.call_later)

    def connect(self) -> FakeClient:
        client = FakeClient(self.host)
        self.arrivals.delay(client.connection)
        return client


def test_an_address_has_a_limit_of_connections(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    arrivals = Arriving(
        max_connections_per_ip="2", max_connections_per_ip_overrides="10.0.0.9:1, [::1]:3"
    ).arrivals
    addresses = ["10.0.0.1"] * 3 + ["10.0.0.9"] * 2 + ["::1"] * 4
    assert [arrivals.admit(each) for each in addresses] == [
        True, True, False, True, False, True, True, True, False,
    ]  # fmt: skip
    arrivals.note_closed("10.0.0.1")
    assert arrivals.admit("10.0.0.1")
    assert "10.0.0.1 has 2 open connections" in caplog.text
    assert arrivals._counts.connections_refused == 3
    for address in ("10.0.0.1", "10.0.0.1", "10.0.0.9", "::1", "::1", "::1"):
        arrivals.note_closed(address)
    assert not arrivals._open


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:-1", "host:5", "10.0.0.1:x", ":5"])
def test_invalid_limits_of_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a list of ADDRESS:COUNT"):
        check_broker({"max.connections.per.ip.overrides": text})


def test_no_connections_by_default_need_other_limits() -> None:
    with pytest.raises(ConfigError, match=r"max.connections.per.ip.overrides"):
        check_broker({"max.connections.per.ip": "0"})
    check_broker({"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "::1:5"})


def test_limits_of_addresses() -> None:
    found = address_limits("0:0:0:0:0:0:0:1:4, 10.0.0.1:0")
    assert found == {"::1": 4, "10.0.0.1": 0}


def test_connections_over_the_rate_are_served_later() -> None:
    arriving = Arriving(max_connection_creation_rate="1")
    clients = [arriving.connect() for _ in range(12)]
    muted = [bool(client.connection.waits & THROTTLED) for client in clients]
    assert muted == [False] * 10 + [True] * 2
    arriving.host.pass_time(1.1)
    assert not clients[10].connection.waits & THROTTLED
    assert clients[11].connection.waits & THROTTLED
    arriving.host.pass_time(1.1)
    clients[11].feed(frame(ECHO, 1, b"x"))
    assert clients[11].answers()


def test_connections_over_the_quota_of_an_address_are_closed_unserved() -> None:
    arriving = Arriving()
    arriving.host.quotas.put([QuotaChange(EVERY_ADDRESS, "connection_creation_rate", 1)])
    clients = [arriving.connect() for _ in range(12)]
    assert all(client.feed(frame(ECHO, 1, b"x")) for client in clients[:10])
    assert clients[10].feed(frame(ECHO, 1, b"x")) == 0
    arriving.host.pass_time(1.0)
    assert [bool(client.wire.closed) for client in clients] == [False] * 10 + [True] * 2
    arriving.host.pass_time(2.0)
    assert not clients[11].answers()
    arriving.host.pass_time(11.0)
    assert arriving.connect().feed(frame(ECHO, 1, b"x"))


async def first_byte(client: Client) -> bytes:
    """The first byte of a response; none if the connection is closed."""
    try:
        return await client.reader.read(1)
    except ConnectionResetError:
        return b""


async def test_limits_of_a_running_broker(tmp_path: Path) -> None:
    async with running(tmp_path / "data", max_connections_per_ip="3") as server:
        clients = [await Client.connect(port_of(server)) for _ in range(3)]
        for client in clients:
            await client.call(ListGroupsRequest(), 4)
        refused = await Client.connect(port_of(server))
        assert await first_byte(refused) == b""
        await refused.close()
        await clients[0].close()
        while len(server.host.connections) > 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await set_quotas(clients[1], EVERY_ADDRESS, {"connection_creation_rate": 1})
        for _ in range(11):
            last = await Client.connect(port_of(server))
            last.send(ListGroupsRequest(), 4)
            answered = await first_byte(last)
            last.writer.transport.abort()
            if not answered:
                break
        assert not answered
        for client in clients[1:]:
            await client.close()
