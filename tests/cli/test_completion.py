"""Completion of commands, options and values, asked of the shells themselves.

zsh and fish are run where they are installed: .ci/system.sh installs them on Debian.

Covers: kafkawire.cli.completion.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kafkawire.cli.app import app
from kafkawire.cli.completion import command_names, values_of
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, no_environment, produce, run  # noqa: F401  (a fixture, by name)

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
        "read-only",
        "remove",
        "why",
    },
    # Not the options of `kafkawire restore`, nor those of `topics describe`.
    "kafkawire tier restore --de": {"--deep"},
    "kafkawire tier restore --fr": set(),
    "kafkawire restore --fr": {"--from-log"},
    "kafkawire groups describe topics --co": set(),
    "kafkawire topics copy add": set(),
    "kafkawire produce topic ord": {FILE},
    "kafkawire import topic ": {FILE},
}
"""Lines, and what the word at their end is completed to, in a folder with one file."""

SERVED: dict[str, set[str]] = {
    "kafkawire topics describe or": {"orders", "orders-copy"},
    "kafkawire produce or": {"orders", "orders-copy"},
    "kafkawire produce orders ord": {FILE},
    "kafkawire groups lag ": {"billing"},
    "kafkawire consume orders --group=b": {"billing"},
    "kafkawire configs set --topic orders retention.m": {"retention.ms="},
    "kafkawire serve --set num.p": {"num.partitions="},
}
"""Lines for which a broker or the tables of settings are asked."""

ZSH = """
zmodload zsh/zpty
zpty child "zsh -f -i"
zpty -w child "PROMPT='READY''>'; autoload -U compinit; compinit -u -D; $LOADED
    compadd() {
        local -a found; builtin compadd -O found \\"\\$@\\"; print -rl -- \\$found >> $FOUND
        builtin compadd \\"\\$@\\"
    }
    next() { print -r -- '#' >> $FOUND; BUFFER='' }; zle -N next; bindkey '^X' next
    finish() { exit }; zle -N finish; bindkey '^Y' finish; bindkey '^I' complete-word; LISTMAX=0"
zpty -r -m child shown '*READY>*'
for line in "$@"; do zpty -w -n child "$line"$'\t\\C-X'; done
zpty -w -n child $'\\C-Y'
while zpty -r child shown; do :; done
"""
"""Types each line of its arguments, and writes what it is completed to into the file FOUND, with a
line `#` after each."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "here"
    made.mkdir()
    made.joinpath(FILE).touch()
    monkeypatch.chdir(made)
    return made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        assert Typed(process.bootstrap, "topics", "create", "orders", "orders-copy").code == 0
        produce(process.bootstrap, "orders", {0: 1})
        assert Typed(process.bootstrap, "consume", "orders", "--group", "billing").code == 0
        yield process


def environment(broker: BrokerProcess) -> dict[str, str]:
    """Variables with which the shells find the command and the broker."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "KAFKAWIRE_SERVER": broker.bootstrap,
    }


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


def bash(lines: Iterable[str], **environment: str) -> list[set[str]]:
    script = run(app, ["completion", "bash"]).stdout
    for line in lines:
        words = line.replace("=", " = ").split(" ")  # as bash splits them
        listed = " ".join(f"'{word}'" for word in words)
        script += f"\nCOMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _kafkawire"
        script += '\necho "${COMPREPLY[@]}"'
    shown = output("bash", "-c", script, **environment).split("\n")[:-1]
    return [set(line.split()) for line in shown]


def test_bash_completes_commands_and_options(folder: Path) -> None:
    # Without a name of its own bash completes file names: `complete -o default`.
    assert bash(COMPLETED) == [completed - {FILE} for completed in COMPLETED.values()]


@pytest.mark.slow
def test_bash_completes_values(folder: Path, broker: BrokerProcess) -> None:
    found = dict(zip(SERVED, bash(SERVED, **environment(broker)), strict=True))
    assert found == {line: completed - {FILE} for line, completed in SERVED.items()}


def zsh(loaded: str, folder: Path, lines: Iterable[str], **environment: str) -> list[set[str]]:
    path = shell("zsh")
    script = folder.with_name("_kafkawire")
    script.write_text(run(app, ["completion", "zsh"]).stdout)
    found = folder.with_name("found")
    load = {
        "source": f"source '{script}'",
        "autoload": f"fpath=('{script.parent}' $fpath); compinit -u -D",
    }
    made = output(
        path, "-f", "-c", ZSH, "zsh", *lines,
        LOADED=load[loaded], FOUND=str(found), TERM="dumb", **environment,
    )  # fmt: skip
    assert made == ""
    return [set(part.split()) for part in found.read_text().split("#\n")[:-1]]


@pytest.mark.slow
@pytest.mark.parametrize("loaded", ["source", "autoload"])
def test_zsh_completes_commands_and_options(loaded: str, folder: Path) -> None:
    assert zsh(loaded, folder, COMPLETED) == list(COMPLETED.values())


@pytest.mark.slow
def test_zsh_completes_values(folder: Path, broker: BrokerProcess) -> None:
    found = zsh("source", folder, SERVED, **environment(broker))
    assert [without_options(each) for each in found] == list(SERVED.values())


def without_options(words: Iterable[str]) -> set[str]:
    """The values of words as --group=billing, which only bash completes by themselves."""
    return {re.sub("^--[a-z]+=", "", word) for word in words}


def fish(folder: Path, lines: Iterable[str], **environment: str) -> list[set[str]]:
    path = shell("fish")
    script = folder.with_name("kafkawire.fish")
    script.write_text(run(app, ["completion", "fish"]).stdout)
    ask = f"source '{script}'; for line in $argv; complete -C $line; echo '#'; end"
    home = str(folder.parent)
    shown = output(path, "--no-config", "-c", ask, *lines, HOME=home, **environment)
    parts = shown.split("#\n")[:-1]
    return [{line.split("\t")[0] for line in part.splitlines()} for part in parts]


@pytest.mark.slow
def test_fish_completes_commands_and_options(folder: Path) -> None:
    assert fish(folder, COMPLETED) == list(COMPLETED.values())


@pytest.mark.slow
def test_fish_completes_values(folder: Path, broker: BrokerProcess) -> None:
    found = fish(folder, SERVED, **environment(broker))
    assert [without_options(each) for each in found] == list(SERVED.values())


def test_broker_that_does_not_answer_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.cli.completion.ANSWER_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        words = ["topics", "describe", "--server", server, ""]
        assert values_of(ROOT, "bash", words) == []
    assert values_of(ROOT, "bash", words) == []  # refused


@pytest.mark.parametrize(
    ("line", "some", "none"),
    [
        ("configs set retention.m", {"retention.ms="}, set()),
        ("configs unset --broker 1 log.retention.m", {"log.retention.ms"}, {"retention.ms"}),
        ("topics create x --config retention.m", {"retention.ms="}, {"log.retention.ms="}),
        ("topics create x --config retention.ms = 7", set(), {"retention.ms="}),
        ("tier estimate --set num.p", {"num.partitions="}, set()),
        ("quotas set prod", {"producer_byte_rate="}, set()),
        ("quotas remove --user a prod", {"producer_byte_rate"}, set()),
    ],
)
def test_settings_and_quotas_are_completed(line: str, some: set[str], none: set[str]) -> None:
    found = set(values_of(ROOT, "bash", line.split(" ")))
    assert found >= some
    assert not found & none


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command(shell: str) -> None:
    script = run(app, ["completion", shell]).stdout
    for each in command_names(ROOT):
        for name, text in each.names:
            assert name.lstrip("-") in script
            assert text.replace("'", "'\\''") in script
