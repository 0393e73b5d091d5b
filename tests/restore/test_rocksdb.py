"""Damaged files of RocksDB: the broker refuses to start, `restore --from-log` restores the offsets.

The layout of the folder is RocksDB's: CURRENT names a MANIFEST file, which names the tables (.sst).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kafkawire.offsets.storage.open import RESTORING
from kafkawire.testing.control import BrokerFailed
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, produce

SETTINGS = {
    "offset.storage": "rocksdb",
    "cut.interval.ms": "100",
    "log.roll.ms": "100",
}


def filled(data: Path) -> None:
    """A folder of a stopped broker with a topic, a committed offset and tables of RocksDB, which it
    writes when it is opened again."""
    for number in range(2):
        with BrokerProcess(data=data, settings=SETTINGS) as broker:
            produce(broker.bootstrap, "made", {0: 20})
            words = ("consume", "made", "--group", "g", "--limit", "15")
            assert number or Typed(broker.bootstrap, *words).code == 0


def damage(offsets: Path, kind: str) -> None:
    """Damage one file in one way."""
    (current,) = offsets.glob("CURRENT")
    (manifest,) = offsets.glob("MANIFEST-*")
    table = max(offsets.glob("*.sst"), key=lambda path: path.stat().st_size)
    if kind == "current names nothing":
        current.write_text("MANIFEST-999999\n")
    elif kind == "manifest flipped":
        manifest.write_bytes(bytes([manifest.read_bytes()[0] ^ 1]) + manifest.read_bytes()[1:])
    elif kind == "table missing":
        table.unlink()
    else:
        assert kind == "table zeroed"
        table.write_bytes(bytes(512) + table.read_bytes()[512:])


def serves(data: Path) -> None:
    """Check that everything acknowledged is served, and new records get new offsets."""
    check = [sys.executable, "-P", "-m", "kafkawire", "fsck", "--data", str(data)]
    assert subprocess.run(check, capture_output=True, timeout=60, check=False).returncode == 0
    with BrokerProcess(data=data, settings=SETTINGS) as broker:
        every = Typed(broker.bootstrap, "consume", "made").out.split()
        assert every == [str(at) for at in range(20)] * 2
        rest = Typed(broker.bootstrap, "consume", "made", "--from", "resume", "--group", "g")
        assert rest.out.split() == every[15:]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    "kind", ["current names nothing", "manifest flipped", "table missing", "table zeroed"]
)
def test_damaged_rocksdb_is_refused_and_restored(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("rocksdict")
    filled(tmp_path)
    offsets = tmp_path / "brokers" / "1" / "offsets"
    damage(offsets, kind)
    with pytest.raises(BrokerFailed, match=r"ended with 2") as refused:
        BrokerProcess(data=tmp_path, settings=SETTINGS).start()
    assert f"kafkawire restore --from-log --data {tmp_path}" in str(refused.value)
    done = Typed("", "restore", "--from-log", "--data", str(tmp_path))
    assert done.code == 0, done.err
    assert (tmp_path / "brokers" / "1" / "offsets.damaged-1").is_dir()
    serves(tmp_path)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("kind", ["flipped", "cut", "folder missing"])
def test_damaged_log_of_a_killed_broker_is_refused_and_restored(tmp_path: Path, kind: str) -> None:
    """RocksDB itself opens with the transactions before the damage, and offsets were given
    again."""
    pytest.importorskip("rocksdict")
    with BrokerProcess(data=tmp_path, settings=SETTINGS) as broker:
        for _ in range(2):
            produce(broker.bootstrap, "made", {0: 20})
            words = ("consume", "made", "--group", "g", "--limit", "15")
            Typed(broker.bootstrap, *words)
        broker.kill()
    offsets = tmp_path / "brokers" / "1" / "offsets"
    (log,) = offsets.glob("*.log")
    data = log.read_bytes()
    half = len(data) // 2
    if kind == "flipped":
        log.write_bytes(data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :])
    elif kind == "cut":
        log.write_bytes(data[:half])
    else:
        shutil.rmtree(offsets)
    with pytest.raises(BrokerFailed, match=r"ended with 2") as refused:
        BrokerProcess(data=tmp_path, settings=SETTINGS).start()
    assert f"kafkawire restore --from-log --data {tmp_path}" in str(refused.value)
    done = Typed("", "restore", "--from-log", "--data", str(tmp_path))
    assert done.code == 0, done.err
    with BrokerProcess(data=tmp_path, settings=SETTINGS) as broker:
        every = Typed(broker.bootstrap, "consume", "made").out.split()
        assert every == [str(at) for at in range(20)] * 2
        produce(broker.bootstrap, "made", {0: 1})
        assert Typed(broker.bootstrap, "consume", "made").out.split() == [*every, "0"]


@pytest.mark.slow
@pytest.mark.real
def test_interrupted_restore_is_refused_until_repeated(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    filled(tmp_path)
    offsets = tmp_path / "brokers" / "1" / "offsets"
    offsets.rename(f"{offsets}.damaged-1")
    Path(f"{offsets}{RESTORING}").mkdir()  # killed between the two renames
    with pytest.raises(BrokerFailed, match="a restore that was interrupted"):
        BrokerProcess(data=tmp_path, settings=SETTINGS).start()
    done = Typed("", "restore", "--from-log", "--data", str(tmp_path))
    assert done.code == 0, done.err
    serves(tmp_path)
