"""Texts of log lines that are not of one package."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from kafkawire.log_format import setup
from kafkawire.log_lines import address_of, reason_of
from kafkawire.metadata.store import BrokerSuperseded
from kafkawire.server.run import report_unretrieved


@pytest.mark.parametrize(
    ("host", "shown"),
    [("::1", "[::1]:9092"), ("", "*:9092"), ("kafka.example", "kafka.example:9092")],
)
def test_address(host: str, shown: str) -> None:
    assert address_of(host, 9092) == shown


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        (TimeoutError(), "TimeoutError"),
        (ValueError("no disk"), "no disk"),
        (OSError(9, "Bad file descriptor"), "Bad file descriptor"),
        (OSError(2, "No such file", "/x"), "No such file: '/x'"),
    ],
)
def test_reason_is_never_empty(failure: BaseException, shown: str) -> None:
    assert reason_of(failure) == shown


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_exceptions_in_lines_are_shown_by_their_reason(
    log_format: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    try:
        setup("info", log_format)
        logging.getLogger("a").warning("%s: %s, %s", "t-0", OSError(9, "Bad file"), TimeoutError())
    finally:
        root.setLevel(level)
    assert "t-0: Bad file, TimeoutError" in capsys.readouterr().err


async def test_failure_of_a_task_without_a_caller_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(report_unretrieved)

    async def fail(failure: Exception) -> None:
        raise failure

    with caplog.at_level(logging.INFO):
        for name, failure in (
            ("store the replica set", OSError(9, "Bad file")),
            ("remove rows", BrokerSuperseded(1, 7)),
            ("load", IndexError("a defect")),
        ):
            task = loop.create_task(fail(failure), name=name)
            await asyncio.wait([task])
            del task
            gc.collect()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "store the replica set: failed, and is not repeated: Bad file"
    assert lines[1].startswith("remove rows: ended: another process was started as broker 1")
    assert lines[2] == "load: failed because of a defect, and is not repeated"
    assert "IndexError: a defect" in caplog.text
    assert "never retrieved" not in caplog.text
