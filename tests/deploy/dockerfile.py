"""Read a Dockerfile as far as the tests need it: stages with their instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "Dockerfile"


@dataclass
class Stage:
    """One FROM: its name, base image or stage, and (instruction, arguments) in order."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str | None:
        """The arguments of the last instruction of this name."""
        found = [words for name, words in self.steps if name == instruction]
        return found[-1] if found else None


def instructions(text: str) -> list[tuple[str, str]]:
    """Every instruction with its arguments; comments dropped, continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = (line.partition(" ") for line in joined.splitlines())
    return [(name, words.strip()) for name, _, words in pairs]


def stages(text: str) -> dict[str, Stage]:
    """Every stage by its name; ARGs before the first FROM are replaced by their defaults."""
    found: dict[str, Stage] = {}
    defaults: dict[str, str] = {}
    for name, words in instructions(text):
        if name == "FROM":
            base, _, stage = words.partition(" AS ")
            base = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], base)
            found[stage] = Stage(stage, base)
        elif not found:
            assert name == "ARG"
            key, _, value = words.partition("=")
            defaults[key] = value
        else:
            found[next(reversed(found))].steps.append((name, words))
    return found


def inherited(found: dict[str, Stage], stage: str, instruction: str) -> str | None:
    """The arguments of the last instruction of this name in a stage or those it is built on."""
    while stage in found:
        if (words := found[stage].last(instruction)) is not None:
            return words
        stage = found[stage].base
    return None
