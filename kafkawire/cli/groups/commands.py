"""`kafkawire groups`: list, describe, delete, against any Kafka broker.

Resetting offsets is in kafkawire.cli.groups.reset_offsets. Each function is one command.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, error_text, print_results, report
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import LOCAL, Groups, Json, Server, Wide
from kafkawire.cli.shared.tables import TableColumn, print_table
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.groups import CONSUMER, SHARE, STREAMS, GroupDescription, describe_group
from kafkawire.client.groups import list_groups as groups_of
from kafkawire.client.notation import OptionError
from kafkawire.client.offsets import (
    LATEST,
    Partition,
    fetch_committed_offsets,
    leaders,
    list_offsets,
    partitions_text,
)
from kafkawire.client.share_groups import fetch_share_offsets
from kafkawire.plural import count

STATES = (
    "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Assigning", "Reconciling",
    "NotReady", "Dead", "Unknown",
)  # fmt: skip
"""The states of a group in Kafka (org.apache.kafka.common.GroupState)."""
MEMBERS = ("client", TableColumn("assigned", keep=True), "host", "instance", "member")
CONSUMER_MEMBERS = (
    "client", "epoch", TableColumn("assigned", keep=True), TableColumn("target", keep=True), "host",
    "instance", "member",
)  # fmt: skip
"""Of a group of KIP-848: `target` are the partitions that a member is to have."""
SHARE_MEMBERS = ("client", "epoch", TableColumn("assigned", keep=True), "host", "member")
"""Of a share group: several members may have the same partition."""
STREAMS_MEMBERS = (
    "client", "epoch", TableColumn("tasks", keep=True), TableColumn("standby", keep=True),
    TableColumn("warmup", keep=True), TableColumn("target_tasks", keep=True), "process", "host",
    "instance", "member",
)  # fmt: skip
"""Of a streams group: subtopologies and partitions of its active, standby and warm-up tasks, and of
the active ones that it is to have."""
TOPOLOGY = ("subtopology", "sources", "sinks", "changelogs")
COLUMNS: dict[str, tuple[TableColumn | str, ...]] = {
    CONSUMER: CONSUMER_MEMBERS,
    SHARE: SHARE_MEMBERS,
    STREAMS: STREAMS_MEMBERS,
}
OFFSETS = ("topic", "partition", "lag", "committed", "log_end", "member", "metadata")


def list_groups(
    server: Server = LOCAL,
    state: Annotated[
        list[str],
        typer.Option(help="List only groups in this state, such as Stable; may be repeated."),
    ] = [],  # noqa: B006
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """List groups with state and type.

    Examples:
      kafkawire groups list
      kafkawire groups list --state Stable --state Empty
    """
    try:
        states = [_state(text) for text in state]
    except OptionError as error:
        fail(error, 2)
    with connect_cluster(server) as cluster:
        rows = [
            {
                "group": row.group,
                "state": row.state,
                "type": row.kind,
                "protocol": row.protocol_type,
                "coordinator": row.coordinator,
            }
            for row in groups_of(cluster, states=states)
        ]
        columns = ("group", "state", "type", "protocol", "coordinator")
        print_results(rows, columns, count(len(rows), "group"), as_json, wide)


def _state(text: str) -> str:
    """Return the state as Kafka spells it. OptionError."""
    known = {state.lower(): state for state in STATES}
    if text.lower() not in known:
        raise OptionError("--state", text, "one of " + ", ".join(STATES))
    return known[text.lower()]


def describe_groups(
    names: Groups, server: Server = LOCAL, as_json: Json = False, wide: Wide = False
) -> None:
    """Show members, committed offsets and lag of groups.

    Examples:
      kafkawire groups describe kitchen
      kafkawire groups describe kitchen billing --json
    """
    with connect_cluster(server) as cluster:
        groups = [_describe(cluster, name) for name in names]
        if as_json:
            print_json(groups)
            return
        for group in groups:
            title = f"{group['group']}: {group['state']}, {count(len(group['members']), 'member')}"
            columns = COLUMNS.get(group["type"], MEMBERS)
            if group["type"] in COLUMNS:
                title += f", {group['type']} group in epoch {group['epoch']}"
                if group["assignment_epoch"] != group["epoch"]:
                    title += f", assignment of epoch {group['assignment_epoch']}"
            print_table(group["members"], columns, title, wide)
            if group["topology"]:
                print_table(group["topology"], TOPOLOGY, f"{group['group']}, topology", wide)
            title = f"{group['group']}, {count(len(group['offsets']), 'partition')}"
            print_table(group["offsets"], OFFSETS, title, wide)


def _describe(cluster: Cluster, name: str) -> dict[str, Any]:
    found = describe_group(cluster, name)
    members = [
        {
            "member": member.member,
            "instance": member.instance,
            "client": member.client,
            "host": member.host,
            "assigned": partitions_text(member.assigned),
            "epoch": member.epoch,
            "target": None if member.target is None else partitions_text(member.target),
            "tasks": None if member.tasks is None else partitions_text(member.tasks.active),
            "standby": None if member.tasks is None else partitions_text(member.tasks.standby),
            "warmup": None if member.tasks is None else partitions_text(member.tasks.warmup),
            "target_tasks": None if member.tasks is None else partitions_text(member.tasks.target),
            "process": None if member.tasks is None else member.tasks.process,
        }
        for member in found.members
    ]
    return {
        "group": name,
        "state": found.state,
        "type": found.kind,
        "protocol": found.protocol,
        "epoch": found.epoch,
        "assignment_epoch": found.assignment_epoch,
        "members": members,
        "topology": [
            {
                "subtopology": each.name,
                "sources": each.sources,
                "sinks": each.sinks,
                "changelogs": each.changelogs,
            }
            for each in found.topology
        ],
        "offsets": _offsets(cluster, found),
    }


def _offsets(cluster: Cluster, group: GroupDescription) -> list[dict[str, Any]]:
    """Return one row per partition that is committed or assigned; lag is None if it is not known.
    What a share group has committed is the first record that it has not finished; it counts those
    after it that it has."""
    owner: dict[Partition, str | None] = {
        place: member.member for member in group.members for place in member.assigned
    }
    offsets: dict[Partition, tuple[int | None, str | None]] = {}
    lags: dict[Partition, int | None] = {}
    if group.kind == SHARE:
        owner = dict.fromkeys(owner, None)
        for place, known in fetch_share_offsets(cluster, group.group, group.coordinator).items():
            offsets[place], lags[place] = (known.start, None), known.lag
    else:
        offsets |= fetch_committed_offsets(cluster, group.group)
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
        lag = None if at is None or end is None else max(0, end - at)
        rows.append(
            {
                "topic": partition[0],
                "partition": partition[1],
                "committed": at,
                "log_end": end,
                "lag": lag if lags.get(partition) is None else lags[partition],
                "metadata": metadata or None,
                "member": owner.get(partition),
            }
        )
    return rows


def delete_groups(names: Groups, server: Server = LOCAL, as_json: Json = False) -> None:
    """Delete empty groups and their committed offsets.

    Examples:
      kafkawire groups delete kitchen
    """
    from kafkawire.messages.delete_groups import DeleteGroupsRequest

    with connect_cluster(server) as cluster:
        rows: list[dict[str, Any]] = []
        for name in names:
            asked = DeleteGroupsRequest(groups_names=[name])
            for row in cluster.coordinator(name).request(42, asked).results:
                error = error_text(row.error_code, row.error_message)
                rows.append({"group": row.group_id, "error": error})
        report("deleted", rows, ("group",), as_json)
