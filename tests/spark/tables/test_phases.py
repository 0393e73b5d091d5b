"""A driver that ends in any phase of a run: readers that know nothing of the pipeline see every
offset once, as soon as the run is repeated; those of Delta and Iceberg at any time."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkawire.reading.files.open import open_place
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.job import ICEBERG, PARQUET, Job, parse
from tests.kit.spark.inline import Inline
from tests.kit.spark.phases import PHASES, drive, rows_seen
from tests.kit.spark.pipeline_topics import Tier, job_text
from tests.kit.spark.pipelines import Killed

FORMATS = ("parquet", "delta", "iceberg")
CASES = [(form, phase) for form in FORMATS for phase in PHASES
         if phase != "in the commit" or form == ICEBERG]  # fmt: skip
COMMITTED = ("committed", "settled")
Drive = Callable[[Path, str], None]


def end_by_exception(job_file: Path, phase: str) -> None:
    def end() -> None:
        raise Killed(phase)

    with pytest.raises(Killed):
        drive(parse(job_file.read_text()), phase, end)


def end_by_signal(job_file: Path, phase: str) -> None:
    command = [sys.executable, "-m", "tests.kit.spark.phases", str(job_file), phase]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr


def check(tmp_path: Path, format: str, phase: str, ends: Drive) -> None:
    """The first run, and a later one, end in the phase."""
    tier = Tier(open_place(str(tmp_path / "tier")))
    table = {"format": format, "partition_by": ["date(timestamp)"], "file_bytes": 1 << 16}
    job_file = tmp_path / "job.toml"
    text = job_text(tier.files.place.url, tmp_path / "table", table=table, job={"name": "o"})
    job_file.write_text(text)
    job = parse(text)
    before: set[tuple[int, int]] = set()
    for count in (300, 220):
        tier.grow(count)
        ends(job_file, phase)
        if before or phase in COMMITTED:
            check_interrupted(job, before, tier.offsets(), phase)
        outcome = Engine(job, Inline()).run()
        assert outcome.resumed is (phase not in COMMITTED)
        before = tier.offsets()
        assert rows_seen(job) == Counter(before)
        assert Engine(job, Inline()).run().record is None


def check_interrupted(
    job: Job, before: set[tuple[int, int]], after: set[tuple[int, int]], phase: str
) -> None:
    seen = rows_seen(job)
    if job.table.format == PARQUET and phase not in COMMITTED:
        assert before <= set(seen) <= after  # its readers see files that are not committed yet
        assert max(seen.values()) == 1
    else:
        assert seen == Counter(after if phase in COMMITTED else before)


@pytest.mark.slow
@pytest.mark.parametrize(("format", "phase"), CASES)
def test_driver_ended_in_a_phase(tmp_path: Path, format: str, phase: str) -> None:
    check(tmp_path, format, phase, end_by_exception)


@pytest.mark.real
@pytest.mark.parametrize("phase", ["writing", "committing"])
@pytest.mark.parametrize("format", FORMATS)
def test_driver_killed_in_a_phase(tmp_path: Path, format: str, phase: str) -> None:
    check(tmp_path, format, phase, end_by_signal)
