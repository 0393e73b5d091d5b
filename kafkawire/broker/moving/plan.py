"""Which broker a partition is to be moved to: pure decisions.

Records of most topics are in the segment files of a data folder, so their partitions can be moved
to brokers that write to the same folder. Those of topics with durability=s3 or replicated are
uploaded before a move, and can be moved to any broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from kafkawire.codec.configs.durability_rules import BEYOND_FOLDER, DURABILITY
from kafkawire.metadata.catalog import Catalog

DRAINING = "broker.draining"
"""The setting of a broker that is to lead nothing."""
STOPPING = "broker.stopping"
"""The setting of a broker that hands over what it leads because it stops."""


def is_set(catalog: Catalog, node_id: int, setting: str) -> bool:
    """Return whether a setting of a broker is true, according to SQL."""
    return catalog.broker_configs(node_id).get(setting, "").lower() == "true"


def is_draining(catalog: Catalog, node_id: int) -> bool:
    """Return whether a broker is to lead nothing, or stops, and so is given no partition."""
    names = (DRAINING, STOPPING)
    return catalog.is_decommissioned(node_id) or any(is_set(catalog, node_id, n) for n in names)


def is_available(catalog: Catalog, node_id: int) -> bool:
    """Return whether partitions can be moved to a registered broker now."""
    return node_id not in catalog.silent and not is_draining(catalog, node_id)


def share_folder(catalog: Catalog, one: int, other: int) -> bool:
    """Return whether two registered brokers write to one data folder."""
    known = catalog.brokers.get(one), catalog.brokers.get(other)
    if known[0] is None or known[1] is None:
        return False
    return known[0].folder is not None and known[0].folder == known[1].folder


def durability_of(catalog: Catalog, number: int) -> str | None:
    """Return the durability of the topic of a partition; None: `local`, or there is no topic."""
    place = catalog.locate(number)
    info = None if place is None else catalog.by_id.get(place.topic_id)
    return None if info is None else info.configs.get(DURABILITY)


def moves_anywhere(catalog: Catalog, number: int) -> bool:
    """Return whether a partition is of a topic with durability=s3 or replicated."""
    return durability_of(catalog, number) in BEYOND_FOLDER


def other_replicas(catalog: Catalog, replicas: Sequence[int]) -> str | None:
    """Return why a partition of a topic with durability=replicated cannot have these replicas, of
    which the first is to lead it; None: it can. The leader alone stands for all of them."""
    known = catalog.replicas.get(replicas[0])
    if len(replicas) == 1 or known is None or set(replicas) == set(known.every):
        return None
    return (
        f"The replicas of everything that broker {replicas[0]} leads are {known.every}, because "
        "followers have the whole log of a broker."
    )


def refusal(catalog: Catalog, leader: int, target: int, number: int) -> str | None:
    """Return why the partition `number`, which `leader` leads, cannot be moved to `target`, ever;
    None: it can, once the target is available."""
    if target not in catalog.brokers:
        return f"Broker {target} is not registered."
    apart = leader != target and not share_folder(catalog, leader, target)
    if apart and not moves_anywhere(catalog, number):
        return (
            f"Broker {target} does not write to the data folder of broker {leader}, which has the "
            "records of the partition, since its topic has durability=local."
        )
    return None


def targets_of(catalog: Catalog, leader: int, alive: Iterable[int], *, anywhere: bool) -> list[int]:
    """Return the brokers that can take partitions of a broker that is drained, in order.
    `anywhere`: partitions with durability=s3 or replicated."""
    return [
        node
        for node in sorted(set(alive))
        if node != leader
        and (anywhere or share_folder(catalog, leader, node))
        and not is_draining(catalog, node)
    ]


def spread_over(
    numbers: Sequence[int], targets: Collection[int], load: Mapping[int, int]
) -> dict[int, int]:
    """Return a target for each partition, so that all targets lead about the same number at the
    end. `load`: partitions that each broker leads or is to get."""
    counts = {target: load.get(target, 0) for target in sorted(targets)}
    chosen: dict[int, int] = {}
    for number in numbers:
        target = min(counts, key=lambda node: (counts[node], node))
        counts[target] += 1
        chosen[number] = target
    return chosen


def loads(catalog: Catalog) -> Counter[int]:
    """Return how many partitions each broker leads, as if all planned moves had ended."""
    found: Counter[int] = Counter()
    for info in catalog.by_id.values():
        for partition in info.partitions:
            found[catalog.moves.get(partition.number, partition.leader)] += 1
    return found
