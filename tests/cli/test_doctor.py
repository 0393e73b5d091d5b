"""`kafkawire doctor`: what it finds, and what it says of it."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kafkawire.cli import doctor
from kafkawire.cli.app import app
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import no_environment, run  # noqa: F401  (a fixture, by name)
from tests.kit.ports import free_port, free_ports


def diagnoses(*words: str) -> dict[str, Mapping[str, Any]]:
    result = run(app, ["doctor", "--json", *words])
    found = {row["check"]: row for row in json.loads(result.stdout)}
    wrong = any(row["state"] == "wrong" for row in found.values())
    assert result.exit_code == int(wrong)
    return found


def test_new_folder_is_not_made(tmp_path: Path) -> None:
    diagnoses("--data", str(tmp_path / "new"))
    assert os.listdir(tmp_path) == []


def test_default_folder_is_checked_only_if_it_exists_or_nothing_else_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    assert "data folder" in diagnoses()
    assert "data folder" not in diagnoses(*listen)
    (tmp_path / "kafkawire-data").mkdir()
    assert "data folder" in diagnoses(*listen)


def test_files_of_another_user_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    (tmp_path / "brokers" / "1").mkdir(parents=True)
    monkeypatch.setattr(doctor, "has_log", refuse)
    folder = diagnoses("--data", str(tmp_path))["data folder"]
    assert folder["state"] == "wrong"
    assert f"{tmp_path} cannot be read: Permission denied" in folder["found"]
    assert "run it as the user of the broker" in folder["todo"]


def test_disk_without_room_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        found = doctor._fsync_speed(str(tmp_path))
    assert (found.state, found.todo) == ("wrong", "free space")
    assert found.found == f"no file can be written in {tmp_path}: No space left on device"
    assert os.listdir(tmp_path) == []


def test_newer_metadata_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "brokers").mkdir()
    with sqlite3.connect(tmp_path / "metadata.db") as database:
        database.execute("CREATE TABLE kafkawire_revision (version_num)")
        database.execute("INSERT INTO kafkawire_revision VALUES ('9999')")
    metadata = diagnoses("--data", str(tmp_path))["metadata"]
    assert metadata["state"] == "wrong"
    assert "use the version that wrote it" in metadata["todo"]


def test_folder_that_cannot_be_written_is_wrong() -> None:
    assert run(app, ["doctor", "--data", "/dev/null"]).exit_code == 2
    assert "no file can be written in /proc" in doctor._fsync_speed("/proc").found


def test_full_disk_and_slow_disk_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_FREE", 1.0)
    monkeypatch.setattr(doctor, "SLOW_FSYNC_S", 0.0)
    found = diagnoses("--data", str(tmp_path))
    assert found["disk"]["state"] == "wrong"
    assert "local SSD" in found["fsync"]["todo"]


def test_databases_and_brokers_that_do_not_answer(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    words = ("--metadata", f"postgresql://u:secret@{nowhere}/d", "--server", nowhere)
    found = diagnoses("--data", str(tmp_path), *words)
    assert found["metadata"]["state"] == found["broker"]["state"] == "wrong"
    assert "secret" not in str(found)


def test_advertised_address_is_tried(tmp_path: Path) -> None:
    port, closed = free_ports(2)
    nowhere = f"127.0.0.1:{closed}"
    with BrokerProcess(tmp_path / "d", port=port, arguments=["--advertise", nowhere]):
        found = diagnoses("--data", str(tmp_path / "new"), "--server", f"127.0.0.1:{port}")
    assert found["broker"]["state"] == "ok"
    assert found["broker 1"]["state"] == "wrong"
    assert nowhere in found["broker 1"]["todo"]
