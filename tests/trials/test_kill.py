"""The kill trial in short, and that it notices records that a restart has lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.trials.context import Context
from tests.trials.kill.trial import Round, round_

pytestmark = [pytest.mark.real, pytest.mark.slow]


def context(folder: Path, seed: int) -> Context:
    """A short round, its findings shown as they come."""
    return Context("kill", seed, 0, folder, time.monotonic() + 20, short=True, say=print)


@pytest.mark.parametrize("seed", [2, 3])
async def test_what_was_acknowledged_survives_kills(tmp_path: Path, seed: int) -> None:
    run = context(tmp_path, seed)
    await round_(run)
    assert run.findings == []
    assert run.counts["records read back"] > 100
    assert run.counts["kills of the broker"] >= 3


def forget_newest_records(data: Path) -> None:
    """Write zeros over the second half of what lies in the newest journals."""
    for journal in sorted(data.glob("brokers/*/journals/*.journal"))[-2:]:
        content = bytearray(journal.read_bytes())
        used = len(content.rstrip(b"\0"))
        content[used // 2 : used] = bytes(used - used // 2)
        journal.write_bytes(content)


async def test_the_trial_notices_records_that_are_lost(tmp_path: Path) -> None:
    run = context(tmp_path, 4)
    attempt = Round(run, forget_newest_records)
    await attempt.run()
    texts = " ".join(finding.text for finding in run.findings)
    assert "lost" in texts or "high watermark is" in texts or "is refused" in texts, texts
