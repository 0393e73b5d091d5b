"""Users, access rules as "who may do what with which resource", and quotas; of any Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kafkawire.client.acls import AclRow, AclRowFilter, find_acls
from kafkawire.client.cluster import Cluster
from kafkawire.client.configs import broker_settings
from kafkawire.client.quotas import find_quotas, limit_text
from kafkawire.client.users import list_scram_users
from kafkawire.codec.configs.access_rules import super_users
from kafkawire.console.views.parts import ListPage, attempt, page_of
from kafkawire.security.acls.model import (
    ANYTHING,
    EVERYBODY,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)
from kafkawire.security.sasl.scram import Hash

SUPER_USERS, OPEN = "super.users", "allow.everyone.if.no.acl.found"
KINDS = ("topic", "group", "transactional id", "cluster", "delegation token", "user")


class AccessRow(NamedTuple):
    """Access rules that differ only in their operations. `resource`: a name, "*": all; `prefix`:
    the name is a prefix of names."""

    principal: str
    allowed: bool
    operations: Sequence[str]
    kind: str
    resource: str
    prefix: bool
    host: str

    @property
    def what(self) -> str:
        """Return the resources of the rules."""
        if self.resource == ANYTHING:
            return f"every {self.kind}"
        return f"each {self.kind} whose name begins with" if self.prefix else self.kind


class UserRow(NamedTuple):
    """A user of SCRAM. `mechanisms`: with their iterations."""

    user: str
    mechanisms: Mapping[str, int]


class QuotaLimit(NamedTuple):
    """One quota. `entity`: pairs of a type and a name, None: the default of the type."""

    entity: Sequence[tuple[str, str | None]]
    quota: str
    limit: str


class SecurityState(NamedTuple):
    """Users, rules and quotas. `open_access`: what no rule names is allowed; None: not known."""

    rules: ListPage[AccessRow]
    users: ListPage[UserRow]
    quotas: ListPage[QuotaLimit]
    super_users: Sequence[str]
    open_access: bool | None
    refused: Sequence[str]


def describe_security(
    cluster: Cluster, who: str = "", kind: str = "", what: str = "", page: int = 1
) -> SecurityState:
    """Return page `page` of users, rules and quotas. `who`: only users and principals that contain
    it, and rules for all users; `kind` (one of KINDS) and `what`: only rules that affect the
    resource with this name."""
    refused: list[str] = []
    wanted = AclRowFilter()
    if kind:
        wanted = wanted._replace(resource_type=int(ResourceKind[_constant(kind)]))
    if what:
        wanted = wanted._replace(resource_name=what, pattern_type=int(PatternType.MATCH))
    name = who.strip().casefold()
    rules = attempt(refused, lambda: find_acls(cluster, wanted))
    found = [
        row for row in rules or () if name in row.principal.casefold() or row.principal == EVERYBODY
    ]
    users = attempt(refused, lambda: list_scram_users(cluster)) or {}
    quotas = attempt(refused, lambda: find_quotas(cluster, {})) or []
    settings = attempt(refused, lambda: broker_settings(cluster, (SUPER_USERS, OPEN))) or {}
    limits = [
        QuotaLimit(sorted(row.entity.items(), reverse=True), quota, limit_text(quota, value))
        for row in quotas
        for quota, value in row.values.items()
        if not name or any(name in (each or "").casefold() for each in row.entity.values())
    ]
    shown = [
        UserRow(user, {_mechanism(number): rounds for number, rounds in sorted(kinds.items())})
        for user, kinds in sorted(users.items())
        if name in user.casefold()
    ]
    return SecurityState(
        page_of(group_rules(found), page),
        page_of(shown, page, len(users)),
        page_of(limits, page),
        sorted(super_users(settings.get(SUPER_USERS) or "")),
        # Without an authorizer there are no rules, and the setting has no effect.
        None if rules is None or OPEN not in settings else settings[OPEN] == "true",
        refused,
    )


def group_rules(rows: Iterable[AclRow]) -> list[AccessRow]:
    """Return one row for rules that differ only in their operation, by resource. Pure."""
    grouped: dict[AclRow, list[str]] = {}
    for row in rows:
        key = row._replace(operation=0)
        grouped.setdefault(key, []).append(_word(Operation, row.operation))
    return [
        AccessRow(
            key.principal,
            key.permission == Permission.ALLOW,
            names,
            _word(ResourceKind, key.resource_type),
            key.resource_name,
            key.pattern_type == PatternType.PREFIXED,
            key.host,
        )
        for key, names in grouped.items()
    ]


def _word(kind: type[IntEnum], code: int) -> str:
    known = {int(each): each.name.lower().replace("_", " ") for each in kind}
    return known.get(code, str(code))


def _constant(word: str) -> str:
    return word.upper().replace(" ", "_")


def _mechanism(number: int) -> str:
    return Hash(number).mechanism if number in set(Hash) else f"mechanism {number}"
