"""`kafkawire cluster why`: what each broker does, or waits for, in sentences."""

from __future__ import annotations

from kafkawire.cli.cluster.causes import BrokerCause, ObservedCluster, causes
from kafkawire.cli.cluster.moves import DECOMMISSIONING, DRAINING, switched_on
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
    out_of_sync = {
        row.replica_nodes[0]: sorted({*row.replica_nodes} - {*row.isr_nodes})
        for _, row in rows
        if len(row.isr_nodes) < len(row.replica_nodes)
    }
    moves = planned_moves(cluster)
    switches = {node: _switched_on(cluster, node) for node, lives in alive.items() if lives}
    return ObservedCluster(
        alive,
        replicas,
        [node for node, names in switches.items() if DRAINING in names],
        moves,
        _in_transaction(cluster, alive, moves),
        [node for node, names in switches.items() if TAKES_OVER in names],
        out_of_sync,
        [node for node, names in switches.items() if DECOMMISSIONING in names],
    )


def _switched_on(cluster: Cluster, node: int) -> set[str]:
    try:
        return switched_on(cluster, node)
    except ClientError:
        return set()  # it has ended since, or cannot be reached from here


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
