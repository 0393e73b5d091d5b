"""The decision whether a principal may do something, over an index of all rules. Pure.

The rules of Kafka's StandardAuthorizerData; tests/security/acls/test_decision.py compares with a
plain reading of them. A decision reads the rules of the patterns that match a name and are of the
principal or of all principals, so its cost does not depend on the number of rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeVar

from kafkawire.security.acls.model import (
    ANYTHING,
    EVERYBODY,
    IMPLIED_BY,
    Acl,
    Operation,
    PatternType,
    Permission,
)

K = TypeVar("K")

SUPER_USER = "the principal is in super.users"
NAME_REFUSED = "no principal may have this name"
DEFAULT_ALLOW = "no rule is about the resource, and allow.everyone.if.no.acl.found is true"
DEFAULT_DENY = "no rule allows it"
ANY_RESOURCE = "hardcode"
"""The name by which Kafka finds out whether a principal may do something with every resource."""


class AclDecision(NamedTuple):
    """The result, and the rule or the reason that decided."""

    allowed: bool
    rule: Acl | str


class _Named:
    """The rules of one type of resource."""

    __slots__ = ("lengths", "literal", "of_principal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, dict[str, dict[Acl, None]]] = {}  # by name, by principal
        self.prefixed: dict[str, dict[str, dict[Acl, None]]] = {}
        self.lengths: dict[int, int] = {}  # of prefixes: how many have it
        self.of_principal: dict[tuple[str, int], dict[Acl, None]] = {}  # and permission

    def matching(self, name: str) -> Iterator[dict[str, dict[Acl, None]]]:
        """Yield the rules of each pattern that matches a name."""
        for literal in (name, ANYTHING) if name != ANYTHING else (name,):
            if (found := self.literal.get(literal)) is not None:
                yield found
        for length in self.lengths:
            if length <= len(name) and (found := self.prefixed.get(name[:length])) is not None:
                yield found


class AclIndex:
    """All rules. `super_users`: principals, as text, that may do everything; `default_allow`:
    whether a resource without any rule is open to all."""

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        super_users: frozenset[str] = frozenset(),
        *,
        default_allow: bool = False,
    ) -> None:
        self._acls: dict[Acl, None] = {}
        self._types: dict[int, _Named] = {}
        self._super_users = super_users
        self._default_allow = default_allow
        for acl in acls:
            self.add(acl)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._acls

    def __len__(self) -> int:
        return len(self._acls)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._acls)

    def add(self, acl: Acl) -> None:
        """Add a rule; no effect if it is there."""
        if acl in self._acls:
            return
        self._acls[acl] = None
        named = self._types.setdefault(acl.resource_type, _Named())
        named.of_principal.setdefault((acl.principal, acl.permission), {})[acl] = None
        patterns = named.literal
        if acl.pattern_type == PatternType.PREFIXED:
            patterns = named.prefixed
            if acl.resource_name not in patterns:
                length = len(acl.resource_name)
                named.lengths[length] = named.lengths.get(length, 0) + 1
        patterns.setdefault(acl.resource_name, {}).setdefault(acl.principal, {})[acl] = None

    def remove(self, acl: Acl) -> None:
        """Remove a rule; no effect if it is not there."""
        if acl not in self._acls:
            return
        del self._acls[acl]
        named = self._types[acl.resource_type]
        _drop(named.of_principal, (acl.principal, acl.permission), acl)
        prefixed = acl.pattern_type == PatternType.PREFIXED
        patterns = named.prefixed if prefixed else named.literal
        of_name = patterns[acl.resource_name]
        _drop(of_name, acl.principal, acl)
        if of_name:
            return
        del patterns[acl.resource_name]
        if prefixed:
            length = len(acl.resource_name)
            named.lengths[length] -= 1
            if not named.lengths[length]:
                del named.lengths[length]

    def decide(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> AclDecision:
        """Decide about one resource."""
        if principal in self._super_users:
            return AclDecision(True, SUPER_USER)
        if principal == EVERYBODY:  # Kafka fails: rules for all would be its own
            return AclDecision(False, NAME_REFUSED)
        found, deny, allow = self._matching(principal, host, operation, resource_type, name)
        if deny is not None or allow is not None:
            rule = allow if deny is None else deny
            assert rule is not None
            return AclDecision(deny is None, rule)
        if not found and self._default_allow:
            return AclDecision(True, DEFAULT_ALLOW)
        return AclDecision(False, DEFAULT_DENY)

    def _matching(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> tuple[bool, Acl | None, Acl | None]:
        """Return whether any rule is about the resource, and one that denies and one that allows
        the operation."""
        named = self._types.get(resource_type)
        allow: Acl | None = None
        found = False
        allowed_by = IMPLIED_BY.get(Operation(operation), (operation, Operation.ALL))
        for pattern in () if named is None else named.matching(name):
            found = True
            for acl in chain(pattern.get(principal, ()), pattern.get(EVERYBODY, ())):
                if acl.host not in (ANYTHING, host):
                    continue
                if acl.permission == Permission.DENY:
                    if acl.operation in (operation, Operation.ALL):
                        return True, acl, None
                elif allow is None and acl.operation in allowed_by:
                    allow = acl
        return found, None, allow

    def decide_for_any(
        self, principal: str, host: str, operation: int, resource_type: int
    ) -> AclDecision:
        """Decide whether there can be a resource of this type for which it is allowed
        (Authorizer.authorizeByResourceType)."""
        every = self.decide(principal, host, operation, resource_type, ANY_RESOURCE)
        if every.allowed or every.rule == NAME_REFUSED:
            return every
        asked = principal, host, operation, resource_type
        denied: dict[int, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        for acl in self._relevant(*asked, Permission.DENY):
            if acl.pattern_type == PatternType.LITERAL and acl.resource_name == ANYTHING:
                return AclDecision(False, acl)
            denied[acl.pattern_type].add(acl.resource_name)
        lengths = {len(prefix) for prefix in denied[PatternType.PREFIXED]}
        for acl in self._relevant(*asked, Permission.ALLOW):
            name = acl.resource_name
            literal = acl.pattern_type == PatternType.LITERAL
            if literal and name == ANYTHING:
                return AclDecision(True, acl)
            if literal and name in denied[PatternType.LITERAL]:
                continue
            if not any(
                name[:length] in denied[PatternType.PREFIXED]
                for length in lengths
                if length <= len(name)
            ):
                return AclDecision(True, acl)
        return AclDecision(False, DEFAULT_DENY)

    def _relevant(
        self, principal: str, host: str, operation: int, resource_type: int, permission: int
    ) -> Iterator[Acl]:
        """Yield the rules about an operation itself; nothing is implied."""
        named = self._types.get(resource_type)
        for who in (principal, EVERYBODY):
            for acl in () if named is None else named.of_principal.get((who, permission), ()):
                if acl.host in (ANYTHING, host) and acl.operation in (operation, Operation.ALL):
                    yield acl


def _drop(groups: dict[K, dict[Acl, None]], key: K, acl: Acl) -> None:
    rules = groups[key]
    del rules[acl]
    if not rules:
        del groups[key]
