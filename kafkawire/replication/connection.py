"""One connection of a broker, in a thread of its own: the proof, then a log or reads.

A connection that writes: BEGIN is answered with HAVE (or FENCED), then BYTES are written. What was
received at once is made durable with one fsync and acknowledged with one ACK. MARK is acknowledged
too.

A connection that reads: FENCE is answered with FENCED, LIST and AWAIT with COPY, READ with BYTES of
the copy that was listed last.

Any error is sent as a sentence, and ends the connection. A failed fsync ends the process.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from kafkawire.log_lines import shorten_for_log
from kafkawire.replication.failures import Fenced, FollowerError
from kafkawire.replication.follower import Follower
from kafkawire.replication.journal_copy import position_text
from kafkawire.replication.message_socket import MessageSocket
from kafkawire.replication.messages import (
    NONCE_BYTES,
    VERSION,
    AckMessage,
    AwaitMessage,
    BeginMessage,
    BytesMessage,
    ChallengeMessage,
    CopyMessage,
    FencedMessage,
    FenceMessage,
    ForgetMessage,
    HaveMessage,
    HelloMessage,
    ListMessage,
    MarkMessage,
    Message,
    Purpose,
    ReadMessage,
)
from kafkawire.replication.node_copies import NO_EPOCH, NodeCopies
from kafkawire.replication.wire import proof
from kafkawire.replication.writers import LogWriter, Writers

logger = logging.getLogger(__name__)

WRITER_MESSAGES: tuple[type[Message], ...] = (
    BeginMessage, BytesMessage, MarkMessage, ForgetMessage,
)  # fmt: skip
READER_MESSAGES: tuple[type[Message], ...] = (
    FenceMessage, ListMessage, AwaitMessage, ReadMessage, ForgetMessage,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits of connections, in seconds. `idle_s`: without a complete message; a broker sends
    MARK twice a second. `silent_s`: without one, of which AWAIT is not answered; less than the 10 s
    for which a reader waits."""

    handshake_s: float = 10.0
    idle_s: float = 30.0
    silent_s: float = 4.0


class BrokerConnection:
    """A connection from its beginning to its end. `peer`: the address of the broker, for log lines;
    `cluster_id`: the one that brokers must have, empty: any."""

    def __init__(
        self,
        connection: socket.socket,
        peer: str,
        follower: Follower,
        writers: Writers,
        cluster_id: str,
        clock: Callable[[], float],
        limits: TimeLimits,
    ) -> None:
        self._messages = MessageSocket(connection, clock, (HelloMessage,))
        self._connection = connection
        self._follower = follower
        self._writers = writers
        self._cluster_id = cluster_id
        self._limits = limits
        self._peer = peer

    def run(self) -> None:
        """Serve the connection until it ends. Raises OSError (also if it was idle), WireError,
        FollowerError, Fenced, DiskFailed."""
        hello = self._hello()
        node = self._follower.node(hello.node_id)
        if hello.purpose is Purpose.READ:
            self._messages.trust(READER_MESSAGES, self._limits.idle_s)
            self._serve_reads(node, hello)
            return
        self._messages.trust(WRITER_MESSAGES, self._limits.idle_s)
        writer = LogWriter((hello.node_id, hello.epoch), self._connection)
        try:
            self._serve_writes(node, hello, writer)
        finally:
            self._writers.remove_writer(writer)

    def refuse(self, reason: Message) -> None:
        self._messages.refuse(reason)

    def _hello(self) -> HelloMessage:
        """Return the HELLO of a broker that has the key and belongs to the cluster."""
        identity = self._follower.identity
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._messages.send(ChallengeMessage(VERSION, nonce, identity.replica_id))
        hello = self._messages.first(self._limits.handshake_s)
        if not isinstance(hello, HelloMessage):
            raise FollowerError("HELLO is the first message of a connection")
        # Of this connection's nonce: a recorded HELLO proves nothing.
        wanted = proof(
            identity.key, nonce, hello.purpose, hello.node_id, hello.epoch, hello.cluster_id
        )
        if not hmac.compare_digest(wanted, hello.proof):
            raise FollowerError(
                f"broker {hello.node_id} does not have the key of this follower: the identity file "
                "of the follower was replaced, or the broker belongs to another cluster"
            )
        if self._cluster_id and hello.cluster_id != self._cluster_id:
            raise FollowerError(
                f"broker {hello.node_id} belongs to the cluster "
                f"{shorten_for_log(hello.cluster_id)}, and this follower to "
                f"{shorten_for_log(self._cluster_id)}"
            )
        return hello

    def _serve_writes(self, node: NodeCopies, hello: HelloMessage, writer: LogWriter) -> None:
        epoch, has_begun, has_more = hello.epoch, False, True
        while has_more:
            is_due = False
            for message in self._messages.messages():
                if isinstance(message, BeginMessage) and not has_begun:
                    # First: the former connection of this log may still write.
                    self._writers.set_writer(writer)
                    self._begin(node, hello, message)
                    has_begun = True
                elif not has_begun or isinstance(message, BeginMessage):
                    raise FollowerError("BEGIN is the first message of a log, and sent once")
                elif isinstance(message, BytesMessage):
                    node.write(epoch, message.position, message.data)
                    is_due = True
                elif isinstance(message, MarkMessage):
                    node.mark(epoch, message.committed, message.first)
                    is_due = True
                elif isinstance(message, ForgetMessage):
                    node.delete_earlier_copies(epoch)
            # Once for all messages of one receive: a broker that sends faster than the disk syncs
            # gets fewer and larger ACKs.
            if is_due:
                self._messages.send(AckMessage(node.sync(epoch)))
            has_more = self._messages.receive()

    def _begin(self, node: NodeCopies, hello: HelloMessage, begin: BeginMessage) -> None:
        end = node.start_epoch(hello.epoch, begin.continues, begin.at, begin.first)
        self._messages.send(HaveMessage(end))
        logger.info(
            "broker %d, epoch %d, streams its log from %s: this copy continues at %s",
            hello.node_id, hello.epoch, self._peer, position_text(end),
        )  # fmt: skip

    def _serve_reads(self, node: NodeCopies, hello: HelloMessage) -> None:
        listed, has_more = NO_EPOCH, True
        while has_more:
            for message in self._messages.messages():
                if isinstance(message, FenceMessage):
                    self._fence(node, hello.epoch)
                elif isinstance(message, ListMessage):
                    listed = message.epoch
                    self._list(node, hello, listed)
                elif isinstance(message, AwaitMessage):
                    limit_s = self._limits.silent_s
                    found = node.wait_for_commit(message.epoch, message.known, limit_s)
                    self._messages.send(CopyMessage(found.end, found.committed, found.files))
                elif isinstance(message, ReadMessage):
                    data = node.read(listed, message.position, message.length)
                    self._messages.send_bytes(message.position, data)
                elif isinstance(message, ForgetMessage):
                    node.delete_earlier_copies(hello.epoch)
            has_more = self._messages.receive()

    def _fence(self, node: NodeCopies, epoch: int) -> None:
        try:
            node.fence(epoch)
        # A later start of the broker was faster: the answer names its epoch.
        except Fenced as refusal:
            epoch = refusal.higher
        self._messages.send(FencedMessage(epoch))

    def _list(self, node: NodeCopies, hello: HelloMessage, epoch: int) -> None:
        found = node.listing(epoch)
        self._messages.send(CopyMessage(found.end, found.committed, found.files))
        logger.info(
            "broker %d, epoch %d, reads the log of its epoch %d from %s, which ends at %s",
            hello.node_id, hello.epoch, epoch, self._peer, position_text(found.end),
        )  # fmt: skip
