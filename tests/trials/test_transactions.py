"""The transactions trial in short, and a test that it detects what a restart has lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.trials.context import Context
from tests.trials.test_kill import forget_newest_records
from tests.trials.transactions import trial
from tests.trials.transactions.trial import Round, round_

pytestmark = [pytest.mark.real, pytest.mark.slow]


def context(folder: Path, seed: int) -> Context:
    """A short round that prints its findings as they are reported."""
    return Context("transactions", seed, 0, folder, time.monotonic() + 20, short=True, say=print)


async def test_short_transactions_trial_passes(tmp_path: Path) -> None:
    run = context(tmp_path, 2)
    await round_(run)
    assert run.findings == []
    assert run.counts["transactions committed"]
    assert run.counts["kills of the broker"] >= 3


async def test_lost_transactions_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client whose transaction is lost does not end, which is one of the findings.
    monkeypatch.setattr(trial, "ENDS_WITHIN_S", 15.0)
    run = context(tmp_path, 4)
    attempt = Round(run, forget_newest_records)
    await attempt.run()
    assert run.findings
