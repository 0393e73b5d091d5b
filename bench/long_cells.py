"""Rows that take longer than `make bench` may: steady fetches by age of the data, and latencies
while a broker still works on a bulk load.

Part of the table of cells (bench.cells) as groups of their own: `--rows fetch,after-bulk`, or all.
Every broker gets the same data and the same pauses; what "warm" and "mixed" mean for kafkawire
follows from its defaults of `hot.bytes` and `journal.bytes`.
"""

from __future__ import annotations

from typing import Any

from bench.cell import MATRIX, Cell, Metric
from bench.loads import MB, bulk, fetch, paced, tail

FETCH, RECENT, AFTER_BULK = "fetch", "recent", "after-bulk"
WITH_BULK, AFTER_PAUSE = "with-bulk", "after-pause"
GROUPS = (MATRIX, FETCH, RECENT, AFTER_BULK, WITH_BULK, AFTER_PAUSE)

CONSUMERS = (1, 4, 16)
RECENT_CONSUMERS = (1, 6, 16)
# The newest data: less than kafkawire's active journal, which is always hot.
HOT_BYTES = 96 * MB
# Written after the warm data: more than `hot.bytes` and a journal, so that none of it is hot.
NEWER_BYTES = 512 * MB
WARM_BYTES = 256 * MB
# Read from the begin to the end: the newest part of it is hot, the rest is not.
MIXED_BYTES = 512 * MB

# Read at once: what a consumer that fell behind a little reads.
RECENT_BYTES = 400 * MB

BULK_BYTES = 900 * MB
# As long as effects of the bulk load were seen.
AFTERWARDS_S = 6.0
# The first quiet moment after that.
PAUSE_S = 9.0
# A bulk load next to the paced one: this many batches of 100 KB a second are 300 MB/s.
WITH_BULK_RATE, WITH_BULK_S = 3000, 5.0

# Words at the end of a row's name, what they mean for kafkawire, and the acks that are asked for.
# Those of flush=os and flush=commit are compared with brokers that ack what is written, the others
# with brokers that sync before the ack.
MODES: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("flush=os", {}, 1),
    ("flush=commit", {"commits": True}, 1),
    ("fsynced", {"durable": True}, -1),
)


def fetch_cells() -> list[Cell]:
    """Steady fetches of 1 MiB: hot data, data that is older than what kafkawire keeps mapped, and
    both."""
    old = bulk(100, acks=-1, bytes=WARM_BYTES), bulk(100, topic="newer", bytes=NEWER_BYTES)
    kinds = (
        ("hot", {"a": 1}, (bulk(100, acks=-1, bytes=HOT_BYTES),)),
        ("warm", {"a": 1, "newer": 1}, old),
        ("mixed", {"a": 1}, (bulk(100, acks=-1, bytes=MIXED_BYTES),)),
    )
    return [
        Cell(
            f"fetch {kind} {count} consumer{'s' * (count > 1)}",
            (fetch(connections=count),),
            Metric.MB_S,
            topics=topics,
            fill=fill,
            settles=True,  # reads alone are measured
            seconds=2.0,
            group=FETCH,
        )
        for kind, topics, fill in kinds
        for count in CONSUMERS
    ]


def recent_cells() -> list[Cell]:
    """Fetches of 1 MiB of what was just written, while the broker still works on it, by the size of
    its batches; and of the same while a producer goes on."""
    cells = [
        Cell(
            f"fetch just written {size} KB {count} consumer{'s' * (count > 1)}",
            (fetch(connections=count),),
            Metric.MB_S,
            fill=(bulk(size, acks=1, bytes=RECENT_BYTES),),
            warmup_s=0.0,
            seconds=2.0,
            group=RECENT,
        )
        for size in (16, 100, 1000)
        for count in RECENT_CONSUMERS
    ]
    cells.append(
        Cell(
            "fetch just written with bulk 6 consumers",
            (fetch(connections=6), bulk(100, rate=1000, inflight=8)),
            Metric.MB_S,
            fill=(bulk(100, acks=1, bytes=RECENT_BYTES),),
            warmup_s=0.0,
            seconds=2.0,
            group=RECENT,
        )
    )
    return cells


def latency_cell(name: str, jobs: tuple[Any, ...], group: str, **options: Any) -> Cell:
    """A row of latencies from the first request on; a consumer, if there is one, is measured."""
    measured = next((n for n, job in enumerate(jobs) if job.mode == "tail"), 0)
    topics = {"a": 1, "bulk": 1}
    known: dict[str, Any] = {"warmup_s": 0.0, "whole": True, "measured": measured}
    return Cell(name, jobs, Metric.P99_US, topics, group=group, **(known | options))


def after_bulk_cells() -> list[Cell]:
    """Paced and tail loads in the seconds after a bulk load, and once it is over."""
    fill = (bulk(100, topic="bulk", bytes=BULK_BYTES),)
    cells = []
    for word, options, acks in MODES:
        after = {"fill": fill, "seconds": AFTERWARDS_S, **options}
        cells += [
            latency_cell(
                f"after bulk: paced {rate}/s {word}", (paced(rate, acks=acks),), AFTER_BULK, **after
            )
            for rate in (2000, 5000)
        ]
        if acks == 1:  # a record is delivered after the commit, whatever its producer waits for
            name = f"after bulk: tail 1000/s {word}"
            cells.append(latency_cell(name, tail(1000), AFTER_BULK, **after))
        late = after | {"pause_s": PAUSE_S, "seconds": 3.0}
        cells.append(
            latency_cell(
                f"after a pause: paced 2000/s {word}",
                (paced(2000, acks=acks),),
                AFTER_PAUSE,
                **late,
            )
        )
    return cells


def with_bulk_cells() -> list[Cell]:
    """A paced load next to 300 MB/s of bulk."""
    return [
        latency_cell(
            f"with bulk: paced 2000/s {word}",
            (
                paced(2000, acks=acks),
                bulk(100, rate=WITH_BULK_RATE, inflight=8, topic="bulk", acks=acks),
            ),
            WITH_BULK,
            seconds=WITH_BULK_S,
            **options,
        )
        for word, options, acks in MODES
    ]


def cells() -> list[Cell]:
    """All of them, group by group."""
    found = [*fetch_cells(), *recent_cells(), *after_bulk_cells(), *with_bulk_cells()]
    return sorted(found, key=lambda cell: GROUPS.index(cell.group))
