"""Every command with a wrong, missing, huge or absent argument: one sentence, never a traceback.

The commands and their parameters are read from the command line itself, so new ones are included.
No process listens on the broker address they are given, and the working folder is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafkawire.cli.app import app
from kafkawire.cli.command import value_name
from kafkawire.cli.serving.options import Given
from kafkawire.cli.serving.run import run as serve
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import no_environment, run  # noqa: F401  (a fixture, by name)
from tests.kit.commands import all_commands, words_of

WRONG = (
    "", "x", "-1", "0", "9" * 40, "nan", "1e400", "é" * 3_000, "a=b", ":", "t:x", "h:99999",
    "a b", "{", "../..", "/dev/null", "no/such/place", "s3://", "mysql://u:secret@h/d", "\t",
    "1,2", "0x10", "-1h", "@", "2026-99-99", "t:0-99999999999", "\x1b[31m", "--",
)  # fmt: skip
NEVER_VALID = {
    "N": ("", "x", "9" * 40, "nan", "1e400", "1,2", "0x10", "-99999999999999999999"),
    "TIME": ("", "x", "9" * 40, "@", "@-1", "2026-99-99", "-1y", "1h"),
    "DURATION": ("", "x", "-1h", "9" * 40, "1y"),
    "HOST:PORT": ("", "x", ":", "h:99999", "h:-1", "a b", "h:1,,"),
    "HOST:PORT|DIR|URL": ("", "x", "h:99999", "no/such/place", "/dev/null"),
    "HOST:PORT|DIR": ("x", "h:99999", "no/such/place", "s3://b/p", "/dev/null"),
    "PLACE": ("", "x", "offset:x", "offset:-1", "time:", "@", "2026-99-99"),
    "START..END": ("", "x", "1", "..", "2..1", "-1..2", "0.." + "9" * 40),
    "QUOTA=VALUE...": ("", "x", "=", "=x", "a=b"),
    "QUOTA...": ("", "x"),
    "NAME=VALUE": ("", "x", "=", "=x"),
    "SIZE": ("", "x", "-1", "1e3", "10M", "9" * 15),
    "BYTES/s": ("", "x", "-1", "9" * 40, "1e3"),
    "LEVEL": ("", "x"),
    "STATE": ("", "x", "nosuch"),
    "STORAGE": ("", "x"),
    "TYPE": ("", "x"),
    "SHELL": ("", "x"),
    "JOB.toml": ("", "no/such/place", "/", "/dev/null"),
    "TABLE": ("", "no/such/place", "/dev/null"),
    "NAME": ("",),
    "NAME...": ("",),
    "NAME=VALUE...": ("", "x", "=", "=x"),
    "NAME[=VALUE]": ("", "="),
    "TOPIC": ("",),
    "SOURCE": ("",),
    "TARGET": ("",),
    "TOPIC[:0,1,...]": ("", ":0", "t:", "t:x", "t:3-1", "t:0-99999999999"),
    "TOPIC[:0,1,...]...": ("", ":0", "t:", "t:x", "t:3-1", "t:0-99999999999"),
    "DIR": ("",),
    "URL": ("",),
    "REGEX": ("(", "*"),
    "ACKS": ("", "x", "2"),
    "FORMAT": ("",),
    "[SQL]": ("",),
    "[FILE...]": ("", "no/such/place", "/"),
    "[NAME://]HOST:PORT": ("", "x", "h:99999"),
    "[NAME://]PORTS": ("", "x", "99999", "9093"),
    "same|FROM:TO,...": ("", "x", "1", "-1:0", "0:0,0:1", "0:0,1:0", "0:" + "9" * 40),
    "FILE": ("", "no/such/place", "/"),
    "TOPIC...": ("",),
    "GROUP...": ("",),
    "[GROUP...]": ("",),
    "GROUP": ("",),
    "TOPIC:PARTITION": ("", "x", "t:", "t:0,1", "t:-1", "t:x"),
    "TOPIC[:0,1,4-6]": ("", ":0", "t:", "t:x", "t:3-1", "t:0-99999999999"),
    "TRANSACTIONAL_ID...": ("",),
    "DEST": ("", "/dev/null"),
    "[SRC]": ("no/such/place",),
    "SRC": ("", "no/such/place", "/dev/null"),
}
"""Values by the name that the help gives them, which no command accepts."""
OTHER_VALUES = {
    ("serve", "config"),
    ("serve", "console"),
    ("serve", "metadata"),
    ("serve", "tier"),
    ("transactions list", "pattern"),
}
"""Options of such a name that accept more: an empty value of `serve` overrides a file's setting,
and a broker has its own language of patterns."""
STARTS_SPARK = {("pipeline", "audit"), ("pipeline", "query"), ("pipeline", "report")}
WRITES = ("certs", "make")
"""It writes to its folder, so that one of these values leaves files for the next."""
SLOW = ("serve", "tier-restore")
"""They open folders and object stores before they find that a value is wrong."""


COMMANDS = all_commands()


def cases() -> Iterator[Any]:
    for path, command in COMMANDS.items():
        for parameter in command.params:
            if not getattr(parameter, "is_flag", False) and parameter.name != "help":
                name = "-".join(path)
                marks = [pytest.mark.slow] if name in SLOW else []
                yield pytest.param(path, parameter, id=f"{name}-{parameter.name}", marks=marks)


def test_every_parameter_is_a_case() -> None:
    """The commands are imported when they are used; without that they have no parameters."""
    assert len(list(cases())) > 80
    assert ("transactions", "abort") in COMMANDS


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong arguments are found before Spark is started, which takes ten seconds."""

    def start(*settings: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("kafkawire_spark.session._start", start)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sql` retries for two seconds where no broker is: a minute for all values."""
    monkeypatch.setattr("kafkawire.reading.files.broker_queries.pause", lambda attempt: None)


@pytest.fixture(autouse=True)
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """`console`, `dev` and `mcp` would serve until they are ended."""
    monkeypatch.setattr("kafkawire.cli.console._serve", lambda _, socket, url: socket.close())
    monkeypatch.setattr("mcp.server.mcpserver.MCPServer.run", lambda *_: None)

    def shows(given: Given, environ: Mapping[str, str]) -> int:
        return serve(replace(given, show_config=True), environ)

    monkeypatch.setattr("kafkawire.cli.dev.run", shows)
    monkeypatch.setattr("kafkawire.server.run.use_hooks", lambda hooks: None)


def check(path: tuple[str, ...], words: list[str]) -> Any:
    """Check that it ends with one of our exit codes and a sentence or the usage, not with a
    traceback."""
    extra = ["--show-config"] if path == ("serve",) else []
    result = run(app, [*path, *extra, *words])
    about = f"{path} {[word[:40] for word in words]}: {result.exception!r}\n{result.stderr}"
    assert result.exception is None or isinstance(result.exception, SystemExit), about
    assert result.exit_code in (0, 1, 2), about
    assert "Traceback" not in result.stderr, about
    assert "secret" not in result.stderr, about
    if result.exit_code and "{" not in result.stdout:
        said = [line for line in result.stderr.splitlines() if line.startswith("kafkawire: ")]
        assert said, about
        assert len(result.stderr) < 20_000, about
        assert result.exit_code == 1 or len(result.stderr.splitlines()) == 1, about
    if result.exit_code and path != WRITES:
        assert not list(Path.cwd().iterdir()), about
    return result


def named_cases() -> Iterator[Any]:
    for case in cases():
        path, parameter = case.values
        name = " ".join(path)
        value = parameter.metavar if parameter.param_type_name == "argument" else None
        value = value or value_name(parameter)
        if value in NEVER_VALID and (name, parameter.name) not in OTHER_VALUES:
            yield pytest.param(path, parameter, value, id=case.id, marks=case.marks)


@pytest.mark.parametrize(("path", "parameter", "name"), list(named_cases()))
def test_invalid_value_is_wrong_input(path: tuple[str, ...], parameter: Any, name: str) -> None:
    """Exit code 2, one sentence, before any broker is asked."""
    for value in NEVER_VALID[name]:
        result = check(path, words_of(COMMANDS[path], parameter, value))
        assert result.exit_code == 2, (path, parameter.name, value, result.stderr)
        assert result.stdout == ""


def test_names_of_values_are_checked() -> None:
    used = {case.values[2] for case in named_cases()}
    assert used == set(NEVER_VALID)


@pytest.mark.parametrize(("path", "parameter"), list(cases()))
def test_wrong_value_is_one_sentence(path: tuple[str, ...], parameter: Any) -> None:
    for value in WRONG:
        check(path, words_of(COMMANDS[path], parameter, value))


@pytest.mark.parametrize("path", COMMANDS)
def test_unknown_option_and_missing_arguments_are_refused(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert check(path, [*words_of(command), "--no-such-option"]).exit_code == 2
    needed = [each for each in command.params if each.required]
    if needed:
        assert check(path, []).exit_code == 2
    check(path, words_of(command))


def test_command_group_without_command_shows_help() -> None:
    groups = {path[:1] for path in COMMANDS if len(path) > 1}
    for path in groups:
        assert "Usage:" in run(app, list(path)).output
        assert run(app, [*path, "nonsense"]).exit_code == 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a tier, so that every command can ask it something."""
    folder = tmp_path_factory.mktemp("wrong")
    settings = {"group.initial.rebalance.delay.ms": "0", "tier.url": f"{folder}/tier"}
    with BrokerProcess(folder / "data", settings=settings) as running:
        assert run(app, ["topics", "create", "some", "--server", running.bootstrap]).exit_code == 0
        yield running


@pytest.mark.real
@pytest.mark.parametrize(("path", "parameter"), list(cases()))
def test_wrong_values_do_not_harm_broker(
    path: tuple[str, ...], parameter: Any, broker: BrokerProcess
) -> None:
    """Numbers that no field holds, names that no topic may have: the broker still serves."""
    if path == ("tier", "move"):
        pytest.skip("would go where it is told: tests/tiering/test_move.py")
    if path in STARTS_SPARK:
        pytest.skip("with a broker that answers, it starts Spark: tests/spark")
    if parameter.name == "server" or not any(p.name == "server" for p in COMMANDS[path].params):
        pytest.skip("asks no broker, or another one")
    for value in WRONG:
        check(path, words_of(COMMANDS[path], parameter, value, broker.bootstrap))
    assert broker.running


def test_fsck_logs_again_when_it_has_ended(tmp_path: Path) -> None:
    """It prints its findings once, and silences the log only for that time."""
    assert run(app, ["fsck", "--data", str(tmp_path / "absent")]).exit_code == 2
    assert logging.root.manager.disable == logging.NOTSET
