"""The progress that long commands print, and reports of answers built by hand."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any

import pytest

from kafkawire.cli.app import app
from kafkawire.cli.shared.progress import bars
from kafkawire.cli.tier import commands as tier
from kafkawire.cli.tier import jobs as tier_jobs
from kafkawire.progress import phase
from tests.kit.cli import run


def test_progress_without_total(capsys: pytest.CaptureFixture[str]) -> None:
    with bars() as progress:
        for done in (1, 3, 3, 1000):
            progress("compared", done, 0)
        progress("read", 5, 10)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["compared: 1", "compared: 3", "compared: 1000", "read: 5 of 10"]


def test_phases_are_lines_without_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    with bars() as progress:
        for what in ("starting Spark", "planning", "planning"):
            with phase(progress, what):
                pass
    assert capsys.readouterr().err == "starting Spark\nplanning\n"


def test_phases_are_bars_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with bars() as progress, phase(progress, "starting Spark"):
        pass
    shown = capsys.readouterr().err
    assert "starting Spark" in shown
    assert "100%" in shown


def test_possible_orphan_objects_are_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    report: dict[str, Any] = {"objects": 3, "bytes": 10, "rows": 1, "findings": [], "young": 2}
    tier_jobs._show_scrub({**report, "young_ms": 3_600_000, "more": 0, "repaired": False})
    shown = capsys.readouterr().out
    assert "bucket and broker agree: 3 objects" in shown
    assert "2 objects without metadata are younger than 1 h" in shown


PIECE = {
    "topic": "t", "partition": 0, "from": 0, "to": 3, "bytes": 10, "segments": 1, "detail": "",
    "waits_s": 90.0, "since_ms": 1, "late": False, "reason": "paused", "until_s": None,
    "until_ms": None,
}  # fmt: skip


@pytest.mark.parametrize("late", [False, True])
def test_why_fails_when_upload_exceeds_lag_limit(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"tier": {"error": None, "url": "s3://b"}, "pieces": [{**PIECE, "late": late}]}
    monkeypatch.setattr(tier, "pages", lambda *_, **__: [answer])
    monkeypatch.setattr(tier, "connect_cluster", lambda server: nullcontext())
    plain, as_json = run(app, ["tier", "why"]), run(app, ["tier", "why", "--json"])
    shown = plain.stdout
    assert ("1 min 30 s (late)" in shown, "kafkawire tier resume" in shown) == (late, True)
    assert ("1 of these exceeds the tiering.max.lag.ms" in shown) is late
    assert json.loads(as_json.stdout)["pieces"][0]["late"] is late
    assert (plain.exit_code, as_json.exit_code) == (late, late)
