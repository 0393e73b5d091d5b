"""Resets of the committed offsets of a group: targets, and the plan of new offsets.

As in Kafka's tool offsets are kept inside the log, and a group must have no members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.groups import GroupDescription, describe_group
from kafkawire.client.offsets import (
    EARLIEST,
    LATEST,
    Partition,
    fetch_committed_offsets,
    leaders,
    list_offsets,
    partition_text,
)
from kafkawire.client.share_groups import fetch_share_offsets
from kafkawire.codec.errors import ErrorCode
from kafkawire.plural import count

INACTIVE = ("Empty", "Dead")
"""States of a group whose offsets can be committed without being a member."""
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class OffsetTarget:
    """Target of a reset; at most one attribute is set. `time_ms`: since 1970."""

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    shift_by: int | None = None
    time_ms: int | None = None


def make_plan(
    cluster: Cluster,
    partitions: list[Partition],
    current: Mapping[Partition, int],
    target: OffsetTarget,
    given: Mapping[Partition, int] = MappingProxyType({}),
) -> dict[Partition, int]:
    """Return the new offset of each partition, inside its log. `given`: offsets
    of partitions, for no other target. ClientError."""
    led_by = leaders(cluster, [topic for topic, _ in partitions])
    latest = list_offsets(cluster, dict.fromkeys(partitions, LATEST), led_by)
    earliest = list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), led_by)
    timestamp = target.time_ms
    by_time: dict[Partition, int] = {}
    if timestamp is not None:
        by_time = list_offsets(cluster, dict.fromkeys(partitions, timestamp), led_by)
    plan: dict[Partition, int] = {}
    for place in partitions:
        if place not in latest:
            missing = "has no leader" if place in led_by else "does not exist"
            raise ClientError(f"{partition_text(place)} {missing}")
        if target.to_earliest:
            wanted = earliest[place]
        elif target.to_offset is not None:
            wanted = target.to_offset
        elif target.shift_by is not None:
            if place not in current:
                raise ClientError(f"{partition_text(place)} has no committed offset to shift")
            wanted = current[place] + target.shift_by
        elif timestamp is not None:  # after the last record: the end, as in Kafka's tool
            wanted = by_time[place] if by_time.get(place, -1) >= 0 else latest[place]
        else:  # without a committed offset --to-current is the end, as in Kafka's tool
            known = current if target.to_current else given
            wanted = latest[place] if target.to_latest else known.get(place, latest[place])
        plan[place] = min(max(wanted, earliest[place]), latest[place])
    return plan


def current_offsets(cluster: Cluster, group: str, shared: bool) -> dict[Partition, int]:
    """Return the committed offsets of a group, or where a share group continues."""
    if shared:
        offsets = fetch_share_offsets(cluster, group).items()
        return {place: row.start for place, row in offsets if row.start is not None}
    return {place: at for place, (at, _) in fetch_committed_offsets(cluster, group).items()}


def find_group(cluster: Cluster, group: str) -> GroupDescription | None:
    """Return state and members of a group; None if it does not exist yet: a commit creates it."""
    try:
        return describe_group(cluster, group)
    except BrokerError as error:
        if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise


def active_sentence(found: GroupDescription | None, advice: str) -> str:
    """Return in one sentence that the group has members, which ends with the advice; empty if it
    has none."""
    if found is None or (found.state in INACTIVE and not found.members):
        return ""
    clients = ", ".join(sorted({member.client for member in found.members})[:MAX_NAMED])
    named = f" ({clients})" if clients else ""
    return (
        f"group {found.group} is active: it is {found.state} with "
        f"{count(len(found.members), 'member')}{named}; {advice}"
    )
