"""The decision whether a principal may do something, over an index of all rules. Pure.

The rules of Kafka's StandardAuthorizerData; tests/security/acls/test_decision.py compares with a
plain reading of them. A decision reads the rules of the patterns that match a name and are of the
principal or of all principals, so its cost does not depend on the number of rules.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Generator, Iterable, Iterator, Sequence
from ipaddress import ip_address
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
    network_of,
)

# Names in order, to find those under a prefix and those after it.


CHUNK = 1_000
"""Names of a list before it is split: inserting one moves 8 KB at most."""
_LAST = "\U0010ffff"


class SortedNames:
    """Different names. A change moves one list of CHUNK names, not all 100,000 there may be."""

    __slots__ = ("_chunks", "_firsts")

    def __init__(self) -> None:
        self._chunks: list[list[str]] = []
        self._firsts: list[str] = []  # of each chunk

    def add(self, name: str) -> None:
        """Add a name that is not there."""
        if not self._chunks:
            self._chunks.append([name])
            self._firsts.append(name)
            return
        at = max(0, bisect_right(self._firsts, name) - 1)
        chunk = self._chunks[at]
        insort(chunk, name)
        self._firsts[at] = chunk[0]
        if len(chunk) > CHUNK:
            half = len(chunk) // 2
            self._chunks.insert(at + 1, chunk[half:])
            self._firsts.insert(at + 1, chunk[half])
            del chunk[half:]

    def remove(self, name: str) -> None:
        """Remove a name that is there."""
        at = bisect_right(self._firsts, name) - 1
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, name)]
        if chunk:
            self._firsts[at] = chunk[0]
        else:
            del self._chunks[at], self._firsts[at]

    def first(self) -> str | None:
        """Return the first name."""
        return self._firsts[0] if self._firsts else None

    def next_after(self, name: str) -> str | None:
        """Return the first name that is greater."""
        at = bisect_right(self._firsts, name) - 1
        if at >= 0:
            chunk = self._chunks[at]
            index = bisect_right(chunk, name)
            if index < len(chunk):
                return chunk[index]
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else None

    def after_all_under(self, prefix: str, name: str) -> str | None:
        """Return the first name after `name`, of those with this prefix, that does not have it."""
        found = self.next_after(max(prefix + _LAST, name))
        while found is not None and found.startswith(prefix):
            found = self.next_after(found)
        return found

    def prefix_of(self, name: str) -> str | None:
        """Return the shortest one that a name begins with."""
        shortest = None
        upto = name
        while (found := self._last_up_to(upto)) is not None:
            if name.startswith(found):
                shortest = found
                if not found:
                    break
                upto = found[:-1]
            else:  # one that the name begins with is a beginning of `found`, too
                upto = _common(found, upto)
        return shortest

    def _last_up_to(self, name: str) -> str | None:
        at = bisect_right(self._firsts, name) - 1
        if at < 0:
            return None
        chunk = self._chunks[at]
        return chunk[bisect_right(chunk, name) - 1]


def _common(a: str, b: str) -> str:
    """Return what both begin with."""
    for index, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return a[:index]
    return min(a, b, key=len)


class HostNetworks:
    """The networks that rules have as their host, such as `10.0.0.0/8` (KIP-1276)."""

    # By IP version and prefix length: an address is compared once for each length, of which there
    # are few, and not with each network, of which there may be thousands.
    def __init__(self) -> None:
        self._by_length: dict[tuple[int, int], dict[int, dict[str, int]]] = {}

    def add(self, host: str) -> None:
        """Add the host of a rule; no effect if it is not a network."""
        network = network_of(host)
        if network is None:
            return
        of_length = self._by_length.setdefault((network.version, network.prefixlen), {})
        # The same network in several notations, such as 10.0.0.0/8 and 10.1.2.3/8.
        names = of_length.setdefault(int(network.network_address), {})
        names[host] = names.get(host, 0) + 1

    def remove(self, host: str) -> None:
        """Remove the host of one rule that was added."""
        network = network_of(host)
        if network is None:
            return
        length, first = (network.version, network.prefixlen), int(network.network_address)
        names = self._by_length[length][first]
        names[host] -= 1
        if not names[host]:
            del names[host]
        if not names:
            del self._by_length[length][first]
        if not self._by_length[length]:
            del self._by_length[length]

    def hosts_of(self, host: str) -> tuple[str, ...]:
        """Return the hosts of rules that apply to a client's address: all, itself, networks."""
        if not self._by_length:
            return ANYTHING, host
        found = [ANYTHING, host]
        try:
            address = ip_address(host)
        except ValueError:  # a path, of a socket in the file system
            return ANYTHING, host
        for (version, length), of_length in self._by_length.items():
            if version == address.version:
                rest = address.max_prefixlen - length
                found += of_length.get(int(address) >> rest << rest, ())
        return tuple(found)


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


class _Group:
    """The rules of one principal, host, operation and permission, by name: each name has one."""

    __slots__ = ("names", "rules")

    def __init__(self) -> None:
        self.rules: dict[str, Acl] = {}
        self.names = SortedNames()

    def add(self, acl: Acl) -> None:
        self.rules[acl.resource_name] = acl
        self.names.add(acl.resource_name)

    def remove(self, acl: Acl) -> None:
        del self.rules[acl.resource_name]
        self.names.remove(acl.resource_name)


_Key = tuple[str, str, int, int, bool]
"""Principal, host, operation, permission, and whether the names are prefixes."""


def _key_of(acl: Acl) -> _Key:
    prefixed = acl.pattern_type == PatternType.PREFIXED
    return acl.principal, acl.host, acl.operation, acl.permission, prefixed


class _Named:
    """The rules of one type of resource."""

    __slots__ = ("groups", "lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, dict[str, dict[Acl, None]]] = {}  # by name, by principal
        self.prefixed: dict[str, dict[str, dict[Acl, None]]] = {}
        self.lengths: dict[int, int] = {}  # of prefixes: how many have it
        self.groups: dict[_Key, _Group] = {}

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
        self._networks = HostNetworks()
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
        self._networks.add(acl.host)
        named = self._types.setdefault(acl.resource_type, _Named())
        named.groups.setdefault(_key_of(acl), _Group()).add(acl)
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
        self._networks.remove(acl.host)
        named = self._types[acl.resource_type]
        group = named.groups[_key_of(acl)]
        group.remove(acl)
        if not group.rules:
            del named.groups[_key_of(acl)]
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

    def swap(self, other: AclIndex) -> None:
        """Exchange the rules of this index and another one, in one step."""
        self._acls, other._acls = other._acls, self._acls
        self._types, other._types = other._types, self._types
        self._networks, other._networks = other._networks, self._networks

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
        hosts = self._networks.hosts_of(host)
        for pattern in () if named is None else named.matching(name):
            found = True
            for acl in chain(pattern.get(principal, ()), pattern.get(EVERYBODY, ())):
                if acl.host not in hosts:
                    continue
                if acl.permission == Permission.DENY:
                    if acl.operation in (operation, Operation.ALL):
                        return True, acl, None
                elif allow is None and acl.operation in allowed_by:
                    allow = acl
        return found, None, allow

    def decide_for_any(
        self, principal: str, host: str, operation: int, resource_type: int
    ) -> Generator[None, None, AclDecision]:
        """Decide whether there can be a resource of this type for which it is allowed
        (Authorizer.authorizeByResourceType). A generator for Slices.run, meanwhile no rule may
        change: of rules that allow it each one may be compared with those that deny it."""
        every = self.decide(principal, host, operation, resource_type, ANY_RESOURCE)
        if every.allowed or every.rule == NAME_REFUSED:
            return every
        asked = principal, host, operation, resource_type
        denied = self._groups(*asked, Permission.DENY, prefixed=False)
        if (rule := _rule_of(denied, ANYTHING)) is not None:
            return AclDecision(False, rule)
        allowed = self._groups(*asked, Permission.ALLOW, prefixed=False)
        if (rule := _rule_of(allowed, ANYTHING)) is not None:
            return AclDecision(True, rule)
        under = self._groups(*asked, Permission.DENY, prefixed=True)
        for group in allowed:
            if (name := (yield from _not_denied(group, denied, under))) is not None:
                return AclDecision(True, group.rules[name])
        for group in self._groups(*asked, Permission.ALLOW, prefixed=True):
            if (name := (yield from _not_denied(group, (), under))) is not None:
                return AclDecision(True, group.rules[name])
        return AclDecision(False, DEFAULT_DENY)

    def _groups(
        self,
        principal: str,
        host: str,
        operation: int,
        resource_type: int,
        permission: int,
        *,
        prefixed: bool,
    ) -> list[_Group]:
        """Return the rules about an operation itself; nothing is implied."""
        named = self._types.get(resource_type)
        if named is None:
            return []
        keys: dict[_Key, None] = dict.fromkeys(
            (who, where, each, permission, prefixed)
            for who in (principal, EVERYBODY)
            for where in self._networks.hosts_of(host)
            for each in (operation, int(Operation.ALL))
        )
        return [group for key in keys if (group := named.groups.get(key)) is not None]


def _rule_of(groups: Sequence[_Group], name: str) -> Acl | None:
    return next((group.rules[name] for group in groups if name in group.rules), None)


def _not_denied(
    group: _Group, literal: Sequence[_Group], prefixes: Sequence[_Group]
) -> Generator[None, None, str | None]:
    """Return a name that is neither among `literal` nor under one of `prefixes`. All names under a
    prefix are passed over at once. Yields after each comparison."""
    name = group.names.first()
    while name is not None:
        prefix = next(
            (found for each in prefixes if (found := each.names.prefix_of(name)) is not None), None
        )
        if prefix is not None:
            name = group.names.after_all_under(prefix, name)
        elif _rule_of(literal, name) is not None:
            name = group.names.next_after(name)
        else:
            break
        yield
    return name


def _drop(groups: dict[K, dict[Acl, None]], key: K, acl: Acl) -> None:
    rules = groups[key]
    del rules[acl]
    if not rules:
        del groups[key]
