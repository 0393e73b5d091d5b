"""One member of a classic group: an immutable value, replaced when a fact about it changes.

It has the data of the member's JoinGroup and its parked requests, but no reference to the group;
kafkawire.groups.classic.group has the rules for all members. Because members are immutable, copying
a group copies only its dictionaries.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass

Protocols = tuple[tuple[str, bytes], ...]

CONSUMER = "consumer"  # the protocol type of Kafka's own consumers (ConsumerProtocol)

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a classic group.

    `protocols` are (name, metadata) in the member's order of preference, each name once. `join` and
    `sync` are the tokens of its parked JoinGroup and SyncGroup. `is_new` until the first generation
    that includes the member.
    """

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    join: int | None = None
    sync: int | None = None

    @property
    def keeps_session(self) -> bool:
        """True while a parked request replaces heartbeats."""
        # A new member does not know its id yet and cannot send heartbeats: its session timer limits
        # how long its join may wait (KAFKA-4636).
        return not self.is_new and (self.join is not None or self.sync is not None)

    def metadata(self, protocol: str | None) -> bytes | None:
        """The member's metadata for `protocol`; None if it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return None

    def vote(self, candidates: Collection[str]) -> str:
        """Return the candidate this member prefers; it must support one of them."""
        return next(name for name, _ in self.protocols if name in candidates)


def protocols_of(pairs: Iterable[tuple[str, bytes]]) -> Protocols:
    kept: dict[str, bytes] = {}
    for name, metadata in pairs:
        # Each name once: a duplicate would count as a second member that supports it.
        kept.setdefault(name, metadata)
    return tuple(kept.items())


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """Return the topics of a consumer's subscription (ConsumerProtocolSubscription); None if it
    cannot be parsed."""
    topics: set[str] = set()
    try:
        # All versions begin with an int16 version and an int32-counted array of int16-length
        # strings. What follows depends on the version and is not read.
        (count,) = _INT32.unpack_from(metadata, 2)
        position = 6
        # A topic takes at least two bytes.
        if count > (len(metadata) - position) // 2:
            return None
        for _ in range(count):
            (length,) = _INT16.unpack_from(metadata, position)
            end = position + 2 + length
            if length < 0 or end > len(metadata):
                return None
            topics.add(metadata[position + 2 : end].decode())
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
