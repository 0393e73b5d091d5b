"""Encrypted connections of followers.

Covers: kafkawire.replication.certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.log.followers.network import TcpNetwork, open_streams
from kafkawire.replication import certificate
from kafkawire.replication.failures import FollowerError
from kafkawire.replication.machine import Files
from kafkawire.replication.message_socket import MessageSocket
from kafkawire.replication.messages import (
    FROM_FOLLOWER,
    BytesMessage,
    ChallengeMessage,
    Message,
)
from kafkawire.replication.wire import WireDecoder, encode_bytes
from tests.kit.followers import RunningFollower


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[RunningFollower]:
    made = RunningFollower(tmp_path / "replicas", 2, encrypts=True)
    yield made
    made.stop()


async def first_message(port: int, accepted: str) -> Message | None:
    """Connect, and return the first message; None at the end of the connection. `accepted`: the
    certificate, empty: without TLS."""
    reader, writer = await open_streams(TcpNetwork(), "127.0.0.1", port, accepted)
    decoder = WireDecoder(FROM_FOLLOWER)
    try:
        while (message := decoder.next()) is None and (data := await reader.read(4096)):
            decoder.feed(data)
        return message
    finally:
        writer.close()


async def test_follower_keeps_its_certificate(follower: RunningFollower) -> None:
    row = follower.row
    for _ in range(2):
        message = await first_message(follower.port, row.certificate)
        assert isinstance(message, ChallengeMessage)
        assert message.replica_id.hex() == row.replica_id
        follower.stop()
        follower.start()
        assert follower.row == row


async def test_another_certificate_is_refused(follower: RunningFollower) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await first_message(follower.port, certificate.make().certificate)


async def test_connection_without_tls_gets_nothing(follower: RunningFollower) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", follower.port)
    writer.write(b"kafkawire\n" * 10)
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(4096):
            received += data
    assert received[:2] in (b"", b"\x15\x03")  # an alert of TLS
    writer.close()


def test_damaged_certificate_is_reported(tmp_path: Path) -> None:
    made = certificate.load_or_make(Files(), str(tmp_path))
    path = tmp_path / certificate.NAME
    assert path.stat().st_mode & 0o077 == 0
    assert certificate.load(Files(), str(tmp_path)) == made
    path.write_bytes(path.read_bytes().replace(b"A", b"B", 1))
    with pytest.raises(FollowerError, match="certificate is damaged"):
        certificate.load_or_make(Files(), str(tmp_path))


def test_records_of_tls_are_received_together(tmp_path: Path) -> None:
    """One record of TLS has 16 KiB; each would be synced by itself."""
    made = certificate.make()
    near, far = socket.socketpair()
    client = certificate.client_context(made.certificate)
    sent = bytes(range(256)) * 512
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    shaken = client.wrap_bio(incoming, outgoing)
    secured = certificate.server_context(made, str(tmp_path)).wrap_socket(
        near, server_side=True, do_handshake_on_connect=False
    )
    secured.setblocking(False)
    done = [False, False]
    while not all(done):
        for at, shake in enumerate((shaken.do_handshake, secured.do_handshake)):
            try:
                shake()
                done[at] = True
            except ssl.SSLWantReadError:
                pass
            far.sendall(outgoing.read())
            far.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                incoming.write(far.recv(1 << 16))
            far.setblocking(True)
    messages = MessageSocket(secured, lambda: 0.0, (BytesMessage,))
    messages.trust((BytesMessage,), 10.0)
    for part in encode_bytes(1 << 32, sent):
        shaken.write(part)
    far.sendall(outgoing.read())
    assert messages.receive()
    (message,) = messages.messages()
    assert isinstance(message, BytesMessage)
    assert bytes(message.data) == sent
    far.close()
    assert not messages.receive()
    secured.close()
