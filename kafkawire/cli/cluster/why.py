"""`kafkawire cluster why`: what each broker does, or waits for, in sentences."""

from __future__ import annotations

from typing import Any

from kafkawire.cli.cluster.causes import BrokerCause, ObservedCluster, causes
from kafkawire.cli.cluster.moves import (
    DECOMMISSIONING,
    DRAINING,
    broker_settings,
    switched_on,
)
from kafkawire.cli.shared.outcomes import connected
from kafkawire.cli.shared.output import print_json
from kafkawire.cli.shared.parameters import LOCAL, Json, Server, Wide
from kafkawire.cli.shared.tables import print_table
from kafkawire.client.cluster import Cluster, registered
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import Partition
from kafkawire.client.placement import PlannedMove, planned_moves
from kafkawire.client.transaction_admin import producers

TAKES_OVER = "cluster.takeover.enable"
MIN_IN_SYNC = "min.insync.replicas"
MAX_DESCRIBED = 100
"""Moving partitions whose producers are requested."""
COLUMNS = ("broker", "stuck", "cause", "sentence")


def why(server: Server = LOCAL, as_json: Json = False, wide: Wide = False) -> None:
    """Explain for each broker what it serves, and why partitions are not served or not moved.

    Checks which brokers are alive, which are drained, and the moves that have not ended, as the
    broker that is asked knows them. Exit code 0 whatever it finds.

    Examples:
      kafkawire cluster why
    """
    with connected(server) as cluster:
        rows = [_row(cause) for cause in causes(observed(cluster))]
    if as_json:
        print_json(rows)
    else:
        shown = [{**row, "stuck": "yes" if row["stuck"] else ""} for row in rows]
        print_table(shown, COLUMNS, "brokers", wide)


def observed(cluster: Cluster) -> ObservedCluster:
    """Observe a cluster. BrokerError."""
    alive = registered(cluster.first)
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


def _settings(cluster: Cluster, node: int) -> dict[str, str]:
    try:
        return broker_settings(cluster, node)
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


def _row(cause: BrokerCause) -> dict[str, object]:
    return {
        "broker": cause.broker,
        "cause": cause.kind,
        "stuck": cause.stuck,
        "sentence": cause.sentence,
    }
