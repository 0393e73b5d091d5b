"""Every module has a test, and docs/tests.md says which."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow  # it parses every test


@cache
def _index() -> ModuleType:
    spec = importlib.util.spec_from_file_location("index_tests", ROOT / "docs" / "index_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_index_is_current() -> None:
    text = (ROOT / "docs" / "tests.md").read_text(encoding="utf-8")
    assert text == _index().page(), "run make docs"


def test_every_module_has_a_test() -> None:
    """One that imports it, or lists it after "Covers:" in its docstring."""
    assert [name for name, paths in _index().index().items() if not paths] == []


def test_covered_modules_exist() -> None:
    tests = _index()
    listed = [(path, name) for path in tests.tests() for name in tests.listed(path)]
    assert len(listed) > 100
    gone = [f"{path.relative_to(ROOT)}: {name}" for path, name in listed if not tests.matches(name)]
    assert gone == []
