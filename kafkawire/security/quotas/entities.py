"""Entities that have quotas: a user, a client id, both, or an address; None is the default of each.

An entity is a sorted tuple of (type, name). SQL stores it as JSON. Pure.
"""

from __future__ import annotations

import json

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
