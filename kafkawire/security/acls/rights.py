"""The rights of one principal at one address: decisions, cached until a rule changes.

Each connection has the Rights of its principal and host, shared with others of the same. Produce
and Fetch look up their topics in `writes` and `reads`, by name or id as the client sends them;
`generation` tells a connection's repeated requests that they must be checked again. A changed rule
empties the caches of all Rights (`AclService`), so a lookup needs no comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from ipaddress import IPv6Address, ip_address
from typing import Any

from kafkawire.security.acls.index import AclIndex
from kafkawire.security.acls.model import OPERATIONS_OF, ResourceKind

Cache = set[Any] | dict[Any, Any]


class Rights:
    """The rights of a principal at a host. `reads`, `writes`: topics that it may read or write, as
    far as that was asked for since a rule changed."""

    __slots__ = (
        "__weakref__", "_decided", "_decided_any", "_index", "_may_cache", "generation",
        "host", "principal", "reads", "writes",
    )  # fmt: skip

    def __init__(
        self, principal: str, host: str, index: AclIndex, may_cache: Callable[[], bool]
    ) -> None:
        """`may_cache` is called for each decision, and returns whether it may be cached."""
        self.principal = principal
        self.host = java_address(host)
        self.generation = 0
        self.reads: set[str | bytes] = set()
        self.writes: set[str | bytes] = set()
        self._decided: dict[tuple[int, int, str], bool] = {}
        self._decided_any: dict[tuple[int, int], bool] = {}
        self._index = index
        self._may_cache = may_cache

    def clear_cache(self) -> Iterable[Cache]:
        """Remove all decisions, because a rule has changed; return them, to be freed in slices."""
        self.generation += 1
        return self.evict_all()

    def evict_all(self) -> Iterable[Cache]:
        """Remove all decisions to save memory; return them, to be freed in slices."""
        dropped = self.reads, self.writes, self._decided, self._decided_any
        self.reads, self.writes, self._decided, self._decided_any = set(), set(), {}, {}
        return dropped

    def may(self, operation: int, resource_type: int, name: str) -> bool:
        """Return whether an operation on a resource is allowed."""
        key = operation, resource_type, name
        known = self._decided.get(key)
        if known is None:
            known = self._index.decide(
                self.principal, self.host, operation, resource_type, name
            ).allowed
            if self._may_cache():
                self._decided[key] = known
        return known

    def may_any(self, operation: int, resource_type: int) -> Generator[None, None, bool]:
        """Return whether an operation may be allowed on some resource of a type; see
        `AclService.may_any`."""
        key = operation, resource_type
        known = self._decided_any.get(key)
        if known is None:
            decision = yield from self._index.decide_for_any(self.principal, self.host, *key)
            known = self._decided_any[key] = decision.allowed
        return known

    def remember(self, known: set[str | bytes], topic: str | bytes) -> None:
        """Add a topic that may be used to `reads` or `writes`."""
        if self._may_cache():
            known.add(topic)

    def authorized_operations(self, resource_type: ResourceKind, name: str) -> int:
        """Return the operations that are allowed on a resource, a bit for each."""
        return sum(
            1 << operation
            for operation in OPERATIONS_OF[resource_type]
            if self.may(operation, resource_type, name)
        )


def java_address(host: str) -> str:
    """Return an address as rules name it, which is how Java writes it: IPv6 without "::", IPv4 in
    IPv6 as IPv4. A host that is no address is returned as it is."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    scope = f"%{address.scope_id}" if address.scope_id else ""
    groups = address.packed.hex(":", 2).split(":")
    return ":".join(f"{int(group, 16):x}" for group in groups) + scope
