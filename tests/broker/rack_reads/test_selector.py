"""Which broker of a rack serves a partition, and which clients are sent there."""

from __future__ import annotations

import pytest

from kafkawire.broker.moving.plan import DRAINING
from kafkawire.broker.rack_reads import redirects as redirects_module
from kafkawire.broker.rack_reads.redirects import STAY_S, Redirects
from kafkawire.broker.rack_reads.selector import ReplicaSelector
from kafkawire.metadata.catalog import BROKER_RESOURCE, BrokerInfo, Catalog, ConfigChange

ME, PLAIN = 1, "PLAINTEXT"
RACKS = {1: "a", 2: "b", 3: "b", 4: "c", 5: None, 6: "a"}


@pytest.fixture
def catalog() -> Catalog:
    made = Catalog("c")
    for node, rack in RACKS.items():
        listeners = {} if node == ME else {PLAIN: ("host", 9092)}
        made.add_broker(BrokerInfo(node, listeners, rack))
    return made


def selector(catalog: Catalog, *, enabled: bool = True) -> ReplicaSelector:
    return ReplicaSelector(catalog, ME, {PLAIN: ("here", 9092)}, enabled=enabled)


def readers(made: ReplicaSelector, leader: int, rack: str) -> list[int | None]:
    return [made.reader(number, leader, rack, PLAIN) for number in range(4)]


def test_partitions_are_spread_over_the_brokers_of_a_rack(catalog: Catalog) -> None:
    made = selector(catalog)
    assert readers(made, 1, "b") == [2, 3, 2, 3]
    assert readers(made, 1, "c") == [4] * 4
    assert readers(made, 2, "a") == [1, 6, 1, 6]
    assert made.replicas(0, 1, PLAIN) == [1, 2, 4]
    assert made.replicas(1, 2, PLAIN) == [2, 6, 4]


def test_leader_serves_its_own_rack_and_unknown_ones(catalog: Catalog) -> None:
    made = selector(catalog)
    for leader, rack in ((1, "a"), (2, "b"), (1, "elsewhere"), (5, ""), (1, "")):
        assert readers(made, leader, rack) == [None] * 4
    assert readers(made, 5, "c") == [4] * 4  # a leader without a rack is in none
    assert made.reader(0, 1, "b", "OTHER") is None
    assert made.replicas(0, 1, "OTHER") == [1]


def test_brokers_that_are_not_alive_or_drained_serve_nothing(catalog: Catalog) -> None:
    made = selector(catalog)
    assert readers(made, 1, "b") == [2, 3, 2, 3]
    catalog.set_silent(frozenset([2]))
    assert readers(made, 1, "b") == [3] * 4
    catalog.apply_config(ConfigChange(BROKER_RESOURCE, "3", DRAINING, "true"))
    assert readers(made, 1, "b") == [None] * 4
    assert made.replicas(0, 1, PLAIN) == [1, 4]
    catalog.set_silent(frozenset())
    assert readers(made, 1, "b") == [2] * 4


def test_followers_of_the_rack_come_first(catalog: Catalog) -> None:
    made = selector(catalog)
    assert made.reader_among([3, 4], 0, 1, "b", PLAIN) == 3
    assert made.reader_among([4, 6], 0, 1, "b", PLAIN) is None
    assert made.reader_among([1, 6], 0, 1, "a", PLAIN) is None, "the rack of the leader"


def test_without_the_setting_there_are_no_readers(catalog: Catalog) -> None:
    made = selector(catalog, enabled=False)
    assert readers(made, 1, "b") == [None] * 4
    assert made.replicas(0, 1, PLAIN) == [1]


def test_client_that_comes_back_with_its_offset_stays() -> None:
    known = Redirects()
    assert known.allows(7, 100, 1, 0.0)
    assert known.allows(7, 100, 1, 0.0), "the same request, decided again"
    assert known.allows(7, 200, 2, 1.0), "it has got records"
    assert known.allows(8, 200, 2, 1.0)
    assert not known.allows(7, 200, 3, 2.0)
    assert not known.allows(7, 250, 4, 1.0 + STAY_S)
    assert known.allows(8, 300, 4, 3.0)
    assert known.allows(7, 300, 5, 3.0 + STAY_S)


def test_client_that_has_waited_elsewhere_is_sent_away_again() -> None:
    """It returns when its metadata is too old, and no record came meanwhile."""
    known = Redirects()
    assert known.allows(7, 100, 1, 0.0)
    assert known.allows(7, 100, 2, STAY_S)
    assert not known.allows(7, 100, 3, STAY_S + 1)


def test_known_partitions_of_a_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redirects_module, "MAX_KNOWN", 2)
    known = Redirects()
    for number in range(3):
        assert known.allows(number, 0, 1, 0.0)
    assert known.allows(0, 0, 2, 0.0)  # forgotten
    assert not known.allows(2, 0, 2, 0.0)
