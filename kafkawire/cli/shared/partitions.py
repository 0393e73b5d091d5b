"""Partitions on the command line: `TOPIC` for all of a topic, `TOPIC:0,1,4-6` for some.

kafkawire.client.offsets prints them in the same notation, for the next command.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError
from kafkawire.client.offsets import Partition, leaders

INDEX_DIGITS = 10
"""Maximum digits of an int32."""
MAX_INDEX = 2**31 - 1
MAX_NAMED = 100_000
"""Maximum number of partitions of one argument: a range is expanded in memory."""
ALLOWED = "TOPIC or TOPIC:0,1,4-6"


def parse_partitions(option: str, text: str) -> tuple[str, list[int] | None]:
    """Parse `TOPIC` (all partitions) or `TOPIC:0,1,4-6` into its name and its indexes (in the given
    order, each once) or None. OptionError."""
    name, colon, indexes = text.partition(":")
    if not colon and name:
        return name, None
    ranges = [_range(item) for item in indexes.split(",")]
    known = [each for each in ranges if each is not None]
    if not name or len(known) < len(ranges) or sum(map(len, known)) > MAX_NAMED:
        raise OptionError(option, text, ALLOWED)
    return name, list(dict.fromkeys(index for each in known for index in each))


def _range(text: str) -> range | None:
    """Parse `3` or `3-5`; None for anything else."""
    first, dash, last = text.partition("-")
    numbers = [first, last if dash else first]
    if not all(each.isascii() and each.isdecimal() for each in numbers):
        return None
    if any(len(each) > INDEX_DIGITS or int(each) > MAX_INDEX for each in numbers):
        return None
    low, high = map(int, numbers)
    return range(low, high + 1) if low <= high else None


def parse_partition(option: str, text: str) -> Partition:
    """Parse `TOPIC:0`, exactly one partition. OptionError."""
    allowed = "TOPIC:0, one partition of a topic"
    try:
        name, indexes = parse_partitions(option, text)
    except OptionError:
        raise OptionError(option, text, allowed) from None
    if indexes is None or len(indexes) != 1:
        raise OptionError(option, text, allowed)
    return name, indexes[0]


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
