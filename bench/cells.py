"""The table of cells: every row of the bench, in the order in which they are run.

Loads and shapes are the same for every broker. Targets come from what other brokers reached on one
pinned core of a 2.5 GHz Xeon with the client on the other core: see bench.reference.
"""

from __future__ import annotations

from dataclasses import replace

from bench import long_cells, reference
from bench.cell import ALL_ROWS, MATRIX, Cell, Metric
from bench.client import Job
from bench.loads import GB, MB, bulk, fetch, paced, produce, tail
from bench.server import RECYCLED_BYTES

# The most that a bulk row writes: less than a room of bench.warm holds.
BULK_BYTES = 2 * GB


def small_cells() -> list[Cell]:
    """One record a request: the fixed cost of a request."""
    cells = []
    for acks, word in ((1, "1"), (-1, "all"), (0, "0")):
        for inflight in (1, 8):
            # Without responses only the sockets slow the client down: bound the bytes.
            bound = {"bytes": 30 * MB} if acks == 0 else {}
            cells.append(
                Cell(
                    f"small acks={word} {inflight} in flight",
                    (produce(acks=acks, inflight=inflight, **bound),),
                    quick=acks == 1,
                    both_cores=acks == 1,
                    load=16 * inflight if acks == 1 else None,
                )
            )
    return cells


def durable_cells() -> list[Cell]:
    """Requests acknowledged after the fsync that covers them."""
    all_acks = {"acks": -1}
    return [
        Cell(
            "small fsynced 16 connections",
            (produce(**all_acks),),
            durable=True,
            quick=True,
        ),
        Cell("small fsynced 64 connections", (produce(connections=64, **all_acks),), durable=True),
        Cell("small fsynced 8 in flight", (produce(inflight=8, **all_acks),), durable=True),
        *(
            Cell(
                f"bulk fsynced {size} KB" if size < 1000 else "bulk fsynced 1 MB",
                (bulk(size, bytes=RECYCLED_BYTES, **all_acks),),
                Metric.MB_S,
                durable=True,
                quick=size == 100,
            )
            for size in (16, 100, 1000)
        ),
        Cell(
            "paced fsynced 2000/s",
            (paced(2000, **all_acks),),
            Metric.P99_US,
            durable=True,
            seconds=2.0,
        ),
    ]


def bulk_cells() -> list[Cell]:
    """MB/s as stored: compressed bytes for lz4 and zstd."""
    cells = []
    for size in (16, 100, 1000):
        for codec in ("none", "lz4", "zstd"):
            options = {} if codec == "none" else {"codec": codec}
            cells.append(
                Cell(
                    f"bulk {size} KB {codec}" if size < 1000 else f"bulk 1 MB {codec}",
                    (bulk(size, bytes=BULK_BYTES, **options),),
                    Metric.MB_S,
                    quick=codec == "none",
                    both_cores=(size, codec) == (100, "none"),
                    seconds=1.2,
                    load=size if codec == "none" else None,
                )
            )
    return cells


def fetch_cells() -> list[Cell]:
    """Hot reads."""
    data = (bulk(100, acks=-1, bytes=256 * MB),)
    spread = (bulk(10, acks=-1, bytes=64 * MB, partitions=100),)
    return [
        Cell(
            "fetch 1 consumer",
            (fetch(),),
            Metric.MB_S,
            fill=data,
            quick=True,
        ),
        Cell(
            "fetch 16 consumers",
            (fetch(connections=16),),
            Metric.MB_S,
            fill=data,
            quick=True,
            both_cores=True,
        ),
        Cell(
            "fetch 16 consumers, CRCs checked",
            (fetch(connections=16, crc=1),),
            Metric.MB_S,
            fill=data,
            seconds=1.0,
            alone=True,
        ),
        Cell(
            "fetch 100 partitions a request",
            (fetch(connections=4, partitions=100, per_request=100, partition_max_bytes=16_000),),
            Metric.MB_S,
            topics={"a": 100},
            fill=spread,
        ),
    ]


def latency_cells() -> list[Cell]:
    """Open loop: latency from the moment a request was meant to leave."""
    cells = []
    for rate in (1000, 2000, 5000, 20_000, 40_000):
        cells.append(
            Cell(
                f"paced {rate}/s",
                (paced(rate),),
                Metric.P99_US,
                quick=rate in (2000, 5000),
                alone=rate in (1000, 40_000),
                both_cores=rate == 2000,
                seconds=2.0,
                load=rate,
            )
        )
    for rate in (1000, 5000, 20_000):
        cells.append(
            Cell(
                f"tail {rate}/s",
                tail(rate),
                Metric.P99_US,
                measured=1,
                quick=rate == 1000,
                both_cores=rate == 1000,
                seconds=2.0,
                load=rate,
            )
        )
    return cells


def scaling_cells() -> list[Cell]:
    """The cost of a request as connections, partitions, members and records grow."""
    cells = [
        Cell(
            f"connections {count}",
            (produce(connections=count),),
            warmup_s=0.3 if count < 1000 else 0.8,  # every one of them has to be used at least once
            load=count,
            alone=count in (1, 64),
        )
        for count in (1, 16, 64, 500, 5000)
    ]
    cells += [
        Cell(
            f"partitions {count}",
            (produce(partitions=count),),
            topics={"a": count},
            load=count,
            alone=count == 100,
        )
        for count in (1, 100, 1000, 10_000)
    ]
    for size, bound in (
        (10, GB),
        (1000, GB),
        (10_000, BULK_BYTES),
        (100_000, BULK_BYTES),
        (MB, BULK_BYTES),
    ):
        cells.append(
            Cell(
                f"record {size} B",
                (produce(record_bytes=size, bytes=bound),),
                Metric.REQUESTS_S if size <= 1000 else Metric.MB_S,
                seconds=1.2,
            )
        )
    members = {"members": 10_000, "group_size": 10, "connections": 20}
    cells.append(Cell("heartbeats 10000 members", (Job("heartbeat", members),), topics={}))
    return cells


def isolation_cells() -> list[Cell]:
    """Small requests concurrent with 300 MB/s of bulk and eight consumers of old data."""
    return [
        Cell(
            "isolation: 2000/s beside bulk and reads",
            (
                paced(2000),
                bulk(100, rate=3000, inflight=8, topic="bulk"),
                fetch(connections=8, topic="old", rate=800),
            ),
            Metric.P99_US,
            topics={"a": 1, "bulk": 1, "old": 1},
            fill=(bulk(100, topic="old", acks=-1, bytes=GB),),
            seconds=2.0,
        )
    ]


CELLS: list[Cell] = [
    replace(cell, target=reference.target(cell))
    for cell in (
        *small_cells(),
        *bulk_cells(),
        *fetch_cells(),
        *latency_cells(),
        *scaling_cells(),
        *isolation_cells(),
        *durable_cells(),
        *long_cells.cells(),
    )
]


def warm_up(durable: bool) -> Cell:
    """Fill journals without measuring, so that bulk rows write to files that have been written
    before."""
    job = bulk(100, acks=-1, bytes=RECYCLED_BYTES) if durable else bulk(100, bytes=GB)
    return Cell("warm-up", (job,), Metric.MB_S, warmup_s=0.0, seconds=6.0, durable=durable)


START_TARGET_S = 0.5
IDLE_TARGET_BYTES = 70_000_000
# The cost of a request should not depend on how many there are: (many, few), their CPU time's ratio
# at most FLAT_TARGET.
FLAT = (("partitions 10000", "partitions 1"), ("connections 5000", "connections 16"))
FLAT_TARGET = 1.3


def named(name: str) -> Cell:
    """The cell with exactly this name."""
    return next(cell for cell in CELLS if cell.name == name)


def chosen(pattern: str, quick: bool, rows: str = MATRIX) -> list[Cell]:
    """Cells of these groups of rows whose name contains one of the comma-separated words; `quick`:
    the small subset."""
    words = [word.strip().lower() for word in pattern.split(",") if word.strip()]
    groups = set(long_cells.GROUPS) if rows == ALL_ROWS else set(rows.split(","))
    return [
        cell
        for cell in CELLS
        if cell.group in groups
        and (cell.quick or not quick)
        and (not words or any(word in cell.name.lower() for word in words))
    ]
