"""Commands, options and settings in the documents exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kafkawire.cli.app import app
from kafkawire.codec.configs.table import BROKER_CONFIGS, TOPIC_CONFIGS

ROOT = Path(__file__).parent.parent.parent
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
SETTINGS = {"--set": {**BROKER_CONFIGS, **TOPIC_CONFIGS}, "--config": TOPIC_CONFIGS}


def documented() -> Iterator[str]:
    """Every command line of kafkawire in a block of a document, without pipes and comments; also
    those that a container runs."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        container = r"docker run .*? kafkawire(?:-spark)? |kubectl exec (?:-it )?\S+ -- kafkawire "
        start = rf"^\$ (?:(?:\S*/)?kafkawire |{container})"
        for line in re.findall(rf"{start}(.*)$", text, re.MULTILINE):
            yield re.split(r"\s[|#>](?:\s|$)", line)[0]


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and the words after its name."""
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "get_command") and command.get_command(None, words[0]):
        command, words = command.get_command(None, words[0]), words[1:]
    return command, words


def test_documents_contain_commands() -> None:
    assert len(set(documented())) > 50


@pytest.mark.parametrize("line", sorted(set(documented())))
def test_documented_command_exists(line: str) -> None:
    command, words = resolve(shlex.split(line))
    assert not hasattr(command, "get_command"), "no such command"
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= known
    for option, value in pairwise(words):
        if option in SETTINGS and "=" in value:
            assert value.split("=")[0] in SETTINGS[option]


@pytest.mark.parametrize(
    "line", ["topics make x", "topics create x --nosuch 1", "serve --set no=1"]
)
def test_unknown_command_is_detected(line: str) -> None:
    with pytest.raises(AssertionError):
        test_documented_command_exists(line)
