"""Access rules and filters, with the numbers of Kafka's protocol. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

ANYTHING = "*"
"""A resource name or host that matches all; as the name of a user, all principals."""
EVERYBODY = "User:*"
CLUSTER_NAME = "kafka-cluster"
"""The only resource of the type CLUSTER."""


class ResourceKind(IntEnum):
    """The types of resources."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """The ways in which a rule names its resources; ANY and MATCH are only for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Operations on a resource; ANY is only for filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """The effect of a rule; ANY is only for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_O = Operation
IMPLIED_BY = {
    Operation.DESCRIBE: frozenset((_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER, _O.ALL)),
    Operation.DESCRIBE_CONFIGS: frozenset((_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.ALL)),
}
"""The operations of allowing rules that allow another one, too; others: themselves and ALL."""

OPERATIONS_OF = {
    ResourceKind.TOPIC: (
        _O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    ResourceKind.GROUP: (
        _O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS,
    ),
    ResourceKind.CLUSTER: (
        _O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE,
    ),
    ResourceKind.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE, _O.TWO_PHASE_COMMIT),
    ResourceKind.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceKind.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations of a type of resource: the bits of authorized-operations fields (AclEntry)."""


class Acl(NamedTuple):
    """One rule. `principal` as text: "User:alice". Numbers, because most are only compared."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def __str__(self) -> str:
        kind = PatternType(self.pattern_type).name.lower()
        resource = ResourceKind(self.resource_type).name.lower()
        name = Operation(self.operation).name.lower()
        allows = "may" if self.permission == Permission.ALLOW else "may not"
        host = "" if self.host == ANYTHING else f" from {self.host}"
        return f"{self.principal} {allows} {name} {resource} {self.resource_name} ({kind}){host}"


def network_of(host: str) -> IPv4Network | IPv6Network | None:
    """Return the network that the host of a rule is, in CIDR notation; None if it is none. Bits
    after the prefix do not count (Kafka: CidrUtils)."""
    address, slash, length = host.partition("/")
    if not slash or not length.isdecimal():  # Python reads 10.0.0.0/255.0.0.0, too
        return None
    try:
        return ip_network(f"{address}/{length}", strict=False)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class AclFilter:
    """A selection of rules; None: any. Raw numbers of the protocol."""

    resource_type: int = ResourceKind.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Return whether a rule is meant."""
        return (
            self.resource_type in (ResourceKind.ANY, acl.resource_type)
            and self._names(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _names(self, acl: Acl) -> bool:
        exact = self.pattern_type in (PatternType.ANY, acl.pattern_type)
        if not exact and self.pattern_type != PatternType.MATCH:
            return False
        name = self.resource_name
        if name is None or (exact and name == acl.resource_name):
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, ANYTHING)
