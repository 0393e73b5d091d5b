"""Detects a bucket that was deleted, emptied or replaced by an older copy, before it is written to.

The rows in SQL name the objects of this broker. Where the manifest does not name them, some are
asked for: if they are there, only the manifest was lost, and it is written again; otherwise nothing
is uploaded, published or deleted until an operator has decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kafkawire.manifest.keys import segment_key
from kafkawire.objectstore.errors import NoSuchObject, Refused
from kafkawire.offsets.catalog.port import COPY_FINISHED, SegmentCatalog
from kafkawire.plural import count
from kafkawire.tiering.store.retrying import RetryingCalls

PAGE = 100
"""Objects read at a time: each may have the ranges of ten thousand partitions."""
ASKED_FOR = 16
"""Objects asked for: of a bucket that lost a tenth of them, one is noticed four times of five."""


class ObjectsLost(Refused):
    """The bucket lacks objects of this broker; the message is one sentence for the operator."""

    def __init__(self, gone: int, asked: int) -> None:
        super().__init__(
            "ObjectsLost",
            f"its manifest does not name objects of this broker, and {gone} of "
            f"{count(asked, 'object')} that were asked for are gone: bring the bucket back; or, if "
            "it is lost, upload again what is still on this disk with `kafkawire tier scrub "
            "--repair`, which lists the records that are lost",
        )


async def refuse_lost(calls: RetryingCalls, uuids: Sequence[bytes]) -> None:
    """Raise ObjectsLost if some of these objects, which the manifest does not name, are gone.
    Raises StoreError if that cannot be determined."""
    some = uuids[:: max(1, len(uuids) // ASKED_FOR)][:ASKED_FOR]
    gone = len(some) - len(await present(calls, some))
    if gone:
        raise ObjectsLost(gone, len(some))


async def present(calls: RetryingCalls, uuids: Sequence[bytes]) -> list[bytes]:
    """Return those of some objects that the bucket has. Raises StoreError."""

    async def is_there(uuid: bytes) -> bool:
        try:
            await calls.head(segment_key(uuid))
        except NoSuchObject:
            return False
        return True

    found: list[bytes] = []
    for at in range(0, len(uuids), ASKED_FOR):
        part = uuids[at : at + ASKED_FOR]
        answers = await asyncio.gather(*map(is_there, part))
        found += [uuid for uuid, there in zip(part, answers, strict=True) if there]
    return found


async def first_objects(storage: SegmentCatalog, node_id: int, tier: int) -> list[bytes]:
    """Return the first objects that a broker has finished in a tier, ASKED_FOR at most. Raises the
    storage's errors."""
    found: list[bytes] = []
    after = b""
    while len(found) < ASKED_FOR:
        rows = await storage.objects(node_id, (COPY_FINISHED,), PAGE, after)
        found += [row.uuid for row in rows if row.tier == tier]
        if len(rows) < PAGE:
            break
        after = rows[-1].uuid
    return found[:ASKED_FOR]
