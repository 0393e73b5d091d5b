"""Readers of buckets and folders need only the extra `reading`.

Covers: kafkawire.reading.segments, kafkawire.cli.records.find.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kit.bare import bare_environment
from tests.kit.spark.files import Files, Share, batches
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)


@pytest.mark.slow
def test_find_works_without_other_extras(files: Files, tmp_path: Path) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 10)))
    files.publish()
    python = bare_environment(tmp_path / "venv", "reading")
    words = ["find", "t", "--source", files.place.url, "--key", "k42"]
    command = [str(python), "-P", "-m", "kafkawire", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("t:0 42 ")
