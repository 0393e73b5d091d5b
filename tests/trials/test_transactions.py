"""The transactions trial in short, and a test that its checker reports what a restart has lost."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.trials.context import Context
from tests.trials.transactions.trial import Round, round_

pytestmark = [pytest.mark.real, pytest.mark.slow]
VALUE = re.compile(rb"-(?:one|old|two)\d+\.\d+/\d+\.\d+")
"""A part of the value of a record that a writer has sent."""


def context(folder: Path, seed: int) -> Context:
    """A short round that prints its findings as they are reported."""
    return Context("transactions", seed, 0, folder, time.monotonic() + 20, short=True, say=print)


async def test_short_transactions_trial_passes(tmp_path: Path) -> None:
    run = context(tmp_path, 2)
    await round_(run)
    assert run.findings == []
    assert run.counts["transactions committed"]
    assert run.counts["kills of the broker"] >= 3


def damage_written_records(data: Path) -> None:
    """Overwrite a byte of each value in the newest journals. The transactions remain: their states
    and markers are in other frames."""
    for journal in sorted(data.glob("brokers/*/journals/*.journal"))[-2:]:
        content = bytearray(journal.read_bytes())
        for found in VALUE.finditer(bytes(content)):
            content[found.start()] ^= 0xFF
        journal.write_bytes(content)


async def test_lost_transactions_are_reported(tmp_path: Path) -> None:
    """By the checker. Readers end at damaged records, and the broker logs them, which is reported,
    too."""
    run = context(tmp_path, 4)
    await Round(run, damage_written_records).run()
    found = {finding.text.partition(":")[0] for finding in run.findings}
    assert found & {"lost", "torn"}, found
    assert "damaged" in found
