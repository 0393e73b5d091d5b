"""Which modules are compiled (setup.py), and that they are those of the sources.

Covers: kafkawire.cli.version.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from kafkawire.cli.version import is_compiled

ROOT = Path(__file__).parent.parent.parent


@cache
def compiled_modules() -> list[str]:
    """The list of setup.py."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED":
            return [str(path) for path in ast.literal_eval(node.value)]
    raise AssertionError("setup.py has no list COMPILED")


def outdated(root: Path) -> list[str]:
    """Return the compiled modules of a tree that are older than their source."""
    found = []
    for module in sorted((root / "kafkawire").rglob("*.so")):
        source = module.with_name(module.name.partition(".")[0] + ".py")
        if not source.exists() or source.stat().st_mtime_ns > module.stat().st_mtime_ns:
            found.append(str(source.relative_to(root)))
    return found


def refuse_outdated() -> None:
    """End the run if it would test something else than the sources."""
    if found := outdated(ROOT):
        pytest.exit(
            f"compiled before its source was changed: {found[0]} (make fast, or make slow)", 2
        )


def skip_interpreted(items: list[pytest.Item]) -> None:
    """Skip the tests that replace parts of modules that are compiled here."""
    if is_compiled():
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(pytest.mark.skip("replaces a part of a module that is compiled"))
