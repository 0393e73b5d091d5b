"""A cell of the bench: jobs for the load client, topics, the figure to read, and its target.

Data only; the table of cells is in bench.cells, bench.runner runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bench.client import Job, JobResult

MUCH_BYTES = 50_000_000


class Metric(Enum):
    """The figure that a cell measures."""

    REQUESTS_S = "req/s"
    MB_S = "MB/s"
    P99_US = "p99 us"

    def of(self, result: JobResult) -> float:
        """Read the figure from a job's result."""
        if self is Metric.REQUESTS_S:
            return result.requests_s
        if self is Metric.MB_S:
            return result.mb_s
        return result.latency_us["p99"]

    @property
    def lower_is_better(self) -> bool:
        """True for latencies."""
        return self is Metric.P99_US


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table. Jobs name their topic by a key of `topics`."""

    name: str
    jobs: tuple[Job, ...]  # the first is the one measured, unless `measured` says otherwise
    metric: Metric = Metric.REQUESTS_S
    topics: Mapping[str, int] = field(default_factory=lambda: {"a": 1})  # -> partitions
    fill: tuple[Job, ...] = ()  # what must be in the topics before
    durable: bool = False  # acked after an fsync (flush=commit)
    seconds: float = 1.2
    warmup_s: float = 0.3
    measured: int = 0
    target: float | None = None  # of the first version, see docs/performance.md
    quick: bool = False  # also in the quick subset
    alone: bool = False  # a point between others: not in the comparison with peers
    both_cores: bool = False  # also run with the server free to use both cores
    load: float | None = None  # x of the plots

    @property
    def writes_much(self) -> bool:
        """Whether it fills so much page cache that the state of free memory matters: see
        bench.warm."""
        jobs = [*self.fill, *self.jobs]
        return any(int(job.options.get("bytes", 0)) >= MUCH_BYTES for job in jobs)


def ratio(metric: Metric, reached: float, target: float) -> float:
    """At least 1 means reached: reached/target for rates, target/reached for latencies."""
    if not reached or not target:
        return 0.0
    return target / reached if metric.lower_is_better else reached / target
