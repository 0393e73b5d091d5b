"""`kafkawire serve`: it is parsed without typer, and imports no more than needed.

Covers: kafkawire.cli.main, kafkawire.cli.serving.command.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkawire.cli.app import app
from kafkawire.cli.serving.options import Given, parse
from tests.kit.cli import no_environment, run  # noqa: F401  (a fixture, by name)

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
    "--workers",
    "--workers=2",
    "--worker-ports",
    "--worker",
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
def test_command_of_typer_has_the_parser_of_a_start(words: list[str]) -> None:
    expected: list[Given | None] = []
    with suppress(SystemExit):
        expected.append(parse(words))
    seen: list[Given] = []

    def note(given: Given, environ: object) -> int:
        seen.append(given)
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kafkawire.cli.serving.run.run", note)
        result = run(app, ["serve", *words])
    if not expected:
        assert (result.exit_code, seen, result.stdout) == (2, [], "")
        assert re.fullmatch(r"kafkawire: .* \(see kafkawire serve --help\)\n", result.stderr)
    elif expected == [None]:
        assert (result.exit_code, seen) == (0, [])
        assert result.stdout.startswith("Usage: kafkawire serve [OPTIONS]\n")
    else:
        assert (result.exit_code, seen) == (0, expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Given({}, [], None, False)),
        (["--"], Given({}, [], None, False)),
        (["--help"], None),
        (["--data", "--help"], Given({"data": ["--help"]}, [], None, False)),
        (
            ["--data", "x", "--data=", "--tier="],
            Given({"data": [""], "tier": [""]}, [], None, False),
        ),
        (
            ["--listen=a:1", "--listen", "b:2", "--insecure", "--insecure"],
            Given({"listen": ["a:1", "b:2"], "insecure": ["true"]}, [], None, False),
        ),
        (
            ["--set", "a=b=c", "--set=d=", "--config=e", "--config", "f", "--show-config"],
            Given({}, ["a=b=c", "d="], "f", True),
        ),
        (["--command-config", "x", "--worker={}"], Given({}, [], None, False, "{}")),
    ],
)
def test_options_of_the_command_line(words: list[str], expected: Given | None) -> None:
    assert parse(words) == expected


def test_settings_end_quietly_when_the_pipe_is_closed() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "kafkawire", "serve", "--show-config"]
    try:
        done = subprocess.run(
            words, stdout=writing, stderr=subprocess.PIPE, check=False, text=True, timeout=60
        )
    finally:
        os.close(writing)
    assert done.stderr == ""


def test_serve_imports_neither_tables_nor_messages() -> None:
    """Each costs start-up time, measured in bench/notes/performance.md."""
    code = (
        "import sys; import kafkawire.cli.main\n"
        "late = ('rich', 'typer', 'pydantic', 'asyncio', 'sqlalchemy', 'alembic', 'tomllib')\n"
        "print([name for name in late if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


NEVER_WHEN_IDLE = (
    "aiosqlite", "alembic", "asyncpg", "boto3", "botocore", "crc32c", "cryptography", "email",
    "importlib.metadata", "kafkawire.tiering",
    "kafkawire.transactions.service", "numba", "numpy", "prometheus_client", "pyarrow", "pydantic",
    "rich", "rocksdict", "sqlalchemy", "tomllib", "typer",
)  # fmt: skip
"""Modules that a broker with default settings imports when a client or a setting needs them: some
of them are a third of a start, and of the memory of an idle broker."""


@pytest.mark.slow
def test_modules_loaded_before_first_change_of_manifest(tmp_path: Path) -> None:
    """Their import during traffic would compete with requests for the interpreter lock."""
    code = (
        "import os, sys; import kafkawire.cli.main, kafkawire.server.run as run\n"
        "from kafkawire.log.local_manifest import service\n"
        "service.LINGER_S = 3600.0\n"
        "prepare = run.Server._prepare\n"
        "async def tell(server):\n"
        "    await prepare(server)\n"
        "    print(*sorted(sys.modules), flush=True)\n"
        "    os._exit(0)\n"
        "run.Server._prepare = tell\n"
        "sys.argv[1:] = ['serve', '--listen', '127.0.0.1:0', '--data', sys.argv[1]]\n"
        "kafkawire.cli.main.main()"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "data")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.split()
    assert "kafkawire.log.local_manifest.maintenance" in loaded
    assert [name for name in NEVER_WHEN_IDLE if name in loaded] == []


@pytest.mark.slow
def test_modules_loaded_when_serve_listens(tmp_path: Path) -> None:
    """Neither handlers nor their messages nor groups: these are imported with the first request or
    once the broker listens, whichever is sooner."""
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
    for _ in range(2):  # a new folder, and an existing one
        words = [sys.executable, "-c", code, str(tmp_path / "data")]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        loaded = done.stdout.split()
        assert "kafkawire.server.listener" in loaded
        late = (*NEVER_WHEN_IDLE, "kafkawire.groups")
        assert [name for name in late if name in loaded] == []
        messages = {name for name in loaded if name.startswith("kafkawire.messages.")}
        assert messages == {"kafkawire.messages.registry"}
        handlers = {name for name in loaded if name.startswith("kafkawire.handlers.")}
        assert handlers == {
            "kafkawire.handlers.access",
            "kafkawire.handlers.context",
            "kafkawire.handlers.exchange",
            "kafkawire.handlers.failures",
            "kafkawire.handlers.slices",
            "kafkawire.handlers.table",
        }


def test_plugin_imports_only_pytest() -> None:
    code = (
        "import pytest, sys; before = set(sys.modules); import kafkawire.testing.plugin\n"
        "print(sorted(name for name in set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    expected = ["kafkawire", "kafkawire.testing", "kafkawire.testing.plugin"]
    assert done.stdout.strip() == str(expected)
