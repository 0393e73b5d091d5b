"""The documents as tests read them: pages, sections, console lines with their output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Line:
    """A command of a document, without its comment, and the lines it should print."""

    page: str
    section: str
    command: str
    output: tuple[str, ...] = ()


def pages() -> list[str]:
    """Every page for readers, relative to the repository."""
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("bench/*.md"),
        *ROOT.glob("bench/notes/*.md"),
    ]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def sections(page: str) -> dict[str, str]:
    """The text under each title of the second level; under "" what is before the first."""
    parts = re.split(r"^## (.+)$", text_of(page), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def lines(page: str, section: str | None = None) -> list[Line]:
    """Every console line of a page or of one section, in order."""
    found: list[Line] = []
    for title, text in sections(page).items():
        if section not in (None, title):
            continue
        for block in CONSOLE.findall(text):
            found += _commands(page, title, re.sub(r"\\\n\s*", "", block))
    return found


def _commands(page: str, section: str, block: str) -> list[Line]:
    commands: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            commands.append((re.sub(r"\s{2,}#.*", "", line[2:]).strip(), []))
        else:
            commands[-1][1].append(line)
    return [Line(page, section, command, tuple(output)) for command, output in commands]


def block(page: str, section: str, language: str) -> str:
    """The first block of a language in a section."""
    found = re.search(rf"```{language}\n(.*?)```", sections(page)[section], re.DOTALL)
    assert found is not None, f"{page} has no {language} under {section}"
    return found[1]
