"""The examples in docs/testing.md are run as they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.real
@pytest.mark.slow
def test_examples(tmp_path: Path) -> None:
    """Blocks with tests are files of tests; the others become one test each."""
    assert len(BLOCKS) >= 7
    for number, block in enumerate(BLOCKS):
        if "def test_" not in block:  # a program
            block = "def test_block():\n" + re.sub("^(?=.)", "    ", block, flags=re.M)
        (tmp_path / f"test_{number}.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
