"""A full read of a partition, and which of its offsets cannot be read.

A sound broker returns everything between log start and high watermark. A damaged one answers with
an error for the damaged range and still returns everything else: after an error the next readable
offset is searched for, so that the lost range is known exactly.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.kit.client import Client
from tests.trials.link import EARLIEST, LATEST, ends, fetch
from tests.trials.records import Malformed, Record, batches, records_of

STUCK_AFTER_S = 30.0
"""A reader that gets nothing for this long below the high watermark is stuck."""
OFFSET_OUT_OF_RANGE = 1


@dataclass(slots=True)
class Full:
    """The result of a full read. `errors`: offset -> error code where a Fetch was refused;
    `trouble`: responses that no broker may give, in sentences."""

    log_start: int = 0
    high_watermark: int = 0
    records: list[Record] = field(default_factory=list)
    errors: dict[int, int] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)


async def read_all(
    client: Client, topic: str, topic_id: bytes, partition: int, starts: Sequence[int] = ()
) -> Full:
    """Read a partition from its log start to its high watermark. `starts`: sorted first offsets of
    batches; after a refusal the next of them is tried, since a batch can be read as a whole or not
    at all. Without them every offset is tried."""
    full = Full()
    name = f"{topic}-{partition}"
    for which in (EARLIEST, LATEST):
        code, offset = await ends(client, topic, partition, which)
        if code:
            full.errors[which] = code
        elif which == EARLIEST:
            full.log_start = offset
        else:
            full.high_watermark = offset
    if not full.errors:
        await _Reader(client, topic_id, partition, name, full, starts).run()
    return full


class _Reader:
    """One pass over a partition."""

    def __init__(
        self,
        client: Client,
        topic_id: bytes,
        partition: int,
        name: str,
        full: Full,
        starts: Sequence[int],
    ) -> None:
        self.client, self.topic_id, self.partition = client, topic_id, partition
        self.name, self.full, self.starts = name, full, starts
        self.offset = full.log_start
        self.moved = time.monotonic()

    async def run(self) -> None:
        """Read up to the high watermark that was found at the beginning, or until stuck."""
        while self.offset < self.full.high_watermark:
            row = await fetch(self.client, self.topic_id, self.partition, self.offset)
            if row.error_code:
                self._refused(row.error_code)
            else:
                self._take(bytes(row.records or b""))
            if time.monotonic() - self.moved > STUCK_AFTER_S:
                self.full.trouble.append(
                    f"{self.name}: a reader got nothing for {STUCK_AFTER_S:g} s at offset "
                    f"{self.offset}, the high watermark is {self.full.high_watermark}"
                )
                return

    def _refused(self, code: int) -> None:
        """Note it, and try the next offset where readable data can begin."""
        at = bisect_right(self.starts, self.offset)
        known = self.starts[at] if at < len(self.starts) else self.full.high_watermark
        after = known if self.starts else self.offset + 1
        for offset in range(self.offset, after):
            self.full.errors[offset] = code
        self._advance(after)

    def _take(self, data: bytes) -> None:
        end = self.offset
        try:
            for batch in batches(data):
                if not batch.control:
                    rows = records_of(data, batch)
                    self.full.records += [row for row in rows if row.offset >= self.offset]
                end = max(end, batch.last_offset + 1)
        except Malformed as why:
            self.full.trouble.append(f"{self.name}: the broker served damaged bytes: {why}")
            end += 1
        if end > self.offset:
            self._advance(end)

    def _advance(self, offset: int) -> None:
        self.offset = offset
        self.moved = time.monotonic()
