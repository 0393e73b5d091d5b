"""Plain words in documents, code and names of tests: the glossary is in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import collections
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
REFUSED = re.compile(
    r"\b(told|anew|whoever|somebody|nobody(?:'s)?|beside|soil(?:s|ed)?|thrice|\w+_AT_MOST"
    r"|turns? of the (?:loop|log)|loop turns?|lets? go of|held to|holds? it against)\b",
    re.IGNORECASE,
)
GLOSSARY = re.compile(r"^## Language$.*?^## ", re.MULTILINE | re.DOTALL)
CELL = "isolation: 2000/s beside bulk and reads"
"""The name of a cell in the measurements that bench/notes/performance.md keeps."""


def _documents() -> list[Path]:
    return [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("bench/*.md"),
        *ROOT.glob("bench/notes/*.md"),
    ]


def refused(text: str) -> list[str]:
    """Return each refused word with the text around it."""
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


def test_private_words_are_refused() -> None:
    for line in ("Clients are told", "FETCH_AT_MOST", "one turn of the loop", "Whoever asks"):
        assert refused(line), line
    assert not refused("It is next to the log, and holds its lock.")


# The ten rules for guides: short sentences, with the broker, the client or the reader as subject.

WEAK = re.compile(
    r"\b(?:what is|what was|that is there|so that|in a sentence|at once|of its own|in earnest)\b",
    re.IGNORECASE,
)
PRIVATE = re.compile(r"\b(?:cuts?|cutting|fenced?|fences|places?)\b")
"""Words of the code that guides replace: split or upload, stop, folder."""
GENERATED = ("access.md", "apis.md", "commands.md", "configs.md")
MOST_WORDS = 25
VERBS = (
    "is|are|was|were|has|have|had|does|do|can|may|must|will|would|needs?|takes?|gets?|goes|stays?"
    "|says?|works?|waits?|becomes?|remains?|begins?|ends?|starts?|keeps?|reads?|writes?|returns?"
    "|answers?|refuses?|serves?|uses?|costs?|contains?|shows?|means|moves?|continues?|sends?"
)
TWO_CLAUSES = re.compile(rf"\w\)?:\s+[A-Za-z][^|]*?\b(?:{VERBS})\b")
"""A colon before more than a list or code."""
PRONOUN = re.compile(
    rf"^(?:It|They|Those|These|This|That|One|Such|Both|Others?) (?:(?!prints)[a-z]+s|{VERBS})\b"
)
"""A sentence whose subject is in another one; that of "It prints" is the code before it."""


class Faults(NamedTuple):
    """Sentences of over 25 words, weak phrases, private words, colons between two clauses, and
    sentences that begin with a pronoun."""

    long: list[str]
    weak: list[str]
    private: list[str]
    colons: list[str]
    pronouns: list[str]


def faults(text: str) -> Faults:
    """Return the faults of a page, outside of code."""
    text = re.sub(r"^```.*?^```|<!-- families.*<!-- /families -->", "", text, flags=re.M | re.S)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"^    .*$", "", text, flags=re.M))
    parts = re.split(r"\n\s*\n|\n *(?:- |\d+\. )|\||^#+ ", text, flags=re.M)
    sentences = [
        each
        for part in parts
        for each in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\[\d])", " ".join(part.split()))
    ]
    return Faults(
        [each for each in sentences if len(each.split()) > MOST_WORDS],
        WEAK.findall(text),
        PRIVATE.findall(re.sub(r"`[^`]*`", "", text)),
        [each for each in sentences if TWO_CLAUSES.search(re.sub(r"`[^`]*`", "X", each))],
        [each for each in sentences if PRONOUN.search(each)],
    )


def test_guides_have_short_sentences_and_plain_words() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    found = {
        str(page.relative_to(ROOT)): faults(page.read_text(encoding="utf-8"))
        for page in pages
        if page.name not in GENERATED
    }
    assert not {name: each for name, each in found.items() if any(each)}


def test_faults_of_guides_are_found() -> None:
    found = faults(
        "Lost is what was not uploaded. " + "word " * 26 + "end.\n\n```\na place\n```\n- A cut.\n\n"
        "Keep it: a broker needs it. They need: `is it`, a list. This is wrong.\n\nIt prints `5`."
    )
    assert (len(found.long), found.weak, found.private) == (1, ["what was"], ["cut"])
    assert found.colons == ["Keep it: a broker needs it."]
    assert found.pronouns == ["They need:", "This is wrong."]


# The same for the source code: its docstrings, log lines and help texts.

_WORDS = (
    r"\b(told|behind|anew|whoever|somebody|nobody(?:'s)?|beside|looks? at|mend(?:s|ed|ing)?"
    r"|soil(?:s|ed)?|thrice"
    r"|(?-i:[A-Z_]+_AT_MOST)|turns? of the (?:loop|log)|loop turns?|lets? go of)\b"
)
_OPENINGS = r"(?:What|See)\b"
REFUSED_IN_CODE = re.compile(rf"{_WORDS}|^{_OPENINGS}", re.IGNORECASE)
REFUSED_IN_FILE = re.compile(rf'{_WORDS}|"\s*{_OPENINGS}', re.IGNORECASE)
"""The same anywhere in a file: one without a match is not parsed, which takes longer."""
LOGS = {"debug", "info", "warning", "error", "critical", "exception", "log"}


def _docstring(node: ast.AST) -> list[str]:
    """Return the docstring of a module, class, function or attribute: a statement of its own."""
    match node:
        case ast.Expr(ast.Constant(str(text))):
            return [text.strip()]
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


def test_code_uses_plain_words() -> None:
    found: dict[str, list[str]] = {}
    for folder in ("kafkawire", "spark", "tests", "bench"):
        for path in ROOT.joinpath(folder).rglob("*.py"):
            words = refused_in_code(path.read_text(encoding="utf-8"))
            if words and path != Path(__file__):
                found[str(path.relative_to(ROOT))] = words
    assert not found


def test_test_names_use_plain_words() -> None:
    found: dict[str, list[str]] = {}
    for path in ROOT.joinpath("tests").rglob("test_*.py"):
        names = re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
        refused_names = [name for name in names if REFUSED_IN_CODE.search(name.replace("_", " "))]
        if refused_names:
            found[str(path.relative_to(ROOT))] = refused_names
    assert not found


def test_private_words_in_code_are_refused() -> None:
    for line in (
        '"""What is told."""',
        'LIMIT = 1\n"""See the module."""',
        'def f():\n    """Whoever reads."""',
        'logger.warning("%s is behind", name)',
        'Option(help="Mend it.")',
    ):
        assert refused_in_code(line), line
    assert not refused_in_code('"""Return the next one."""\nprint("nobody")')


# Comments, and docstrings of attributes too: idioms that only insiders understand.

_IDIOMS = (
    r"\b(?:go(?:es|ing|ne)? on(?! the)|in one go|at hand|for ever|under way|all the same|everybody"
    r"|anyhow|lies|tidied|hears?|put in force|now and then|held against|hold(?:s|ing)? \w+ against"
    r"|well or badly|became of|came of it|an? earlier life|who (?:waits?|asks?|comes?|came)"
    r"|in (?:its|their) own words|no one)\b|\bA device\.|\bShell[.;]"
)
REFUSED_IDIOMS = re.compile(_IDIOMS, re.IGNORECASE)
IDIOMS_IN_FILE = re.compile(_IDIOMS.replace(" ", r"\s+(?:#\s*)?"), re.IGNORECASE)
"""The same anywhere in a file, across the ends of lines."""
IDIOMS_LEFT = {"kafkawire/log": 26, "tests": 32}
"""Idioms that a package, or all tests, still have; it may only fall."""


def _prose(source: str) -> Iterator[str]:
    """Yield docstrings of modules, classes, functions and attributes, and adjacent comments."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield " ".join(text.split())
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    block: list[str] = []
    for number, line in sorted(comments.items()):
        block.append(line)
        if number + 1 not in comments:
            yield " ".join(block)
            block = []


def refused_idioms(source: str) -> list[str]:
    """Return the refused idioms in docstrings and comments, with their surroundings."""
    if not IDIOMS_IN_FILE.search(source):
        return []
    return [
        text[max(0, m.start() - 30) : m.end() + 30]
        for text in _prose(source)
        for m in REFUSED_IDIOMS.finditer(text)
    ]


@pytest.mark.slow
def test_prose_of_the_code_has_no_idioms() -> None:
    found = collections.defaultdict[str, list[str]](list)
    for path in (*ROOT.glob("kafkawire/**/*.py"), *ROOT.glob("spark/**/*.py")):
        package = "/".join(path.relative_to(ROOT).parts[:2])
        found[package] += refused_idioms(path.read_text(encoding="utf-8"))
    for path in ROOT.joinpath("tests").rglob("*.py"):
        if path != Path(__file__):
            found["tests"] += refused_idioms(path.read_text(encoding="utf-8"))
    over = {
        name: idioms for name, idioms in found.items() if len(idioms) > IDIOMS_LEFT.get(name, 0)
    }
    assert not over


def test_idioms_in_prose_are_refused() -> None:
    for line in (
        'LIMIT = 1\n"""Bytes that go on to the next."""',
        "# first half of a sentence that goes\n# on in the next line",
        "at = 1  # where it lies",
        'def f():\n    """Return it.\n\n    A second caller, who waits."""',
    ):
        assert refused_idioms(line), line
    assert not refused_idioms("# holds the lock\nat = 'for ever'")
