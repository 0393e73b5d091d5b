"""Completion of commands and options, asked of the shells themselves.

zsh and fish are run where they are installed: .ci/system.sh installs them on Debian.

Covers: kafkawire.cli.completion.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kafkawire.cli.app import app
from kafkawire.cli.completion import command_names
from tests.kit.cli import no_environment, run  # noqa: F401  (a fixture, by name)

ROOT: Any = typer.main.get_command(app)
WITHIN_S = 60
FILE = "orders.txt"
COMPLETED: dict[str, set[str]] = {
    "kafkawire gro": {"groups"},
    "kafkawire groups des": {"describe"},
    "kafkawire groups describe g --js": {"--json"},
    "kafkawire --json consume --foll": {"--follow"},
    "kafkawire cluster ": {
        "balance",
        "decommission",
        "describe",
        "drain",
        "moves",
        "remove",
        "why",
    },
    # Not the options of `kafkawire restore`, nor those of `topics describe`.
    "kafkawire tier restore --de": {"--deep"},
    "kafkawire groups describe topics --co": set(),
    "kafkawire topics copy add": set(),
    "kafkawire produce topic ord": {FILE},
    "kafkawire import topic ": {FILE},
}
"""Lines, and what the word at their end is completed to, in a folder with one file."""

ZSH = """
zmodload zsh/zpty
zpty child "zsh -f -i"
zpty -w child "PROMPT='READY''>'; autoload -U compinit; compinit -u -D; $LOADED
    compadd() {
        local -a found; builtin compadd -O found \"\\$@\"; print -rl -- \\$found >> $FOUND
        builtin compadd \"\\$@\"
    }
    next() { print -r -- = >> $FOUND; BUFFER='' }; zle -N next; bindkey '^X' next
    finish() { exit }; zle -N finish; bindkey '^Y' finish; bindkey '^I' complete-word; LISTMAX=0"
zpty -r -m child shown '*READY>*'
for line in "$@"; do zpty -w -n child "$line"$'\t\\C-X'; done
zpty -w -n child $'\\C-Y'
while zpty -r child shown; do :; done
"""
"""Types each line of its arguments, and writes what it is completed to into the file FOUND, with a
line `=` after each."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "here"
    made.mkdir()
    made.joinpath(FILE).touch()
    monkeypatch.chdir(made)
    return made


def shell(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def output(*command: str, **environment: str) -> str:
    shown = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=WITHIN_S,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nowhere", **environment},
    )
    assert shown.stderr == ""
    return shown.stdout


def test_bash_completes_commands_and_options(folder: Path) -> None:
    script = run(app, ["completion", "bash"]).stdout
    for line in COMPLETED:
        words = line.split(" ")
        listed = " ".join(f"'{word}'" for word in words)
        script += f"\nCOMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _kafkawire"
        script += '\necho "${COMPREPLY[@]}"'
    shown = [set(line.split()) for line in output("bash", "-c", script).split("\n")[:-1]]
    # Without a name of its own bash completes file names: `complete -o default`.
    assert shown == [completed - {FILE} for completed in COMPLETED.values()]


@pytest.mark.slow
@pytest.mark.parametrize("loaded", ["source", "autoload"])
def test_zsh_completes_commands_and_options(loaded: str, folder: Path) -> None:
    path = shell("zsh")
    script = folder.with_name("_kafkawire")
    script.write_text(run(app, ["completion", "zsh"]).stdout)
    found = folder.with_name("found")
    load = {
        "source": f"source '{script}'",
        "autoload": f"fpath=('{script.parent}' $fpath); compinit -u -D",
    }
    made = output(
        path, "-f", "-c", ZSH, "zsh", *COMPLETED,
        LOADED=load[loaded], FOUND=str(found), TERM="dumb",
    )  # fmt: skip
    assert made == ""
    parts = found.read_text().split("=\n")[:-1]
    assert {line: set(part.split()) for line, part in zip(COMPLETED, parts, strict=True)} == (
        COMPLETED
    )


@pytest.mark.slow
def test_fish_completes_commands_and_options(folder: Path) -> None:
    path = shell("fish")
    script = folder.with_name("kafkawire.fish")
    script.write_text(run(app, ["completion", "fish"]).stdout)
    ask = f"source '{script}'; for line in $argv; complete -C $line; echo =; end"
    shown = output(path, "--no-config", "-c", ask, *COMPLETED, HOME=str(folder.parent))
    parts = shown.split("=\n")[:-1]
    words = [{line.split("\t")[0] for line in part.splitlines()} for part in parts]
    assert dict(zip(COMPLETED, words, strict=True)) == COMPLETED


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command(shell: str) -> None:
    script = run(app, ["completion", shell]).stdout
    for each in command_names(ROOT):
        for name, text in each.names:
            assert name.lstrip("-") in script
            assert text.replace("'", "'\\''") in script


def test_unknown_shell_is_refused() -> None:
    result = run(app, ["completion", "tcsh"])
    assert result.exit_code == 2
    assert result.stderr == "kafkawire: SHELL=tcsh: it must be one of bash, zsh, fish\n"
