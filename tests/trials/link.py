"""A client connection of a trial whose calls always end, and the exceptions that end them.

The messages are those of `tests.kit.client`; a call that is not answered in time is a finding of
its own (Unanswered), never a wait without end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.messages.metadata import MetadataRequest
from tests.kit.client import Client

ANSWERED_WITHIN_S = 90.0
"""Far longer than any request takes, even on a heavily loaded machine."""
LOST = (ConnectionError, OSError, asyncio.IncompleteReadError)
"""The exceptions that a client gets when the broker was killed."""
EARLIEST, LATEST, EARLIEST_LOCAL = -2, -1, -4


class Unanswered(Exception):
    """A request was not answered in time although the connection is open."""


class Link(Client):
    """A client whose `receive` always ends."""

    async def receive(self) -> Any:
        """The next response; raises Unanswered, or one of LOST."""
        waiting = self.sent[0]
        try:
            return await asyncio.wait_for(super().receive(), ANSWERED_WITHIN_S)
        except TimeoutError:
            what = f"API {waiting[1]} v{waiting[2]}"
            raise Unanswered(f"{what} not answered in {ANSWERED_WITHIN_S:g} s") from None


@asynccontextmanager
async def link(port: int, client_id: str = "trial") -> AsyncIterator[Link]:
    """A connection, closed at the end; raises one of LOST."""
    made = await Link.connect(port, client_id)
    try:
        yield made
    finally:
        with suppress(*LOST):
            await made.close()


async def topics_of(client: Client) -> dict[str, tuple[bytes, int]]:
    """The existing topics: id and number of partitions by name, internal ones too."""
    answer = await client.call(MetadataRequest(topics=None, allow_auto_topic_creation=False), 12)
    return {row.name: (row.topic_id, len(row.partitions)) for row in answer.topics}


async def ends(
    client: Client, topic: str, partition: int, which: int, version: int = 5
) -> tuple[int, int]:
    """(error code, offset) of a partition's earliest or latest offset; from v8 also of the local
    log start."""
    row = ListOffsetsPartition(partition, timestamp=which)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(topic, [row])])
    found = (await client.call(request, version)).topics[0].partitions[0]
    return found.error_code, found.offset


async def fetch(
    client: Client,
    topic_id: bytes,
    partition: int,
    offset: int,
    *,
    wait_ms: int = 500,
    max_bytes: int = 1 << 20,
    isolation: int = 0,
) -> Any:
    """One Fetch of one partition; returns the partition's part of the response. `isolation` 1: of
    committed transactions."""
    row = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    topic = FetchTopic(topic_id=topic_id, partitions=[row])
    request = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=4 << 20, isolation_level=isolation,
        topics=[topic],
    )  # fmt: skip
    return (await client.call(request, 13)).responses[0].partitions[0]
