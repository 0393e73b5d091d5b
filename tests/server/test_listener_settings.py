"""Listeners with settings of their own: limits of connections, and what is shared.

Covers: kafkawire.server.listeners.security, kafkawire.server.listeners.limits.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kafkawire.broker.options import Listener, SecurityProtocol
from kafkawire.codec.configs.listeners import ListenerConfig
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.disk import real_env
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.metric_counters import Counts
from kafkawire.security.principals import Principal
from kafkawire.server.listeners.addresses import AddressError
from kafkawire.server.listeners.limits import ListenerLimits
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.sasl import is_closed, log_in_plain
from tests.kit.server import options
from tests.kit.tls import certificates, client_context
from tests.kit.waiting import until

CERTIFICATE = {
    "ssl.keystore.location": f"{certificates()}/server.pem",
    "ssl.key.location": f"{certificates()}/server.key",
}


@asynccontextmanager
async def running(
    data: Path, protocols: dict[str, SecurityProtocol], **own: dict[str, str]
) -> AsyncIterator[Server]:
    """A server with these listeners; `own`: settings of each by its name in lower case."""
    plain = options(data)
    texts = {f"listener.name.{name}.{key}": text for name in own for key, text in own[name].items()}
    made = replace(
        plain,
        listeners=[Listener(name, "127.0.0.1", 0, protocols[name]) for name in protocols],
        advertised=dict.fromkeys(protocols, ("127.0.0.1", 0)),
        listener_settings=texts,
    )
    server = await Server.start(made, real_env())
    try:
        yield server
    finally:
        await server.close()


def port_of(server: Server, name: str) -> int:
    return server.broker.listeners[name][1]


async def test_one_listener_has_a_limit_of_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    protocols = dict.fromkeys(("IN", "OUT"), SecurityProtocol.PLAINTEXT)
    async with running(tmp_path, protocols, out={"max.connections": "2"}) as server:
        first, second, refused = [await Client.connect(port_of(server, "OUT")) for _ in range(3)]
        assert await is_closed(refused)
        for name in ("IN", "IN", "IN"):
            client = await Client.connect(port_of(server, name))
            assert (await client.call(MetadataRequest(topics=[]), 9)).brokers
            await client.close()
        assert "listener OUT has 2 connections" in caplog.text
        assert server.broker.counts.connections_refused == 1
        await first.close()
        await until(lambda: len(server.host.connections) == 1, "the first is closed")
        third = await Client.connect(port_of(server, "OUT"))
        for client in (second, third):
            assert (await client.call(MetadataRequest(topics=[]), 9)).brokers
            await client.close()


def limits(now: list[float], **own: str) -> ListenerLimits | None:
    texts = {f"listener.name.out.{name.replace('_', '.')}": text for name, text in own.items()}
    config = ListenerConfig.for_listener("OUT", BrokerConfig(), texts)
    return ListenerLimits.for_listener("OUT", config, Counts(), lambda: now[0])


def test_one_listener_has_a_limit_of_new_connections() -> None:
    now = [100.0]
    assert limits(now, sasl_enabled_mechanisms="PLAIN") is None
    few = limits(now, max_connection_creation_rate="5")
    assert few is not None
    delays = [few.delay_ms() for _ in range(100)]
    assert delays[0] == 0
    assert delays[-1] > 0
    assert all(few.admit() for _ in range(20_000))
    many = limits(now, max_connections="5")
    assert many is not None
    assert not any(many.delay_ms() for _ in range(100))


async def test_listeners_share_what_is_equal(tmp_path: Path) -> None:
    protocols = dict.fromkeys(("A", "B", "C"), SecurityProtocol.SASL_TLS)
    asking = {
        **CERTIFICATE, "ssl.client.auth": "required",
        "ssl.truststore.location": f"{certificates()}/ca.pem",
    }  # fmt: skip
    own = {"a": CERTIFICATE, "b": {**CERTIFICATE, "max.connections": "3"}, "c": asking}
    async with running(tmp_path, protocols, **own) as server:
        a, b, c = (Listener(name, "", 0, protocols[name]) for name in "ABC")
        security = server.security
        assert await security.tls(a) is await security.tls(b)
        assert (await security.tls(a)).handshakes is (await security.tls(c)).handshakes
        assert (await security.tls(a)).certificates is not (await security.tls(c)).certificates
        services = [(await security.logins_of(each)).service for each in (a, b, c)]
        assert services[0] is services[1] is services[2]
        assert [security.asks_clients(each) for each in (a, b, c)] == [False, False, True]


async def test_a_listener_with_log_in_asks_for_certificates_if_its_own_setting_says_so(
    tmp_path: Path,
) -> None:
    """The principal is that of the log-in, as in Kafka."""
    users = tmp_path / "users"
    users.write_text("bob:secret\n")
    users.chmod(0o600)
    own = {
        **CERTIFICATE, "ssl.client.auth": "required", "sasl.plain.users.file": str(users),
        "ssl.truststore.location": f"{certificates()}/ca.pem", "sasl.enabled.mechanisms": "PLAIN",
    }  # fmt: skip
    shown = tmp_path / "client.pem"
    shown.write_bytes(
        b"".join((certificates() / name).read_bytes() for name in ("client.pem", "client.key"))
    )
    async with running(tmp_path / "data", {"OUT": SecurityProtocol.SASL_TLS}, out=own) as server:
        for context, accepted in ((client_context(shown), True), (client_context(), False)):
            opened = await asyncio.open_connection(
                "127.0.0.1", port_of(server, "OUT"), ssl=context, server_hostname="localhost"
            )
            client = Client(*opened, "test")
            if accepted:
                assert (await log_in_plain(client, "bob", "secret")).error_code == 0
                (connection,) = server.host.connections
                assert connection.principal == Principal("User", "bob")
            else:
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await log_in_plain(client, "bob", "secret")
            client.writer.close()


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"ssl.key.location": "/none"}, "listener OUT: a TLS listener needs ssl.keystore.location"),
        ({**CERTIFICATE, "ssl.client.auth": "required"}, "listener OUT: ssl.client.auth=required"),
        ({**CERTIFICATE, "sasl.enabled.mechanisms": "OAUTHBEARER"}, "listener OUT: sasl.oauth"),
    ],
)
async def test_the_listener_with_wrong_settings_is_named(
    tmp_path: Path, own: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with pytest.raises(AddressError, match=said):
        async with running(tmp_path, {"OUT": SecurityProtocol.SASL_TLS}, out=own):
            pass
