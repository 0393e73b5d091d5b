"""Bytes of a cluster by place, and what its bucket costs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.tier import CommandRefused, tier_command
from kafkawire.console.views.cluster import read_log_dirs
from kafkawire.console.views.offset_map import RecordPlace
from kafkawire.console.views.own import NotKafkawire, OwnBroker
from kafkawire.console.views.parts import attempt
from kafkawire.console.views.tier import TierCost, sum_costs


class StorageState(NamedTuple):
    """Bytes by place: RecordPlace.BROKER of another Kafka, which does not say more. `cost`: None
    without a tier of kafkawire; `changes`: lines of the audit log of the last hour, the newest
    first, None without one."""

    places: Mapping[RecordPlace, int]
    cost: TierCost | None
    changes: Sequence[Mapping[str, Any]] | None


def describe_storage(cluster: Cluster, own: OwnBroker) -> StorageState:
    """Return the bytes of all brokers. ClientError, as without the right to read them."""
    sizes: Counter[RecordPlace] = Counter()
    costs: list[Mapping[str, Any]] = []
    changes: list[Mapping[str, Any]] | None = None
    for node in cluster.nodes():
        try:
            found, cost, changed = own.ask(cluster, node, _read)
        except NotKafkawire:
            dirs = read_log_dirs(cluster.node(node))
            sizes[RecordPlace.BROKER] += sum(each.size_bytes for each in dirs)
            continue
        sizes.update({RecordPlace[name.upper()]: number for name, number in found.items()})
        costs += cost
        if changed is not None:
            changes = sorted([*(changes or ()), *changed], key=lambda line: line["time"])[::-1]
    return StorageState(sizes, sum_costs(costs, time.time_ns() // 1_000_000), changes)


def _read(at: ClientConnection) -> tuple[dict[str, int], list[Mapping[str, Any]], Any]:
    found = tier_command(at, "bytes")
    changes = attempt([], lambda: tier_command(at, "changes")["changes"])
    try:
        return found, [tier_command(at, "cost")], changes
    except CommandRefused:  # it has no tier
        return found, [], changes
