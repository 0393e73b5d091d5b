"""Damage to RocksDB's log after kill -9: every answered transaction is read, or opening is refused.

The child (this file, run as a program) prints the number of each transaction that was answered.
Covers: kafkawire.offsets.catalog.kv.transaction_count
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkawire.codec.format_errors import NewerFormatError
from kafkawire.metadata.store import DamagedMetadata, MetadataError
from kafkawire.offsets.catalog.kv.rocksdb import RocksStore
from kafkawire.offsets.catalog.kv.store import Writes
from kafkawire.offsets.catalog.kv.transaction_count import (
    SLOT_BYTES,
    count_of,
    count_path,
    move_database,
    remove_database,
)

pytest.importorskip("rocksdict")

TRANSACTIONS = 40
STEP = 97
"""Bytes between two damaged ones: no divisor of the sizes in the log."""


def row(number: int) -> tuple[bytes, bytes]:
    return b"r%06d" % number, bytes([number % 251]) * 50


def write(store: RocksStore, number: int) -> None:
    writes = Writes()
    writes.put(*row(number))
    store.write(writes)


def child(folder: str) -> None:
    store = RocksStore(folder)
    for number in range(TRANSACTIONS * 2):
        write(store, number)
        print(number, flush=True)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A folder of a process that was killed, and the number of transactions it had answered."""
    folder = tmp_path_factory.mktemp("killed") / "offsets"
    command = [sys.executable, "-m", "tests.offsets.catalog.test_rocksdb_lost_end", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(TRANSACTIONS):
            answered = int(process.stdout.readline())
        process.kill()
        answered = max([answered, *map(int, process.stdout.read().split())])
    return folder, answered + 1


def files(folder: Path) -> dict[str, bytes]:
    paths = [*folder.glob("*"), Path(count_path(str(folder)))]
    return {path.name: path.read_bytes() for path in paths if path.name != "LOCK"}


def copied(killed: Path, to: Path) -> Path:
    shutil.copytree(killed, to)
    shutil.copy(count_path(str(killed)), count_path(str(to)))
    return to


def check(folder: Path, answered: int) -> bool:
    """Return whether the database opens, which must then have all that was answered; if it is
    refused, nothing has changed."""
    before = files(folder)
    store = RocksStore(str(folder))
    try:
        found = store.scan(b"r", b"s")
    except MetadataError:
        assert files(folder) == before
        return False
    finally:
        store.close()
    assert found[:answered] == [row(number) for number in range(answered)]
    return True


def flips(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), STEP):
        yield data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def cuts(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), STEP):
        yield data[:at]


def zeros(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), STEP):
        yield data[:at] + bytes(len(data) - at)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("damage", [flips, cuts, zeros])
def test_a_damaged_log_never_loses_answered_transactions(
    killed: tuple[Path, int], tmp_path: Path, damage: Callable[[bytes], Iterator[bytes]]
) -> None:
    source, answered = killed
    assert check(copied(source, tmp_path / "sound"), answered)
    (log,) = source.glob("*.log")
    refused = 0
    for at, data in enumerate(damage(log.read_bytes())):
        folder = copied(source, tmp_path / str(at))
        (folder / log.name).write_bytes(data)
        refused += not check(folder, answered)
        shutil.rmtree(folder)
    assert refused > at // 2, "hardly any damage was refused: is the log read?"


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", ["*.log", "CURRENT", "MANIFEST-*", "count", "folder"])
def test_a_missing_file_is_refused(killed: tuple[Path, int], tmp_path: Path, name: str) -> None:
    folder = copied(killed[0], tmp_path / "offsets")
    if name == "folder":
        shutil.rmtree(folder)
    else:
        (path,) = [Path(count_path(str(folder)))] if name == "count" else folder.glob(name)
        path.unlink()
    with pytest.raises(DamagedMetadata, match="restore --from-log"):
        RocksStore(str(folder)).scan(b"r", b"s")
    assert name != "folder" or not folder.exists()


@pytest.mark.slow
@pytest.mark.real
def test_an_older_copy_is_refused(killed: tuple[Path, int], tmp_path: Path) -> None:
    folder = copied(killed[0], tmp_path / "offsets")
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    store = RocksStore(str(folder))
    write(store, killed[1])
    store.close()
    shutil.rmtree(folder)
    old.rename(folder)
    with pytest.raises(DamagedMetadata, match=r"its last .*transactions? (is|are) missing"):
        RocksStore(str(folder)).scan(b"r", b"s")


@pytest.mark.slow
@pytest.mark.real
def test_what_was_not_answered_may_be_torn(killed: tuple[Path, int], tmp_path: Path) -> None:
    """A crash of the machine leaves the start of a transaction, or bytes of an earlier file."""
    for at, tail in enumerate((b"\x01", bytes(5000), b"\xff" * 300)):
        folder = copied(killed[0], tmp_path / str(at))
        (log,) = folder.glob("*.log")
        log.write_bytes(log.read_bytes() + tail)
        assert check(folder, killed[1])


def test_one_slot_of_the_count_may_be_damaged(tmp_path: Path) -> None:
    folder = str(tmp_path / "offsets")
    store = RocksStore(folder)
    for number in range(3):
        write(store, number)
    store.close()
    path = Path(count_path(folder))
    sound = path.read_bytes()
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :])
        assert count_of(folder) in (2, 3)
    path.write_bytes(bytes(2 * SLOT_BYTES))
    with pytest.raises(DamagedMetadata, match="count is damaged"):
        RocksStore(folder).get([b"r"])


def test_a_newer_count_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path / "offsets")
    store = RocksStore(folder)
    with monkeypatch.context() as newer:
        newer.setattr("kafkawire.offsets.catalog.kv.transaction_count.VERSION", 2)
        write(store, 0)
        store.close()
        write(again := RocksStore(folder), 1)
        again.close()
    with pytest.raises(NewerFormatError, match=r"offsets\.count has format version 2"):
        RocksStore(folder).get([b"r"])


def test_a_database_is_moved_and_removed_with_its_count(tmp_path: Path) -> None:
    old, new = str(tmp_path / "building"), str(tmp_path / "offsets")
    remove_database(old)
    store = RocksStore(old)
    write(store, 0)
    store.close()
    move_database(old, new)
    assert (count_of(old), count_of(new)) == (0, 1)
    store = RocksStore(new)
    assert len(store.scan(b"r", b"s")) == 1
    store.close()
    remove_database(new)
    assert not list(tmp_path.iterdir())


if __name__ == "__main__":
    child(sys.argv[1])
