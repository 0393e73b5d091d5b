"""Files sent over real sockets, with clients that read slowly, stop or disconnect at any byte.

Covers: kafkawire.server.file_sender.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from kafkawire.log.io.disk import DiskFile, DiskFileSystem, ThreadOffload
from kafkawire.log.io.file_span import FileSpan
from kafkawire.server import file_sender
from kafkawire.server.file_sender import FileSender
from tests.kit.env import InlineOffload
from tests.kit.waiting import settle, until

SIZE = 300_000


class Sent:
    """A file, a socket whose client reads when the test does, and one span being sent."""

    def __init__(self, folder: Path) -> None:
        self.data = random.Random(1).randbytes(SIZE)
        self.file: DiskFile = DiskFileSystem().open(str(folder / "f"), create=True)
        self.file.pwritev([self.data], 0)
        self.ours, self.client = socket.socketpair()
        for one in (self.ours, self.client):
            one.setblocking(False)
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        self.released = 0
        self.ends: list[OSError | None] = []
        self.got = bytearray()
        self.failed: list[int] = []

    def span(self, start: int, stop: int) -> FileSpan:
        def release() -> None:
            self.released += 1

        return FileSpan(self.file, [(start, stop - start)], release, lambda: self.failed.append(1))

    def read(self, count: int) -> bool:
        """Read up to so many bytes; False at the end of the stream."""
        try:
            data = self.client.recv(count)
        except BlockingIOError:
            return True
        self.got += data
        return bool(data)

    def close(self) -> None:
        for one in (self.file, self.ours, self.client):
            one.close()


@pytest.fixture(name="sent")
def started(tmp_path: Path) -> Iterator[Sent]:
    sent = Sent(tmp_path)
    yield sent
    sent.close()


@pytest.mark.parametrize("step", [1, 999, 5000, SIZE])
def test_span_of_several_ranges_is_sent_and_read_in_their_order(sent: Sent, step: int) -> None:
    rng = random.Random(step)
    ranges = [(rng.randrange(SIZE - 5000), rng.randrange(1, 5000)) for _ in range(20)]
    span = FileSpan(sent.file, ranges, lambda: None, lambda: sent.failed.append(1))
    expected = b"".join(sent.data[at : at + length] for at, length in ranges)
    assert len(span) == len(expected)
    at = 0
    while at < min(len(span), step * 50):
        assert span.is_cached(at, step)
        assert span.read(at, step) == expected[at : at + step]
        with suppress(BlockingIOError):
            at += span.send(sent.ours.fileno(), at, step)
        sent.read(SIZE)
    while len(sent.got) < at:
        sent.read(SIZE)
    assert bytes(sent.got) == expected[:at]
    assert not sent.failed


def test_span_checks_each_range_for_being_cached(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = 200_000
    monkeypatch.setattr(DiskFile, "is_cached", lambda _, length, at: at + length <= far)
    span = FileSpan(sent.file, [(0, 100), (90_000, 100), (far, 100)], print, print)
    assert span.is_cached(0, 200)
    assert not span.is_cached(0, 201)
    assert not span.is_cached(250, 10)


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sender, "STEP_BYTES", 10_000)
    monkeypatch.setattr(file_sender, "BEGIN_BYTES", 20_000)
    monkeypatch.setattr(file_sender, "THREAD_BYTES", 40_000)


def ended(sent: Sent, done: bool) -> bool:
    return done or sent.ends == [None]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("seed", range(6))
async def test_any_span_arrives_whole(
    sent: Sent, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is in the page cache, and however the client reads."""
    rng = random.Random(seed)
    share = rng.choice([0.0, 0.5, 1.0])
    monkeypatch.setattr(DiskFile, "is_cached", lambda *_: rng.random() < share)
    offload = ThreadOffload()
    before = open_descriptors()
    for _ in range(4):
        start = rng.randrange(SIZE)
        stop = rng.randrange(start, SIZE) + 1
        span, sent.ends = sent.span(start, stop), []
        sender = FileSender(offload, span, sent.ends.append)
        done = sender.send_now(sent.ours.fileno())
        sent.got.clear()
        while len(sent.got) < stop - start:
            sent.read(rng.choice([1000, 30_000]))
            await asyncio.sleep(0)
        await until(partial(ended, sent, done), "it has ended")
        assert sent.got == sent.data[start:stop]
        assert sender.unsent_bytes == 0
        assert sent.released == 0
        span.unpin()
        assert sent.released == 1
        sent.released = 0
    offload.close()
    assert open_descriptors() == before


@pytest.mark.parametrize("cached", [True, False])
async def test_cancelled_at_any_byte(
    sent: Sent, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The duplicate is closed and the span released once, and only when no thread uses them."""
    monkeypatch.setattr(DiskFile, "is_cached", lambda *_: cached)
    before = open_descriptors()
    for at in range(0, 100_000, 7_001):
        offload = InlineOffload()
        span = sent.span(0, SIZE)
        sender = FileSender(offload, span, sent.ends.append)
        assert not sender.send_now(sent.ours.fileno())
        sent.got.clear()
        while len(sent.got) < at:
            sent.read(at - len(sent.got))
            await asyncio.sleep(0)
        offload.hold("send")
        await settle()
        span.unpin()  # of the response
        sender.cancel()
        assert sent.released == (0 if offload.held else 1)
        offload.release("send")
        await settle()
        assert sent.released == 1
        assert open_descriptors() == before
        assert sent.got == sent.data[:at]
        assert sent.ends == []
        sent.released = 0
        while len(sent.got) < SIZE - sender.unsent_bytes:  # what was sent before
            sent.read(1 << 20)


@pytest.mark.parametrize("cached", [True, False])
async def test_disconnected_client_ends_it(
    sent: Sent, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskFile, "is_cached", lambda *_: cached)
    offload, before = ThreadOffload(), open_descriptors()
    span = sent.span(0, SIZE)
    sender = FileSender(offload, span, sent.ends.append)
    assert not sender.send_now(sent.ours.fileno())
    sent.client.close()
    await until(lambda: bool(sent.ends), "the error is reported")
    assert isinstance(sent.ends[0], ConnectionError)
    assert not sent.failed
    assert len(sent.ends) == 1
    span.unpin()
    assert sent.released == 1
    offload.close()
    assert open_descriptors() == before - 1  # the client's


@pytest.mark.parametrize("cached", [True, False])
async def test_short_file_is_an_error(
    sent: Sent, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskFile, "is_cached", lambda *_: cached)
    offload = ThreadOffload()
    sender = FileSender(offload, sent.span(0, SIZE), sent.ends.append)
    assert not sender.send_now(sent.ours.fileno())
    sent.file.truncate(200_000)
    while not sent.ends:
        sent.read(1 << 16)
        await asyncio.sleep(0)
    (failure,) = sent.ends
    assert "the file ends" in str(failure)
    assert sent.failed
    offload.close()


def test_file_is_copied_where_the_kernel_cannot_send_it(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sendfile", refuse)
    count = sent.file.send(sent.ours.fileno(), 5000, 100)
    assert count > 0
    sent.read(1 << 20)
    assert sent.got == sent.data[100 : 100 + count]
    assert sent.file.send(sent.ours.fileno(), 5000, SIZE) == 0


async def test_full_socket_is_not_tried_again(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of which the socket took a part is the last until the client has read."""
    taken: list[int] = []
    send = DiskFile.send

    def counted(file: DiskFile, fd: int, length: int, position: int) -> int:
        count = send(file, fd, min(length, 3_000), position)
        taken.append(count)
        return count

    monkeypatch.setattr(DiskFile, "is_cached", lambda *_: True)
    monkeypatch.setattr(DiskFile, "send", counted)
    sender = FileSender(InlineOffload(), sent.span(0, SIZE), sent.ends.append)
    assert not sender.send_now(sent.ours.fileno())
    assert taken == [3_000]
    sender.cancel()
