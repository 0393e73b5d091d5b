"""Ports for servers of tests."""

from __future__ import annotations

import socket

import pytest

from tests.kit import ports


def test_port_is_free_and_not_assigned_to_connections() -> None:
    port = ports.free_port()
    assert port in ports.PORTS
    with socket.create_server(("127.0.0.1", port)):
        pass
    with socket.create_server(("127.0.0.1", 0)) as assigned:
        assert assigned.getsockname()[1] not in ports.PORTS


def test_port_in_use_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    port, free = ports.free_ports(2)
    monkeypatch.setattr(ports, "PORTS", (port, free))
    with socket.create_server(("127.0.0.1", port)):
        assert {ports.free_port() for _ in range(20)} == {free}
        monkeypatch.setattr(ports, "PORTS", (port,))
        with pytest.raises(OSError, match="no free port"):
            ports.free_port()
