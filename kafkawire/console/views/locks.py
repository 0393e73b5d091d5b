"""The records in flight of a share group: who has acquired which, how often, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.groups import SHARE, GroupDescription
from kafkawire.client.tier import tier_command
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.parts import ask_brokers


class LockRun(NamedTuple):
    """Records `first` to `last`, both included, in one state. `left_ms`: until the lock of acquired
    ones ends, or available ones may be acquired; 0: neither."""

    first: int
    last: int
    state: str
    member: str
    deliveries: int
    left_ms: int


class ShareLocks(NamedTuple):
    """A share partition from its start offset (SPSO) to its end offset (SPEO). `left_out`: runs
    that are not listed."""

    topic: str
    partition: int
    start: int
    end: int
    runs: Sequence[LockRun]
    left_out: int


def describe_locks(
    cluster: Cluster, own: OwnBroker, group: GroupDescription
) -> tuple[list[ShareLocks], list[str]]:
    """Return the share partitions of a share group that are in use, and sentences on what was
    refused; nothing for other groups."""
    refused: list[str] = []
    answers: list[Any] = []
    if group.kind == SHARE:
        answers = ask_brokers(
            cluster, own, refused, lambda at: tier_command(at, "locks", group=group.group)
        )
    rows = [row for answer in answers for row in answer["partitions"]]
    found = [ShareLocks(**{**row, "runs": [LockRun(*run) for run in row["runs"]]}) for row in rows]
    return sorted(found, key=lambda each: each[:2]), refused
