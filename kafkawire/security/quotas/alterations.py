"""Requested changes of quotas: the checks of Kafka's ClientQuotaControlManager. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafkawire.codec.errors import ErrorCode, KafkaError

# Entities that have quotas: a user, a client id, both, or an address; None is the default of each.
#
# An entity is a sorted tuple of (type, name). SQL stores it as JSON.


USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = frozenset((USER, CLIENT_ID, IP))

PRODUCER_BYTES = "producer_byte_rate"
CONSUMER_BYTES = "consumer_byte_rate"
REQUESTS = "request_percentage"
MUTATIONS = "controller_mutation_rate"
CONNECTIONS = "connection_creation_rate"

CLIENT_KEYS = (PRODUCER_BYTES, CONSUMER_BYTES, REQUESTS, MUTATIONS)
"""Quotas of users and client ids."""
INTEGERS = {PRODUCER_BYTES: (2.0**63, "LONG"), CONSUMER_BYTES: (2.0**63, "LONG"),
            CONNECTIONS: (2.0**31 - 1, "INT")}  # fmt: skip
"""Quotas that are whole numbers: their maximum and type. That of LONG is one more, as in Kafka."""

Entity = tuple[tuple[str, str | None], ...]
Values = dict[str, float]


def entity_text(entity: Entity) -> str:
    """Return the form in which SQL stores an entity."""
    return json.dumps(entity, separators=(",", ":"))


def entity_of(text: str) -> Entity:
    """Return the entity of a stored text."""
    return tuple((kind, name) for kind, name in json.loads(text))


def shown_entity(entity: Entity) -> str:
    """Return an entity as Kafka's messages name it."""
    parts = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{parts}}})"


def address_of(text: str) -> str | None:
    """Return the one form of an address; None if it is none. An IPv4 address in an IPv6 one is the
    former."""
    from ipaddress import IPv6Address, ip_address  # few brokers need it

    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


MAX_ENTITY_BYTES = 2_000
"""Maximum length of a stored entity: a row of PostgreSQL's index holds 2,700 bytes."""
MAX_QUOTAS = 50_000
"""Maximum number of stored quotas, of half a kilobyte each in every broker's memory. Kafka has no
limit."""


class QuotaChange(NamedTuple):
    """One quota to set, or to remove if `value` is None."""

    entity: Entity
    key: str
    value: float | None


class Alteration(NamedTuple):
    """The requested changes of one entity: (key, value or None) in the order of the request."""

    entity: Entity
    ops: Sequence[tuple[str, float | None]]


class Planner:
    """Checks the entries of one request one after another, against the stored quotas.

    `outcomes`: the result of each entity; `changes`: what is to be stored.
    """

    def __init__(self, stored: Mapping[Entity, Values], count: int) -> None:
        self._stored = stored
        self._count = count  # stored quotas, with those to be added
        self.outcomes: dict[Entity, KafkaError | None] = {}
        self.changes: list[QuotaChange] = []

    def add(self, alteration: Alteration) -> None:
        """Check one entry. An entity that is named twice is changed by its first entry, and the
        answer is an error, as in Kafka."""
        entity = alteration.entity
        keys = [key for key, _ in alteration.ops]
        if entity in self.outcomes or len(set(keys)) < len(keys):
            text = f"Ignoring duplicate entity {shown_entity(entity)}"
            self.outcomes[entity] = KafkaError(ErrorCode.INVALID_REQUEST, text)
            return
        try:
            changes = self._plan(entity, dict(alteration.ops))
        except KafkaError as error:
            self.outcomes[entity] = error
            return
        self.outcomes[entity] = None
        self.changes += changes

    def _plan(self, entity: Entity, wishes: Mapping[str, float | None]) -> list[QuotaChange]:
        known = self._stored.get(entity, {})
        allowed = _keys_of(entity)
        changes: list[QuotaChange] = []
        for key, value in wishes.items():
            if value is not None:
                _check(key, value, allowed)
            if known.get(key) != value:
                changes.append(QuotaChange(entity, key, value))
        count = self._count + sum(
            (change.value is not None) - (change.key in known) for change in changes
        )
        if count > max(MAX_QUOTAS, self._count):
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"There are already {MAX_QUOTAS} quotas.")
        self._count = count
        return changes


def _keys_of(entity: Entity) -> Sequence[str]:
    """Return the quotas that an entity may have. Raises KafkaError if it is none."""
    kinds = {kind for kind, _ in entity}
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if kinds <= {USER, CLIENT_ID}:
        if len(entity_text(entity)) > MAX_ENTITY_BYTES:
            raise _invalid(f"The names of a quota have over {MAX_ENTITY_BYTES} bytes")
        return CLIENT_KEYS
    if kinds != {IP}:
        raise _invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or "
            "ClientId"
        )
    address = entity[0][1]
    if address is not None and address_of(address) is None:
        raise _invalid(f"{address} is not a valid IP or resolvable host.")
    return (CONNECTIONS,)


def _check(key: str, value: float, allowed: Sequence[str]) -> None:
    if key not in allowed:
        raise _invalid(f"Invalid configuration key {key}")
    if not value > 0:  # NaN too
        raise _invalid(f"Quota {key} must be greater than 0")
    if key in INTEGERS:
        maximum, name = INTEGERS[key]
        if value > maximum:
            raise _invalid(f"Proposed value for {key} is too large for {_a(name)}.")
        if value % 1 > 1e-6:
            raise _invalid(f"{key} cannot be a fractional value.")


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
