"""The folder of a follower: lock, identity, and what it refuses to open.

Covers: kafkawire.replication.follower, kafkawire.replication.sealed_file,
kafkawire.replication.failures.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from kafkawire.replication import sealed_file
from kafkawire.replication.failures import DiskFailed, Fenced, FollowerError
from kafkawire.replication.follower import Follower
from kafkawire.replication.machine import Files
from tests.replication.memory_files import Crashed, MemoryFiles
from tests.replication.model import NONE, at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that was used."""
    path = tmp_path / "a" / "follower"
    follower = Follower(Files(), str(path))
    follower.node(3).fence(2)
    follower.node(3).start_epoch(2, NONE, 0, 5)
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


def damage(path: Path, how: str = "flipped") -> bytes:
    """Damage a file; return its content."""
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[20] ^= 1
    elif how == "zeros":
        data = bytearray(len(data))
    else:
        del data[0 if how == "empty" else len(data) // 2 :]
    path.write_bytes(data)
    return bytes(data)


@pytest.mark.parametrize("how", ["flipped", "empty", "short", "zeros"])
def test_damaged_identity_is_reported_and_not_replaced(folder: Path, how: str) -> None:
    path = folder / "identity"
    data = damage(path, how)
    text = refused(folder)
    assert text.startswith(f"{path} is damaged: its checksum is wrong. Brokers know this follower")
    assert "restore it from a backup or, if the copies are not needed, move this folder" in text
    assert path.read_bytes() == data


def test_missing_identity_is_reported(folder: Path) -> None:
    (folder / "identity").unlink()
    assert refused(folder).startswith(f"{folder}/identity is missing, and the folder has copies")


# Damaged copies


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the content of all files of a folder."""
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines that were logged as errors."""
    return lambda: [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


Errors = Callable[[], list[str]]


@pytest.mark.parametrize("how", ["flipped", "empty", "short", "zeros"])
def test_damaged_copy_is_left_out(folder: Path, errors: Errors, how: str) -> None:
    path = folder / "3" / "2"
    damage(path / "copy", how)
    before = files_in(path)
    follower = Follower(Files(), str(folder))
    (text,) = errors()
    assert text == (
        f"the copy of the log of broker 3, epoch 2, is not used, and its folder stays as it is: "
        f"{path}/copy is damaged: its checksum is wrong. Restart broker 3, which then sends its "
        f"log again, and delete {path} after that. Until then broker 3 has a replica less"
    )
    node, other = follower.node(3), follower.node(4)
    assert other.start_epoch(1, NONE, 0, 7) == at(7, 0)
    for refused in (lambda: node.start_epoch(2, NONE, 0, 5), lambda: node.listing(2)):
        with pytest.raises(FollowerError, match="copy is damaged"):
            refused()
    for fenced in (lambda: node.start_epoch(1, NONE, 0, 5), lambda: node.fence(1)):
        with pytest.raises(Fenced):
            fenced()
    node.fence(2)
    assert node.start_epoch(3, 2, at(5, 100), 5) == at(5, 0)  # all of it is sent again
    with pytest.raises(FollowerError, match="copy is damaged"):
        node.listing(2)
    node.delete_earlier_copies(3)
    follower.close()
    assert files_in(path) == before


def test_missing_state_of_a_copy_leaves_it_out(folder: Path, errors: Errors) -> None:
    (folder / "3/2/copy").unlink()
    Follower(Files(), str(folder)).close()
    assert f"{folder}/3/2/copy is missing" in errors()[0]


def test_copy_that_cannot_be_read_is_left_out(
    folder: Path, errors: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, read = Files(), Files.open

    def fail(path: str, *, create: bool = False) -> int:
        if path.endswith("/2/copy"):
            raise OSError(errno.EIO, "Input/output error", path)
        return read(files, path, create=create)

    monkeypatch.setattr(files, "open", fail)
    Follower(files, str(folder)).close()
    assert f"{folder}/3/2/copy cannot be used: Input/output error" in errors()[0]


@pytest.mark.parametrize("epoch", ["1", "3"])
def test_copy_whose_folder_was_renamed_is_left_out(
    folder: Path, errors: Errors, epoch: str
) -> None:
    (folder / "3/2").rename(folder / "3" / epoch)
    Follower(Files(), str(folder)).close()
    assert f"{folder}/3/{epoch}/copy is that of epoch 2: the folder was renamed" in errors()[0]


def test_damaged_fence_leaves_out_the_copies_of_its_broker(folder: Path, errors: Errors) -> None:
    path = folder / "3"
    damage(path / "fence")
    before = files_in(path)
    follower = Follower(Files(), str(folder))
    (text,) = errors()
    assert f"{path}/fence is damaged: its checksum is wrong. Repair it or, if no earlier" in text
    node = follower.node(3)
    for each in (
        lambda: node.start_epoch(9, NONE, 0, 5),
        lambda: node.fence(9),
        lambda: node.listing(2),
        lambda: node.delete_earlier_copies(9),
    ):
        with pytest.raises(FollowerError, match="fence is damaged"):
            each()
    assert follower.node(4).start_epoch(1, NONE, 0, 7) == at(7, 0)
    follower.close()
    assert files_in(path) == before
    (path / "fence").unlink()  # as the line says
    follower = Follower(Files(), str(folder))
    assert follower.node(3).start_epoch(2, NONE, 0, 5) == at(5, 0)
    follower.close()


def test_newer_format_is_refused(folder: Path) -> None:
    line = json.dumps({"version": 2}).encode()
    (folder / "identity").write_bytes(b"%s\n%08x\n" % (line, crc32c(line)))
    assert "has format version 2, and this program reads version 1" in refused(folder)


def test_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert refused(tmp_path / "file") == f"{tmp_path}/file cannot be used: File exists"
    (tmp_path / "f" / "3" / "1").mkdir(parents=True)
    assert refused(tmp_path / "f").startswith(f"{tmp_path}/f/identity is missing")


def test_second_folder_of_one_epoch_is_left_out(folder: Path, errors: Errors) -> None:
    (folder / "3/1").mkdir()
    state = json.loads((folder / "3/2/copy").read_bytes().partition(b"\n")[0])
    state["cut"] = 0
    line = json.dumps(state).encode()
    (folder / "3/1/copy").write_bytes(b"%s\n%08x\n" % (line, crc32c(line)))
    follower = Follower(Files(), str(folder))
    assert f"{folder}/3/1 cannot be used: Directory not empty" in errors()[0]
    assert follower.node(3).start_epoch(2, NONE, 0, 5) == at(5, 0)
    follower.close()


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
