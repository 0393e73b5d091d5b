"""Addresses that may connect to listeners without encryption."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.broker.options import Listener, SecurityProtocol, ServeOptions
from kafkawire.server.listener import ClientProtocol, networks_of
from kafkawire.server.listeners.addresses import AddressError, ready_line
from tests.kit.connections import FakeHost
from tests.kit.tls import FakeTransport

SETTING = "plaintext.allowed.addresses"


def is_accepted(allowed: str, address: str) -> bool:
    host: Any = FakeHost()
    host.watchdog, host.connections, lines = None, set(), []
    host.admit = lambda: True
    host.arrivals = SimpleNamespace(admit=lambda _: True, delay=lambda _: None)
    host.log_closed = lambda connection, reason: lines.append(reason)
    networks = networks_of(allowed)
    protocol = ClientProtocol(host, "PLAINTEXT", None, networks)
    transport: Any = FakeTransport()
    transport.get_extra_info = lambda name, default=None: (
        (address, 1) if name == "peername" else SimpleNamespace(family=0)
    )
    protocol.connection_made(transport)
    assert transport.closed is bool(lines)
    return not transport.closed


@pytest.mark.parametrize(
    ("allowed", "address", "accepted"),
    [
        ("", "10.1.2.3", True), ("10.0.0.0/8", "10.1.2.3", True), ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/8, fd00::/8", "fd00::1", True), ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3", True), ("10.1.2.3", "10.1.2.4", False),
        ("10.0.0.0/8", "127.0.0.1", True), ("10.0.0.0/8", "::1", True),
        ("10.0.0.0/8", "fe80::1%eth0", False), ("10.1.2.3/8", "10.9.9.9", True),
    ],
)  # fmt: skip
def test_allowed_addresses(allowed: str, address: str, accepted: bool) -> None:
    assert is_accepted(allowed, address) is accepted


def test_wrong_networks_are_refused() -> None:
    with pytest.raises(AddressError, match=SETTING):
        networks_of("10.0.0.0/8,kafka")


def test_ready_line_has_brackets_around_ipv6() -> None:
    listener = Listener("A", "::1", 0)
    options = ServeOptions([listener], {}, "/data", "")
    assert ready_line(options, {"A": ("::1", 9092)}) == (
        "kafkawire listens on PLAINTEXT://[::1]:9092; data in /data; "
        "try: kafkawire topics list --server [::1]:9092"
    )


def test_ready_line_names_the_protocol_of_each_listener() -> None:
    secure = Listener("B", "127.0.0.1", 0, SecurityProtocol.SASL_TLS)
    options = ServeOptions([secure, Listener("A", "::1", 0)], {}, "/data", "")
    line = ready_line(options, {"A": ("::1", 9092), "B": ("127.0.0.1", 9094)})
    assert "listens on SASL_TLS://127.0.0.1:9094, PLAINTEXT://[::1]:9092; " in line
    assert line.endswith("try: kafkawire --command-config FILE topics list --server 127.0.0.1:9094")
