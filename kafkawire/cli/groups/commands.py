"""`kafkawire groups`: list, describe, delete, against any Kafka broker.

Resetting offsets is in kafkawire.cli.groups.reset_offsets. Each function is one command.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outcomes import connected, error_text, print_results, report
from kafkawire.cli.shared.output import print_json
from kafkawire.cli.shared.parameters import LOCAL, Groups, Json, Server
from kafkawire.cli.shared.tables import print_table
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError, check
from kafkawire.client.offsets import LATEST, Partition, committed, leaders, list_offsets
from kafkawire.codec.errors import ErrorCode


def list_groups(
    server: Server = LOCAL,
    state: Annotated[list[str], typer.Option(help="List only groups in this state.")] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """List groups with state and type."""
    from kafkawire.messages.list_groups import ListGroupsRequest

    with connected(server) as cluster:
        rows = []
        for node in cluster.nodes():
            asked = ListGroupsRequest(states_filter=list(state))
            answer = cluster.node(node).request(16, asked)
            check(f"groups of broker {node}", answer.error_code)
            rows += [
                {
                    "group": row.group_id,
                    "state": row.group_state,
                    "type": row.group_type,
                    "protocol": row.protocol_type,
                    "coordinator": node,
                }
                for row in answer.groups
            ]
        rows.sort(key=lambda row: row["group"])
        columns = ("group", "state", "type", "protocol", "coordinator")
        print_results(rows, columns, "groups", as_json)


def describe_groups(names: Groups, server: Server = LOCAL, as_json: Json = False) -> None:
    """Show members, committed offsets and lag of groups."""

    with connected(server) as cluster:
        groups = [_describe(cluster, name) for name in names]
        if as_json:
            print_json(groups)
            return
        for group in groups:
            head = f"{group['group']}: {group['state']}"
            print_table(
                group["members"],
                ("member", "instance", "client", "host", "assigned"),
                f"{head}, members",
            )
            columns = ("topic", "partition", "committed", "latest", "lag", "metadata", "member")
            print_table(group["offsets"], columns, f"{group['group']}, offsets")


def _describe(cluster: Cluster, name: str) -> dict[str, Any]:
    from kafkawire.messages.describe_groups import DescribeGroupsRequest

    answer = cluster.coordinator(name).request(15, DescribeGroupsRequest(groups=[name])).groups[0]
    if answer.group_state == "Dead" and not answer.error_code:
        answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND  # versions before 6 have no error for it
    check(f"group {name}", answer.error_code, answer.error_message)
    members = []
    owner: dict[Partition, str] = {}
    for member in answer.members:
        assigned = (
            assignment(member.member_assignment) if answer.protocol_type == "consumer" else []
        )
        owner.update(dict.fromkeys(assigned, member.member_id))
        members.append(
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.client_host,
                "assigned": [f"{topic}-{index}" for topic, index in assigned],
            }
        )
    return {
        "group": name,
        "state": answer.group_state,
        "protocol": answer.protocol_data,
        "members": members,
        "offsets": _offsets(cluster, name, owner),
    }


def _offsets(cluster: Cluster, name: str, owner: dict[Partition, str]) -> list[dict[str, Any]]:
    """Return one row per partition that is committed or assigned; lag is None if it is not
    known."""
    offsets = committed(cluster, name)
    partitions = sorted(set(offsets) | set(owner))
    latest: dict[Partition, int] = {}
    for topic in {topic for topic, _ in partitions}:
        try:
            led_by = leaders(cluster, [topic])
        except ClientError:
            continue  # a deleted topic may still have committed offsets: show them without lag
        wanted = {p: LATEST for p in partitions if p[0] == topic and p in led_by}
        latest.update(list_offsets(cluster, wanted, led_by))
    rows = []
    for partition in partitions:
        at, metadata = offsets.get(partition, (None, None))
        end = latest.get(partition)
        rows.append(
            {
                "topic": partition[0],
                "partition": partition[1],
                "committed": at,
                "latest": end,
                "lag": None if at is None or end is None else max(0, end - at),
                "metadata": metadata or None,
                "member": owner.get(partition),
            }
        )
    return rows


def assignment(data: bytes) -> list[Partition]:
    """Return the partitions in a consumer's assignment (ConsumerProtocolAssignment, any version:
    later ones only append fields); empty for other bytes."""
    found: list[Partition] = []
    try:
        (count,) = struct.unpack_from(">2xi", data, 0)
        at = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", data, at)
            topic = data[at + 2 : at + 2 + length].decode("utf-8")
            (indexes,) = struct.unpack_from(">i", data, at + 2 + length)
            at += 6 + length
            if not 0 <= indexes * 4 <= len(data) - at:
                return []
            found += [(topic, index) for index in struct.unpack_from(f">{indexes}i", data, at)]
            at += 4 * indexes
    except (struct.error, UnicodeDecodeError):
        return []
    return found


def delete_groups(names: Groups, server: Server = LOCAL, as_json: Json = False) -> None:
    """Delete empty groups and their committed offsets."""
    from kafkawire.messages.delete_groups import DeleteGroupsRequest

    with connected(server) as cluster:
        rows: list[dict[str, Any]] = []
        for name in names:
            asked = DeleteGroupsRequest(groups_names=[name])
            for row in cluster.coordinator(name).request(42, asked).results:
                error = error_text(row.error_code, row.error_message)
                rows.append({"group": row.group_id, "error": error})
        report("deleted", rows, ("group",), as_json)
