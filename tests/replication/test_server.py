"""A follower's server over sockets: the proof, writing, reading, fences, replaced connections.

Covers: kafkawire.replication.connection, kafkawire.replication.message_socket,
kafkawire.replication.server, kafkawire.replication.server.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kafkawire.replication import server
from kafkawire.replication.connection import TimeLimits
from kafkawire.replication.failures import FollowerError
from kafkawire.replication.messages import (
    VERSION,
    AckMessage,
    AwaitMessage,
    BeginMessage,
    BytesMessage,
    ChallengeMessage,
    CopyMessage,
    ErrorMessage,
    FencedMessage,
    FenceMessage,
    ForgetMessage,
    HaveMessage,
    HelloMessage,
    ListMessage,
    MarkMessage,
    Purpose,
    ReadMessage,
)
from kafkawire.replication.wire import proof
from kafkawire.replication.writers import LogWriter, Writers
from tests.kit.waiting import WITHIN_S, wait_until
from tests.replication.client import Client
from tests.replication.model import NODE, NONE, at
from tests.replication.running import Running, model, refusal

WRITE, READ = Purpose.WRITE, Purpose.READ


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    follower = Running(tmp_path / "follower")
    yield follower
    follower.close()


# Handshake


def test_challenge_names_the_replica(running: Running) -> None:
    with Client(running.port) as one, Client(running.port) as other:
        first, second = one.expect(ChallengeMessage), other.expect(ChallengeMessage)
    assert first.version == VERSION
    assert first.replica_id == second.replica_id == running.follower.identity.replica_id
    assert first.nonce != second.nonce


def test_wrong_key_is_refused(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with Client(running.port) as client:
        client.hello(b"k" * 32, WRITE, 1)
        client.send(BeginMessage(NONE, 0, 0))
        assert "does not have the key of this follower" in refusal(client)
    assert "broker 3 does not have the key" in caplog.text
    assert not Path(running.follower._folder, "3").exists()


def test_proof_is_for_one_challenge(running: Running) -> None:
    with Client(running.port) as one, Client(running.port) as other:
        nonce = one.expect(ChallengeMessage).nonce
        other.expect(ChallengeMessage)
        proved = proof(running.key, nonce, READ, NODE, 1, "c")
        for client in (other, one):
            client.send(HelloMessage(VERSION, READ, NODE, 1, proved, "c"))
        assert "does not have the key" in refusal(other)
        one.send(FenceMessage())
        assert one.expect(FencedMessage).epoch == 1


def test_other_cluster_is_refused(tmp_path: Path) -> None:
    running = Running(tmp_path / "f", cluster="mine")
    try:
        with Client(running.port) as client:
            client.hello(running.key, READ, 1, cluster="other")
            text = "broker 3 belongs to the cluster other, and this follower to mine"
            assert refusal(client) == text
        with Client(running.port) as client:
            client.hello(running.key, READ, 1, cluster="mine")
            client.send(FenceMessage())
            assert client.expect(FencedMessage).epoch == 1
    finally:
        running.close()


def test_other_version_is_refused(running: Running) -> None:
    with Client(running.port) as client:
        client.expect(ChallengeMessage)
        client.send(HelloMessage(VERSION + 1, READ, 1, 1, bytes(32), ""))
        assert "the broker speaks version 2 of the replication protocol" in refusal(client)


# Writing


def test_log_is_written_and_read(running: Running) -> None:
    log = model()
    with running.client(WRITE, 1) as writer:
        writer.stream(log)
    with running.client(READ, 2) as reader:
        reader.send(FenceMessage())
        assert reader.expect(FencedMessage).epoch == 2
        assert reader.copied(1) == {n: bytes(data) for n, data in log.journals.items()}
        reader.send(ReadMessage(at(6, 1999), 100), ReadMessage(at(6, 2000), 100))
        assert reader.expect(BytesMessage).data == log.journals[6][1999:]
        assert reader.expect(BytesMessage).data == b""


def test_messages_after_hello_need_no_answer_before(running: Running) -> None:
    with Client(running.port) as client:
        client.hello(running.key, WRITE, 1)
        client.send(BeginMessage(NONE, 0, 5), BytesMessage(at(5, 0), b"x"), MarkMessage(0, 0))
        assert client.expect(HaveMessage).end == at(5, 0)
        client.acknowledged(at(5, 1))


def test_many_bytes_share_one_fsync(running: Running) -> None:
    """While one fsync takes its time, others gather."""
    log = model(sizes=(200_000,))
    with running.client(WRITE, 1) as writer:
        assert writer.begin(5) == at(5, 0)
        running.files.is_syncing.clear()
        running.files.may_sync.clear()
        writer.send(BytesMessage(at(5, 0), bytes(log.journals[5][:100])))
        assert running.files.is_syncing.wait(WITHIN_S)
        before = running.files.syncs
        pieces = [BytesMessage(*piece) for piece in log.pieces(at(5, 100), 1000)]
        writer.send(*pieces)
        running.files.may_sync.set()
        acks = writer.acknowledged(log.end)
        assert acks <= len(pieces) // 10
        assert running.files.syncs - before < acks  # the first one had begun


def test_large_messages(running: Running) -> None:
    log = model(sizes=((1 << 20) + 5000, 100))
    with running.client(WRITE, 1) as writer:
        writer.stream(log, 1 << 20)
    with running.client(READ, 1) as reader:
        assert reader.copied(1) == {n: bytes(data) for n, data in log.journals.items()}


def test_connection_is_resumed(running: Running) -> None:
    log = model()
    with running.client(WRITE, 1) as writer:
        writer.stream(log)
    log.append(500)
    with running.client(WRITE, 1) as writer:
        assert writer.begin(5) == at(6, 2000)
        writer.send(BytesMessage(at(6, 2000), bytes(log.journals[6][2000:])))
        writer.acknowledged(log.end)


def test_mark_is_acknowledged_and_deletes(running: Running) -> None:
    with running.client(WRITE, 1) as writer:
        writer.stream(model())
        writer.send(MarkMessage(at(6, 10), 6))
        assert writer.expect(AckMessage).end == at(6, 2000)
        with running.client(READ, 1) as reader:
            reader.send(ListMessage(1))
            assert reader.expect(CopyMessage) == CopyMessage(at(6, 2000), at(6, 10), ((6, 2000),))


@contextlib.contextmanager
def repeated(writer: Client, message: MarkMessage) -> Iterator[None]:
    """Send a mark again and again, as brokers do: one may arrive before what the reader sent."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.05):
            writer.send(message)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            yield
        finally:
            over.set()
        sending.result()


def test_reader_waits_for_what_is_committed(running: Running) -> None:
    """It gets what is committed and in the copy, or, if there is nothing new, the next mark."""
    with running.client(WRITE, 1) as writer, running.client(READ, 1) as reader:
        writer.stream(model())  # up to byte 2000 of journal 6
        reader.send(AwaitMessage(1, 0))
        writer.send(MarkMessage(at(6, 10), 5))
        assert reader.expect(CopyMessage).readable == at(6, 10)
        reader.send(AwaitMessage(1, 0))
        assert reader.expect(CopyMessage).readable == at(6, 10)
        reader.send(AwaitMessage(1, at(6, 10)))
        with repeated(writer, MarkMessage(at(6, 10), 5)):  # it is there, and commits nothing
            assert reader.expect(CopyMessage).readable == at(6, 10)
        reader.send(AwaitMessage(1, at(6, 10)))
        writer.send(MarkMessage(at(6, 2100), 5))  # others have more than this copy
        found = reader.expect(CopyMessage)
        assert (found.readable, found.committed) == (at(6, 2000), at(6, 2100))
        reader.send(AwaitMessage(1, at(6, 2000)))
        writer.send(BytesMessage(at(6, 2000), bytes(200)))
        assert reader.expect(CopyMessage).readable == at(6, 2100)


def test_reader_gets_nothing_from_a_broker_that_is_silent(tmp_path: Path) -> None:
    running = Running(tmp_path / "f", limits=TimeLimits(silent_s=0.1))
    try:
        with running.client(WRITE, 1) as writer, running.client(READ, 1) as reader:
            writer.stream(model())
            reader.send(AwaitMessage(1, 0))
            assert refusal(reader) == "broker 3 has sent nothing for 0.1 s"
    finally:
        running.close()


def test_forget_deletes_earlier_copies(running: Running) -> None:
    with running.client(WRITE, 1) as writer:
        writer.stream(model())
    with running.client(WRITE, 2) as writer:
        assert writer.begin(9) == at(9, 0)
        writer.send(ForgetMessage(), MarkMessage(0, 0))
        writer.acknowledged(at(9, 0))
    with running.client(READ, 2) as reader:
        reader.send(ListMessage(1))
        assert refusal(reader) == "this follower has no copy of the log of broker 3, epoch 1"


def test_fenced_writer_ends(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with running.client(WRITE, 1) as writer, running.client(READ, 4) as reader:
        writer.stream(model())
        reader.send(FenceMessage())
        assert reader.expect(FencedMessage).epoch == 4
        writer.send(BytesMessage(at(6, 2000), b"x"))
        assert writer.expect(FencedMessage).epoch == 4
        assert writer.receive() is None
    with running.client(WRITE, 3) as writer:
        writer.send(BeginMessage(1, 0, 0))
        assert writer.expect(FencedMessage).epoch == 4
        assert writer.receive() is None
    with running.client(READ, 3) as reader:
        reader.send(FenceMessage())
        assert reader.expect(FencedMessage).epoch == 4
    wait_until(lambda: caplog.text.count("refused because of broker epoch 4") == 2, "two lines")


def test_log_of_a_lower_epoch_is_fenced_by_a_higher_one(running: Running) -> None:
    log = model()
    with running.client(WRITE, 1) as writer:
        writer.stream(log)
        with running.client(WRITE, 2) as other:
            assert other.begin(5, continues=1, position=at(6, 100)) == at(6, 100)
            writer.send(MarkMessage(0, 0))
            assert writer.expect(FencedMessage).epoch == 2


def test_brokers_do_not_share_copies(running: Running) -> None:
    with running.client(WRITE, 9, node=1) as one, running.client(WRITE, 2, node=2) as other:
        one.stream(model(9))
        other.stream(model(2))
    with running.client(READ, 9, node=1) as reader:
        assert reader.copied(9)[5] == model(9).journals[5]


def test_second_writer_replaces_the_first(running: Running) -> None:
    log = model()
    with running.client(WRITE, 1) as first:
        first.stream(log)
        with running.client(WRITE, 1) as second:
            assert second.begin(5) == log.end
            assert first.receive() is None
            second.send(BytesMessage(log.end, b"x"))
            second.acknowledged(log.end + 1)


def test_second_writer_waits_for_the_end_of_the_first(running: Running) -> None:
    """Bytes that the first one has received are written before the second one begins."""
    with running.client(WRITE, 1) as first, running.client(WRITE, 1) as second:
        assert first.begin(5) == at(5, 0)
        running.files.is_syncing.clear()
        running.files.may_sync.clear()
        first.send(BytesMessage(at(5, 0), b"abc"))
        assert running.files.is_syncing.wait(WITHIN_S)
        second.send(BeginMessage(NONE, 0, 5))
        assert first.receive() is None  # it was shut down
        running.files.may_sync.set()
        assert second.expect(HaveMessage).end == at(5, 3)


def test_writer_that_does_not_end_is_reported() -> None:
    writers = Writers(replaced_s=0.01)
    one, other = socket.socketpair()
    with one, other:
        first, second = LogWriter((1, 1), one), LogWriter((1, 1), other)
        writers.set_writer(first)
        with pytest.raises(FollowerError, match=r"has not ended within 0.01 s"):
            writers.set_writer(second)
        writers.remove_writer(second)  # it was not the current one
        writers.remove_writer(first)
        writers.set_writer(second)


def test_follower_can_be_opened_again(tmp_path: Path) -> None:
    log = model()
    running = Running(tmp_path / "f")
    with running.client(WRITE, 1) as writer:
        writer.stream(log)
    running.close()
    again = Running(tmp_path / "f")
    assert again.follower.identity == running.follower.identity
    with again.client(WRITE, 1) as writer:
        log.append(1000)
        writer.stream(log)
    with again.client(READ, 1) as reader:
        assert reader.copied(1) == {n: bytes(data) for n, data in log.journals.items()}
    again.close()


# Errors


def test_bytes_at_a_wrong_position_end_the_connection(running: Running) -> None:
    with running.client(WRITE, 1) as writer:
        assert writer.begin(5) == at(5, 0)
        writer.send(BytesMessage(at(5, 7), b"x"))
        assert "byte 7 of journal 5, which does not continue the copy" in refusal(writer)


@pytest.mark.parametrize(
    "messages",
    [
        (BytesMessage(0, b"x"),),
        (MarkMessage(0, 0),),
        (ForgetMessage(),),
        (BeginMessage(NONE, 0, 0), BeginMessage(NONE, 0, 0)),
    ],
)
def test_begin_is_first_and_once(running: Running, messages: tuple[BytesMessage, ...]) -> None:
    with running.client(WRITE, 1) as writer:
        writer.send(*messages)
        if len(messages) == 2:
            writer.expect(HaveMessage)
        assert refusal(writer) == "BEGIN is the first message of a log, and sent once"


def test_messages_of_the_other_purpose_are_refused(running: Running) -> None:
    with running.client(WRITE, 1) as writer:
        writer.send(FenceMessage())
        assert "kind 20 is not expected" in refusal(writer)
    with running.client(READ, 1) as reader:
        reader.send(BeginMessage(NONE, 0, 0))
        assert "kind 17 is not expected" in refusal(reader)


def test_read_needs_a_list(running: Running) -> None:
    with running.client(READ, 1) as reader:
        reader.send(ReadMessage(0, 10))
        assert "no copy of the log" in refusal(reader)


def test_error_arrives_although_more_was_sent(running: Running) -> None:
    with running.client(WRITE, 1) as writer:
        assert writer.begin(5) == at(5, 0)
        writer.send(BytesMessage(at(5, 7), b"x"))
        with contextlib.suppress(ConnectionError):
            writer.send(*(BytesMessage(at(5, 0), bytes(1 << 20)) for _ in range(3)))
        assert "does not continue" in writer.expect(ErrorMessage).text


def test_failed_fsync_is_fatal_and_not_acknowledged(running: Running) -> None:
    with running.client(WRITE, 1) as writer:
        assert writer.begin(5) == at(5, 0)
        running.files.fails = True
        writer.send(BytesMessage(at(5, 0), b"x"))
        assert writer.receive() is None
        assert "0000000005.journal failed (Input/output error)" in running.fatal[0]
    running.files.fails = False
    with running.client(WRITE, 1) as writer:
        writer.send(BeginMessage(NONE, 0, 5))
        assert writer.receive() is None
    assert len(running.fatal) == 2


def test_unexpected_failure_is_logged(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running.follower, "node", lambda node: 1 // 0)
    with running.client(READ, 1) as reader:
        assert "the follower has failed: ZeroDivisionError" in refusal(reader)
    assert "Traceback" in caplog.text


# Limits


def test_too_many_connections_are_refused(tmp_path: Path) -> None:
    running = Running(tmp_path / "f", max_connections=2)
    try:
        with running.client(READ, 1), Client(running.port) as second:
            second.expect(ChallengeMessage)
            with Client(running.port) as third:
                assert refusal(third) == "this follower has 2 connections, and accepts no more"
        wait_until(lambda: running.connections == 0, "the end of the connections")
        with running.client(READ, 1) as client:
            client.send(FenceMessage())
            client.expect(FencedMessage)
    finally:
        running.close()


class NoThread(threading.Thread):
    """A thread that cannot be started, as when the system has no more."""

    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_connection_without_a_thread_is_refused(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = "this follower cannot start a thread for the connection: can't start new thread"
    with monkeypatch.context() as full:
        full.setattr(server, "Thread", NoThread)
        for _ in range(2):
            with Client(running.port) as client:
                assert refusal(client) == text
    assert text in caplog.text
    assert running.connections == 0
    with running.client(READ, 1) as client:
        client.send(FenceMessage())
        client.expect(FencedMessage)


def test_acceptor_that_fails_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise live on without accepting connections, which nothing detects."""

    def fail(_: object, listener: socket.socket) -> None:
        listener.accept()[0].close()
        raise MemoryError

    monkeypatch.setattr(server.FollowerServer, "_accept", fail)
    running = Running(tmp_path / "f")
    with Client(running.port) as client:
        assert client.receive() is None
    wait_until(lambda: running.fatal, "the end")
    assert running.fatal[0].startswith("no more connections can be accepted (MemoryError()): this")
    running.close()


def test_slow_handshake_ends(tmp_path: Path) -> None:
    running = Running(tmp_path / "f", limits=TimeLimits(handshake_s=0.1))
    try:
        with Client(running.port) as client:
            client.expect(ChallengeMessage)
            assert refusal(client) == "timed out"
    finally:
        running.close()


def test_idle_connection_ends(tmp_path: Path) -> None:
    running = Running(tmp_path / "f", limits=TimeLimits(idle_s=0.1))
    try:
        with running.client(WRITE, 1) as client:
            assert client.begin(5) == at(5, 0)
            assert refusal(client) == "timed out"
    finally:
        running.close()


def test_reader_has_earlier_copies_deleted(running: Running) -> None:
    with running.client(WRITE, 1) as writer:
        writer.stream(model())
    with running.client(READ, 2) as reader:
        reader.send(ForgetMessage(), ListMessage(1))
        assert refusal(reader) == "this follower has no copy of the log of broker 3, epoch 1"
