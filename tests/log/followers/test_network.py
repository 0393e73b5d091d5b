"""Connections to followers over TCP: names with several addresses, refusals, malformed names."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from kafkawire.log.followers.network import TcpNetwork, join_failures, open_streams
from tests.kit.ports import free_port


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Resolve every name to these addresses."""

    async def found(host: str, port: int, **_: Any) -> list[Any]:
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in hosts]
        pairs = zip(families, hosts, strict=True)
        return [(family, socket.SOCK_STREAM, 6, "", (each, port)) for family, each in pairs]

    resolve = asyncio.get_running_loop().getaddrinfo

    async def getaddrinfo(host: str, port: int, **more: Any) -> list[Any]:
        return await (found if host == "name.test" else resolve)(host, port, **more)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_name_with_several_addresses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "127.0.0.1", "127.0.0.2")
    with pytest.raises(ConnectionRefusedError) as failure:
        await TcpNetwork().connect(asyncio.Protocol, "name.test", free_port())
    assert "127.0.0.1" in str(failure.value)
    assert "127.0.0.2" in str(failure.value)


async def test_next_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, writer = await open_streams(TcpNetwork(), "name.test", listener.getsockname()[1])
        assert writer.get_extra_info("peername") == listener.getsockname()
        writer.close()


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.invalid"])
async def test_host_that_is_no_name_is_an_os_error(host: str) -> None:
    with pytest.raises(OSError, match="is not a name of a host"):
        await TcpNetwork().connect(asyncio.Protocol, host, 1)


def failures(*numbers: int) -> list[OSError]:
    return [OSError(number, f"address {index}") for index, number in enumerate(numbers)]


REFUSED, NO_ROUTE, LATE = errno.ECONNREFUSED, errno.ENETUNREACH, errno.ETIMEDOUT


@pytest.mark.parametrize(
    ("numbers", "joint"),
    [
        ((REFUSED,), REFUSED),
        ((REFUSED, REFUSED), REFUSED),
        ((NO_ROUTE, REFUSED), REFUSED),
        ((LATE, REFUSED), None),
        ((LATE, LATE), LATE),
        ((NO_ROUTE, NO_ROUTE), NO_ROUTE),
        ((NO_ROUTE, errno.EHOSTUNREACH), errno.EHOSTUNREACH),
        ((), None),
    ],
)
def test_failures_of_several_addresses(numbers: tuple[int, ...], joint: int | None) -> None:
    found = join_failures(failures(*numbers))
    assert found.errno == joint
    assert isinstance(found, ConnectionRefusedError) is (joint == REFUSED)
    assert all(f"address {index}" in str(found) for index in range(len(numbers)))
    assert str(found).count("Errno") == (joint is not None)
