"""Help and usage errors of every command.

Covers: kafkawire.cli.command, kafkawire.cli.command, kafkawire.cli.version.
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
from kafkawire.cli.command import RENAMED, Command, first_sentence, is_flag, options, value_name
from tests.cli.test_documented import test_documented_command_exists
from tests.kit.cli import no_environment, run  # noqa: F401  (a fixture, by name)

OPTIONS = """
--acks ACKS
--advertise [NAME://]HOST:PORT
--all
--all-topics
--allow-changes
--applied
--batch N
--before TIME
--before-offset N
--broker N
--brokers-default
--by N
--by-duration DURATION
--by-key
--client NAME
--client-id ID
--client-ids-default
--cluster
--command-config FILE
--commits
--compression TYPE
--compression-ratio RATIO
--config FILE | NAME=VALUE : of serve, as daemons have it; of topics create, as Kafka's tool has it
--console HOST:PORT
--continuous
--create
--data DIR
--deep
--deny
--dry-run
--durability local|s3
--empty-as-null -Z
--execute --dry-run
--explain
--follow -f
--force
--format FORMAT
--from PLACE | TIME : an offset or a time, where a command takes offsets
--from-file FILE
--from-log
--grep REGEX
--group GROUP
--header NAME=VALUE | NAME[=VALUE] : to write, and to search
--host ADDRESS | HOST | NAME : of a client of a rule; of a broker; by which browsers reach it
--idempotent --not-idempotent
--insecure
--internal
--interval DURATION
--ip ADDRESS
--ips-default
--isolation-level LEVEL
--iterations N
--json
--key TEXT
--key-file FILE
--key-separator TEXT
--later
--latest
--limit N
--listen HOST:PORT | [PROTOCOL://]HOST:PORT : of pages; of a broker
--log-format FORMAT
--log-level LEVEL
--login
--longer-than DURATION
--master URL
--mechanism NAME
--metadata URL
--name NAME
--observe DURATION
--output DIR | FILE : a report has several files
--partition N
--partition-map same|FROM:TO,...
--partitions N
--password-file FILE
--pattern REGEX
--pipeline URL
--prefixed
--producer-id N
--range START..END
--rate BYTES/s
--reads BYTES/s
--record PARTITION:OFFSET
--record-rate N
--record-size SIZE
--records
--repair
--replace
--replication-factor N
--resume
--security
--server HOST:PORT
--set NAME=VALUE
--shift-by N
--show-config
--skip-lost
--source DIR | HOST:PORT|DIR | HOST:PORT|DIR|URL : what the command can read
--start-offset N
--state STATE
--stored-from TIME
--stored-to TIME
--tail N
--tier URL
--tls-cert FILE
--tls-key FILE
--to STORAGE | TOPIC | URL : the target of a conversion, a replay and a move
--to-current
--to-datetime TIME
--to-earliest
--to-latest
--to-offset N
--to-server HOST:PORT
--topic TOPIC | TOPIC[:0,1,...] | TOPIC[:0,1,4-6] : with partitions, where a command takes them
--total N
--transactional-id ID
--type TYPE
--undo
--until PLACE | TIME : an offset or a time, as --from
--user USER
--users-default
--valid-for DURATION
--verbose -v
--version
--wait --no-wait
--watch -w
--whole
--wide
--worker-ports [NAME://]PORTS
--workers N
--yes -y
"""
"""Each option with its other names and the names of its values, and the reason for several of
them. An option of the same meaning has the same name in all commands, and two meanings have two
names: before a line is added, the one that exists."""

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


def test_metadata_outside_the_data_folder_is_read_from_the_environment() -> None:
    """A command that ignored the variable would advise to rebuild metadata that is not lost."""
    found = {
        path: option.envvar
        for path, command in TREE.items()
        for option in command.params
        if "--metadata" in option.opts and "if outside the data folder" in str(option.help)
    }
    assert ("fsck",) in found
    assert set(found.values()) == {"KAFKAWIRE_METADATA"}


def test_one_name_for_one_option() -> None:
    found: dict[str, set[str]] = {}
    for command in TREE.values():
        for option in options(command, None):
            names = sorted((*option.opts, *option.secondary_opts), key=len, reverse=True)
            values = found.setdefault(" ".join(sorted(names, key=_is_other)), set())
            values |= set() if is_flag(option) else {value_name(option)}
    lines = [" ".join((name, " | ".join(sorted(values)))).strip() for name, values in found.items()]
    listed = OPTIONS.strip().splitlines()
    assert sorted(lines) == sorted(line.partition(" : ")[0] for line in listed)
    assert all(" : " in line for line in listed if " | " in line), "the reason"


def _is_other(name: str) -> bool:
    """Whether a name is the short or the opposite one of an option."""
    return not name.startswith("--") or name.startswith(("--no", "--dry-run"))


@pytest.mark.parametrize("old", RENAMED)
def test_old_names_are_hidden_and_of_some_command(old: str) -> None:
    having = [command for command in TREE.values() if isinstance(command, Command)]
    known = [{name for each in command.params for name in each.opts} for command in having]
    assert all(any(new in names and old not in names for names in known) for new in RENAMED[old])


@pytest.mark.parametrize("words", [["--command-config", "x", "topics", "list"],
                                   ["topics", "list", "--command-config", "x"],
                                   ["topics", "list", "--command-config=x"]])  # fmt: skip
def test_command_config_is_accepted_after_the_command(words: list[str]) -> None:
    result = run(app, words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("kafkawire: --command-config=x: it cannot be read")


def test_help_of_a_group_has_the_first_sentence_of_each_command() -> None:
    for path, command in TREE.items():
        for name in getattr(command, "commands", ()):
            below = TREE[(*path, name)]
            assert command.summary(name) == first_sentence(below.help or "")
            assert command.summary(name).endswith(".")


@pytest.mark.parametrize("words", ["--help", "serve --help", "topics --help"])
def test_help_imports_no_broker(words: str) -> None:
    code = (
        "import sys\n"
        "from kafkawire.cli.app import app\n"
        f"try:\n    app({words.split()!r})\nexcept SystemExit:\n    pass\n"
        "print(*sorted(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    late = ("asyncio", "cramjam", "kafkawire.broker.broker", "kafkawire.client.connection",
            "kafkawire.log", "kafkawire.metadata", "kafkawire.server", "rich", "sqlalchemy",
            "sqlite3", "ssl", "uvloop")  # fmt: skip
    loaded = shown.stdout.splitlines()[-1].split()
    assert "kafkawire.cli.command" in loaded
    assert [name for name in late if name in loaded] == []


def test_help_imports_no_command() -> None:
    code = (
        "import sys\n"
        "from kafkawire.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(m for m in sys.modules if m.startswith(('kafkawire.cli.', 'sqlalchemy'))))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = shown.stdout.splitlines()[-1]
    assert "kafkawire.cli.command" in loaded
    assert not re.search(r"kafkawire\.cli\.(records|topics|tier|fsck|backup)|sqlalchemy", loaded)


def test_version_option_is_the_version_command() -> None:
    assert run(app, ["--version"]).stdout == run(app, ["version"]).stdout


def test_old_name_of_an_option_is_accepted_but_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.cli.command.RENAMED", {"--old": ("--newest", "--new")})
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
