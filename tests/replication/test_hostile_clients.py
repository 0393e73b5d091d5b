"""Clients that send anything: each is refused, and the others are served.

Covers: kafkawire.replication.server, kafkawire.replication.connection.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator

import pytest

from kafkawire.replication.messages import (
    VERSION,
    BytesMessage,
    ChallengeMessage,
    ErrorMessage,
    FencedMessage,
    FenceMessage,
    HelloMessage,
    Purpose,
    ReadMessage,
)
from kafkawire.replication.wire import encode
from tests.kit.waiting import wait_until
from tests.replication.client import Client
from tests.replication.model import NODE, at
from tests.replication.running import Running, model, refusal


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    follower = Running(tmp_path_factory.mktemp("hostile") / "f")
    yield follower
    follower.close()


def still_serves(running: Running) -> None:
    """Check that a broker is served, and no other connection is left."""
    with running.client(Purpose.READ, 0, node=NODE + 1) as client:
        client.send(FenceMessage())
        assert client.expect(FencedMessage).epoch == 0
    wait_until(lambda: running.connections == 0, "the end of all connections")
    assert running.fatal == []


FRAMES = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: follower\r\n\r\n",
    "Kafka": struct.pack(">ihhih", 20, 18, 4, 1, 4) + b"kcat\0\0\0\0",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "huge length": struct.pack(">IBI", 0xFFFFFFFF, 16, 0),
    "length of a large message": struct.pack(">IBI", 1 << 20, 32, 0),
    "no length": bytes(9),
    "wrong checksum": encode(HelloMessage(VERSION, Purpose.READ, 1, 1, bytes(32), ""))[:-1] + b"x",
    "data before HELLO": encode(BytesMessage(0, b"x" * 5000)),
}


@pytest.mark.parametrize("data", FRAMES.values(), ids=FRAMES.keys())
def test_strangers_are_refused_at_once(running: Running, data: bytes) -> None:
    with Client(running.port) as client:
        client.expect(ChallengeMessage)
        client.socket.sendall(data)
        assert isinstance(client.receive(), ErrorMessage)
        assert client.receive() is None
    still_serves(running)


def test_random_bytes_end_only_their_connection(running: Running) -> None:
    rng = random.Random(4)
    for number in range(40):
        purpose = (None, Purpose.READ, Purpose.WRITE)[number % 3]
        with Client(running.port) as client, contextlib.suppress(ConnectionError):
            if purpose is not None:
                client.hello(running.key, purpose, 1)
            client.socket.sendall(rng.randbytes(rng.randint(0, 3000)))
            client.socket.shutdown(socket.SHUT_WR)
            while client.receive() is not None:
                pass
    still_serves(running)


def test_damaged_streams_end_their_connection(running: Running) -> None:
    """Bytes that were acknowledged before are right."""
    rng, log = random.Random(5), model()
    with running.client(Purpose.WRITE, 1) as client:
        client.stream(log)
    for _ in range(20):
        log.append(500)
        with running.client(Purpose.WRITE, 1) as client, contextlib.suppress(ConnectionError):
            end = client.begin(5)
            data = bytearray(b"".join(encode(BytesMessage(*each)) for each in log.pieces(end, 60)))
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            client.socket.sendall(data)
            client.socket.shutdown(socket.SHUT_WR)
            while client.receive() is not None:
                pass
    with running.client(Purpose.WRITE, 1) as client:
        client.stream(log)
    with running.client(Purpose.READ, 1) as client:
        assert client.copied(1) == {n: bytes(data) for n, data in log.journals.items()}
    still_serves(running)


def test_connections_that_end_at_once(running: Running) -> None:
    for _ in range(20):
        socket.create_connection(("127.0.0.1", running.port)).close()
    still_serves(running)


def test_reader_that_does_not_read_is_not_served_ahead(running: Running) -> None:
    with running.client(Purpose.WRITE, 1, node=8) as writer:
        assert writer.begin(0) == 0
        writer.send(BytesMessage(0, bytes(1 << 20)))
        writer.acknowledged(1 << 20)
    with running.client(Purpose.READ, 1, node=8) as reader:
        reader.copied(1)
        requests = encode(ReadMessage(0, 1 << 20)) * 200
        reader.socket.sendall(requests)  # it reads none of the 200 MiB
    still_serves(running)


def test_no_broker_reads_another_position(running: Running) -> None:
    with running.client(Purpose.WRITE, 1, node=9) as writer:
        assert writer.begin(4) == at(4, 0)
        writer.send(BytesMessage(at(4, 0), b"x"))
        writer.acknowledged(at(4, 1))
    for position in (at(3, 0), at(5, 0)):
        with running.client(Purpose.READ, 1, node=9) as reader:
            reader.copied(1)
            reader.send(ReadMessage(position, 1))
            assert "does not have" in refusal(reader)
