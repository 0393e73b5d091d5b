"""Plain words in documents and code: CONTRIBUTING.md has the glossary, here is what is refused."""

from __future__ import annotations

import ast
import collections
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


# The same for the source code: what people read of it are docstrings, log lines and help texts.

_WORDS = (
    r"\b(told|behind|anew|whoever|somebody|nobody(?:'s)?|beside|looks? at|mend(?:s|ed|ing)?"
    r"|soil(?:s|ed)?|thrice"
    r"|(?-i:[A-Z_]+_AT_MOST)|turns? of the (?:loop|log)|loop turns?|lets? go of)\b"
)
_OPENINGS = r"(?:What|See the module)\b"
REFUSED_IN_CODE = re.compile(rf"{_WORDS}|^{_OPENINGS}", re.IGNORECASE)
REFUSED_IN_FILE = re.compile(rf'{_WORDS}|"\s*{_OPENINGS}', re.IGNORECASE)
"""The same anywhere in a file: one without a match is not parsed, which takes longer."""
LOGS = {"debug", "info", "warning", "error", "critical", "exception", "log"}
BUDGETS = {"bench": 66, "tests": 295}
"""Refused words that a folder still has; it may only fall, and where it is reached, be lowered."""


def _docstring(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [ast.get_docstring(node) or ""]
    return []


def _said(node: ast.AST) -> list[str]:
    """Return the texts of a log call, or the help of a command-line option."""
    if not isinstance(node, ast.Call):
        return []
    parts = [each.value for each in node.keywords if each.arg == "help"]
    if isinstance(node.func, ast.Attribute) and node.func.attr in LOGS:
        parts += node.args
    constants = (
        each for part in parts for each in ast.walk(part) if isinstance(each, ast.Constant)
    )
    return [each.value for each in constants if isinstance(each.value, str)]


def refused_in_code(source: str) -> list[str]:
    """Return the refused words in docstrings, log calls and help texts, with their surroundings."""
    if not REFUSED_IN_FILE.search(source):
        return []
    texts = [
        text for node in ast.walk(ast.parse(source)) for text in _docstring(node) + _said(node)
    ]
    return [
        text[max(0, m.start() - 30) : m.end() + 30]
        for text in texts
        for m in REFUSED_IN_CODE.finditer(text)
    ]


def _folder(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "kafkawire" and len(parts) > 2 else parts[0]


def test_code_uses_plain_words() -> None:
    found = collections.defaultdict[str, list[str]](list)
    for folder in ("kafkawire", "tests", "bench"):
        for path in ROOT.joinpath(folder).rglob("*.py"):
            if path != Path(__file__):
                found[_folder(path)] += refused_in_code(path.read_text(encoding="utf-8"))
    over = {name: words for name, words in found.items() if len(words) > BUDGETS.get(name, 0)}
    assert not over, {
        name: (len(words), BUDGETS.get(name, 0), words) for name, words in over.items()
    }


def test_the_rule_for_code_sees_what_it_must() -> None:
    for line in (
        '"""What is told."""',
        'def f():\n    """Whoever reads."""',
        'logger.warning("%s is behind", name)',
        'Option(help="Mend it.")',
    ):
        assert refused_in_code(line), line
    assert not refused_in_code('"""Return the next one."""\nprint("nobody")')
