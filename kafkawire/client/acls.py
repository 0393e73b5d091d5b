"""Access rules of a cluster, as rows of the ACL APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import check

DESCRIBE, CREATE, DELETE = 29, 30, 31


class AclRow(NamedTuple):
    """A rule, with the numbers of Kafka's protocol."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclRowFilter(NamedTuple):
    """A selection of rules; 1 and None: any."""

    resource_type: int = 1
    resource_name: str | None = None
    pattern_type: int = 1
    principal: str | None = None
    host: str | None = None
    operation: int = 1
    permission: int = 1


def find_acls(cluster: Cluster, wanted: AclRowFilter) -> list[AclRow]:
    """Return the rules that a filter means, sorted. BrokerError."""
    from kafkawire.messages.describe_acls import DescribeAclsRequest

    answer = cluster.request(DESCRIBE, DescribeAclsRequest(*wanted))
    check("access rules", answer.error_code, answer.error_message)
    return sorted(
        AclRow(
            resource.resource_type, resource.resource_name, resource.pattern_type,
            acl.principal, acl.host, acl.operation, acl.permission_type,
        )
        for resource in answer.resources
        for acl in resource.acls
    )  # fmt: skip


def create_acls(cluster: Cluster, rows: Sequence[AclRow]) -> None:
    """Create rules; existing ones stay. BrokerError for the first that is refused."""
    from kafkawire.messages.create_acls import AclCreation, CreateAclsRequest

    answer = cluster.request(CREATE, CreateAclsRequest([AclCreation(*row) for row in rows]))
    for result in answer.results:
        check("access rule", result.error_code, result.error_message)


def delete_acls(cluster: Cluster, filters: Sequence[AclRowFilter]) -> int:
    """Delete the rules that filters mean; return how many. BrokerError."""
    from kafkawire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

    asked = DeleteAclsRequest([DeleteAclsFilter(*each) for each in filters])
    gone = 0
    for result in cluster.request(DELETE, asked).filter_results:
        check("access rules", result.error_code, result.error_message)
        gone += len(result.matching_acls)
    return gone
