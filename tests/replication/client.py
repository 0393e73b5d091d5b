"""A blocking client of followers for tests: one connection of a broker."""

from __future__ import annotations

import socket
from collections import deque
from types import TracebackType
from typing import TypeVar

from kafkawire.replication.messages import (
    CONTINUES_NONE,
    FROM_FOLLOWER,
    VERSION,
    AckMessage,
    BeginMessage,
    BytesMessage,
    ChallengeMessage,
    CopyMessage,
    HaveMessage,
    HelloMessage,
    ListMessage,
    Message,
    Purpose,
    ReadMessage,
)
from kafkawire.replication.wire import WireDecoder, encode, proof
from tests.kit.waiting import WITHIN_S
from tests.replication.model import NODE, ModelLog, at

T = TypeVar("T", bound=Message)


class Client:
    """One connection. `receive` and `expect` return messages in order."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WITHIN_S)
        self.decoder = WireDecoder(FROM_FOLLOWER)
        self.waiting: deque[Message] = deque()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.socket.close()

    def hello(
        self, key: bytes, purpose: Purpose, epoch: int, node: int = NODE, cluster: str = "c"
    ) -> ChallengeMessage:
        """Answer the challenge, and return it."""
        challenge = self.expect(ChallengeMessage)
        proved = proof(key, challenge.nonce, purpose, node, epoch, cluster)
        self.send(HelloMessage(VERSION, purpose, node, epoch, proved, cluster))
        return challenge

    def send(self, *messages: Message) -> None:
        self.socket.sendall(b"".join(map(encode, messages)))

    def receive(self) -> Message | None:
        """Return the next message; None at the end of the connection."""
        while not self.waiting:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self.decoder.feed(data)
            for message in self.decoder:
                if isinstance(message, BytesMessage):
                    message = BytesMessage(message.position, bytes(message.data))
                self.waiting.append(message)
        return self.waiting.popleft()

    def expect(self, kind: type[T]) -> T:
        """Return the next message, which has this type."""
        message = self.receive()
        assert isinstance(message, kind), f"{message} instead of {kind.__name__}"
        return message

    def begin(self, first: int = 0, continues: int = CONTINUES_NONE, position: int = 0) -> int:
        """Begin to write a log; return where its copy continues."""
        self.send(BeginMessage(continues, position, first))
        return self.expect(HaveMessage).end

    def acknowledged(self, end: int) -> int:
        """Wait until a log position is acknowledged; return how many ACKs that took."""
        for count in range(1, 1 << 30):
            ack = self.expect(AckMessage)
            assert ack.end <= end
            if ack.end == end:
                return count
        raise AssertionError

    def stream(self, log: ModelLog, size: int = 1000) -> None:
        """Write what the copy of a log does not have, and wait until that is acknowledged."""
        end = self.begin(log.first)
        if end < log.end:
            self.send(*(BytesMessage(*piece) for piece in log.pieces(end, size)))
            self.acknowledged(log.end)

    def copied(self, epoch: int) -> dict[int, bytes]:
        """List a copy and read all of it."""
        self.send(ListMessage(epoch))
        found = {}
        for number, length in self.expect(CopyMessage).files:
            data = b""
            while len(data) < length:
                position = at(number, len(data))
                self.send(ReadMessage(position, min(1 << 20, length - len(data))))
                part = self.expect(BytesMessage)
                assert part.position == position
                assert part.data
                data += bytes(part.data)
            found[number] = data
        return found
