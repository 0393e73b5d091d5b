"""README.md is short, says first what the broker is and is not, and the index has every page."""

from __future__ import annotations

import re

from tests.documents.pages import ROOT, sections, text_of

README_LINES = 150
"""Longer texts belong to pages of docs/."""


def test_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= README_LINES


def test_readme_begins_with_what_a_newcomer_asks() -> None:
    """Purpose, limits, a try-out, and how long the two commands take, in this order."""
    found = sections("README.md")
    assert found[""].index("A broker") < found[""].index("What it is not yet")
    titles = list(found)
    assert titles[1:3] == ["Try it in 60 seconds", "Two commands"]
    for command in ("make run", "make test"):
        (row,) = re.findall(rf"^\| `{command}` \|.*$", found["Two commands"], re.MULTILINE)
        assert re.search(r"minute", row), row


def test_index_has_every_page() -> None:
    named = set(re.findall(r"\]\(([\w.-]+)\)", text_of("docs/README.md")))
    there = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert there <= named
    assert named <= {path.name for path in (ROOT / "docs").iterdir()}


def test_readme_leads_to_the_index() -> None:
    assert "](docs/README.md)" in text_of("README.md")
