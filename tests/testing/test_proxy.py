"""The network that fails on request: nothing is lost or reordered but by `cut`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.kit.proxy import RESET, Address, Network
from tests.kit.waiting import WITHIN_S, wait_until

BIG = bytes(range(256)) * 40_000


class Echo:
    """A server that sends back what it gets; `got`: bytes by connection, `ends`: how connections
    ended ("eof" or "reset")."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listening.getsockname()
        self.got: list[bytearray] = []
        self.ends: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        got = bytearray()
        self.got.append(got)
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    got += data
                    connection.sendall(data)
                self.ends.append("eof")
            except ConnectionError:
                self.ends.append("reset")

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as made:
        yield made


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)


def receive(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (data := connection.recv(1 << 16)):
        found += data
    return bytes(found)


def exchange(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return receive(connection, len(data))


def test_bytes_pass_unchanged_in_both_directions_and_ends_follow(
    network: Network, echo: Echo
) -> None:
    with connect(network.link("a", "b", echo.address)) as client:
        sender = threading.Thread(target=client.sendall, args=[BIG])
        sender.start()
        assert receive(client, len(BIG)) == BIG
        sender.join()
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert echo.ends == ["eof"]
    assert network.accepted("a", "b") == 1


def test_silent_link_holds_bytes_and_new_connections_until_it_heals(
    network: Network, echo: Echo
) -> None:
    port = network.link("a", "b", echo.address)
    with connect(port) as client:
        assert exchange(client, b"before") == b"before"
        network.silence("a", "b")
        client.sendall(b"meanwhile")
        with connect(port) as other:
            other.sendall(b"new")
            client.settimeout(0.1)
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert echo.got == [b"before"]
            client.settimeout(WITHIN_S)
            network.heal("a", "b")
            assert receive(client, 9) == b"meanwhile"
            assert receive(other, 3) == b"new"


def test_silence_may_be_in_one_direction(network: Network, echo: Echo) -> None:
    with connect(network.link("a", "b", echo.address)) as client:
        assert exchange(client, b"before") == b"before"
        network.silence("a", "b", forth=False)
        client.sendall(b"heard")
        wait_until(lambda: echo.got == [b"beforeheard"], "the bytes forth")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(WITHIN_S)
        network.heal()
        assert receive(client, 5) == b"heard"


def test_end_of_a_process_is_not_seen_through_a_silent_link(network: Network, echo: Echo) -> None:
    client = connect(network.link("a", "b", echo.address))
    assert exchange(client, b"before") == b"before"
    with network.silent("a"):
        client.close()
        with connect(network.link("c", "b", echo.address)) as other:
            assert exchange(other, b"x") == b"x"  # the server works meanwhile
        wait_until(lambda: len(echo.ends) == 1, "the end of the other connection")
    wait_until(lambda: len(echo.ends) == 2, "the end of the connection")


def test_cut_resets_both_ends_and_new_connections_pass(network: Network, echo: Echo) -> None:
    port = network.link("a", "b", echo.address)
    with connect(port) as client:
        assert exchange(client, b"before") == b"before"
        network.cut("a", "b")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    wait_until(lambda: echo.ends == ["reset"], "the reset at the server")
    with connect(port) as client:
        assert exchange(client, b"after") == b"after"


def test_cut_of_a_silent_link_discards_what_was_held(network: Network, echo: Echo) -> None:
    port = network.link("a", "b", echo.address)
    with connect(port) as client:
        assert exchange(client, b"before") == b"before"
        network.silence()
        client.sendall(b"lost")
        network.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    network.heal()
    with connect(port) as client:
        assert exchange(client, b"after") == b"after"
    assert echo.got == [b"before", b"after"]


def test_refusing_link_resets_new_connections_only(network: Network, echo: Echo) -> None:
    port = network.link("a", "b", echo.address)
    with connect(port) as client:
        assert exchange(client, b"before") == b"before"
        network.refuse("a", "b")
        with pytest.raises(ConnectionError), connect(port) as other:
            exchange(other, b"x")
        assert exchange(client, b"still") == b"still"
        network.heal("a", "b")
        with connect(port) as other:
            assert exchange(other, b"x") == b"x"


def test_reset_of_the_target_and_its_absence_are_passed_on(network: Network, echo: Echo) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    port = network.link("a", "b", listening.getsockname())
    with connect(port) as client:
        far, _ = listening.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        far.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    listening.close()
    with pytest.raises(ConnectionError), connect(port) as client:
        exchange(client, b"x")


@pytest.mark.parametrize("slow", ["forth_s", "back_s"])
def test_delay_of_either_direction_keeps_order_and_what_is_sent_later(
    network: Network, echo: Echo, slow: str
) -> None:
    delays: dict[str, Any] = {"forth_s": 0.0, "back_s": 0.0, slow: 0.05}
    with connect(network.link("a", "b", echo.address)) as client:
        network.delay("a", "b", **delays)
        for _ in range(2):
            began = time.monotonic()
            assert exchange(client, b"x") == b"x"
            assert time.monotonic() - began >= 0.05
        for number in range(20):
            client.sendall(bytes([number]))
        assert receive(client, 20) == bytes(range(20))
        network.heal()
        assert exchange(client, b"y") == b"y"


def test_links_are_chosen_by_source_and_destination(network: Network, echo: Echo) -> None:
    pairs = [("a", "s3"), ("a", "sql"), ("b", "s3"), ("b", "sql")]
    clients = {pair: connect(network.link(*pair, echo.address)) for pair in pairs}
    for client in clients.values():
        assert exchange(client, b"x") == b"x"

    def cut_off() -> set[tuple[str, str]]:
        found = set()
        for pair in [*clients]:
            try:
                assert exchange(clients[pair], b"x") == b"x"
            except ConnectionError:
                found.add(pair)
                clients.pop(pair).close()
        return found

    network.cut("a", "sql")
    assert cut_off() == {("a", "sql")}
    network.cut(destination="s3")
    assert cut_off() == {("a", "s3"), ("b", "s3")}
    network.cut(source="b")
    assert cut_off() == {("b", "sql")}
    with pytest.raises(AssertionError, match="no link from c to any"):
        network.cut("c")


def test_links_from_several_sources_have_one_port(network: Network, echo: Echo) -> None:
    sources: dict[Address, str] = {}

    def source_of(address: Address) -> str | None:
        found = wait_until(lambda: sources.get(address), "the source")
        return None if found == "unknown" else found

    port = network.links(["a", "b"], "follower", echo.address, source_of)
    clients = {name: connect(port) for name in ("a", "b", "unknown")}
    sources |= {client.getsockname(): name for name, client in clients.items()}
    for name in ("a", "b"):
        assert exchange(clients[name], b"x") == b"x"
    with pytest.raises(ConnectionError):
        exchange(clients["unknown"], b"x")
    network.refuse("a", "follower")
    network.cut("a", "follower")
    with pytest.raises(ConnectionError):
        exchange(clients["a"], b"x")
    assert exchange(clients["b"], b"y") == b"y"
    assert network.accepted("a", "follower") == network.accepted("b", "follower") == 1
    for client in clients.values():
        client.close()
