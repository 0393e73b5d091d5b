"""kafkawire.client without a broker: parsing addresses, and connecting to one of several."""

from __future__ import annotations

import socket

import pytest

from kafkawire.client.address import MAX_SERVERS, parse_servers
from kafkawire.client.cluster import Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import ClientError, NoAnswer


def test_server_requires_host_and_port() -> None:
    assert parse_servers("--server", "PLAINTEXT://h:1") == [("h", 1)]
    assert parse_servers("--server", "a:1, [::1]:2") == [("a", 1), ("::1", 2)]
    for text in ("", ":9092", "h:0", "h:99999", "h", "a:1,", "a:1,b", "a..b:1"):
        with pytest.raises(ClientError, match="must be HOST:PORT") as caught:
            parse_servers("--server", text)
        assert str(caught.value).startswith(f"--server={text}:")
    with pytest.raises(ClientError, match="at most 100"):
        parse_servers("--server", ",".join(["a:1"] * (MAX_SERVERS + 1)))


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "."])
def test_name_that_no_host_can_have_is_an_address_without_an_answer(host: str) -> None:
    """Brokers may advertise it."""
    with pytest.raises(NoAnswer, match="it is not a name of a host"):
        ClientConnection(host, 9092)


def test_unreachable_broker_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ClientError, match=f"cannot connect to {gone}"):
        Cluster(f"{gone},{gone}", "bootstrap")
