"""The rights of a user, in words, as the broker answers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkawire.client.acls import AclRow, AclRowFilter, find_acls
from kafkawire.client.cluster import DESCRIBE_CLUSTER, Cluster
from kafkawire.client.errors import BrokerError, check
from kafkawire.client.groups import DESCRIBE_GROUPS, list_groups
from kafkawire.plural import count
from kafkawire.security.acls.model import Operation, PatternType, Permission, ResourceKind

METADATA = 3
MAX_NAMES = 10
"""Topics or groups that a sentence names; the others are counted."""
MAX_GROUPS = 500
UNKNOWN = -(2**31)
"""A set of operations that a broker did not return (Kafka's default)."""


class UserRights(NamedTuple):
    """The rights of a user: sentences, and rules that name the user; `refused`: sentences on what
    could not be read."""

    sentences: Sequence[str]
    rules: Sequence[str]
    refused: Sequence[str]


def describe_rights(cluster: Cluster, user: str) -> UserRights:
    """Return what the user of a connection may do. ClientError if the broker does not answer."""
    from kafkawire.messages.describe_cluster import DescribeClusterRequest
    from kafkawire.messages.metadata import MetadataRequest

    found = cluster.request(DESCRIBE_CLUSTER, DescribeClusterRequest(True))
    check("DescribeCluster", found.error_code, found.error_message)
    may = words(found.cluster_authorized_operations)
    sentences = [f"You may {may} the cluster." if may else "You have no rights on the cluster."]
    answer = cluster.request(METADATA, MetadataRequest(None, False, False, True))
    by_bits: dict[int, list[str]] = {}
    for topic in answer.topics:
        if not topic.error_code:
            by_bits.setdefault(topic.topic_authorized_operations, []).append(topic.name)
    sentences += _sentences("topic", by_bits) or ["You see no topics."]
    refused: list[str] = []
    try:
        sentences += _sentences("group", _group_rights(cluster)) or ["You see no groups."]
    except BrokerError as error:
        refused.append(str(error))
    rules: list[AclRow] = []
    try:
        for principal in (f"User:{user}", "User:*") if user else ():
            rules += find_acls(cluster, AclRowFilter(principal=principal))
    except BrokerError as error:
        refused.append(str(error))
    return UserRights(sentences, [rule_text(row) for row in rules], refused)


def _group_rights(cluster: Cluster) -> dict[int, list[str]]:
    """Return the names of groups by the bits of what the user may do with them."""
    from kafkawire.messages.describe_groups import DescribeGroupsRequest

    by_node: dict[int, list[str]] = {}
    for row in list_groups(cluster)[:MAX_GROUPS]:
        by_node.setdefault(row.coordinator, []).append(row.group)
    found: dict[int, list[str]] = {}
    for node, names in by_node.items():
        answer = cluster.node(node).request(DESCRIBE_GROUPS, DescribeGroupsRequest(names, True))
        for group in answer.groups:
            found.setdefault(group.authorized_operations, []).append(group.group_id)
    return found


def _sentences(kind: str, by_bits: dict[int, list[str]]) -> list[str]:
    """Return a sentence for all things with the same rights, most names first."""
    found = []
    for bits, names in sorted(by_bits.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ", ".join(sorted(names)[:MAX_NAMES])
        more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
        may = words(bits) or ("(the broker does not say what)" if bits == UNKNOWN else "only see")
        found.append(f"You may {may} {count(len(names), kind)}: {shown}{more}.")
    return found


def words(bits: int) -> str:
    """Return the operations of a bit field (KIP-430), such as "read and write"."""
    if bits == UNKNOWN:
        return ""
    names = [each.name.lower().replace("_", " ") for each in Operation if bits >> each & 1]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def rule_text(row: AclRow) -> str:
    """Return a rule as a sentence."""
    may = "may" if row.permission == Permission.ALLOW else "may not"
    operation = Operation(row.operation).name.lower().replace("_", " ")
    kind = ResourceKind(row.resource_type).name.lower().replace("_", " ")
    names = f"{kind} {row.resource_name}"
    if row.pattern_type == PatternType.PREFIXED:
        names = f"every {kind} whose name begins with {row.resource_name}"
    host = "" if row.host == "*" else f" from {row.host}"
    return f"{row.principal} {may} {operation} {names}{host}."
