"""`kafkawire offsets delete GROUP`: delete committed offsets of a group."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, error_text, report
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import LOCAL, Group, Json, Server
from kafkawire.cli.shared.partitions import parse_partitions
from kafkawire.client.admin import delete_offsets
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError
from kafkawire.client.offsets import Partition, fetch_committed_offsets

COLUMNS = ("topic", "partition", "committed")


def delete(
    group: Group,
    topic: Annotated[
        list[str],
        typer.Option(metavar="TOPIC[:0,1,...]", help="Partitions to forget; may be repeated."),
    ] = [],  # noqa: B006
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Forget all committed offsets.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Delete committed offsets of a group.

    The group then begins where its auto.offset.reset says. Topics that a member of the group
    subscribes to are refused.

    Examples:

      kafkawire offsets delete billing --topic orders:0,1

      kafkawire offsets delete billing --all-topics
    """
    try:
        chosen = [parse_partitions("--topic", text) for text in topic]
        if bool(chosen) == all_topics:
            given = "both" if chosen else "none"
            raise OptionError("offsets delete", given, "--topic or --all-topics")
    except OptionError as error:
        fail(error, 2)

    with connect_cluster(server) as cluster:
        known = {place: at for place, (at, _) in fetch_committed_offsets(cluster, group).items()}
        partitions = list(known) if all_topics else _select_partitions(chosen, known)
        codes = delete_offsets(cluster, group, partitions)
        rows = [
            {
                "topic": place[0],
                "partition": place[1],
                "committed": known[place],
                "error": error_text(codes.get(place, 0)),
            }
            for place in sorted(partitions)
        ]
        report(f"{group}, deleted offsets", rows, COLUMNS, as_json)


def _select_partitions(
    chosen: list[tuple[str, list[int] | None]], known: dict[Partition, int]
) -> list[Partition]:
    """Return the named partitions, which must have committed offsets: the topic need not exist."""
    found: dict[Partition, None] = {}
    for name, indexes in chosen:
        of_topic = sorted(index for topic, index in known if topic == name)
        missing = [index for index in indexes or () if index not in of_topic]
        if missing or not of_topic:
            what = f"{name}:{','.join(map(str, missing))}" if missing else f"topic {name}"
            raise ClientError(f"the group has no committed offset of {what}")
        found.update({(name, index): None for index in indexes or of_topic})
    return list(found)
