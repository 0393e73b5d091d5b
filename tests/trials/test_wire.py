"""The wire trial in short, and that it notices a held loop, a missing answer, and memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.extremes import Case, frame
from tests.trials.context import Context
from tests.trials.records import HEAD_BYTES, records_of, scan
from tests.trials.wire import trial as wire
from tests.trials.wire.garbage import HOW, key_of, mutated, whole
from tests.trials.wire.stretches import ASKED_AGAIN, produce_case, stretch_of
from tests.trials.wire.trial import Round, exchange, round_, unanswerable

FRAME = frame(18, 0, b"")
CASE = Case("a case", "ApiVersions", 0, FRAME)


class FakeMeasured:
    """Holds its loop for so long, request by request."""

    def __init__(self, *took: float) -> None:
        self.took = list(took)

    def ask(self, frame: bytes) -> float:
        return self.took.pop(0)


def test_a_loop_that_is_held_each_time_is_noticed() -> None:
    slow: Any = FakeMeasured(*[0.02] * ASKED_AGAIN)
    assert stretch_of(slow, CASE) == 0.02
    imported: Any = FakeMeasured(0.02, 0.001)
    assert stretch_of(imported, CASE) == 0.001


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[int]:
    """A server that sends this once, and nothing else; None: it closes."""
    waiting = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if answer is not None:
            writer.write(answer)
            await waiting.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    waiting.set()
    server.close()
    await server.wait_closed()


async def test_what_comes_of_a_request_is_told_apart() -> None:
    async with answering(b"") as port:
        assert await exchange(port, FRAME, 0.05) is None
    async with answering(b"\0\0\0\x02x") as port:
        assert await exchange(port, FRAME, 0.05) is None
    async with answering(b"\0\0\0\x02xy") as port:
        assert await exchange(port, FRAME, 5) == 2
    async with answering(None) as port:
        assert await exchange(port, FRAME, 5) == 0


async def test_an_answer_that_is_due_and_memory_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context("wire", 1, 0, tmp_path, time.monotonic() + 9)
    victim: Any = SimpleNamespace(port=1, process=SimpleNamespace(pid=1, running=True))

    async def nothing(port: int, raw: bytes, within_s: float) -> None:
        return None

    async def served(self: Round, after: str) -> None:
        return None

    peaks = SimpleNamespace(peak_rss=900 << 20)
    monkeypatch.setattr(wire, "exchange", nothing)
    monkeypatch.setattr(wire, "usage", lambda pid: peaks)
    monkeypatch.setattr(Round, "_forget_peak", lambda self: 0)
    monkeypatch.setattr(Round, "_others_are_served", served)
    large = Case("large", "ApiVersions", 0, frame(18, 0, bytes(1 << 20)))
    await Round(context, victim)._extreme(large)
    await Round(context, victim)._garbage("garbage", FRAME)
    texts = [finding.text for finding in context.findings]
    assert "large: not answered in 60 s" in texts[0]
    assert "took 900 MiB, 56 are allowed" in texts[1]
    assert "garbage: neither answered nor refused in 20 s" in texts[2]


def test_garbage_says_whether_an_answer_is_due() -> None:
    assert whole(FRAME)
    assert key_of(FRAME) == 18
    assert not whole(FRAME[:-1])
    assert not whole(b"\xff\xff\xff\xff" + FRAME[4:])
    made = {mutated(Random(seed), FRAME)[0] for seed in range(200)}
    assert made == set(HOW)


def test_extreme_batches_are_valid() -> None:
    from tests.trials.wire.garbage import many_headers, many_records

    for codec in range(5):
        case = produce_case("many", "t", many_records(300), 300, codec)
        (batch,) = scan(case.frame)
        records = list(records_of(case.frame, batch))
        assert [record.offset for record in records] == list(range(300))
        assert batch.end - batch.start > HEAD_BYTES
    assert many_headers(2).endswith(b"\x04" + b"\x02h\x01" * 2)


def test_lines_that_say_a_request_failed_are_noticed() -> None:
    assert unanswerable("INFO a\nERROR Metadata failed and has no way to say so\n") == [
        "ERROR Metadata failed and has no way to say so"
    ]


@pytest.mark.real
@pytest.mark.slow
async def test_extremes_and_garbage_harm_nobody(tmp_path: Path) -> None:
    context = Context("wire", 3, 0, tmp_path, time.monotonic() + 45, short=True, say=print)
    await round_(context)
    assert context.findings == []
    assert context.counts["frames of garbage"] >= 100
