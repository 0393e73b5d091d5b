"""Paths and addresses that `kafkawire serve` refuses before it writes anything.

Each refusal is one sentence that names the option and its value, with exit code 2.

Covers: kafkawire.cli.shared.paths.
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kafkawire.cli.serving.options import Given
from kafkawire.cli.serving.run import run
from kafkawire.metadata.sql import sqlite_metadata
from kafkawire.metadata.store import MetadataError
from tests.kit.cli import no_environment  # noqa: F401  (a fixture, by name)


def refusal(capsys: pytest.CaptureFixture[str], **options: str) -> str:
    """The one line on standard error."""
    given = Given({name: [value] for name, value in options.items()}, [], None, True)
    with pytest.raises(SystemExit) as ended:
        run(given, {})
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("kafkawire: ")
    return said


def test_file_as_data_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "below"):
        assert f"data={path}" in refusal(capsys, data=str(path))
    link = tmp_path / "link"
    link.symlink_to(file)
    assert f"data={link}" in refusal(capsys, data=str(link))


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret@h/db",
        "nonsense",
        "postgres://u:secret@h/db",
        "sqlite+pysqlite:///x",
        "sqlite://x",
        "postgresql://u:secret@h:x/db",
        "postgresql://u:se cret@h/db",
        "postgresql://u:secret@[::1/db",
    ],
)
def test_metadata_url_must_be_sqlite_or_postgresql(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, data=str(tmp_path), metadata=url)
    assert "postgresql://" in said
    assert "secret" not in said
    assert "cret@" not in said


def test_wrong_network_is_refused_before_there_is_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["plaintext.allowed.addresses=10.0.0.0/x"]
    with pytest.raises(SystemExit) as ended:
        run(Given({"data": [str(tmp_path / "d")]}, settings, None, False), {})
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("kafkawire: plaintext.allowed.addresses=10.0.0.0/x: ")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("tier", ["data/tier", "data", ".", "link/tier", "{data}/../data/x"])
def test_tier_inside_data_folder_is_refused(
    tier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to(data)
    monkeypatch.chdir(tmp_path)
    said = refusal(capsys, data="data", tier=tier.format(data=data))
    assert "tier.url=" in said
    assert "and must not contain it" in said


async def test_database_of_other_program_is_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
    connection.close()
    before = file.read_bytes()
    opened = sqlite_metadata(str(file))
    with pytest.raises(MetadataError, match=r"another program .*users"):
        await opened.open()
    await opened.close()
    assert file.read_bytes() == before


def serve(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "kafkawire", "serve", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_unusable_listen_addresses_are_refused(tmp_path: Path) -> None:
    data = f"--data={tmp_path / 'd'}"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, expected in [
            ([f"--listen=127.0.0.1:{port}"], f"listen=127.0.0.1:{port}: another process"),
            (
                ["--listen=no.such.invalid:0", "--insecure"],
                "listen=no.such.invalid:0: the host cannot be",
            ),
            (
                ["--listen=192.0.2.1:0", "--insecure"],
                "listen=192.0.2.1:0: this machine does not have",
            ),
            (
                ["--listen=127.0.0.1:0", f"--set=metrics.listener=127.0.0.1:{port}"],
                f"metrics.listener=127.0.0.1:{port}: another process",
            ),
        ]:
            done = serve(data, *words)
            assert (done.returncode, done.stdout) == (2, "")
            assert f"kafkawire: {expected}" in done.stderr
            assert "Errno" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [["serve"], ["topics", "list"]])
def test_ctrl_c_during_import_prints_no_traceback(words: list[str], tmp_path: Path) -> None:
    """The signal arrives while the module of the command is imported, which takes a while here."""
    slow = "cli.serving.run" if words == ["serve"] else "cli.topics.commands"
    code = (
        "import sys, time\n"
        "from kafkawire.cli.main import main\n"
        "class Slow:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == 'kafkawire.{slow}':\n"
        "            print('importing', flush=True); time.sleep(60)\n"
        "sys.meta_path.insert(0, Slow())\n"
        f"sys.argv[1:] = {words!r}\n"
        "main()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
    )
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(0.05)  # it is in the sleep by now, or just before it: neither may print a traceback
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert (child.returncode, said) == (130, b"")
