"""Time limits of a connection that sends a byte from time to time."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kafkawire.replication.message_socket import MessageSocket
from kafkawire.replication.messages import (
    AckMessage,
    ErrorMessage,
    FenceMessage,
    HelloMessage,
    MarkMessage,
)
from kafkawire.replication.wire import encode


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    with pair[0], pair[1]:
        yield pair


Ends = tuple[socket.socket, socket.socket]


def test_handshake_is_limited_in_all(ends: Ends) -> None:
    class Dripping(Clock):
        """Each time the clock is read a byte has arrived, 4 seconds later."""

        def __call__(self) -> float:
            ends[1].send(b"\0")
            self.now += 4
            return self.now

    clock = Dripping()
    messages = MessageSocket(ends[0], clock, (HelloMessage,))
    with pytest.raises(TimeoutError, match="no complete message within 20 s"):
        messages.first(20)
    assert clock.now <= 130


def test_handshake_that_ends_is_an_error(ends: Ends) -> None:
    ends[1].close()
    with pytest.raises(ConnectionError, match="before its first message"):
        MessageSocket(ends[0], Clock(), (HelloMessage,)).first(20)


def test_connection_is_idle_without_complete_messages(ends: Ends) -> None:
    clock = Clock()
    messages = MessageSocket(ends[0], clock, (HelloMessage,))
    messages.trust((MarkMessage,), 30)
    data = encode(MarkMessage(5, 1))
    for _ in range(3):
        for byte in data:
            ends[1].send(bytes((byte,)))
            clock.now += 1
            assert messages.receive()
            found = list(messages.messages())
        assert found == [MarkMessage(5, 1)]
    for _ in range(2):
        ends[1].send(data[:1])
        assert messages.receive()
        clock.now += 16
    with pytest.raises(TimeoutError, match="no complete message within 30 s"):
        messages.receive()


def test_end_of_a_connection(ends: Ends) -> None:
    messages = MessageSocket(ends[0], Clock(), (FenceMessage,))
    ends[1].sendall(encode(FenceMessage()))
    ends[1].shutdown(socket.SHUT_WR)
    assert messages.receive()
    assert list(messages.messages()) == [FenceMessage()]
    assert not messages.receive()


def test_refusal_is_sent_to_a_connection_that_sends(ends: Ends) -> None:
    messages = MessageSocket(ends[0], Clock(), (FenceMessage,))
    ends[1].sendall(bytes(10_000))
    ends[1].shutdown(socket.SHUT_WR)
    messages.refuse(ErrorMessage("no"))
    ends[0].close()
    assert ends[1].recv(100) == encode(ErrorMessage("no"))
    messages.refuse(AckMessage(1))  # no effect on a connection that has ended
