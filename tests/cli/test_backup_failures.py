"""A `kafkawire backup` that fails ends with one sentence and leaves nothing, however it fails.

The broker is a fake one, so that each request of a backup can fail. Failures of backups in a bucket
are in tests/server/test_scheduled_backups.py.

Covers: kafkawire.cli.shared.new_folder.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kafkawire.cli import backup as module
from kafkawire.cli.app import app
from kafkawire.cli.shared.new_folder import new_folder
from kafkawire.codec.batches import Record, pack
from kafkawire.coordination import snapshot
from kafkawire.metadata import copies
from kafkawire.metadata.sql import open_metadata
from tests.cli.test_backup import some_metadata
from tests.kit.cli import no_environment  # noqa: F401  (a fixture, by name)
from tests.kit.fake_kafka import API_VERSIONS, CLOSE, FakeKafka, Log, serving

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metadata.db")


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """The data folder of a broker with metadata."""
    folder = tmp_path / "data"
    folder.mkdir()
    await some_metadata(open_metadata("", str(folder)))
    return folder


@pytest.fixture
def kafka(data: Path) -> Iterator[FakeKafka]:
    """Its broker, where a group has committed."""
    commit = bytes(pack([Record(0, 1, b"key", b"value", [])]))
    with serving({(module.GROUPS_TOPIC, 0): Log([commit], 0, 1), ("a", 0): Log()}) as kafka:
        kafka.cluster_id = copies.contents(str(data / module.METADATA))[0]
        yield kafka


def backup(kafka: FakeKafka, data: Path, *words: str) -> Result:
    dest = str(data.parent / "new" / "saved")
    line = ["backup", dest, "--data", str(data), "--server", kafka.address, *words]
    return CliRunner().invoke(app, line)


def check_failed(result: Result, data: Path, code: int = 1) -> None:
    """One sentence, and no file or folder that was not there before."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert result.stderr.startswith("kafkawire: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert [path.name for path in data.parent.iterdir()] == ["data"]


@pytest.mark.slow
def test_broker_gone_at_any_request(kafka: FakeKafka, data: Path) -> None:
    for failing in itertools.count():
        left = failing

        def answer(key: int, request: Any) -> Any:
            nonlocal left
            left -= key != API_VERSIONS
            return CLOSE if left < 0 else None

        kafka.trouble = answer
        result = backup(kafka, data)
        if not result.exit_code:
            break
        check_failed(result, data)
    assert failing >= 7
    manifest = data.parent / "new" / "saved" / "manifest.json"
    assert '"group_records": 1' in manifest.read_text()
    assert not (data.parent / "new" / "saved.unfinished").exists()


@pytest.mark.slow
def test_disk_full_at_any_sync(
    kafka: FakeKafka, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    for failing in itertools.count():
        left = failing

        def fsync(file: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise FULL
            real(file)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            result = backup(kafka, data)
        if not result.exit_code:
            break
        check_failed(result, data)
    assert failing >= 7


def full(*_: object, **__: object) -> None:
    raise FULL


def full_database(*_: object, **__: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize(
    ("where", "what", "failure"),
    [
        (Path, "mkdir", full),
        (Path, "write_text", full),
        (Path, "rename", full),
        (snapshot, "write", full),
        (copies, "end_wal", full_database),
    ],
)
def test_disk_full_at_each_kind_of_write(
    where: Any,
    what: str,
    failure: Callable[..., None],
    kafka: FakeKafka,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(where, what, failure)
        result = backup(kafka, data)
    check_failed(result, data)


def test_folder_of_which_only_the_parent_could_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path.mkdir

    def mkdir(path: Path, *given: Any, **named: Any) -> None:
        if path.name == "saved.unfinished" and path.parent.exists():
            raise FULL
        made(path, *given, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    target = tmp_path / "a" / "b" / "saved"
    with (
        pytest.raises(OSError, match="No space"),
        new_folder(target, ".unfinished"),
    ):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--server", "127.0.0.1:1"), 1, "cannot connect to 127.0.0.1:1"),
        (("--server", "nowhere"), 2, "--server"),
        (("--metadata", "http://x/y"), 2, "--metadata=http://x/y"),
        (("--metadata", "postgresql://u:hidden@127.0.0.1:1/d"), 1, "127.0.0.1"),
        (("--data", "nowhere"), 2, "metadata.db does not exist"),
    ],
)
def test_wrong_url(
    words: tuple[str, ...], code: int, sentence: str, kafka: FakeKafka, data: Path
) -> None:
    result = backup(kafka, data, *words)
    check_failed(result, data, code)
    assert sentence in result.stderr
    assert "hidden" not in result.stderr


def test_metadata_of_another_cluster(kafka: FakeKafka, data: Path) -> None:
    kafka.cluster_id = "another"
    result = backup(kafka, data)
    check_failed(result, data)
    assert "the broker belongs to cluster another" in result.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal(number: signal.Signals, code: int, kafka: FakeKafka, data: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def kill(cluster: object, folder: Path) -> int:
        (folder / "half").touch()
        signal.raise_signal(number)
        return 0

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_copy_groups", kill)
        result = backup(kafka, data)
    assert result.exit_code == code
    assert [path.name for path in data.parent.iterdir()] == ["data"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_a_killed_backup_left_is_deleted(kafka: FakeKafka, data: Path) -> None:
    left = data.parent / "new" / "saved.unfinished" / "half"
    left.mkdir(parents=True)
    assert backup(kafka, data).exit_code == 0
    assert [path.name for path in (data.parent / "new").iterdir()] == ["saved"]
    assert not (data.parent / "new" / "saved" / "half").exists()
