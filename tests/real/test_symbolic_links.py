"""Each kind of file of a data folder and a tier, replaced by a link to a foreign file: it is
refused by name, and a broker that starts, serves and stops, fsck and restore leave the foreign file
as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kafka import KafkaProducer

from kafkawire.testing.control import BrokerFailed
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed
from tests.real.members import wait_for

pytestmark = pytest.mark.real

SETTINGS = {"tiering.max.lag.ms": 5000, "journal.roll.ms": 1000}
STOPS = ("identity", "journals/*.index", "journals/*.journal", "journals/spare-*", "ledger.0",
         "ledger.1", "lock", "run")  # fmt: skip
"""Files of brokers/1 without which a broker does not start."""
SERVES = ("manifest/current", "manifest/ended", "manifest/snapshot-*", "tier-spending",
          "schedules.db", "segments/*")  # fmt: skip
TIER = (".lock", "owner", "manifest/current", "manifest/snapshot-*", "segments/*")
NAMED = "symbolic link, through which no file"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The data folder of a stopped broker, and its tier; both have files of every kind."""
    base = tmp_path_factory.mktemp("stopped")
    data, tier = base / "data", base / "tier"
    settings = {**SETTINGS, "tier.url": str(tier)}
    home = data / "brokers" / "1"
    kinds = (home / "journals" / "spare-*", home / "schedules.db", home / "segments" / "*",
             tier / "segments" / "*", home / "manifest" / "current")  # fmt: skip
    with BrokerProcess(data, settings=settings) as broker:
        config = "schedule.target.topic=a"
        assert Typed(broker.bootstrap, "topics", "create", "a").code == 0
        assert Typed(broker.bootstrap, "topics", "create", "s", "--config", config).code == 0
        wait_for(lambda: filled(broker.bootstrap, *kinds))
    return data, tier


def produce(server: str) -> None:
    """Append a record."""
    producer = KafkaProducer(bootstrap_servers=server, acks="all")
    producer.send("a", b"value").get(60)
    producer.close()


def filled(server: str, *patterns: Path) -> bool:
    """Append a record; return whether there are files of all these names."""
    produce(server)
    return all(any(each.parent.glob(each.name)) for each in patterns)


class Linked:
    """A copy of the folders in which one file, or several, are links to foreign files."""

    def __init__(self, stopped: tuple[Path, Path], to: Path) -> None:
        self.data, self.tier = to / "data", to / "tier"
        for source, target in zip(stopped, (self.data, self.tier), strict=True):
            shutil.copytree(source, target)
        self.home = self.data / "brokers" / "1"
        self._foreign: dict[Path, bytes] = {}
        self._to = to
        settings = {**SETTINGS, "tier.url": str(self.tier)}
        self.broker = BrokerProcess(self.data, settings=settings)

    def link(self, folder: Path, pattern: str) -> Path:
        """Replace a file by a link to a foreign file with the same content."""
        path = min(folder.glob(pattern))
        foreign = self._to / f"foreign{len(self._foreign)}"
        path.rename(foreign)
        path.symlink_to(foreign)
        self._foreign[foreign] = foreign.read_bytes()
        return path

    def check(self) -> None:
        for foreign, content in self._foreign.items():
            assert foreign.read_bytes() == content

    def check_offline(self) -> None:
        """Run what reads and repairs the folder of a stopped broker."""
        for words in (("fsck",), ("fsck", "--repair"), ("restore", "--from-log")):
            done = Typed("", *words, "--data", str(self.data))
            assert "Traceback" not in done.err
            self.check()


@pytest.mark.parametrize("pattern", STOPS)
def test_broker_does_not_start_with_a_link(
    stopped: tuple[Path, Path], tmp_path: Path, pattern: str
) -> None:
    linked = Linked(stopped, tmp_path)
    path = linked.link(linked.home, pattern)
    with pytest.raises(BrokerFailed, match=f"{path}.*{NAMED}"):
        linked.broker.start()
    linked.check()
    assert path.is_symlink()
    linked.check_offline()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_broker_does_not_start_with_linked_metadata(
    stopped: tuple[Path, Path], tmp_path: Path, suffix: str
) -> None:
    linked = Linked(stopped, tmp_path)
    path = linked.data / f"metadata.db{suffix}"
    path.touch()
    linked.link(linked.data, path.name)
    with pytest.raises(BrokerFailed, match=f"{path}.*{NAMED}"):
        linked.broker.start()
    linked.check()
    linked.check_offline()


def serve(linked: Linked, *named: Path) -> None:
    """Start the broker, have it write, cut, upload and name these links, and stop it."""
    texts = [f"{path}: it is a {NAMED}" for path in named]
    with linked.broker as broker:
        known = set((linked.home / "segments").iterdir())
        produce(broker.bootstrap)
        wait_for(lambda: bool(set((linked.home / "segments").iterdir()) - known))
        wait_for(lambda: all(text in broker.output for text in texts))
    linked.check()
    assert "Traceback" not in broker.output


def test_broker_serves_without_the_linked_files(stopped: tuple[Path, Path], tmp_path: Path) -> None:
    """Files that can be made again: each is named in the log, and replaced or left alone."""
    linked = Linked(stopped, tmp_path)
    for pattern in SERVES:
        linked.link(linked.home, pattern)
    serve(linked, linked.home / "schedules.db", linked.home / "manifest" / "current")
    assert "their index is tried again" in linked.broker.output
    linked.check_offline()


@pytest.mark.parametrize("pattern", TIER)
def test_linked_file_of_a_tier_stays(
    stopped: tuple[Path, Path], tmp_path: Path, pattern: str
) -> None:
    linked = Linked(stopped, tmp_path)
    path = linked.link(linked.tier, pattern)
    is_read = not pattern.startswith("segments")  # those only when a reader needs them
    serve(linked, *[path] * is_read)
    linked.check_offline()


def test_backup_and_restore_into_a_folder_of_a_broker_are_refused(
    stopped: tuple[Path, Path], tmp_path: Path
) -> None:
    linked = Linked(stopped, tmp_path)
    data, tier, saved = (str(path) for path in (linked.data, linked.tier, tmp_path / "saved"))
    (tmp_path / "link").symlink_to(linked.home)
    with linked.broker as broker:
        for into in (f"{data}/x", f"{data}/brokers/1/x/y", str(tmp_path / "link/x"), f"{tier}/x"):
            done = Typed(broker.bootstrap, "backup", into, "--data", data)
            assert (done.code, done.out) == (2, "")
            assert f"DEST {into} is in " in done.err
            assert "choose a folder outside of it" in done.err
        assert Typed(broker.bootstrap, "backup", saved, "--data", data).code == 0
    for into in (f"{data}/x", f"{tier}/x", f"{tier}/segments/x"):
        done = Typed("", "restore", saved, "--data", into)
        assert (done.code, done.out) == (2, "")
        assert f"--data {into} is in " in done.err
        done = Typed("", "restore", tier, "--data", into, "--yes")
        assert done.code == 2, done.err
    assert not Path(data, "x").exists()
    assert not Path(tier, "x").exists()
