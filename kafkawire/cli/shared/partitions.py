"""Partition arguments of commands: `TOPIC` for all partitions of a topic, `TOPIC:0,1` for some."""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.cli.shared.options import OptionError
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import Partition, leaders

INDEX_DIGITS = 10
"""Maximum digits of an int32."""


def parse_partitions(option: str, text: str) -> tuple[str, list[int] | None]:
    """Parse `TOPIC` (all partitions) or `TOPIC:0,1` into name and indexes or None. OptionError."""
    name, colon, indexes = text.partition(":")
    if not colon and name:
        return name, None
    items = indexes.split(",")
    if not name or not all(item.isdecimal() and len(item) <= INDEX_DIGITS for item in items):
        raise OptionError(option, text, "TOPIC or TOPIC:0,1,...")
    return name, [int(item) for item in items]


def select(
    cluster: Cluster, chosen: Sequence[tuple[str, list[int] | None]]
) -> dict[Partition, int]:
    """Return the named partitions with their leaders. ClientError if one does not exist."""
    known = leaders(cluster, [name for name, _ in chosen])
    selected: dict[Partition, int] = {}
    for name, indexes in chosen:
        all_of_it = [place for place in known if place[0] == name]
        wanted = all_of_it if indexes is None else [(name, index) for index in indexes]
        for place in wanted:
            if place not in known:
                raise ClientError(f"topic {name} has no partition {place[1]}")
            selected[place] = known[place]
    return selected
