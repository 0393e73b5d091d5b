"""The wire trial in short, and its checks against wrong responses and logs.

test_wire_mutations covers defects of whole brokers.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafkawire.codec.compile import encode
from kafkawire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.kit import slowness
from tests.kit.codec.extremes import Case, frame
from tests.trials.context import Context
from tests.trials.process import MAX_COMPLAINTS, Log, WatchedProcess, report_log
from tests.trials.records import HEAD_BYTES, records_of, scan
from tests.trials.wire.answers import Answer, exchange, fault
from tests.trials.wire.garbage import HOW, key_of, many_headers, many_records, mutated, whole
from tests.trials.wire.stretches import LIMIT_S, judge, produce_case
from tests.trials.wire.trial import round_

FRAME = frame(18, 0, encode(ApiVersionsRequest(), 0))
CASE = Case("a case", "ApiVersions", 0, FRAME)
SOUND = struct.pack(">i", 1) + encode(ApiVersionsResponse(), 0)


class FakeMeasured:
    """A broker that blocks its loop for the given times, request by request."""

    def __init__(self, *took: float) -> None:
        self.took = list(took)

    def ask(self, frame: bytes) -> float:
        return self.took.pop(0)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context("wire", 1, 0, tmp_path, time.monotonic() + 9)


def test_loop_blocked_by_every_repetition_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slowness, "PAUSE_STEP_S", 0.0)
    monkeypatch.setattr(slowness, "MAX_ATTEMPTS", 3)
    slow: Any = FakeMeasured(*[0.05] * slowness.MAX_ATTEMPTS)
    assert judge(context, slow, CASE) > LIMIT_S
    assert "a case" in context.findings[0].text
    assert "held the loop for" in context.findings[0].text


def test_loop_blocked_once_is_not_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slowness, "PAUSE_STEP_S", 0.0)
    monkeypatch.setattr(slowness, "MAX_ATTEMPTS", 3)
    imported: Any = FakeMeasured(*[0.05] * (slowness.MAX_ATTEMPTS - 1), 0.001)
    assert judge(context, imported, CASE) == 0.001
    assert context.findings == []


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[int]:
    """A server that sends this once, and nothing else; None: it closes the connection."""
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


@pytest.mark.parametrize(
    ("sent", "within_s", "found"),
    [
        (b"", 0.05, Answer()),
        (b"\0\0\0\x02x", 0.05, Answer()),
        (b"\0\0\0\x02xy", 5, Answer(2, b"xy")),
        (None, 5, Answer(closed=True)),
    ],
)
async def test_exchange_distinguishes_outcomes_of_request(
    sent: bytes | None, within_s: float, found: Answer
) -> None:
    async with answering(sent) as port:
        assert await exchange(port, FRAME, within_s) == found


@pytest.mark.parametrize(
    ("request_", "head", "noticed"),
    [
        (FRAME, SOUND, ""),
        (FRAME, b"\0\0", "has no correlation id"),
        (FRAME, struct.pack(">i", 2) + SOUND[4:], "has correlation id 2, the request 1"),
        (FRAME, SOUND[:-1], "cannot be decoded"),
        (FRAME, SOUND + b"x", "cannot be decoded"),
        (frame(18, 99, b""), SOUND, ""),
        (frame(18, 99, b""), SOUND + b"x", "cannot be decoded"),
        (frame(3, 99, b""), SOUND, "version 99 of API 3 is not served"),
        (struct.pack(">ihhi", 8, 99, 0, 1), SOUND, "API 99 is not served"),
        (b"\0\0\0\1x", SOUND, "are no request"),
    ],
)
def test_undecodable_responses_are_reported(request_: bytes, head: bytes, noticed: str) -> None:
    wrong = fault(request_, Answer(len(head), head))
    assert noticed in wrong
    assert bool(noticed) == bool(wrong)


def test_garbage_frames_state_whether_response_is_due() -> None:
    assert whole(FRAME)
    assert key_of(FRAME) == 18
    assert not whole(FRAME[:-1])
    assert not whole(b"\xff\xff\xff\xff" + FRAME[4:])
    made = {mutated(Random(seed), FRAME)[0] for seed in range(200)}
    assert made == set(HOW)


def test_extreme_batches_are_valid() -> None:
    for codec in range(5):
        case = produce_case("many", "t", many_records(300), 300, codec)
        (batch,) = scan(case.frame)
        records = list(records_of(case.frame, batch))
        assert [record.offset for record in records] == list(range(300))
        assert batch.end - batch.start > HEAD_BYTES
    assert many_headers(2).endswith(b"\x04" + b"\x02h\x01" * 2)


def test_forbidden_lines_in_long_log_are_found(context: Context, tmp_path: Path) -> None:
    process = WatchedProcess(tmp_path)
    lines = ["a\n", "Traceback (most recent call last):\n", "  File x\n"]
    lines += ["I kafkawire: Metadata failed and has no way to say so\n"]
    lines += ["I kafkawire: closing the connection of client x at y: z\n"] * 3000
    lines += ["12:00 WARNING kafkawire: careful\n", "12:01 CRITICAL kafkawire: lost\n"]
    process._keep(iter(lines))
    assert "Traceback" not in process.output
    assert process.log.closings == 3000
    assert process.log.warnings[0].endswith("careful")
    report_log(context, process.log)
    texts = [finding.text for finding in context.findings]
    assert len(texts) == 3
    assert "the broker logged: a\nTraceback (most recent call last):\n  File x" in texts[0]
    assert "CRITICAL kafkawire: lost" in texts[1]
    assert "has no way to say so" in texts[2]


def test_number_of_reported_forbidden_lines_is_bounded() -> None:
    log = Log()
    for _ in range(10_000):
        log.add("Traceback (most recent call last):")
        log.add("it has no way to say so")
    assert len(log.complaints) == len(log.unanswerable) == MAX_COMPLAINTS


@pytest.mark.real
@pytest.mark.slow
async def test_short_wire_trial_passes(tmp_path: Path) -> None:
    context = Context("wire", 3, 0, tmp_path, time.monotonic() + 240, short=True, say=print)
    await round_(context)
    assert context.findings == []
    assert context.counts["frames of garbage"] >= 100
    assert context.counts["answers decoded"] >= 20
    assert context.counts["connections closed with a reason"] >= 20
