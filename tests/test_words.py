"""Documents are in plain words: CONTRIBUTING.md has the glossary, here are the words it refuses."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
REFUSED = re.compile(
    r"\b(told|anew|whoever|somebody|nobody(?:'s)?|beside|soil(?:s|ed)?|thrice|\w+_AT_MOST"
    r"|turns? of the (?:loop|log)|loop turns?|lets? go of|held to|holds? it against)\b",
    re.IGNORECASE,
)
GLOSSARY = re.compile(r"^## Language$.*?^## ", re.MULTILINE | re.DOTALL)
CELL = "isolation: 2000/s beside bulk and reads"
"""The name of a cell in the measurements that docs/performance.md keeps."""


def _documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "bench" / "README.md"]


def refused(text: str) -> list[str]:
    """Each refused word with what stands around it."""
    text = GLOSSARY.sub("", text).replace(CELL, "")
    return [text[max(0, m.start() - 30) : m.end() + 30] for m in REFUSED.finditer(text)]


def test_documents_use_plain_words() -> None:
    assert len(_documents()) > 12
    found = {
        str(page.relative_to(ROOT)): words
        for page in _documents()
        if (words := refused(page.read_text(encoding="utf-8")))
    }
    assert not found


def test_the_rule_sees_what_it_must() -> None:
    for line in ("Clients are told", "FETCH_AT_MOST", "one turn of the loop", "Whoever asks"):
        assert refused(line), line
    assert not refused("It is next to the log, and holds its lock.")
