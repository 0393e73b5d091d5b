"""Load whose history is checked, on two brokers with one PostgreSQL and one bucket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.cluster import Cluster, metadata_url
from tests.kit.exactly_once.checker import kinds
from tests.kit.faulty_cluster import CLIENTS, S3, SQL, FaultyCluster
from tests.kit.history.checker import check
from tests.kit.history.clients import RecordedLoad, RecordingReader, read_finally
from tests.kit.history.history import Final, History, Kind, Result, waits_for_acks
from tests.kit.minio import Minio
from tests.kit.proxy import Network
from tests.kit.waiting import wait_until
from tests.real.conftest import MakeTopic

TOPIC, PARTITIONS = "load", 4


@pytest.fixture
def cluster(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> Iterator[FaultyCluster]:
    url = metadata_url("postgresql", tmp_path, request)
    with Network() as network, FaultyCluster(tmp_path, network, url, minio, tier_url) as made:
        wait_until(lambda: made.listed(1) == made.listed(2) == [1, 2], "both brokers")
        made.create(1, TOPIC, [1, 2, 1, 2])
        wait_until(lambda: len(made.leaders(2, TOPIC)) == PARTITIONS, "the topic at both")
        yield made


def acked(load: RecordedLoad) -> int:
    events = load.history.events
    return sum(each.kind is Kind.PRODUCE and each.result is Result.OK for each in events)


def test_load_on_two_brokers_has_a_correct_history(cluster: FaultyCluster, tmp_path: Path) -> None:
    with RecordedLoad(cluster.addresses, TOPIC, PARTITIONS) as load:
        wait_until(lambda: acked(load) >= 2000, "acknowledged records")
        load.heal()
    for node in (1, 2):
        assert load.findings(cluster.bootstrap(node), tmp_path / "history") == []
    found = load.history
    assert {each.kind for each in found.events if each.result is Result.OK} >= {
        Kind.PRODUCE, Kind.READ, Kind.COMMIT, Kind.COMMITTED,
    }  # fmt: skip
    rows = [row for final in found.final.values() for row in final.rows]
    assert len(rows) == acked(load)
    assert all(epoch >= 0 for *_, epoch in rows)
    for name in ("1", "2"):
        for destination in (SQL, S3):
            assert cluster.network.accepted(name, destination) > 0
        assert cluster.network.accepted(CLIENTS, name) > 0


def test_faults_of_brokers_and_links_are_recovered_from(
    cluster: FaultyCluster, tmp_path: Path
) -> None:
    network = cluster.network
    with RecordedLoad(cluster.addresses, TOPIC, PARTITIONS) as load:
        load.wait_for_progress()
        killed = load.history.fault("kill broker 2")
        cluster.kill(2)
        cluster.start(2)
        load.heal()
        load.history.fault("pause broker 1, cut clients of broker 2, hold SQL and S3")
        cluster.pause(1)
        network.cut(CLIENTS, "2")
        network.silence("2", SQL)
        network.silence("2", S3)
        before = acked(load)
        wait_until(lambda: acked(load) > before + 20, "records acknowledged without SQL and S3")
        cluster.resume(1)
        network.heal()
        load.heal()
    assert load.findings(cluster.bootstrap(1), tmp_path / "history") == []
    longest = waits_for_acks(load.history, since=killed.at, until=time.monotonic())
    assert set(longest) == set(load.partitions)
    assert min(longest.values()) > 0


def test_refused_records_are_not_expected_to_be_there(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(max_message_bytes="1")
    load = RecordedLoad(bootstrap, topic, 1, producers=1, readers=0, members=0)
    events = load.history.events
    with load:
        wait_until(lambda: any(each.result is Result.FAIL for each in events), "a refusal")
    ended = {each.result for each in events if each.kind is Kind.PRODUCE}
    assert ended == {Result.INVOKE, Result.FAIL}
    assert load.findings(bootstrap) == []
    (sent, *_) = [each for each in events if each.kind is Kind.PRODUCE]
    load.history.final[topic, 0] = Final(0, 1, [(0, sent.value, 0)])
    assert kinds(check(load.history)) == {"phantom"}


def test_records_that_a_broker_loses_are_found(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The final read is that of another topic, which is empty; the history is kept."""
    topic, empty = make_topic(), make_topic(suffix="-empty")
    with RecordedLoad(bootstrap, topic, 1, members=1) as load:
        load.wait_for_progress()
    read_finally(load.history, bootstrap, [(empty, 0)])
    load.history.final[topic, 0] = load.history.final.pop((empty, 0))
    assert kinds(check(load.history)) == {"lost", "vanished"}
    load.history.save(tmp_path / "history")
    assert (tmp_path / "history").read_text().count("\n") == len(load.history.events) + 1


def test_position_that_is_refused_is_a_finding(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    history = History()
    reader = RecordingReader("r", history, bootstrap, [(topic, 0)], start=100)
    reader.start()
    refused = Kind.READ, Result.FAIL
    wait_until(lambda: any((e.kind, e.result) == refused for e in history.events), "a refusal")
    reader.stop()
    assert "vanished" in kinds(check(history))


def test_wiped_broker_has_no_data(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = metadata_url("sqlite", tmp_path, request)
    with Cluster(tmp_path, url, nodes=[1]) as alone:
        data = alone.brokers[1].data
        with pytest.raises(AssertionError, match="broker 1 runs"):
            alone.wipe(1)
        alone.pause(1)
        alone.kill(1)
        assert [*data.iterdir()]
        alone.wipe(1)
        assert not data.exists()


def test_output_of_brokers_is_kept_after_a_failure(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = metadata_url("sqlite", tmp_path, request)
    alone = Cluster(tmp_path, url, nodes=[1])

    def fail_while_paused() -> None:
        with alone:
            alone.pause(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fail_while_paused()
    log = tmp_path / "broker-1.log"
    assert "kafkawire listens on" in log.read_text()
    assert str(log) in caught.value.__notes__[0]
    assert not alone.brokers[1].running
