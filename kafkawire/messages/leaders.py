"""The new leader of a partition in answers of Produce and Fetch (KIP-951)."""

from __future__ import annotations

from kafkawire.codec.schema import struct
from kafkawire.codec.types import UnknownTags, int32


@struct
class LeaderIdAndEpoch:
    """The leader to send requests to; -1: unknown."""

    leader_id: int32 = -1
    leader_epoch: int32 = -1
    unknown_tags: UnknownTags = None


@struct
class NodeEndpoint:
    """Where a new leader listens (KIP-951)."""

    node_id: int32 = 0
    host: str = ""
    port: int32 = 0
    rack: str | None = None
    unknown_tags: UnknownTags = None
