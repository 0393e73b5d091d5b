"""The examples of docs/library.md print what they document.

Covers: kafkawire.reading.segments.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kafkawire.reading.files.open import open_place
from tests.kit.spark.files import Files, Share, batches

TEXT = (Path(__file__).parent.parent.parent / "docs" / "library.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\nIt prints `([^`]*)`", TEXT, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tier of the examples."""
    files = Files(open_place(str(tmp_path / "tier")))
    numbers = files.topic("orders", 2)
    for base in range(0, 300, 100):
        files.put(base + 1, *[Share(number, batches(base, [10] * 10)) for number in numbers])
    files.publish()
    return tmp_path


def test_every_example_has_documented_output() -> None:
    assert len(EXAMPLES) == TEXT.count("```python") == 4


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(EXAMPLES)))
def test_example_prints_documented_output(at: int, folder: Path) -> None:
    code, printed = EXAMPLES[at]
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed + "\n", "")
