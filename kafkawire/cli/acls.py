"""`kafkawire acls`: list, add, remove and explain the access rules of any Kafka cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, TypeVar

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, print_results
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import (
    LOCAL,
    Json,
    OptionSet,
    Server,
    Wide,
    not_empty,
    with_options,
)
from kafkawire.client.acls import (
    AclRow,
    AclRowFilter,
    create_acls,
    delete_acls,
    find_acls,
)
from kafkawire.client.cluster import Cluster
from kafkawire.client.configs import broker_settings
from kafkawire.client.notation import OptionError
from kafkawire.codec.configs.access_rules import super_users
from kafkawire.plural import count
from kafkawire.security.acls.index import AclDecision, AclIndex
from kafkawire.security.acls.model import (
    ANYTHING,
    CLUSTER_NAME,
    OPERATIONS_OF,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)

COLUMNS = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
SUPER_USERS, OPEN = "super.users", "allow.everyone.if.no.acl.found"
_E = TypeVar("_E", bound=IntEnum)

User = Annotated[
    str,
    typer.Argument(metavar="USER", callback=not_empty, help="A user, or a principal as KIND:NAME."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", callback=not_empty)]
Operations = Annotated[
    list[str], typer.Argument(metavar="OPERATION...", help="For example read, write or all.")
]
OneOperation = Annotated[str, typer.Argument(metavar="OPERATION", help="For example read.")]
Topic = Annotated[
    str, typer.Option("--topic", metavar="TOPIC", callback=not_empty, help='Topic; "*": all.')
]
Group = Annotated[
    str, typer.Option("--group", metavar="GROUP", callback=not_empty, help='Group; "*": all.')
]
Transaction = Annotated[
    str,
    typer.Option(
        "--transactional-id", metavar="ID", callback=not_empty, help='Transactional id; "*": all.'
    ),
]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The name is a prefix of names.")]
Deny = Annotated[bool, typer.Option("--deny", help="The rule denies instead of allowing.")]
Host = Annotated[
    str,
    typer.Option(
        "--host", metavar="ADDRESS", callback=not_empty,
        help='Address of the clients, or their network, such as 10.0.0.0/8; "*": any.',
    ),
]  # fmt: skip
OfUser = Annotated[
    str, typer.Option("--user", metavar="USER", callback=not_empty, help="Rules of this user only.")
]


@dataclass(frozen=True)
class ResourceOptions(OptionSet):
    """The resource of rules."""

    topic: Topic = ""
    group: Group = ""
    transactional_id: Transaction = ""
    cluster: OfCluster = False


@dataclass(frozen=True)
class RuleOptions(ResourceOptions):
    """A rule, without its user and operations."""

    prefixed: Prefixed = False
    deny: Deny = False
    host: Host = ANYTHING


NO_RESOURCE, NO_RULE = ResourceOptions(), RuleOptions()


@with_options
def list_acls(
    user: OfUser = "",
    resource: ResourceOptions = NO_RESOURCE,
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """List access rules: all, or those that affect a resource or name a user.

    Examples:
      kafkawire acls list --topic orders
      kafkawire acls list --user alice --json
    """
    wanted = AclRowFilter(principal=_principal(user) if user else None)
    if resource != NO_RESOURCE:
        kind, name = _resource(resource)
        pattern = PatternType.MATCH
        wanted = wanted._replace(
            resource_type=int(kind), resource_name=name, pattern_type=int(pattern)
        )
    with connect_cluster(server) as found:
        rows = [_format_acl(row) for row in find_acls(found, wanted)]
    print_results(rows, COLUMNS, count(len(rows), "access rule"), as_json, wide)


@with_options
def add(
    user: User,
    operations: Operations,
    rule: RuleOptions = NO_RULE,
    server: Server = LOCAL,
) -> None:
    """Add access rules: a user may do these operations with a resource, or may not.

    Examples:
      kafkawire acls add alice read describe --topic orders
      kafkawire acls add "*" all --topic secret- --prefixed --deny
    """
    rows = _rows(user, operations, rule)
    with connect_cluster(server) as found:
        create_acls(found, rows)
    print(f"added {count(len(rows), 'access rule')}")


@with_options
def remove(
    user: User,
    operations: Operations,
    rule: RuleOptions = NO_RULE,
    server: Server = LOCAL,
) -> None:
    """Remove access rules, which are given as for `kafkawire acls add`.

    Examples:
      kafkawire acls remove alice read --topic orders
    """
    rows = _rows(user, operations, rule)
    with connect_cluster(server) as found:
        gone = delete_acls(found, [AclRowFilter(*row) for row in rows])
    if not gone:
        fail("no such access rule: see `kafkawire acls list`")
    print(f"removed {count(gone, 'access rule')}")


def explain(
    user: User,
    name: Name,
    operation: OneOperation,
    kind: Annotated[
        str,
        typer.Option("--type", metavar="TYPE", help="topic, group, transactional-id or cluster."),
    ] = "topic",
    host: Host = "127.0.0.1",
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Explain whether a user may do an operation with a topic, and which rule decides. The exit
    code is 0 in both cases.

    Examples:
      kafkawire acls explain alice orders write
      kafkawire acls explain alice billing read --type group --host 10.0.0.7
    """
    resource = _member(ResourceKind, kind, "--type", _NAMED)
    wanted = _member(Operation, operation, "OPERATION", OPERATIONS_OF[resource])
    principal = _principal(user)
    with connect_cluster(server) as found:
        decided = decide_access(found, principal, host, wanted, (resource, name))
    if as_json:
        rule = _format_acl(AclRow(*decided.rule)) if isinstance(decided.rule, Acl) else None
        reason = None if rule else decided.rule
        print_json({"allowed": decided.allowed, "rule": rule, "reason": reason})
        return
    may = "may" if decided.allowed else "may not"
    what = f"{wanted.name.lower()} {resource.name.lower().replace('_', ' ')} {name} from {host}"
    print(f"{principal} {may} {what}: {decided.rule}")


def decide_access(
    cluster: Cluster, principal: str, host: str, wanted: Operation, of: tuple[ResourceKind, str]
) -> AclDecision:
    """Return whether a principal may do an operation, by the rules of the cluster. BrokerError."""
    kind, name = int(of[0]), of[1]
    rules = find_acls(cluster, AclRowFilter(kind, name, int(PatternType.MATCH)))
    settings = broker_settings(cluster, (SUPER_USERS, OPEN))
    index = AclIndex(
        (Acl(*row) for row in rules),
        super_users(settings.get(SUPER_USERS) or ""),
        default_allow=settings.get(OPEN) == "true",
    )
    return index.decide(principal, host, int(wanted), kind, name)


_NAMED = (
    ResourceKind.TOPIC,
    ResourceKind.GROUP,
    ResourceKind.TRANSACTIONAL_ID,
    ResourceKind.CLUSTER,
)


def _principal(user: str) -> str:
    return user if ":" in user else f"User:{user}"


def _resource(options: ResourceOptions) -> tuple[ResourceKind, str]:
    """Return the only resource that is given."""
    cluster = CLUSTER_NAME if options.cluster else ""
    names = (options.topic, options.group, options.transactional_id, cluster)
    given = [(kind, name) for kind, name in zip(_NAMED, names, strict=True) if name]
    if len(given) != 1:
        allowed = "exactly one of --topic, --group, --transactional-id and --cluster"
        fail(OptionError("resource", str(len(given)), allowed), 2)
    return given[0]


def _rows(user: str, operations: list[str], rule: RuleOptions) -> list[AclRow]:
    kind, name = _resource(rule)
    allowed = (Operation.ALL, *OPERATIONS_OF[kind])
    wanted = [_member(Operation, each, "OPERATION", allowed) for each in operations]
    pattern = PatternType.PREFIXED if rule.prefixed else PatternType.LITERAL
    permission = Permission.DENY if rule.deny else Permission.ALLOW
    return [
        AclRow(
            int(kind), name, int(pattern), _principal(user), rule.host, int(each), int(permission)
        )
        for each in dict.fromkeys(wanted)
    ]  # fmt: skip


def _member(kind: type[_E], text: str, option: str, allowed: tuple[_E, ...]) -> _E:
    """Return the member that a text names. An unknown one ends the command with exit code 2."""
    for each in allowed:
        if _plain(each.name) == _plain(text):
            return each
    names = ", ".join(each.name.lower().replace("_", "-") for each in allowed)
    fail(OptionError(option, text, f"one of {names}"), 2)


def _plain(text: str) -> str:
    return text.lower().replace("-", "").replace("_", "")


def _format_acl(row: AclRow) -> dict[str, Any]:
    return {
        "principal": row.principal,
        "permission": _word(Permission, row.permission),
        "operation": _word(Operation, row.operation),
        "resource": _word(ResourceKind, row.resource_type),
        "name": row.resource_name,
        "pattern": _word(PatternType, row.pattern_type),
        "host": row.host,
    }


def _word(kind: type[IntEnum], code: int) -> str:
    known = {int(each): each.name.lower() for each in kind}
    return known.get(code, str(code))
