"""The folder of a follower: lock, identity, and what it refuses to open.

Covers: kafkawire.replication.follower, kafkawire.replication.sealed_file,
kafkawire.replication.failures.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from crc32c import crc32c

from kafkawire.replication import sealed_file
from kafkawire.replication.failures import DiskFailed, FollowerError
from kafkawire.replication.follower import Follower
from kafkawire.replication.machine import Files
from tests.replication.memory_files import Crashed, MemoryFiles
from tests.replication.model import NONE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that was used."""
    path = tmp_path / "a" / "follower"
    follower = Follower(Files(), str(path))
    follower.node(3).fence(2)
    follower.node(3).begin(2, NONE, 0, 5)
    follower.close()
    return path


def refused(folder: Path) -> str:
    """Return why a folder cannot be opened."""
    with pytest.raises(FollowerError) as failure:
        Follower(Files(), str(folder))
    return str(failure.value)


def test_identity_is_created_once(folder: Path) -> None:
    one = Follower(Files(), str(folder))
    one.close()
    other = Follower(Files(), str(folder))
    other.close()
    assert one.identity == other.identity
    assert (len(one.identity.replica_id), len(one.identity.key)) == (16, 32)
    assert stat.S_IMODE(os.stat(folder / "identity").st_mode) == 0o600


def test_other_folder_has_another_identity(folder: Path, tmp_path: Path) -> None:
    one, other = Follower(Files(), str(folder)), Follower(Files(), str(tmp_path / "other"))
    assert one.identity.replica_id != other.identity.replica_id
    assert one.identity.key != other.identity.key
    one.close()
    other.close()


def test_folder_is_locked(folder: Path) -> None:
    follower = Follower(Files(), str(folder))
    assert refused(folder) == (
        f"{folder} is used by another process: a folder belongs to one follower"
    )
    follower.close()
    Follower(Files(), str(folder)).close()


@pytest.mark.parametrize("name", ["identity", "3/fence", "3/2/copy"])
@pytest.mark.parametrize("damage", ["flipped", "empty", "short", "zeros"])
def test_damaged_file_is_reported_and_not_replaced(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[20] ^= 1
    elif damage == "zeros":
        data = bytearray(len(data))
    else:
        del data[0 if damage == "empty" else len(data) // 2 :]
    path.write_bytes(data)
    assert refused(folder).startswith(f"{path} is damaged. It is not replaced")
    assert path.read_bytes() == data


def test_missing_files_are_reported(folder: Path) -> None:
    (folder / "3/2/copy").rename(folder / "copy")
    assert refused(folder).startswith(f"{folder}/3/2/copy is damaged")
    (folder / "copy").rename(folder / "3/2/copy")
    (folder / "identity").unlink()
    assert refused(folder).startswith(f"{folder}/identity is missing, and the folder has copies")


def test_newer_format_is_refused(folder: Path) -> None:
    line = json.dumps({"version": 2}).encode()
    (folder / "identity").write_bytes(b"%s\n%08x\n" % (line, crc32c(line)))
    assert "has format version 2, and this program reads version 1" in refused(folder)


def test_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert refused(tmp_path / "file") == f"{tmp_path}/file cannot be used: File exists"
    (tmp_path / "f" / "3" / "1").mkdir(parents=True)
    assert refused(tmp_path / "f").startswith(f"{tmp_path}/f/identity is missing")


def test_two_folders_of_one_epoch_are_refused(folder: Path) -> None:
    (folder / "3/1").mkdir()
    state = json.loads((folder / "3/2/copy").read_bytes().partition(b"\n")[0])
    state["cut"] = 0
    line = json.dumps(state).encode()
    (folder / "3/1/copy").write_bytes(b"%s\n%08x\n" % (line, crc32c(line)))
    assert refused(folder) == f"{folder}/3/1 cannot be used: Directory not empty"


def test_unfinished_folders_are_removed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("7.new", "1.deleted", "8.new"):
        (folder / "3" / name).mkdir()
        (folder / "3" / name / "0000000005.journal").write_bytes(b"x")
    (folder / "3" / "8.new" / "notes").write_bytes(b"not ours")
    (folder / "3" / "README").write_bytes(b"not ours")
    Follower(Files(), str(folder)).close()
    assert sorted(each.name for each in (folder / "3").iterdir()) == [
        "2", "8.new", "README", "fence",
    ]  # fmt: skip
    assert "8.new cannot be deleted: Directory not empty" in caplog.text
    assert (folder / "3" / "8.new" / "notes").exists()


def test_small_file_has_one_of_two_contents_after_a_crash() -> None:
    calls = MemoryFiles()
    sealed_file.save(calls, "/x", {"n": 1})
    for number in range(1, calls.calls + 1):
        files = MemoryFiles()
        sealed_file.save(files, "/x", {"n": 1})
        files.crash_at = files.calls + number
        with pytest.raises(Crashed):
            sealed_file.save(files, "/x", {"n": 2})
        files.crash_at = None
        found = sealed_file.load(files, "/x")
        assert found is not None
        assert found["n"] in (1, 2)
        sealed_file.save(files, "/x", {"n": 3})
        assert sealed_file.load(files, "/x") == {"version": 1, "n": 3}
    assert sealed_file.load(files, "/y") is None


def test_failed_syncs_of_the_machine_are_final(tmp_path: Path) -> None:
    files = Files()
    reading, writing = os.pipe()
    with pytest.raises(DiskFailed, match="fsync of a pipe failed"):
        files.sync(writing, "a pipe")
    os.close(reading)
    os.close(writing)
    with pytest.raises(DiskFailed, match="No such file or directory"):
        files.sync_folder(str(tmp_path / "none"))
