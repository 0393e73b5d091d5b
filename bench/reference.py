"""Figures of other brokers, measured once: the basis of targets, and of estimates for missing
peers.

Server on one pinned core of a quiet virtual machine (2.5 GHz Xeon), a native load client on the
other, 16 connections; each the median of three runs, of a range the better end. Kafka was warm.
klite fsyncs every 2 ms, SeaweedMQ is its Kafka gateway, "Kafka fsync" has
log.flush.interval.messages=1. On another machine only ratios are meaningful: `estimate` transfers a
ratio through the Kafka measured there. Called by the table of cells and by the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from bench.cell import Cell, ratio

MEMORY_ONLY = "kfake"  # not a product: it stores nothing

# cell -> broker -> requests/s, MB/s or p99 in us, as the cell counts
FIGURES: Mapping[str, Mapping[str, float]] = {
    "small acks=1 1 in flight": {
        "Kafka": 31_600, "klite": 17_500, "Nisshi": 2_600, "SeaweedMQ": 15_900, "kfake": 58_400,
    },
    "small acks=1 8 in flight": {
        "Kafka": 29_700, "klite": 19_900, "Nisshi": 2_800, "SeaweedMQ": 12_400, "kfake": 69_500,
    },
    "bulk 16 KB none": {"Kafka": 185, "Nisshi": 22, "SeaweedMQ": 20, "kfake": 500},
    "bulk 100 KB none": {"Kafka": 390, "Nisshi": 40, "SeaweedMQ": 23, "kfake": 1_100},
    "bulk 1 MB none": {"Kafka": 240, "Nisshi": 40, "SeaweedMQ": 21, "kfake": 1_680},
    "fetch 16 consumers": {
        "Kafka": 4_150, "klite": 890, "Nisshi": 7, "SeaweedMQ": 11, "kfake": 1_190,
    },
    "paced 2000/s": {
        "Kafka": 1_700, "klite": 1_600, "Nisshi": 5_400, "SeaweedMQ": 2_000, "kfake": 860,
    },
    "tail 1000/s": {
        "Kafka": 920, "klite": 2_300, "Nisshi": 260_000, "SeaweedMQ": 14_000, "kfake": 1_300,
    },
    "small fsynced 16 connections": {"Kafka fsync": 3_000, "klite": 15_800},
    "bulk fsynced 16 KB": {"Kafka fsync": 50, "klite": 74},
    "bulk fsynced 100 KB": {"Kafka fsync": 200, "klite": 226},
    "bulk fsynced 1 MB": {"Kafka fsync": 465, "klite": 549},
}  # fmt: skip
# Cells that are compared with the figures of another one.
SAME_AS = {
    "small fsynced 64 connections": "small fsynced 16 connections",
    "fetch 1 consumer": "fetch 16 consumers",
}
# The target as a multiple of the best product's figure; of kfake's, except for reads.
PRODUCT_FACTOR = 2.0
MEMORY_ONLY_FACTOR = 1.3
FACTORS = {
    "fetch 1 consumer": 1.0,
    "fetch 16 consumers": 1.0,
    "small fsynced 16 connections": 1.5,
    "bulk fsynced 16 KB": 1.5,
    "bulk fsynced 100 KB": 1.5,
    "bulk fsynced 1 MB": 1.5,
}
FIXED = {"isolation: 2000/s beside bulk and reads": 5_000.0}


def target(cell: Cell) -> float | None:
    """The target of a cell, in its unit; None where there is none."""
    known = FIGURES.get(SAME_AS.get(cell.name, cell.name))
    if known is None:
        return FIXED.get(cell.name)
    factor = FACTORS.get(cell.name, PRODUCT_FACTOR)
    products = [value for name, value in known.items() if name != MEMORY_ONLY]
    if cell.metric.lower_is_better:
        return min(products) / factor
    wanted = max(products) * factor
    if cell.jobs[0].mode == "produce" and MEMORY_ONLY in known:
        wanted = max(wanted, known[MEMORY_ONLY] * MEMORY_ONLY_FACTOR)
    return wanted


def base(cell: Cell) -> str:
    """The broker of the table that is measured on every machine."""
    return "Kafka fsync" if cell.durable else "Kafka"


def estimates(cell: Cell, ratios: list[float], measured: set[str]) -> dict[str, float]:
    """The ratio to each broker that was not measured, from the ratios to `base` that were.

    kafkawire / X = (kafkawire / Kafka here) / (X / Kafka in the table).
    """
    known = FIGURES.get(cell.name, {})
    if not ratios or base(cell) not in known:
        return {}
    return {
        name: median(ratios) / ratio(cell.metric, value, known[base(cell)])
        for name, value in known.items()
        if name not in measured
    }
