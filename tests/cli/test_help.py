"""Help and usage errors of every command.

Covers: kafkawire.cli.command, kafkawire.cli.lazy_group, kafkawire.cli.version.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from kafkawire.cli.app import app
from kafkawire.cli.command import Command
from kafkawire.cli.lazy_group import first_sentence
from tests.cli.test_documented import test_documented_command_exists
from tests.kit.cli import no_environment, run  # noqa: F401  (a fixture, by name)

ROOT: Any = typer.main.get_command(app)


def tree(command: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group with its path."""
    yield path, command
    for name in getattr(command, "commands", ()):
        yield from tree(command.get_command(None, name), (*path, name))


TREE = dict(tree())
IDS = [" ".join(path) or "kafkawire" for path in TREE]


@pytest.mark.parametrize("path", TREE, ids=IDS)
def test_help_is_for_people(path: tuple[str, ...]) -> None:
    result = run(app, [*path, "--help"])
    assert result.exit_code == 0
    assert result.stderr == ""
    for line in result.stdout.splitlines():
        assert len(line) <= 80 or line.strip().startswith("kafkawire "), line
        assert not re.search(r"<\w+|\[\[[A-Z]|\{|\.\.\.\.|int range|list\[", line), line
    usage = result.stdout.partition("\n\n")[0]
    assert usage.startswith(" ".join(["Usage: kafkawire", *path, "[OPTIONS]"]))


@pytest.mark.parametrize("path", [path for path in TREE if not hasattr(TREE[path], "commands")])
def test_every_command_has_examples_that_exist(path: tuple[str, ...]) -> None:
    _, _, examples = (TREE[path].help or "").partition("\nExamples:\n")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines, "the docstring has no examples"
    assert any(line.split("kafkawire ")[-1].startswith(" ".join(path)) for line in lines)
    for line in lines:
        if line.startswith("kafkawire "):
            words = re.split(r"\s[|#>](?:\s|$)", line.removeprefix("kafkawire "))[0]
            test_documented_command_exists(words)


def test_help_of_a_group_has_the_first_sentence_of_each_command() -> None:
    for path, command in TREE.items():
        for name in getattr(command, "commands", ()):
            below = TREE[(*path, name)]
            assert command.summary(name) == first_sentence(below.help or "")
            assert command.summary(name).endswith(".")


def test_help_imports_no_command() -> None:
    code = (
        "import sys\n"
        "from kafkawire.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(m for m in sys.modules if m.startswith(('kafkawire.cli.', 'sqlalchemy'))))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = shown.stdout.splitlines()[-1]
    assert "kafkawire.cli.lazy_group" in loaded
    assert not re.search(r"kafkawire\.cli\.(records|topics|tier|fsck|backup)|sqlalchemy", loaded)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topics", "create"], "missing argument 'TOPIC...' (see kafkawire topics create --help)"),
        (["fsck"], "missing option '--data' (see kafkawire fsck --help)"),
        (["topics", "lst"], "no such command 'lst'. Did you mean 'list'? (see kafkawire topics"),
        (["topics", "list", "x"], "got unexpected extra argument(s) (x) (see kafkawire topics li"),
        (["--nosuch"], "no such option: --nosuch"),
        (
            ["topics", "create", "t", "--partitions", "x"],
            "--partitions=x: it must be a whole number from -1 to 2147483647\n",
        ),
        (
            ["topics", "create", "t", "--partitions=99999999999"],
            "--partitions=99999999999: it must be a whole number from -1 to 2147483647\n",
        ),
    ],
)
def test_usage_error_is_one_sentence(words: list[str], said: str) -> None:
    result = run(app, words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"kafkawire: {said}")
    assert result.stderr.count("\n") == 1


def test_version_option_is_the_version_command() -> None:
    assert run(app, ["--version"]).stdout == run(app, ["version"]).stdout


def test_old_name_of_an_option_is_accepted_but_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.cli.command.RENAMED", {"--old": "--new"})
    made = typer.Typer(add_completion=False)
    seen: list[str] = []

    @made.command(cls=Command)
    def one(new: str = "", rest: str = typer.Argument("")) -> None:
        seen.extend((new, rest))

    for words in (["--old", "x"], ["--old=x"], ["--new", "x"]):
        assert run(made, words).exit_code == 0
    assert run(made, ["--", "--old"]).exit_code == 0
    assert seen == ["x", "", "x", "", "x", "", "", "--old"]
    assert "--old" not in run(made, ["--help"]).stdout
