"""Reasons why partitions of a cluster are not served or not moved, as sentences.

`causes` judges an observation of a cluster and is pure; `observe_cluster` makes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster, find_registered_brokers
from kafkawire.client.configs import broker_settings
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import Partition
from kafkawire.client.placement import (
    DECOMMISSIONING,
    DRAINING,
    PlannedMove,
    planned_moves,
    switched_on,
)
from kafkawire.client.transaction_admin import producers
from kafkawire.plural import count


@dataclass(frozen=True, slots=True)
class ObservedCluster:
    """A cluster. `alive`: whether each registered broker with an address for this client is alive;
    `replicas`: the broker of each partition, which leads it while it is alive; `in_transaction`:
    partitions to be moved that have an open transaction; `takes_over`: living brokers whose machine
    takes over brokers of others; `out_of_sync`: by leader, the replicas of what it leads with
    durability=replicated that are not in sync, or not there; `decommissioning`: living brokers that
    are to leave the cluster; `needed`: min.insync.replicas of living brokers; `in_sync`: by leader,
    how many replicas are in sync and there; `replicated`: brokers that are not alive, and lead
    partitions with replicas."""

    alive: Mapping[int, bool]
    replicas: Mapping[Partition, int]
    draining: Collection[int] = ()
    moves: Sequence[PlannedMove] = ()
    in_transaction: Collection[Partition] = ()
    takes_over: Collection[int] = ()
    out_of_sync: Mapping[int, Collection[int]] = field(default_factory=dict)
    decommissioning: Collection[int] = ()
    needed: Mapping[int, int] = field(default_factory=dict)
    in_sync: Mapping[int, int] = field(default_factory=dict)
    replicated: Collection[int] = ()
    counts: Counter[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", Counter(self.replicas.values()))

    def moves_of(self, node: int) -> list[PlannedMove]:
        """Return the moves from a broker that have not ended."""
        return [move for move in self.moves if move.leader == node]


class BrokerCause(NamedTuple):
    """One finding about a broker. `stuck`: partitions are not served or not moved."""

    broker: int
    kind: str
    stuck: bool
    sentence: str


def causes(seen: ObservedCluster) -> list[BrokerCause]:
    """Return what there is to say about each broker, at least one sentence, in order of ids."""
    nodes = sorted({*seen.alive, *seen.replicas.values(), *(move.leader for move in seen.moves)})
    return [cause for node in nodes if node >= 0 for cause in _of(seen, node)]


def _of(seen: ObservedCluster, node: int) -> Iterator[BrokerCause]:
    led = count(seen.counts[node], "partition")
    if node not in seen.alive:
        yield BrokerCause(
            node, "not-listed", True,
            f"It has no address for this client, or is not alive: {led} cannot be reached.",
        )  # fmt: skip
    elif not seen.alive[node]:
        yield from _not_alive(seen, node)
    elif node in seen.draining or node in seen.decommissioning:
        yield from _draining(seen, node)
    else:
        yield BrokerCause(node, "serves", False, f"It leads {led}.")
    if seen.alive.get(node, False) and seen.out_of_sync.get(node):
        yield _out_of_sync(seen, node)
    yield from _moving(seen, node)


def _out_of_sync(seen: ObservedCluster, node: int) -> BrokerCause:
    others = _all(seen.out_of_sync[node])
    number, needed = seen.in_sync.get(node, 0), seen.needed.get(node, 1)
    if 0 < number < needed:
        return BrokerCause(
            node, "replicas-refused", True,
            f"{count(number, 'replica')} in sync, and min.insync.replicas={needed}: produces are "
            f"refused until the follower on the machine of {others} has its log.",
        )  # fmt: skip
    return BrokerCause(
        node, "replicas-out-of-sync", False,
        f"The machine of {others} is not in sync with it: acks=all does not wait for it, and with "
        "fewer than min.insync.replicas produces are refused.",
    )  # fmt: skip


def _not_alive(seen: ObservedCluster, node: int) -> Iterator[BrokerCause]:
    why = "It is not alive: it has stored no heartbeat for its lease.ms, or was shut down."
    number = seen.counts[node]
    if number:
        until = (
            f"the machine of {_either(seen.takes_over)} takes it over, usually within seconds, or "
            "it is started"
            if seen.takes_over and _enough(seen, node)
            else f"{_machines_needed(seen)} run: a start waits for their followers "
            "(min.insync.replicas)"
            if seen.takes_over
            else "it is started: no machine takes brokers over (cluster.takeover.enable)"
        )
        waiting = f"{count(number, 'partition')} not served until {until}"
        yield BrokerCause(node, "not-alive", True, f"{why} {waiting}.")
        return
    back = sum(move.target == node for move in seen.moves)
    means = (
        f"{count(back, 'partition')} to be moved to it when it is started"
        if back
        else f"`kafkawire cluster remove {node}` removes it"
    )
    yield BrokerCause(node, "not-alive", False, f"{why} It leads no partition: {means}.")


def _enough(seen: ObservedCluster, node: int) -> bool:
    """Return whether a start of a broker finds the followers that it needs, if it has any."""
    return node not in seen.replicated or sum(seen.alive.values()) >= max(
        seen.needed.values(), default=1
    )


def _machines_needed(seen: ObservedCluster) -> str:
    return count(max(seen.needed.values(), default=1), "machine")


def _either(nodes: Collection[int]) -> str:
    return "broker " + " or ".join(map(str, sorted(nodes)))


def _all(nodes: Collection[int]) -> str:
    return "broker " + " and of broker ".join(map(str, sorted(nodes)))


def _draining(seen: ObservedCluster, node: int) -> Iterator[BrokerCause]:
    left, planned = seen.counts[node], len(seen.moves_of(node))
    if node in seen.decommissioning:
        what = (
            f"{count(left, 'partition')} left, {count(planned, 'move')} planned. Then the new "
            "leaders copy"
            if left
            else "It leads no partition. Their new leaders copy"
        )
        yield BrokerCause(
            node, "decommissioning", False,
            f"It is being decommissioned: {what} its segments, it deletes what it stored, is "
            "removed from the cluster, and ends.",
        )  # fmt: skip
    elif not left:
        sentence = "It is drained: it leads no partition, and can be stopped."
        yield BrokerCause(node, "drained", False, sentence)
    else:
        yield BrokerCause(
            node, "draining", False,
            f"It is being drained: {count(left, 'partition')} left, {count(planned, 'move')} "
            "planned.",
        )  # fmt: skip
    if left > planned:
        yield BrokerCause(
            node, "no-target", True,
            f"{count(left - planned, 'partition')} without a target: moves are planned within "
            "seconds, unless no other living broker writes to its data folder or all are drained.",
        )  # fmt: skip


def _moving(seen: ObservedCluster, node: int) -> Iterator[BrokerCause]:
    moves = seen.moves_of(node)
    if moves and not seen.alive.get(node, False):
        yield BrokerCause(
            node, "waits-for-leader", True,
            f"{count(len(moves), 'move')} from it: they wait until it is started, because the "
            "leader of a partition moves it.",
        )  # fmt: skip
        return
    for target, number in sorted(Counter(move.target for move in moves).items()):
        if seen.alive.get(target, False):
            sentence = f"{count(number, 'partition')} to be moved to broker {target}."
            yield BrokerCause(node, "moving", False, sentence)
        else:
            yield BrokerCause(
                node, "waits-for-target", False,
                f"{count(number, 'partition')} to be moved to broker {target}: they wait until it "
                f"is alive, and broker {node} serves them.",
            )  # fmt: skip
    held = sum(move.partition in seen.in_transaction for move in moves)
    if held:
        yield BrokerCause(
            node, "open-transactions", True,
            f"{count(held, 'partition')} to be moved when an open transaction has ended: "
            "`kafkawire transactions list` shows it.",
        )  # fmt: skip


TAKES_OVER = "cluster.takeover.enable"
MIN_IN_SYNC = "min.insync.replicas"
OBSERVED = (DRAINING, DECOMMISSIONING, TAKES_OVER, MIN_IN_SYNC)
MAX_DESCRIBED = 100
"""Moving partitions whose producers are requested."""


def observe_cluster(cluster: Cluster) -> ObservedCluster:
    """Raises BrokerError."""
    alive = find_registered_brokers(cluster.first)
    topics = cluster.metadata(None).topics
    rows = [(topic, row) for topic in topics for row in topic.partitions if row.replica_nodes]
    replicas = {(topic.name, row.partition_index): row.replica_nodes[0] for topic, row in rows}
    several = {row.replica_nodes[0]: topic.name for topic, row in rows if row.replica_nodes[1:]}
    own = [_row_of(cluster, leader, name) for leader, name in several.items() if alive.get(leader)]
    led = {row.replica_nodes[0]: row for row in own if row is not None}
    out_of_sync = {
        leader: sorted({*row.replica_nodes} - {*row.isr_nodes}) for leader, row in led.items()
    }
    moves = planned_moves(cluster)
    found = {node: _settings(cluster, node) for node, lives in alive.items() if lives}
    switches = {node: switched_on(each) for node, each in found.items()}
    return ObservedCluster(
        alive,
        replicas,
        [node for node, names in switches.items() if DRAINING in names],
        moves,
        _in_transaction(cluster, alive, moves),
        [node for node, names in switches.items() if TAKES_OVER in names],
        out_of_sync,
        [node for node, names in switches.items() if DECOMMISSIONING in names],
        {node: int(each.get(MIN_IN_SYNC) or 1) for node, each in found.items()},
        {leader: len(row.isr_nodes) for leader, row in led.items()},
        several.keys() - led.keys(),
    )


def _row_of(cluster: Cluster, leader: int, name: str) -> Any:
    """Return a partition of a topic that a broker leads, as that broker itself describes it, which
    alone knows whether its followers are there; None if it cannot be asked."""
    try:
        answer = cluster.metadata([name], node=leader)
    except ClientError:
        return None
    rows = (row for topic in answer.topics for row in topic.partitions)
    return next((row for row in rows if row.replica_nodes[:1] == [leader]), None)


def _settings(cluster: Cluster, node: int) -> dict[str, str | None]:
    try:
        return broker_settings(cluster, OBSERVED, node)
    except ClientError:
        return {}  # it has ended since, or cannot be reached from here


def _in_transaction(
    cluster: Cluster, alive: dict[int, bool], moves: list[PlannedMove]
) -> set[Partition]:
    """Return those of the first moving partitions that have an open transaction."""
    led = {move.partition: move.leader for move in moves if alive.get(move.leader, False)}
    described = dict(list(led.items())[:MAX_DESCRIBED])
    try:
        return {row.partition for row in producers(cluster, described) if row.start_offset >= 0}
    except ClientError:
        return set()  # one was moved meanwhile
