"""Generated documents are current, and everything that the others refer to exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from kafkawire.codec.configs.table import BROKER_CONFIGS, TOPIC_CONFIGS
from tests.test_architecture import _tracked

ROOT = Path(__file__).parent.parent


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_documents_are_current() -> None:
    documents = _generator().documents()
    assert len(documents) > 50  # the README.md of each package too
    old = [
        str(path.relative_to(ROOT))
        for path, wanted in documents.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != wanted
    ]
    assert not old, "run make docs"


def _pages() -> list[Path]:
    """Every document of the repository."""
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *(ROOT / "kafkawire").rglob("README.md")]


def test_links_have_targets() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in _pages()
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not page.parent.joinpath(target).exists()
    ]
    assert not broken


def test_paths_and_modules_in_the_documents_exist() -> None:
    """In text and in commands: `kafkawire/log/...`, `tests/...`, `python -m bench.micro.log`. The
    text of a link may be short for its target."""
    gone = []
    for page in _pages():
        text = page.read_text(encoding="utf-8")
        paths = re.findall(r"(?<![\w/.[])((?:kafkawire|tests|bench|docs)/[\w./-]*\w)", text)
        modules = re.findall(r"python -m ((?:bench|tests|kafkawire)[\w.]*)", text)
        for path in (*paths, *(name.replace(".", "/") for name in modules)):
            if not ((ROOT / path).exists() or (ROOT / f"{path}.py").is_file()):
                gone.append(f"{page.relative_to(ROOT)}: {path}")
    assert not gone


def test_architecture_is_short_and_has_an_index() -> None:
    """Details belong into the docstrings of packages, which their README.md shows."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.split()) < 3250
    index = text.partition("## Where to find")[2].partition("## Map")[0]
    for topic in (
        "Backpressure",
        "Committed offsets",
        "Deletion of S3 objects",
        "Storage provider",
    ):
        (row,) = (line for line in index.splitlines() if line.startswith(f"| {topic}"))
        assert "](" in row, topic


def test_settings_in_architecture_exist() -> None:
    """A setting that was renamed is found here, one that never existed too."""
    known = set(BROKER_CONFIGS) | set(TOPIC_CONFIGS)
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", text)
    assert len(named) > 10
    assert {name for name in named if not name.endswith((".py", ".toml"))} <= known


def test_make_targets_in_the_documents_exist() -> None:
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?:`|\$ )make ([a-z]+)", (ROOT / name).read_text()))
        assert named <= made, name


CONFLICT = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)


def test_no_file_has_an_unresolved_conflict() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in _tracked()
        if CONFLICT.search(path.read_text(encoding="utf-8", errors="ignore"))
    ]
    assert not found
