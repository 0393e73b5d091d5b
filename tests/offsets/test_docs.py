"""The examples of docs/offsets.md print what they document."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parent.parent.parent / "docs" / "offsets.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\nIt prints `([^`]*)`", TEXT, re.DOTALL)


def test_every_example_has_expected_output() -> None:
    assert len(EXAMPLES) == TEXT.count("```python") == 4


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(EXAMPLES)))
def test_example_prints_expected_output(at: int, tmp_path: Path) -> None:
    code, printed = EXAMPLES[at]
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed + "\n", "")


def test_every_type_is_in_table() -> None:
    from kafkawire.offsets import OffsetType

    rows = dict(re.findall(r"\| `([A-Z_]+)` \| (\d+) \|", TEXT))
    assert rows == {each.name: str(each.value) for each in OffsetType}
