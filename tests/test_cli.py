"""The command line: where values come from, how mistakes are told, what logs look like.

In-process and fast; commands against a living broker are in test_cli_admin.py.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kafkawire.broker.options import Listener
from kafkawire.cli.app import app
from kafkawire.cli.groups import assignment
from kafkawire.cli.logs import JsonFormatter, TextFormatter
from kafkawire.cli.main import plain_serve
from kafkawire.cli.options import (
    OptionError,
    parse_address,
    parse_advertised,
    parse_listeners,
    split_pair,
)
from kafkawire.cli.reset import Target, parse_topic
from kafkawire.cli.serve import Given, notes, serve_options
from kafkawire.cli.sources import collect
from kafkawire.codec.configs import BROKER_CONFIGS

run = CliRunner().invoke


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("KAFKAWIRE_"):
            monkeypatch.delenv(name)


# --- addresses


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:9092", (None, "127.0.0.1", 9092)),
        ("INSIDE://broker-1:29092", ("INSIDE", "broker-1", 29092)),
        ("[::1]:0", (None, "::1", 0)),
        ("A.b_c-1://[fe80::1%eth0]:1", ("A.b_c-1", "fe80::1%eth0", 1)),
        (":9092", (None, "", 9092)),
    ],
)
def test_addresses(text: str, parsed: tuple[str | None, str, int]) -> None:
    assert parse_address("listen", text) == parsed


@pytest.mark.parametrize(
    "text", ["", "9092", "host", "host:", "host:port", "host:65536", "a:b:1", "::1:9092", "x y:1"]
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="listen") as caught:
        parse_address("listen", text)
    assert f"={text}:" in str(caught.value)
    assert "HOST:PORT" in str(caught.value)


def test_listeners_are_named_and_apart() -> None:
    assert parse_listeners(["a:1", "OTHER://b:1"]) == [
        Listener("PLAINTEXT", "a", 1),
        Listener("OTHER", "b", 1),
    ]
    assert len(parse_listeners(["A://h:0", "B://h:0"])) == 2  # two free ports differ
    for texts in (["a:1", "b:2"], ["A://h:1", "B://h:1"], ["A://0.0.0.0:1", "B://h:1"]):
        with pytest.raises(OptionError, match="different"):
            parse_listeners(texts)


def test_what_is_advertised() -> None:
    inside, host = Listener("IN", "0.0.0.0", 1), Listener("HOST", "127.0.0.1", 0)
    given = parse_advertised(["IN://broker:19"], [inside, host])
    assert given == {"IN": ("broker", 19), "HOST": ("127.0.0.1", 0)}
    assert parse_advertised([], [inside]) == {"IN": (socket.gethostname(), 1)}
    assert parse_advertised(["x:5"], [inside]) == {"IN": ("x", 5)}


@pytest.mark.parametrize("text", ["NONE://x:1", "x:1", "IN://0.0.0.0:1", "IN://:1"])
def test_what_cannot_be_advertised(text: str) -> None:
    with pytest.raises(OptionError, match="advertise"):
        parse_advertised([text], [Listener("IN", "a", 1), Listener("HOST", "b", 2)])


def test_one_address_is_advertised_for_each_listener() -> None:
    with pytest.raises(OptionError, match="one address"):
        parse_advertised(["A://x:1", "A://y:1"], [Listener("A", "a", 1)])


def test_pairs() -> None:
    assert split_pair("--set", "a.b = c=d") == ("a.b", "c=d")
    for text in ("a", "=b", " =b"):
        with pytest.raises(OptionError, match="NAME=VALUE"):
            split_pair("--set", text)


# --- precedence


def test_each_source_wins_over_the_next(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text(
        'data = "from-file"\nlog-level = "error"\nlisten = ["A://h:1", "B://h:2"]\n'
        "[settings]\nnum.partitions = 2\n'flush' = 'os'\nauto.create.topics.enable = false\n"
    )
    environ = {
        "KAFKAWIRE_CONFIG": str(file),
        "KAFKAWIRE_DATA": "from-environment",
        "KAFKAWIRE_LOG_LEVEL": "debug",
        "KAFKAWIRE_SET_NUM_PARTITIONS": "3",
        "KAFKAWIRE_SET_COMMIT_DELAY_MS": "7",
    }
    found = collect({"data": ["from-line"]}, [("num.partitions", "4")], environ, None)
    told = {name: (value.text, value.source) for name, value in found.options.items()}
    assert told == {
        "data": ("from-line", "command line --data"),
        "log-level": ("debug", "environment KAFKAWIRE_LOG_LEVEL"),
        "listen": ("A://h:1,B://h:2", f"file {file}"),
        "advertise": ("", "default"),
        "metadata": ("", "default"),
        "tier": ("", "default"),
        "log-format": ("text", "default"),
    }
    told = {name: (value.text, value.source) for name, value in found.settings.items()}
    assert told == {
        "num.partitions": ("4", "command line --set"),
        "commit.delay.ms": ("7", "environment KAFKAWIRE_SET_COMMIT_DELAY_MS"),
        "flush": ("os", f"file {file}"),
        "auto.create.topics.enable": ("false", f"file {file}"),
    }
    options = serve_options(found)
    assert options.data == str(Path.cwd() / "from-line")  # the ports take absolute paths
    assert [listener.name for listener in options.listeners] == ["A", "B"]
    assert options.settings["num.partitions"] == "4"


def test_lists_in_the_environment_have_commas() -> None:
    found = collect({}, [], {"KAFKAWIRE_LISTEN": "A://h:1,B://h:2"}, None)
    assert [listener.port for listener in serve_options(found).listeners] == [1, 2]


def test_the_last_of_equal_settings_wins() -> None:
    found = collect({}, [("num.partitions", "4"), ("num.partitions", "5")], {}, None)
    assert found.settings["num.partitions"].text == "5"


def test_a_tier_is_an_option_and_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text(f'tier = "{tmp_path}/toml"\n[settings]\ntier.url = "s3://other"\n')
    environ = {"KAFKAWIRE_CONFIG": str(file)}

    def url(options: dict[str, list[str]], environ: dict[str, str], *pairs: str) -> str:
        settings = [("tier.url", pair) for pair in pairs]
        return serve_options(collect(options, settings, environ, None)).settings["tier.url"]

    assert url({}, environ) == f"file://{tmp_path}/toml"
    environ["KAFKAWIRE_TIER"] = "s3://bucket/in/environment/"
    assert url({}, environ) == "s3://bucket/in/environment"  # as it is always written
    assert url({}, environ, "s3://set/x") == "s3://set/x"
    assert url({"tier": ["s3://line"]}, environ, "s3://set/x") == "s3://line"
    assert url({"tier": ["folder"]}, {}) == f"file://{Path.cwd()}/folder"
    assert "tier.url" not in serve_options(collect({}, [], {}, None)).settings


def test_variables_that_others_make_are_not_ours() -> None:
    """Kubernetes: beside a service named kafkawire."""
    environ = {"KAFKAWIRE_PORT_9092_TCP": "tcp://10.0.0.1:9092", "KAFKAWIRE_SERVICE_HOST": "x"}
    assert collect({}, [], environ, None).settings == {}


def test_no_two_settings_share_a_variable() -> None:
    names = [name.upper().replace(".", "_") for name in BROKER_CONFIGS]
    assert len(set(names)) == len(names)


def test_an_overridden_value_is_still_checked_by_its_own_source_only() -> None:
    found = collect({}, [("num.partitions", "4")], {"KAFKAWIRE_SET_NUM_PARTITIONS": "x"}, None)
    assert found.settings["num.partitions"].text == "4"


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("data = 3", ["data", "3", "text"]),
        ("nothing = 'x'", ["nothing", "listen", "[settings]"]),
        ("listen = [1]", ["listen", "[1]"]),
        ("not toml", ["TOML"]),
        ("[settings]\nnum.partitions = 'x'", ["num.partitions", "x", "whole number"]),
        ("[settings]\nnum.partition = 1", ["num.partition", "num.partitions"]),
        ("[settings]\nlog-level = 'x'", ["log-level"]),
        ("log-level = 'loud'", ["log-level", "loud", "warning"]),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, content: str, names: list[str]) -> None:
    file = tmp_path / "k.toml"
    file.write_text(content)
    result = run(app, ["serve", "--config", str(file)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert str(file) in result.stderr
    for name in names:
        assert name in result.stderr


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--set", "metrics.listener=9404"], ["metrics.listener", "9404", "HOST:PORT"]),
        (["--set", "metrics.listener=M://:9404"], ["metrics.listener", "without a name"]),
        (["--set", "num.partitions=x"], ["num.partitions", "x", "whole number", "--set"]),
        (["--set", "num.partitions=0"], ["num.partitions", "0", "from 1 to"]),
        (["--set", "nummer=0"], ["nummer", "no such setting"]),
        (["--set", "flush=never"], ["flush", "never", "commit or os"]),
        (["--set", "flush"], ["flush", "NAME=VALUE"]),
        (["--set", "group.min.session.timeout.ms=2000000"], ["group.min.session.timeout.ms"]),
        (["--listen", "here"], ["listen", "here", "HOST:PORT"]),
        (["--advertise", "A://x:1"], ["advertise", "A://x:1", "PLAINTEXT"]),
        (["--log-level", "loud"], ["log-level", "loud", "debug"]),
        (["--log-format", "xml"], ["log-format", "xml", "json"]),
        (["--data", ""], ["data", "folder"]),
        (["--tier", "s4://bucket"], ["tier.url", "s4://bucket", "s3://BUCKET", "--tier"]),
        (["--tier", "s3://b"], ["tier.url", "'b'", "no bucket"]),
        (["--tier", "s3://me:secret@bucket"], ["tier.url", "credentials"]),
        (["--set", "tier.prices=cheap"], ["tier.prices", "cheap", "aws-s3-standard", "--set"]),
        (["--set", "tiering.max.lag.ms=1"], ["tiering.max.lag.ms", "at least 5000"]),
        (["--config", "/nowhere/k.toml"], ["/nowhere/k.toml", "No such file"]),
    ],
)
def test_a_wrong_value_is_one_sentence(arguments: list[str], names: list[str]) -> None:
    result = run(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("kafkawire: ")
    assert result.stderr.count("\n") == 1
    for name in names:
        assert name in result.stderr
    assert "secret" not in result.stderr


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKAWIRE_SET_NUM_PARTITIONS", "many")
    result = run(app, ["serve"])
    assert result.exit_code == 2
    assert "num.partitions=many" in result.stderr
    assert "KAFKAWIRE_SET_NUM_PARTITIONS" in result.stderr


def test_an_unknown_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKAWIRE_SET_NUM_PARTITION", "1")
    result = run(app, ["serve"])
    assert result.exit_code == 2
    assert "num.partition: there is no such setting, did you mean num.partitions?" in result.stderr


def test_show_config_names_every_setting_and_its_source() -> None:
    result = run(
        app,
        [
            "serve",
            "--set",
            "num.partitions=9",
            "--metadata",
            "postgresql://u:pw@h/d",
            "--show-config",
        ],
    )
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["num.partitions", "9", "command", "line", "--set"] in lines
    assert ["metadata", "postgresql://u:***@h/d", "command", "line", "--metadata"] in lines
    shown = {line[0] for line in lines if line}
    assert set(BROKER_CONFIGS) <= shown
    assert "command line, environment KAFKAWIRE_*, TOML file, default" in result.stdout


def test_who_listens_everywhere_is_told_what_clients_are_told() -> None:
    open_to_all = collect({"listen": ["0.0.0.0:1"]}, [], {}, None)
    (sentence,) = notes(serve_options(open_to_all), open_to_all)
    assert socket.gethostname() in sentence
    assert "--advertise" in sentence
    said = collect({"listen": ["0.0.0.0:1"], "advertise": ["me:1"]}, [], {}, None)
    assert notes(serve_options(said), said) == []


# --- the plain form of serve, read without typer

WORDS = [
    "--listen",
    "--advertise",
    "--data",
    "--metadata",
    "--tier",
    "--set",
    "--config",
    "--log-level",
    "--log-format",
    "--show-config",
    "--help",
    "--data=x",
    "--set=a=b",
    "--listen=",
    "--lis",
    "x",
    "a=b",
    "h:1",
    "-d",
    "--",
    "serve",
]


@settings(max_examples=30)
@given(st.lists(st.sampled_from([*WORDS, ""]), max_size=7))
def test_both_readings_of_serve_agree(words: list[str]) -> None:
    plain = plain_serve(["serve", *words])
    with pytest.MonkeyPatch.context() as patch:
        seen: list[Given] = []

        def note(given: Given, environ: object) -> int:
            seen.append(given)
            return 0

        patch.setattr("kafkawire.cli.serve.run", note)
        result = run(app, ["serve", *words])
    if plain is not None:
        assert (result.exit_code, seen) == (0, [plain])
    elif "--help" not in words and "--" not in words:
        assert result.exit_code == 2


def test_other_commands_are_not_read_as_serve() -> None:
    assert plain_serve([]) is None
    assert plain_serve(["topics", "list"]) is None
    assert plain_serve(["serve"]) == Given({}, [], None, False)


# --- serve loads no more than it must


def test_serve_imports_neither_tables_nor_messages() -> None:
    """Each costs start-up time; what it costs is in docs/performance.md."""
    code = (
        "import sys; import kafkawire.cli.main\n"
        "late = ('rich', 'typer', 'pydantic', 'asyncio', 'sqlalchemy', 'alembic', 'tomllib')\n"
        "print([name for name in late if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_what_serve_has_loaded_when_it_listens(tmp_path: Path) -> None:
    """Neither handlers nor their messages, groups or SQLAlchemy: these come with the first request
    or once the broker listens, whichever is sooner."""
    code = (
        "import os, sys; import kafkawire.cli.main, kafkawire.server.run as run\n"
        "listen = run.listen\n"
        "async def tell(*given):\n"
        "    opened = await listen(*given)\n"
        "    print(*sorted(sys.modules), flush=True)\n"
        "    os._exit(0)\n"
        "run.listen = tell\n"
        "sys.argv[1:] = ['serve', '--listen', '127.0.0.1:0', '--data', sys.argv[1]]\n"
        "kafkawire.cli.main.main()"
    )
    for _ in range(2):  # a folder that is made, and one that is there
        words = [sys.executable, "-c", code, str(tmp_path / "data")]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        loaded = done.stdout.split()
        assert "kafkawire.server.listener" in loaded
        late = (
            "rich",
            "typer",
            "pydantic",
            "sqlalchemy",
            "alembic",
            "aiosqlite",
            "tomllib",
            "groups",
        )
        assert [name for name in late if name in loaded] == []
        messages = {name for name in loaded if name.startswith("kafkawire.messages.")}
        assert messages == {"kafkawire.messages.registry"}
        handlers = {name for name in loaded if name.startswith("kafkawire.handlers.")}
        assert handlers == {
            "kafkawire.handlers.context",
            "kafkawire.handlers.exchange",
            "kafkawire.handlers.table",
        }


def test_the_plugin_loads_nothing_but_pytest() -> None:
    code = (
        "import pytest, sys; before = set(sys.modules); import kafkawire.testing.plugin\n"
        "print(sorted(name for name in set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    expected = ["kafkawire", "kafkawire.testing", "kafkawire.testing.plugin"]
    assert done.stdout.strip() == str(expected)


# --- small things


def test_version() -> None:
    assert run(app, ["version"]).stdout.startswith("kafkawire ")
    assert set(json.loads(run(app, ["version", "--json"]).stdout)) == {"kafkawire", "python"}


@pytest.mark.parametrize("command", [[], ["serve"], ["topics", "create"], ["groups"], ["dump"]])
def test_help_says_something_of_every_option(command: list[str]) -> None:
    result = run(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout
    assert "\x1b" not in result.stdout


def test_reset_takes_exactly_one_target() -> None:
    Target(to_earliest=True).check()
    Target(to_offset=0).check()
    for target in (Target(), Target(to_earliest=True, to_latest=True), Target(True, shift_by=1)):
        with pytest.raises(OptionError, match="--to-earliest"):
            target.check()
    with pytest.raises(OptionError, match="ISO 8601"):
        Target(to_datetime="yesterday").check()
    assert Target(to_datetime="1970-01-01T00:00:01").timestamp_ms() == 1000
    assert Target(to_datetime="1970-01-01T01:00:01+01:00").timestamp_ms() == 1000


def test_reset_of_which_partitions() -> None:
    assert parse_topic("a") == ("a", None)
    assert parse_topic("a:0,12") == ("a", [0, 12])
    for text in ("a:", "a:x", "a:1,", "a:-1"):
        with pytest.raises(OptionError):
            parse_topic(text)
    result = run(app, ["groups", "reset-offsets", "g", "--to-latest"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "--all-topics" in result.stderr


def test_assignments_of_consumers() -> None:
    one = b"\0\3\0\0\0\1\0\1a\0\0\0\2\0\0\0\0\0\0\0\5\xff\xff\xff\xff"
    assert assignment(one) == [("a", 0), ("a", 5)]
    assert assignment(b"\0\0\0\0\0\0") == []
    for cut in range(len(one) - 4):
        assert assignment(one[:cut]) == []


# --- logs


def _record(**extra: object) -> logging.LogRecord:
    record = logging.LogRecord("a.b", logging.WARNING, "f", 1, "said %s", ("x\ny",), None)
    record.created, record.msecs = 86400.0625, 62.5
    record.__dict__.update(extra)
    return record


def test_a_text_line() -> None:
    assert TextFormatter().format(_record()) == "1970-01-02T00:00:00.062Z WARNING a.b: said x\ny"


def test_a_json_line() -> None:
    line = JsonFormatter().format(_record(client="c", path=Path("x")))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-02T00:00:00.062Z",
        "level": "warning",
        "logger": "a.b",
        "message": "said x\ny",
        "client": "c",
        "path": "x",
    }


def test_a_json_line_with_a_traceback() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        record = _record(exc_info=sys.exc_info())
    said = json.loads(JsonFormatter().format(record))["exception"]
    assert said.startswith("Traceback")
    assert said.endswith("ValueError: no")


# --- the admin client against what is no broker


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], str]]:
    """Starts a server that answers every connection with these bytes and closes."""
    stop: list[socket.socket] = []

    def start(answer: bytes) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        stop.append(listening)

        def serve() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(1000)
                    peer.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for listening in stop:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Kafka's protocol"),
        (b"\xff\xff\xff\xff", "does not speak Kafka's protocol"),
        (b"\0\0\0\x08\0\0\0\x09\0\0\0\0", "answered ApiVersions with something else"),
        (b"\0\0\0\x0a\0\0\0\x01\0\0\x7f\0\0\0", "answered ApiVersions with something else"),
        (b"\0\0\0\x0a\0\0\0\x01\0\x0d\1\0\0\0\0", "answered ApiVersions with something else"),
    ],
)
def test_what_is_no_broker(answering: Callable[[bytes], str], answer: bytes, sentence: str) -> None:
    server = answering(answer)
    result = run(app, ["topics", "list", "--server", server])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert sentence in result.stderr
    assert server in result.stderr


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        server = f"127.0.0.1:{free.getsockname()[1]}"
    result = run(app, ["groups", "list", "--server", server])
    assert result.exit_code == 1
    assert result.stderr == f"kafkawire: cannot connect to {server}: Connection refused\n"


def test_a_server_that_is_no_address() -> None:
    result = run(app, ["topics", "list", "--server", "nowhere"])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "nowhere" in result.stderr
