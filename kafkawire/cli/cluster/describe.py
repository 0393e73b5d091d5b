"""`kafkawire cluster describe`: the cluster and its brokers, from any Kafka broker or a data
folder."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from kafkawire.cli.shared.data_folder import open_metadata
from kafkawire.cli.shared.outcomes import connect_cluster
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import LOCAL, BrokerOrFolder, Json, Server, Wide
from kafkawire.cli.shared.source import folder_or_server
from kafkawire.cli.shared.tables import TableColumn, print_table
from kafkawire.client.cluster import Cluster
from kafkawire.client.configs import broker_settings
from kafkawire.client.errors import ClientError
from kafkawire.log_lines import address_of
from kafkawire.plural import count
from kafkawire.units import size

LIVE = 1
NAME = "cluster.name"
STORED = (
    "broker",
    "listeners",
    "partitions",
    "segments",
    TableColumn("bytes", show=size),
    "journals",
    "checkpoint",
    "rack",
)


def describe(
    source: BrokerOrFolder = "",
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Show the cluster ID and the brokers, of a data folder also what is stored.

    The replicas of a broker are those of the partitions that it leads. A replica is shown as in
    sync if it is in sync for all of them.

    Examples:
      kafkawire cluster describe
      kafkawire cluster describe --source kafkawire-data
    """
    folder, server = folder_or_server(source, server)
    if folder is not None:
        _describe_stored(folder, as_json, wide)
        return
    with connect_cluster(server) as cluster:
        answer = cluster.metadata(None)
        name = _name_of(cluster)
    led = replicas_led(answer.topics)
    brokers = [
        {
            "broker": row.node_id,
            "address": address_of(row.host, row.port),
            "rack": row.rack,
            "controller": row.node_id == answer.controller_id,
            **led.get(row.node_id, {"replicas": [], "in_sync": []}),
        }
        for row in sorted(answer.brokers, key=lambda row: row.node_id)
    ]
    if as_json:
        shown = {
            "cluster_id": answer.cluster_id,
            "cluster_name": name,
            "controller": answer.controller_id,
        }
        print_json({**shown, "brokers": brokers})
    else:
        columns = (
            "broker",
            "address",
            "rack",
            "controller",
            TableColumn("replicas", "replica ids"),
            TableColumn("in_sync", "in-sync ids"),
        )
        print_table(brokers, columns, _title(name, answer.cluster_id), wide)


def _name_of(cluster: Cluster) -> str | None:
    """Return the setting cluster.name; None without one, or the right to read it."""
    try:
        return broker_settings(cluster, [NAME]).get(NAME) or None
    except ClientError:
        return None


def _title(name: str | None, cluster_id: str) -> str:
    return f"cluster {cluster_id}" if name is None else f"cluster {name} ({cluster_id})"


def replicas_led(topics: Iterable[Any]) -> dict[int, dict[str, list[int]]]:
    """Return for each broker that leads partitions the replicas of all of them together, and those
    of these replicas that are out of sync in none. `topics`: of a MetadataResponse."""
    replicas: dict[int, set[int]] = defaultdict(set)
    out_of_sync: dict[int, set[int]] = defaultdict(set)
    for topic in topics:
        for row in topic.partitions:
            replicas[row.leader_id] |= {*row.replica_nodes}
            out_of_sync[row.leader_id] |= {*row.replica_nodes} - {*row.isr_nodes}
    return {
        leader: {"replicas": sorted(nodes), "in_sync": sorted(nodes - out_of_sync[leader])}
        for leader, nodes in replicas.items()
    }


def _describe_stored(data: str, as_json: bool, wide: bool) -> None:
    """Show cluster and brokers as stored in a data folder, which a broker may be using."""
    try:
        shown = _load_stored(data)
    except ClientError as error:
        fail(error)
    if as_json:
        print_json(shown)
        return
    print_table(
        [{**row, "listeners": _addresses(row["listeners"])} for row in shown["brokers"]],
        STORED,
        f"cluster {shown['cluster_id']}: {count(shown['topics'], 'topic')}, "
        f"{count(shown['partitions'], 'partition')}",
        wide,
    )


def _load_stored(data: str) -> dict[str, Any]:
    with open_metadata(data) as session:

        def number(query: str, *values: int) -> int:
            return int((session.rows(query, values) or [(0,)])[0][0])

        living = "JOIN topics t ON t.id = p.topic_id WHERE t.deleted_ms IS NULL"
        ((cluster_id,),) = session.rows("SELECT cluster_id FROM cluster")
        brokers = []
        query = "SELECT node_id, listeners, rack FROM brokers ORDER BY node_id"
        for node, listeners, rack in session.rows(query):
            log_position = number("SELECT place FROM checkpoints WHERE node_id = ?", node)
            segments = f"FROM segments WHERE node_id = ? AND state = {LIVE}"
            led = (
                "SELECT count(*) FROM partitions p JOIN lead_groups g ON g.id = p.lead_group"
                f" {living} AND g.leader = ?"
            )
            brokers.append(
                {
                    "broker": node,
                    "listeners": json.loads(listeners),
                    "rack": rack,
                    "partitions": number(led, node),
                    "checkpoint": f"{log_position >> 32}:{log_position & 0xFFFFFFFF}",
                    "segments": number(f"SELECT count(*) {segments}", node),
                    "bytes": number(f"SELECT coalesce(sum(size_bytes), 0) {segments}", node),
                    "journals": _journals(data, node),
                }
            )
        return {
            "cluster_id": cluster_id,
            "topics": number("SELECT count(*) FROM topics WHERE deleted_ms IS NULL"),
            "partitions": number(f"SELECT count(*) FROM partitions p {living}"),
            "brokers": brokers,
        }


def _journals(data: str, node: int) -> int | None:
    """Count the journals of a broker; None if its log is not in this folder."""
    try:
        names = os.listdir(os.path.join(data, "brokers", str(node), "journals"))
    except OSError:
        return None
    return sum(name.endswith(".journal") for name in names)


def _addresses(listeners: dict[str, list[Any]]) -> str:
    return ", ".join(
        f"{name}://{address_of(host, port)}" for name, (host, port) in listeners.items()
    )
