"""The list of groups, and one group with its lag and what stops it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.group_causes import causes, observe_group
from kafkawire.client.lag import GroupLag
from kafkawire.console.views.findings import explain_causes
from kafkawire.console.views.parts import ClusterFinding, ListPage, page_of
from kafkawire.console.views.snapshot import GroupSnapshot, Known

GROUP_SORTS = ("lag", "name")


class GroupDetail(NamedTuple):
    """A group with its partitions. `causes`: findings, those that stop it first; `now_ms`: when
    it was observed."""

    lag: GroupLag
    causes: Sequence[ClusterFinding]
    now_ms: int


def list_groups_page(
    known: Known, text: str = "", sort: str = "lag", page: int = 1
) -> ListPage[GroupSnapshot]:
    """Return the groups whose names contain `text`, in any case. Pure. `sort`: "lag", the largest
    first, or "name"."""
    groups = () if known.snapshot is None else tuple(known.snapshot.groups.values())
    wanted = text.strip().casefold()
    found = [group for group in groups if not wanted or wanted in group.group.casefold()]
    found.sort(key=lambda group: (0 if sort == "name" else -(group.lag or 0), group.group))
    return page_of(found, page, len(groups))


def describe_group_lag(cluster: Cluster, name: str) -> GroupDetail:
    """Return a group with its lag, and why it makes no progress if it makes none. BrokerError for
    an unknown group."""
    seen = observe_group(cluster, name, 0)
    return GroupDetail(seen.group, explain_causes(causes(seen)), seen.now_ms)
