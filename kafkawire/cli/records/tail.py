"""The last records of several partitions together, in the order in which they are printed."""

from __future__ import annotations

from collections import Counter, deque

from kafkawire.client.cluster import Cluster
from kafkawire.client.merging import MergedReader, OffsetSpan
from kafkawire.client.offsets import Partition

MAX_TAIL = 100_000
"""Most records of --tail: their partitions and offsets are in memory. For more, --from has a
time or an offset."""
WIDER = 4
"""How many more offsets are read if fewer of them than needed had a record: those of transaction
markers and of what compaction removed have none."""


def narrow(cluster: Cluster, spans: dict[Partition, OffsetSpan], most: int, isolation: int) -> None:
    """Move the positions of the spans to the last `most` records of all of them; those before their
    positions are not read."""
    firsts = {place: span.position for place, span in spans.items()}
    widths = dict.fromkeys(spans, most)
    while True:
        counts, last = _read(cluster, spans, firsts, widths, most, isolation)
        short = [
            place
            for place, span in spans.items()
            if counts[place] < most and _end(span) - widths[place] > firsts[place]
        ]
        if not short:
            break
        for place in short:
            widths[place] *= WIDER
    begins: dict[Partition, int] = {}
    for place, offset in last:
        begins.setdefault(place, offset)
    for place, span in spans.items():
        span.position = begins.get(place, _end(span))


def _end(span: OffsetSpan) -> int:
    assert span.end is not None, "it has an end until it is followed"
    return span.end


def _read(
    cluster: Cluster,
    spans: dict[Partition, OffsetSpan],
    firsts: dict[Partition, int],
    widths: dict[Partition, int],
    most: int,
    isolation: int,
) -> tuple[Counter[Partition], deque[tuple[Partition, int]]]:
    """Read the last offsets of each span; return its number of records, and the last ones."""
    tried = {
        place: OffsetSpan(span.node, max(firsts[place], _end(span) - widths[place]), span.end)
        for place, span in spans.items()
    }
    counts: Counter[Partition] = Counter()
    last: deque[tuple[Partition, int]] = deque(maxlen=most)
    for place, record in MergedReader(cluster, tried, isolation=isolation).read():
        counts[place] += 1
        last.append((place, record.offset))
    return counts, last
