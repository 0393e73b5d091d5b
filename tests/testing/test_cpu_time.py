"""The CPU time that `make test` prints counts workers and their children."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BURN = "import time; list(iter(lambda: time.process_time() < 1, False))"
TESTS = f"""
import subprocess
import sys

import pytest


@pytest.mark.parametrize("number", [1, 2])
def test_child(number):
    subprocess.run([sys.executable, "-c", {BURN!r}], check=True)
"""
HOOKS = "pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown"


@pytest.mark.real
@pytest.mark.slow
def test_children_of_workers_are_counted(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(f"from tests.kit.cpu_time import {HOOKS}\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--durations=20", "test_it.py"],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r"CPU time of the tests: (\d+) min (\d+) s", done.stdout)
    assert found, done.stdout + done.stderr
    spent = int(found[1]) * 60 + int(found[2])
    assert 2 <= spent < 60  # a second for each child; what starting Python costs varies
