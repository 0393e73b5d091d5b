"""The quotas of all entities in memory: which limit counts for a client, and which match a filter.

Pure. The most specific entity wins, separately for each kind of quota (Kafka:
ClientQuotaManager.DefaultQuotaCallback).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kafkawire.security.quotas.alterations import (
    CLIENT_ID,
    CLIENT_KEYS,
    CONNECTIONS,
    IP,
    USER,
    Entity,
    QuotaChange,
    Values,
    address_of,
)


class Limit(NamedTuple):
    """A limit and who shares its counter: `user` or `client_id` is empty if all do."""

    value: float
    user: str
    client_id: str


class Component(NamedTuple):
    """One condition of a filter: this name (None: the default), or any if not `exact`."""

    kind: str
    exact: bool
    name: str | None


class Rules:
    """The stored quotas by entity. `generation` counts changes; `count`: quotas of all entities."""

    def __init__(self) -> None:
        self.entities: dict[Entity, Values] = {}
        self.generation = 0
        self.count = 0
        self._limits: dict[str, dict[Entity, float]] = {
            key: {} for key in (*CLIENT_KEYS, CONNECTIONS)
        }

    def swap(self, other: Rules) -> None:
        """Exchange the quotas of two Rules, in one step."""
        self.entities, other.entities = other.entities, self.entities
        self._limits, other._limits = other._limits, self._limits
        self.count, other.count = other.count, self.count
        self.generation += 1

    def popitem(self) -> None:
        """Remove the quotas of one entity; there must be one. To free all in slices; the Rules
        cannot be used after that."""
        entity, values = self.entities.popitem()
        matched = _normalize_entity(entity)
        for key in values:
            self._limits.get(key, {}).pop(matched, None)

    def apply(self, changes: Iterable[QuotaChange]) -> None:
        """Apply stored changes."""
        for entity, key, value in changes:
            values = self.entities.setdefault(entity, {})
            self.count -= key in values
            limits = self._limits.get(key, {})  # another version may have stored others
            matched = _normalize_entity(entity)
            if value is None:
                values.pop(key, None)
                limits.pop(matched, None)
                if not values:
                    del self.entities[entity]
            else:
                self.count += 1
                values[key] = limits[matched] = value
        self.generation += 1

    def has(self, key: str) -> bool:
        """Return whether any entity has a quota of this kind."""
        return bool(self._limits[key])

    def limit_of(self, key: str, user: str, client_id: str) -> Limit | None:
        """Return the limit of a client; None if no quota matches."""
        limits = self._limits[key]
        if not limits:
            return None
        for entity in _candidates(user, client_id):
            value = limits.get(entity)
            if value is not None:
                kinds = [kind for kind, _ in entity]
                return Limit(value, user if USER in kinds else "",
                             client_id if CLIENT_ID in kinds else "")  # fmt: skip
        return None

    def connection_limit_of(self, address: str) -> float | None:
        """Return the limit of new connections per second of an address in its one form."""
        limits = self._limits[CONNECTIONS]
        found = limits.get(((IP, address),))
        return limits.get(((IP, None),)) if found is None else found

    def matches(
        self, components: Iterable[Component], *, strict: bool
    ) -> Iterator[tuple[Entity, Values] | None]:
        """Yield what matches all conditions, None for each entity that does not. `strict`: entities
        have no other types."""
        wanted = tuple(components)
        for entity, values in tuple(self.entities.items()):
            names = dict(entity)
            fits = len(names) == len(wanted) if strict else True
            fits = fits and all(
                kind in names and (not exact or names[kind] == name) for kind, exact, name in wanted
            )
            yield (entity, values) if fits else None


def _candidates(user: str, client_id: str) -> Iterator[Entity]:
    """Yield the entities whose quotas a client may have, the most specific first."""
    for name in (user, None):
        yield (CLIENT_ID, client_id), (USER, name)
        yield (CLIENT_ID, None), (USER, name)
        yield ((USER, name),)
    yield ((CLIENT_ID, client_id),)
    yield ((CLIENT_ID, None),)


def _normalize_entity(entity: Entity) -> Entity:
    """Return the form of an entity that is compared with clients: one for each address."""
    if len(entity) == 1 and entity[0][0] == IP and entity[0][1] is not None:
        return ((IP, address_of(entity[0][1])),)
    return entity
