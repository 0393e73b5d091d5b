"""The wire trial must fail on brokers with deliberate defects: one test for each of its checks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.compile import encode
from kafkawire.handlers.table import ROWS
from kafkawire.messages.list_groups import ListGroupsResponse
from kafkawire.server.connection import Connection
from kafkawire.server.listener import ClientProtocol
from tests.kit import slowness
from tests.kit.codec.extremes import Case, case_of, frame
from tests.kit.loop_time import measured
from tests.trials.context import Context
from tests.trials.process import report_log
from tests.trials.victims import in_process
from tests.trials.wire import stretches, trial
from tests.trials.wire.stretches import judge
from tests.trials.wire.trial import Round

LIST_GROUPS, VERSION = 16, 4
HANDLER = "kafkawire.handlers.list_groups.list_groups"
MIB = 1 << 20

pytestmark = pytest.mark.slow


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context("wire", 1, 0, tmp_path, time.monotonic() + 30)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowness, "PAUSE_STEP_S", 0.0)


def large() -> Case:
    """A request of 35,000 entries."""
    row = next(row for row in ROWS if row.key == LIST_GROUPS)
    return case_of(row, VERSION, 60_000, bytes(16), ("states_filter",), "same")


async def texts_after(context: Context, case: Case | bytes) -> list[str]:
    """The findings of the trial after a broker was sent an extreme request, or garbage."""
    async with in_process(context.folder / "data") as victim:
        if isinstance(case, Case):
            await Round(context, victim)._extreme(case)
        else:
            await Round(context, victim)._garbage("garbage", case)
        report_log(context, victim.log)
    return [finding.text for finding in context.findings]


async def test_sound_broker_has_no_findings(context: Context) -> None:
    assert await texts_after(context, large()) == []
    assert await texts_after(context, frame(LIST_GROUPS, VERSION, b"\x7f")) == []
    assert context.counts["answers decoded"] == 1
    assert context.counts["connections closed with a reason"] == 1


def test_handler_blocking_event_loop_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(ctx: Any, request: Any) -> bytes:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return encode(ListGroupsResponse(), VERSION)

    monkeypatch.setattr(HANDLER, busy)
    with measured(context.folder / "data") as broker:
        took = judge(context, broker, large())
    assert "ListGroups v4: " in context.findings[0].text
    assert "held the loop for" in context.findings[0].text
    assert took > stretches.LIMIT_S


async def test_handler_with_excessive_memory_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hungry(ctx: Any, request: Any) -> bytes:
        held = b"x" * (200 * MIB)
        await asyncio.sleep(0)
        return encode(ListGroupsResponse(), VERSION) if held else b""

    monkeypatch.setattr(HANDLER, hungry)
    (text,) = await texts_after(context, large())
    assert "MiB, 49 are allowed" in text


async def test_missing_response_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(ctx: Any, request: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(trial, "ANSWER_WITHIN_S", 1.0)
    monkeypatch.setattr(HANDLER, silent)
    (text,) = await texts_after(context, large())
    assert "not answered in 1 s" in text


async def test_undecodable_response_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def garbled(ctx: Any, request: Any) -> bytes:
        return b"\xff" * 20

    monkeypatch.setattr(HANDLER, garbled)
    (text,) = await texts_after(context, large())
    assert "cannot be decoded" in text


async def test_exception_in_handler_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(ctx: Any, request: Any) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(HANDLER, failing)
    (text,) = await texts_after(context, large())
    assert "the broker logged" in text
    assert "ZeroDivisionError" in text


def no_response(*_: object) -> Iterator[None]:
    """Steps without a result."""
    yield None


async def test_failure_without_response_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(ctx: Any, request: Any) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(HANDLER, failing)
    monkeypatch.setattr("kafkawire.server.host.failed_response", no_response)
    texts = await texts_after(context, large())
    assert any("has no way to say so" in text for text in texts)


async def test_connection_closed_without_logged_reason_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "LOGGED_WITHIN_S", 0.2)
    close = ClientProtocol.close
    monkeypatch.setattr(ClientProtocol, "close", lambda self, reason: close(self, None))
    (text,) = await texts_after(context, frame(LIST_GROUPS, VERSION, b"\x7f"))
    assert text == "garbage: the connection was closed without a reason in the log"


async def test_ignored_garbage_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "GARBAGE_WITHIN_S", 1.0)
    monkeypatch.setattr(Connection, "abort", lambda self, reason: None)
    (text,) = await texts_after(context, frame(LIST_GROUPS, VERSION, b"\x7f"))
    assert text == "garbage: neither answered nor refused in 1 s"


async def test_unserved_other_client_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(ctx: Any, request: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("tests.trials.link.ANSWERED_WITHIN_S", 1.0)
    monkeypatch.setattr("kafkawire.handlers.metadata.metadata", silent)
    (text,) = await texts_after(context, large())
    assert "a small request is not served: Unanswered" in text


async def test_ended_broker_is_reported(context: Context) -> None:
    async with in_process(context.folder / "data") as victim:
        pass
    victim.process.running = False
    with pytest.raises(ConnectionRefusedError):
        await Round(context, victim)._others_are_served("a case")
    assert "after a case a small request is not served" in context.findings[0].text
