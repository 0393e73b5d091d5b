"""A data folder whose records are in segments and journals, read while its broker is stopped.

Covers: kafkawire.log.recovery.stopped_journals, kafkawire.reading.journals.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafkawire.reading import DamagedData, SourceError, UnknownName, open_broker, open_folder
from kafkawire.testing.control import BrokerFailed
from kafkawire.testing.plugin import Factory
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture, by name)
from tests.kit.spark.topics import HASTY, Row, Topics

pytestmark = [pytest.mark.real, pytest.mark.slow]

KEEP = {"log.retention.ms": "-1"}


def recent(count: int, first: int = 0) -> list[Row]:
    now = time.time_ns() // 1_000_000
    return [
        Row("t", n % 2, 0, now + n, b"k%d" % n, b"v%d" % n, (("n", b"%d" % n),))
        for n in range(first, first + count)
    ]


def changes(folder: Path) -> list[tuple[Path, int]]:
    """The files of the broker and when each was written last."""
    return sorted((path, path.stat().st_mtime_ns) for path in (folder / "brokers").rglob("*"))


def compare(folder: Path, wanted: list[Row]) -> None:
    """Check that a folder has exactly these rows, by offset, key and time, and from the end."""
    with open_folder(str(folder)) as reader:
        assert reader.topics()["t"] == 2
        assert reader.unread("t") == []
        found = list(reader.read("t"))
        assert [each[:4] for each in found] == [
            (row.topic, row.partition, row.offset, row.timestamp_ms) for row in wanted
        ]
        assert [each.headers for each in found] == [row.headers for row in wanted]
        for row in (wanted[0], wanted[len(wanted) // 2], wanted[-1]):
            assert row.key is not None
            [same] = reader.find("t", row.key)
            assert (same.partition, same.offset, same.value) == (
                row.partition, row.offset, row.value,
            )  # fmt: skip
            assert reader.latest("t", row.key) == same
            since = row.timestamp_ms
            assert list(reader.read("t", since=since, until=since + 1)) == [same]
        assert reader.latest("t", b"absent") is None


@pytest.mark.parametrize("killed", [False, True])
def test_journals_only(kafkawire_broker_factory: Factory, killed: bool) -> None:
    made = Topics(kafkawire_broker_factory(settings=KEEP))
    made.make("t", 2)
    made.produce("t", recent(300))
    folder = Path(made.broker.data)
    with open_broker(made.bootstrap) as reader:
        bounds = reader.partitions("t")
    if killed:
        made.broker.kill()
    else:
        made.broker.stop()
    before = changes(folder)
    compare(folder, made.of("t"))
    with open_folder(str(folder)) as reader, open_folder(str(folder)) as other:
        assert reader.partitions("t") == other.partitions("t") == bounds
        with pytest.raises(BrokerFailed, match="another kafkawire process uses"):
            made.broker.start()
    home = folder / "brokers" / "1"
    with open_folder(str(home)) as reader, pytest.raises(UnknownName, match="has no topic 'u'"):
        reader.partitions("u")
    words = ("find", "t", "--key", "k7", "--json", "--source", str(folder))
    assert [line["value"] for line in Typed("127.0.0.1:1", *words).lines] == ["v7"]
    assert changes(folder) == before
    made.broker.start()
    with open_broker(made.bootstrap) as reader:
        assert reader.partitions("t") == bounds


def test_segments_and_journals(kafkawire_broker_factory: Factory) -> None:
    made = Topics(kafkawire_broker_factory(settings={**KEEP, **HASTY}))
    made.make("t", 2)
    made.produce("t", recent(200))
    made.until_cut(str(made.broker.data))
    made.produce("t", recent(50, 200))
    made.broker.kill()
    compare(Path(made.broker.data), made.of("t"))


@pytest.mark.parametrize("settings", [KEEP, {**KEEP, **HASTY}], ids=["journals", "segments"])
def test_records_by_time_of_storing(
    kafkawire_broker_factory: Factory, settings: dict[str, str]
) -> None:
    """All records have one timestamp."""
    made = Topics(kafkawire_broker_factory(settings=settings))
    made.make("t", 1)
    producer = Producer({"bootstrap.servers": made.bootstrap, "linger.ms": 0})
    sent: list[tuple[int, int]] = []
    begun = time.time_ns()
    while time.time_ns() < begun + 3_000_000_000:  # store times are whole seconds
        before = time.time_ns() // 1_000_000
        producer.produce("t", b"v", timestamp=1_000)
        producer.flush(60)
        sent.append((before, time.time_ns() // 1_000_000))
        time.sleep(0.05)
    if settings != KEEP:
        made.until_cut(str(made.broker.data))
    made.broker.stop()
    moment = sent[len(sent) // 2][0] // 1000 * 1000
    folder = str(made.broker.data)
    for option in ("--stored-from", "--stored-to"):
        words = ("find", "t", option, f"@{moment}", "--json", "--source", folder)
        found = {line["offset"] for line in Typed("127.0.0.1:1", *words).lines}
        later = {at for at, (before, _) in enumerate(sent) if before >= moment}
        earlier = {at for at, (_, after) in enumerate(sent) if after < moment}
        assert later
        assert earlier
        wanted, other = (later, earlier) if option == "--stored-from" else (earlier, later)
        assert found >= wanted
        assert not found & other
    words = ("find", "t", "--stored-from", f"@{sent[0][0] - 60_000}", "--json", "--source", folder)
    assert [line["offset"] for line in Typed("127.0.0.1:1", *words).lines] == [*range(len(sent))]


def test_running_broker(kafkawire_broker_factory: Factory) -> None:
    """Its segments are read, and only those."""
    made = Topics(kafkawire_broker_factory(settings={**KEEP, **HASTY}))
    made.make("t", 2)
    made.produce("t", recent(20))
    made.until_cut(str(made.broker.data))
    with open_folder(str(made.broker.data)) as reader:
        assert len(list(reader.read("t"))) == 20
    other = Topics(kafkawire_broker_factory(settings=KEEP))
    with pytest.raises(SourceError, match="a broker uses them"):
        open_folder(str(other.broker.data))


def test_transactions(kafkawire_broker_factory: Factory) -> None:
    """One is committed, one aborted, one open."""
    made = Topics(kafkawire_broker_factory(settings=KEEP))
    made.make("t", 2)

    def producer(name: str) -> Producer:
        found = Producer({"bootstrap.servers": made.bootstrap, "transactional.id": name})
        found.init_transactions(60)
        found.begin_transaction()
        return found

    one, two = producer("one"), producer("two")
    one.produce("t", b"committed", b"k", 0)
    one.commit_transaction(60)
    one.begin_transaction()
    one.produce("t", b"aborted", b"k", 0)
    one.flush(60)
    one.abort_transaction(60)
    made.produce("t", [Row("t", 0, 0, 0, b"k", b"plain", None)])
    two.produce("t", b"open", b"k", 0)
    two.flush(60)
    made.produce("t", [Row("t", 0, 0, 0, b"k", b"after", None)])
    made.broker.kill()
    folder = str(made.broker.data)
    with open_folder(folder) as reader:
        assert [each.value for each in reader.find("t", b"k")] == [b"committed", b"plain"]
        last = reader.latest("t", b"k")
        assert last is not None
        assert last.value == b"plain"
    with open_folder(folder, isolation="read_uncommitted") as reader:
        assert [each.value for each in reader.find("t", b"k")] == [
            b"committed", b"aborted", b"plain", b"open", b"after",
        ]  # fmt: skip


def test_damaged_journal(kafkawire_broker_factory: Factory) -> None:
    made = Topics(kafkawire_broker_factory(settings=KEEP))
    made.make("t", 2)
    made.produce("t", recent(10))
    made.produce("t", recent(10, 10))
    made.broker.stop()
    [path] = (Path(made.broker.data) / "brokers" / "1" / "journals").glob("*.journal")
    data = bytearray(path.read_bytes())
    data[data.index(b"v12")] ^= 1
    path.write_bytes(data)
    harmed: list[DamagedData] = []
    with open_folder(str(made.broker.data), on_damage=harmed.append) as reader:
        found = [each.value for each in reader.read("t")]
    assert [(each.topic, each.partition) for each in harmed] == [("t", 0)]
    assert b"v11" in found
    assert b"v13" in found
    assert b"v12" not in found
