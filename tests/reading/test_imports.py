"""Readers need only what `pip install kafkawire` brings, without extras.

Covers: kafkawire.reading.segments, kafkawire.cli.records.find.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.kit.spark.files import Files, Share, batches
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)

PYPROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"
FIND = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from kafkawire.cli.main import main
main()
"""


def of_extras() -> list[str]:
    """Return the modules of what only extras install."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    named = re.compile(r"[\w-]+")

    def names(rows: list[str]) -> set[str]:
        return {found[0] for row in rows if (found := named.match(row))}

    base = names(project["dependencies"])
    every = set[str]().union(*map(names, project["optional-dependencies"].values()))
    return sorted(name.replace("-", "_") for name in every - base - {"kafkawire"})


@pytest.mark.slow
def test_find_works_without_extras(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 10)))
    files.publish()
    absent = of_extras()
    assert {"pyarrow", "pyspark", "numba"} <= set(absent)
    words = ["find", "t", "--source", files.place.url, "--key", "k42"]
    command = [sys.executable, "-c", FIND, ",".join(absent), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("t:0 42 ")
