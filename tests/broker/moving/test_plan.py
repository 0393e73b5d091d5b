"""Decisions about planned moves.

Covers: kafkawire.broker.moving.plan.
"""

from __future__ import annotations

import pytest

from kafkawire.broker.moving.plan import (
    DRAINING,
    STOPPING,
    is_available,
    is_draining,
    loads,
    moves_anywhere,
    other_replicas,
    refusal,
    share_folder,
    spread_over,
    targets_of,
)
from kafkawire.metadata.catalog import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    DECOMMISSIONING,
    BrokerInfo,
    Catalog,
    ConfigChange,
    NewTopic,
    Replicas,
)
from kafkawire.metadata.directory import local_group
from kafkawire.metadata.rows import new_topic


def cluster(**folders: str | None) -> Catalog:
    """Brokers 1 and up: `n1="a"` is broker 1 with data folder a."""
    made = Catalog("c")
    for name, folder in folders.items():
        made.add_broker(BrokerInfo(int(name[1:]), {}, None, folder=folder))
        made.set_groups([local_group(int(name[1:]))])
    return made


def drain(catalog: Catalog, node: str, value: str | None) -> None:
    catalog.apply_config(ConfigChange(BROKER_RESOURCE, node, DRAINING, value))


def test_only_brokers_of_one_folder_take_partitions_of_each_other() -> None:
    catalog = cluster(n1="a", n2="a", n3="b", n4=None, n5=None)
    assert share_folder(catalog, 1, 2)
    assert not share_folder(catalog, 1, 3)
    assert not share_folder(catalog, 4, 5)  # of an older version: unknown folders
    assert not share_folder(catalog, 1, 9)
    assert refusal(catalog, 1, 2, 1) is None
    assert refusal(catalog, 3, 3, 1) is None
    assert refusal(catalog, 1, 9, 1) == "Broker 9 is not registered."
    assert "data folder of broker 1" in (refusal(catalog, 1, 3, 1) or "")
    assert targets_of(catalog, 1, [1, 2, 3, 4], anywhere=False) == [2]
    assert targets_of(catalog, 1, [1, 3], anywhere=False) == []


def test_uploaded_partitions_move_between_folders() -> None:
    catalog = cluster(n1="a", n2="b", n3="a")
    catalog.add_topic(new_topic(NewTopic("local", [1]), b"l" * 16, 1))
    catalog.add_topic(new_topic(NewTopic("remote", [1], {"durability": "s3"}), b"r" * 16, 2))
    assert [moves_anywhere(catalog, number) for number in (1, 2, 3)] == [False, True, False]
    assert "durability=local" in (refusal(catalog, 1, 2, 1) or "")
    assert refusal(catalog, 1, 2, 2) is None
    assert targets_of(catalog, 1, [1, 2, 3], anywhere=True) == [2, 3]


@pytest.mark.parametrize(("value", "draining"), [("true", True), ("TRUE", True), ("false", False)])
def test_draining_broker_is_no_target(value: str, draining: bool) -> None:
    catalog = cluster(n1="a", n2="a", n3="a")
    drain(catalog, "2", value)
    assert is_draining(catalog, 2) is draining
    assert is_available(catalog, 2) is not draining
    assert refusal(catalog, 1, 2, 1) is None  # it may be available later
    assert targets_of(catalog, 1, [1, 2, 3], anywhere=False) == ([3] if draining else [2, 3])
    drain(catalog, "2", None)
    assert targets_of(catalog, 1, [1, 2, 3], anywhere=False) == [2, 3]


def test_broker_that_stops_is_no_target() -> None:
    catalog = cluster(n1="a", n2="a", n3="a")
    catalog.apply_config(ConfigChange(BROKER_RESOURCE, "3", STOPPING, "true"))
    catalog.set_silent(frozenset({2}))
    assert [is_available(catalog, node) for node in (1, 2, 3)] == [True, False, False]
    assert targets_of(catalog, 1, [1, 2, 3], anywhere=False) == [2]


def test_targets_lead_about_the_same_number_at_the_end() -> None:
    assert spread_over([5, 6, 7, 8, 9], [2, 3], {2: 3, 3: 0}) == {5: 3, 6: 3, 7: 3, 8: 2, 9: 3}
    assert spread_over([1, 2], [4], {}) == {1: 4, 2: 4}
    assert spread_over([], [4], {}) == {}


def test_planned_moves_count_for_their_target() -> None:
    catalog = cluster(n1="a", n2="a")
    catalog.add_topic(new_topic(NewTopic("t", [1, 1, 1, 2]), b"i" * 16, 1))
    assert loads(catalog) == {1: 3, 2: 1}
    catalog.set_moves({1: 2, 2: 2})
    assert loads(catalog) == {1: 1, 2: 3}
    catalog.remove_topic(b"i" * 16)
    assert (loads(catalog), catalog.moves) == ({}, {})


def test_replicas_of_a_replicated_topic_are_those_of_its_leader() -> None:
    catalog = cluster(n1="a", n2="b", n3="c", n4="d")
    assert other_replicas(catalog, [2, 1, 4]) is None  # those of broker 2 are not known
    catalog.set_replicas({2: Replicas([2, 1, 3], [2, 1])})
    assert other_replicas(catalog, [2]) is None
    assert other_replicas(catalog, [2, 3, 1]) is None
    assert "broker 2 leads are [2, 1, 3]" in (other_replicas(catalog, [2, 1, 4]) or "")
    assert other_replicas(catalog, [2, 1]) is not None


def test_decommissioned_broker_is_drained() -> None:
    catalog = cluster(n1="a", n2="a", n3="a")
    assert catalog.list_decommissioned() == []
    catalog.apply_config(ConfigChange(BROKER_RESOURCE, "2", DECOMMISSIONING, "true"))
    assert catalog.list_decommissioned() == [2]
    assert [is_draining(catalog, node) for node in (1, 2, 3)] == [False, True, False]
    assert not is_available(catalog, 2)
    assert targets_of(catalog, 1, [1, 2, 3], anywhere=False) == [3]
    catalog.apply_config(ConfigChange(BROKER_RESOURCE, "2", DECOMMISSIONING, None))
    assert not is_draining(catalog, 2)
    catalog.apply_config(ConfigChange(BROKER_RESOURCE, ALL_BROKERS, DECOMMISSIONING, "true"))
    assert catalog.list_decommissioned() == [], "never all"
