"""The audit log: its lines, bounds and failures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkawire.log.io.disk import real_env
from kafkawire.security import audit
from kafkawire.security.audit import AuditLog, Caller, NoAudit, Sender, open_audit
from tests.kit.waiting import until

ALICE = Caller("User:alice", "1.2.3.4", "PLAINTEXT")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_event_is_a_line_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    log = open_audit(real_env(), str(path))
    log.record_denial(ALICE, "Fetch", "READ", "TOPIC", 'a "quoted"\nname')
    log.authentication_failed("9.9.9.9", "SASL", "PLAIN", "wrong password", "bob")
    log.record_change(ALICE, "topic created", topic="t", partitions=3)
    log.offsets_set(ALICE, "g")
    await until(lambda: path.read_text().count("\n") == 4)
    denied, failed, created, offsets = lines(path)
    assert denied.pop("time").endswith("+00:00")
    assert denied == {
        "event": "denied", "principal": "User:alice", "host": "1.2.3.4", "listener": "PLAINTEXT",
        "request": "Fetch", "operation": "READ", "resource_type": "TOPIC",
        "resource": 'a "quoted"\nname',
    }  # fmt: skip
    assert (failed["event"], failed["principal"]) == ("authentication failed", "User:bob")
    assert (failed["mechanism"], failed["reason"]) == ("PLAIN", "wrong password")
    assert (created["event"], created["topic"], created["partitions"]) == ("topic created", "t", 3)
    assert offsets["group"] == "g"
    path.rename(tmp_path / "old")  # rotated
    log.record_change(ALICE, "topic deleted", topic="t" * 5_000)
    await log.close()
    (deleted,) = lines(path)
    assert len(deleted["topic"]) == audit.MAX_TEXT + 3
    assert log.list_changes() == [created, deleted]
    monkeypatch.setattr(audit, "RECENT_MS", -1)
    assert log.list_changes() == []


class Slow:
    """A file that may fail."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failure: OSError | None = None

    def __call__(self, lines: Sequence[str]) -> None:
        if self.failure is not None:
            raise self.failure
        self.lines += lines


async def test_denials_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Slow()
    log = AuditLog(real_env(), written)
    monkeypatch.setattr(log._denials, "_per_second", 0.0)
    for _ in range(audit.DENIED_BURST + 7):
        log.record_denial(ALICE, "Fetch", "READ", "TOPIC", "t")
    monkeypatch.setattr(log._denials, "_room", 1.0)
    log.record_denial(ALICE, "Fetch", "READ", "TOPIC", "last")
    await log.close()
    assert len(written.lines) == audit.DENIED_BURST + 1
    assert json.loads(written.lines[-1])["omitted"] == 7


async def test_queue_is_bounded_and_losses_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "WAITING_MAX", 3)
    written = Slow()
    log = AuditLog(real_env(), written)
    for n in range(5):
        log.record_change(ALICE, "topic created", topic=f"t{n}")
    await log.close()
    assert len(written.lines) == 4
    log.record_change(ALICE, "topic created", topic="t5")
    await log.close()
    assert [json.loads(line).get("lost") for line in written.lines] == [None] * 3 + [2, None]


async def test_failed_write_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    written = Slow()
    log = AuditLog(real_env(), written)
    written.failure = OSError("no space left")
    for _ in range(2):
        log.record_change(ALICE, "topic created", topic="t")
        await log.close()
    assert caplog.text.count("no space left") == 1
    written.failure = None
    log.record_change(ALICE, "topic created", topic="t")
    await log.close()
    assert [json.loads(line).get("lost") for line in written.lines] == [None, 2]


async def test_nowhere_and_a_folder_that_is_missing(tmp_path: Path) -> None:
    assert isinstance(open_audit(real_env(), ""), NoAudit)
    with pytest.raises(OSError, match="No such file"):
        open_audit(real_env(), str(tmp_path / "no" / "audit"))


async def test_the_log_of_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = open_audit(real_env(), "log")
    log.record_change(ALICE, "topic created", topic="t")
    await log.close()
    assert '"event": "topic created"' in caplog.text


def test_sender_keeps_its_caller_with_a_prefix() -> None:
    sender = Sender.with_caller("client a at 1.2.3.4", ALICE)
    assert f"{sender}" == "client a at 1.2.3.4"
    more = audit.prefix_sender("Metadata of ", sender)
    assert more == "Metadata of client a at 1.2.3.4"
    assert audit.caller_of(more) == ALICE
    assert audit.caller_of("the broker") == audit.NO_CALLER
