"""`make test` names each failed test when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CONFTEST = """
import pytest
from tests.kit.failures import print_failures


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    print_failures(config)
"""
TESTS = """
import pytest


@pytest.fixture
def broken():
    raise OSError("no disk")


def test_setup(broken):
    pass


def test_call():
    assert 1 + 1 == 3, "wrong sum"


def test_that_passes():
    pass
"""


@pytest.mark.real
@pytest.mark.parametrize("workers", ["0", "2"])
def test_each_failure_is_printed_once(tmp_path: Path, workers: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", workers, "test_it.py"],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    printed = [line for line in done.stdout.splitlines() if line.startswith("failed in ")]
    assert sorted(printed) == [
        "failed in call: test_it.py::test_call: AssertionError: wrong sum",
        "failed in setup: test_it.py::test_setup: OSError: no disk",
    ]
