"""Tier (key 10000): a command of `kafkawire tier`. An API of our own, no Kafka's."""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import UnknownTags, int16


@request(key=10000, versions=(0, 0), flexible_from=0)
class TierRequest:
    """A command by its name; `arguments` is a JSON object."""

    command: str = ""
    arguments: bytes = b""
    unknown_tags: UnknownTags = None


@response(key=10000, versions=(0, 0), flexible_from=0)
class TierResponse:
    """`body` is a JSON object; an error has none, and a message of one sentence."""

    error_code: int16 = 0
    error_message: str | None = None
    body: bytes = b""
    unknown_tags: UnknownTags = None
