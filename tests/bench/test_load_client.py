"""The bench's load client must detect a broker with wrong responses; its tables must be consistent.

A fake broker of a few lines, correct or deliberately wrong, replaces a real one.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cramjam
import crc32c
import pytest

from bench import cells, client, payload
from bench.cell import Metric, ratio
from bench.client import Job, JobResult, LoadError

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
VERSIONS = ((0, 7), (1, 11), (2, 1), (10, 1), (11, 5), (12, 3), (14, 3), (18, 0))

Answer = Callable[[int, bytes], bytes]


def batch(base: int, count: int = 1) -> bytes:
    """A batch as the load client stores it; its CRC is right."""
    records = b"".join(payload.record(i, b"x" * 20) for i in range(count))
    tail = struct.pack(">hiqqqhii", 0, count - 1, 0, 0, -1, -1, -1, count) + records
    head = struct.pack(">iBI", 0, 2, crc32c.crc32c(tail))
    return struct.pack(">qi", base, len(head) + len(tail)) + head + tail


class FakeBroker:
    """Serves one topic with one partition; `wrong` changes the responses of an API."""

    def __init__(self, wrong: dict[int, Answer]) -> None:
        self.wrong = wrong
        self.end = 0
        self.lock = threading.Lock()

    def answer(self, key: int, body: bytes) -> bytes:
        """The body of a response, after the correlation id."""
        if key in self.wrong:
            return self.wrong[key](self.end, body)
        if key == 18:
            rows = b"".join(struct.pack(">hhh", k, 0, v) for k, v in VERSIONS)
            return struct.pack(">hi", 0, len(VERSIONS)) + rows
        if key == 2:
            latest = body.endswith(struct.pack(">q", -1))
            offset = self.end if latest else 0
            return b"\0\0\0\1\0\1a\0\0\0\1" + struct.pack(">ihqq", 0, 0, -1, offset)
        if key == 0:
            self.end += 1
            return produced(self.end - 1)
        return fetched(b"".join(batch(base) for base in range(5)), 5)


def produced(base: int, error: int = 0) -> bytes:
    """A Produce v7 response."""
    row = struct.pack(">ihqqq", 0, error, base, -1, 0)
    return b"\0\0\0\1\0\1a\0\0\0\1" + row + b"\0\0\0\0"


def fetched(records: bytes, high_watermark: int) -> bytes:
    """A Fetch v11 response."""
    row = struct.pack(">ihqqqiii", 0, 0, high_watermark, high_watermark, 0, -1, -1, len(records))
    return struct.pack(">ihi", 0, 0, 0) + b"\0\0\0\1\0\1a\0\0\0\1" + row + records


def serve(broker: FakeBroker, peer: socket.socket) -> None:
    # A client that has detected the error disconnects.
    with contextlib.suppress(OSError), peer, peer.makefile("rb") as incoming:
        while size := incoming.read(4):
            frame = incoming.read(struct.unpack(">i", size)[0])
            key, _, number, length = struct.unpack_from(">hhih", frame)
            with broker.lock:
                body = broker.answer(key, frame[10 + length :])
            peer.sendall(struct.pack(">ii", len(body) + 4, number) + body)


@contextmanager
def running(wrong: dict[int, Answer]) -> Iterator[int]:
    """The port of a fake broker."""
    broker = FakeBroker(wrong)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(broker, peer), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def load(job: Job, wrong: dict[int, Answer] | None = None) -> JobResult:
    with running(wrong or {}) as port:
        return client.run([job], {"port": port, "seconds": 0.2})[0]


PRODUCE = Job("produce", {"topic": "a", "connections": 2})
FETCH = Job("fetch", {"topic": "a", "connections": 2, "crc": 1})


@needs_cc
@pytest.mark.parametrize("job", [PRODUCE, FETCH], ids=["produce", "fetch"])
def test_correct_broker_passes(job: Job) -> None:
    result = load(job)
    assert result.error is None
    assert result.requests > 0
    assert result.latency_us["count"] == result.requests


WRONG_PRODUCES: dict[str, tuple[Answer, str]] = {
    "an error code": (lambda end, body: produced(-1, 6), "error 6"),
    "an offset given twice": (lambda end, body: produced(0), "given twice"),
    "an answer that ends too early": (lambda end, body: produced(0)[:-20], "ends too early"),
    "no partition": (lambda end, body: b"\0\0\0\0\0\0\0\0", "0 of 1 partitions"),
}


@needs_cc
@pytest.mark.parametrize("name", WRONG_PRODUCES)
def test_wrong_produce_response_is_detected(name: str) -> None:
    answer, words = WRONG_PRODUCES[name]
    # The client stops after a thousand errors; in any case it prints the first one.
    try:
        found = load(PRODUCE, {0: answer}).error or ""
    except LoadError as error:
        found = str(error)
    assert words in found


@needs_cc
def test_offset_gap_is_detected() -> None:
    bases = iter(range(0, 10**9, 2))
    result = load(PRODUCE, {0: lambda end, body: produced(next(bases))})
    assert "batches acked, the last at place" in (result.error or "")


def damaged(records: bytes) -> bytes:
    return records[:-1] + bytes([records[-1] ^ 1])


WRONG_FETCHES: dict[str, tuple[bytes, str]] = {
    "a gap": (batch(0) + batch(2), "where offset 1 was due"),
    "a batch twice": (batch(0) + batch(0), "where offset 1 was due"),
    "a damaged batch": (damaged(batch(0)), "wrong CRC"),
    "no batch at all": (b"\0" * 80, "a batch of 12 bytes"),
}


@needs_cc
@pytest.mark.parametrize("name", WRONG_FETCHES)
def test_wrong_fetch_response_is_detected(name: str) -> None:
    records, words = WRONG_FETCHES[name]
    try:
        found = load(FETCH, {1: lambda end, body: fetched(records, 5)}).error or ""
    except LoadError as error:
        found = str(error)
    assert words in found


@needs_cc
def test_missing_api_version_ends_run() -> None:
    with pytest.raises(LoadError, match="does not serve API 0 version 7"):
        load(PRODUCE, {18: lambda end, body: struct.pack(">hi", 0, 0)})


@needs_cc
def test_client_accepts_every_option_of_every_cell() -> None:
    """Against its own responder, where the mode allows it; else the options are only parsed."""
    for cell in cells.CELLS:
        for job in [*cell.jobs, *cell.fill]:
            command = [str(client.build()), "port=1", job.mode, *client.words(job.options)]
            words = [word for word in command if not word.startswith("codec=")]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert "connect to" in done.stderr, done.stderr


def test_cells_have_unique_names_and_topics_for_their_jobs() -> None:
    names = [cell.name for cell in cells.CELLS]
    assert len(names) == len(set(names))
    for cell in cells.CELLS:
        used = {job.options["topic"] for job in [*cell.jobs, *cell.fill] if "topic" in job.options}
        assert used == set(cell.topics)


def test_ratio_is_at_least_one_if_target_is_reached() -> None:
    assert ratio(Metric.MB_S, 3000, 1500) == 2
    assert ratio(Metric.P99_US, 500, 1000) == 2
    assert ratio(Metric.REQUESTS_S, 0, 1000) == 0


@pytest.mark.parametrize("size", [10, 70_000, 300_000])
def test_lz4_payloads_are_frames_of_independent_blocks(size: int) -> None:
    plain = payload.line(random.Random(1), size)
    packed = payload.lz4(plain)
    assert bytes(cramjam.lz4.decompress(packed)) == plain
    assert packed[4] & 0x20  # block independence flag
