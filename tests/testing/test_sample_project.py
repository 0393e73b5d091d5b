"""A project with 17 tests on a broker each: what its tests see, and what it leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import sample_project


@pytest.mark.real
@pytest.mark.slow
def test_sample_project(tmp_path: Path) -> None:
    """Took 37 to 69 s when each broker was a new Python process with journals of 128 MiB."""
    orders = Path(sample_project.__file__).parent / "orders.py"
    shutil.copy(orders, tmp_path / "test_orders.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--basetemp", str(tmp_path / "temp")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
    )
    assert "17 passed" in done.stdout, done.stdout + done.stderr
    assert not list((tmp_path / "temp").glob("kafkawire*"))  # 129 MiB for each test before
