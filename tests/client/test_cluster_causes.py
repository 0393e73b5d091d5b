"""Sentences about brokers: each rule on clusters built by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kafkawire.client.cluster_causes import ObservedCluster, causes
from kafkawire.client.placement import PlannedMove

BOTH = {1: True, 2: True}
T0, T1, T2 = (("t", index) for index in range(3))


def found(alive: Mapping[int, bool], *leaders: int, **more: Any) -> dict[tuple[int, str], bool]:
    """Whether each finding is about what is stuck; `leaders`: of the partitions of a topic."""
    replicas = {("t", index): leader for index, leader in enumerate(leaders)}
    seen = causes(ObservedCluster(alive, replicas, **more))
    assert [cause.broker for cause in seen] == sorted(cause.broker for cause in seen)
    return {(cause.broker, cause.kind): cause.stuck for cause in seen}


def sentence(kind: str, alive: Mapping[int, bool], *leaders: int, **more: Any) -> str:
    replicas = {("t", index): leader for index, leader in enumerate(leaders)}
    (cause,) = [
        each for each in causes(ObservedCluster(alive, replicas, **more)) if each.kind == kind
    ]
    return cause.sentence


def test_living_brokers_lead_partitions() -> None:
    assert found(BOTH, 1, 1) == {(1, "serves"): False, (2, "serves"): False}
    assert sentence("serves", {1: True}, 1, 1) == "It leads 2 partitions."


def test_partitions_of_a_broker_that_is_not_alive_are_not_served() -> None:
    gone = {1: True, 3: False}
    assert found(gone, 1, 3) == {(1, "serves"): False, (3, "not-alive"): True}
    assert sentence("not-alive", gone, 1, 3).endswith(
        " 1 partition not served until it is started: no machine takes brokers over"
        " (cluster.takeover.enable)."
    )


def test_machines_that_take_over_are_named() -> None:
    alive = {1: True, 2: True, 3: False}
    assert sentence("not-alive", alive, 3, takes_over=[2, 1]).endswith(
        "1 partition not served until the machine of broker 1 or 2 takes it over, usually within"
        " seconds, or it is started."
    )


def test_broker_that_leads_nothing_and_is_not_alive_can_be_removed() -> None:
    gone = {1: True, 3: False}
    assert found(gone, 1) == {(1, "serves"): False, (3, "not-alive"): False}
    assert "`kafkawire cluster remove 3`" in sentence("not-alive", gone, 1)


def test_partitions_of_a_stopped_broker_come_back() -> None:
    moves = [PlannedMove(T0, 1, 3), PlannedMove(T1, 1, 3)]
    stopped = sentence("not-alive", {1: True, 3: False}, 1, 1, moves=moves)
    assert stopped.endswith(
        "It leads no partition: 2 partitions to be moved to it when it is started."
    )


def test_leader_that_is_not_listed_cannot_be_reached() -> None:
    assert found({1: True}, 4, 4) == {(1, "serves"): False, (4, "not-listed"): True}
    assert "2 partitions cannot" in sentence("not-listed", {1: True}, 4, 4)
    assert found({1: True}, -1) == {(1, "serves"): False}


@pytest.mark.parametrize(
    ("leaders", "moves", "expected"),
    [
        ([2], [], {"drained": False}),
        ([1, 1], [(T0, 2), (T1, 2)], {"draining": False, "moving": False}),
        ([1, 1, 2], [(T0, 2)], {"draining": False, "no-target": True, "moving": False}),
        ([1], [], {"draining": False, "no-target": True}),
    ],
)
def test_drain_has_what_is_left(
    leaders: list[int], moves: list[tuple[Any, int]], expected: dict[str, bool]
) -> None:
    planned = [PlannedMove(partition, 1, target) for partition, target in moves]
    seen = found(BOTH, *leaders, draining=[1], moves=planned)
    assert seen == {**{(1, kind): stuck for kind, stuck in expected.items()}, (2, "serves"): False}


def test_numbers_of_a_drain() -> None:
    more: dict[str, Any] = {"draining": [1], "moves": [PlannedMove(T0, 1, 2)]}
    left = "It is being drained: 3 partitions left, 1 move planned."
    assert sentence("draining", BOTH, 1, 1, 1, **more) == left
    assert sentence("no-target", BOTH, 1, 1, 1, **more).startswith("2 partitions without a target")


def test_moves_wait_for_brokers_that_are_not_alive() -> None:
    moves = [PlannedMove(T0, 1, 2), PlannedMove(T1, 1, 3)]
    alive = {1: True, 2: True, 3: False}
    seen = found(alive, 1, 1, moves=moves)
    assert (seen[1, "moving"], seen[1, "waits-for-target"]) == (False, False)
    assert "broker 3: they wait" in sentence("waits-for-target", alive, 1, 1, moves=moves)
    seen = found({1: False, 2: True, 3: True}, 1, 1, moves=moves)
    assert {kind for node, kind in seen if node == 1} == {"not-alive", "waits-for-leader"}


def test_moves_wait_for_open_transactions() -> None:
    moves = [PlannedMove(T0, 1, 2), PlannedMove(T1, 1, 2)]
    seen = found(BOTH, 1, 1, moves=moves, in_transaction={T1, T2})
    assert seen[1, "open-transactions"]
    text = sentence("open-transactions", BOTH, 1, 1, moves=moves, in_transaction={T1, T2})
    assert text.startswith("1 partition to be moved when")


def test_replicas_that_are_not_in_sync_are_named() -> None:
    alive, replicas = {1: True, 2: False}, {("t", 0): 1, ("t", 1): 2}
    (found,) = [
        each
        for each in causes(ObservedCluster(alive, replicas, out_of_sync={1: [2, 3], 2: [3]}))
        if each.kind == "replicas-out-of-sync"
    ]
    assert found.broker == 1
    assert not found.stuck
    assert "The machine of broker 2 and of broker 3 is not in sync with it" in found.sentence


@pytest.mark.parametrize(
    ("leaders", "expected", "says"),
    [
        ([2], {"decommissioning": False}, "It leads no partition. Their new leaders copy"),
        ([1], {"decommissioning": False, "no-target": True}, "1 partition left, 0 moves planned"),
    ],
)
def test_decommissioned_broker_says_what_is_left(
    leaders: list[int], expected: dict[str, bool], says: str
) -> None:
    seen = found(BOTH, *leaders, decommissioning=[1])
    assert seen == {**{(1, kind): stuck for kind, stuck in expected.items()}, (2, "serves"): False}
    text = sentence("decommissioning", BOTH, *leaders, decommissioning=[1])
    assert text.startswith("It is being decommissioned: ")
    assert says in text


def test_produces_that_are_refused_for_lack_of_replicas_are_stuck() -> None:
    lacks = {"out_of_sync": {2: [1]}, "in_sync": {2: 1}, "needed": {2: 2}, "replicated": [1]}
    gone = {1: False, 2: True}
    assert found(gone, 1, 2, takes_over=[2], **lacks) == {
        (1, "not-alive"): True,
        (2, "serves"): False,
        (2, "replicas-refused"): True,
    }
    assert sentence("replicas-refused", gone, 1, 2, **lacks) == (
        "1 replica in sync, and min.insync.replicas=2: produces are refused until the follower on "
        "the machine of broker 1 has its log."
    )
    assert sentence("not-alive", gone, 1, 2, takes_over=[2], **lacks).endswith(
        "1 partition not served until 2 machines run: a start waits for their followers "
        "(min.insync.replicas)."
    )
    enough = {**lacks, "in_sync": {1: 2, 2: 2}, "needed": {2: 2}}
    assert found(BOTH, 1, 2, **enough)[2, "replicas-out-of-sync"] is False
