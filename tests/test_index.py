"""Every module has a test, and `make test-of` finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import of

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow  # it parses every test


def test_every_module_has_a_test() -> None:
    """One that imports it, or lists it after "Covers:" in its docstring."""
    assert [name for name, paths in of.index().items() if not paths] == []


def test_covered_modules_exist() -> None:
    listed = [(path, name) for path in of.tests() for name in of.listed(path)]
    assert len(listed) > 100
    gone = [f"{path.relative_to(ROOT)}: {name}" for path, name in listed if not of.matches(name)]
    assert gone == []


def test_tests_of_a_module_are_those_about_it() -> None:
    found = [
        str(each.relative_to(ROOT)) for each in of.chosen(ROOT / "kafkawire/objectstore/url.py")
    ]
    assert "tests/objectstore/test_url.py" in found
    assert len(found) < 40


def test_tests_of_a_folder_are_those_of_its_modules() -> None:
    found = set(of.chosen(ROOT / "kafkawire/objectstore"))
    assert set(of.chosen(ROOT / "kafkawire/objectstore/url.py")) <= found


def test_other_paths_are_refused() -> None:
    with pytest.raises(LookupError, match="docs is no module or folder of kafkawire, and no test"):
        of.chosen(Path("docs"))
