"""Compile the hot modules as `make fast` does, in a copy of the sources, and run tests there.

They are compiled without optimization, which takes half the time. The tests chosen pass through
all compiled modules: a broker process, connections without sockets, whole lives in the simulation.

Covers: kafkawire.cli.version.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.compiled import compiled_modules, outdated

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 600
"""Time limit of one child process: a minute of CPU time on a machine that runs other tests."""

TESTS = (
    "tests/handlers/test_fairness.py",
    "tests/handlers/test_leader_hints.py",
    "tests/handlers/test_produce_fetch.py",
    "tests/log/append/test_disk_sink.py",
    "tests/log/append/test_write_batches.py",
    "tests/log/test_simulation.py",
    "tests/server/test_connection.py",
    "tests/server/test_connection_bounds.py",
    "tests/server/test_connection_defects.py",
)


def run(tree: Path, *words: str, **more: str) -> str:
    """Run Python in a source tree and return what it printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHONPATH"))}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env=kept | more,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with compiled modules next to them."""
    tree = tmp_path_factory.mktemp("compiled") / "kafkawire"
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("kafkawire", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    run(tree, "setup.py", "--quiet", "build_ext", "--inplace", KAFKAWIRE_COMPILE="0")
    return tree


def test_every_listed_module_is_compiled(tree: Path) -> None:
    found = [
        str(path.with_name(path.name.partition(".")[0] + ".py").relative_to(tree))
        for path in tree.glob("kafkawire/**/*.so")
    ]
    assert sorted(found) == compiled_modules()
    facts = json.loads(run(tree, "-m", "kafkawire", "version", "--json"))
    assert facts["compiled"] is True
    assert ", compiled)" in run(tree, "-m", "kafkawire", "version")


def test_changed_source_makes_its_module_outdated(tree: Path) -> None:
    assert outdated(tree) == []
    source = tree / "kafkawire/codec/walk.py"
    (module,) = source.parent.glob("walk.*.so")
    before = source.stat()
    try:
        os.utime(source, ns=(before.st_atime_ns, module.stat().st_mtime_ns + 1))
        assert outdated(tree) == ["kafkawire/codec/walk.py"]
    finally:
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_tests_pass_with_compiled_modules(tree: Path) -> None:
    words = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-m", "not java and not slow")
    shown = run(tree, *words, *TESTS, SIM_SEEDS="2", HYPOTHESIS_PROFILE="quick")
    assert "replaces a part of a module that is compiled" in shown
    assert " passed" in shown


def test_unknown_level_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext"],
        cwd=ROOT,
        env=os.environ | {"KAFKAWIRE_COMPILE": "fast"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 1
    assert done.stderr == "KAFKAWIRE_COMPILE=fast: must be an optimization level, 0 to 3\n"
