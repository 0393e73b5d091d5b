"""A cell of the bench: jobs for the load client, topics, the figure to read, and its target.

Data only; the table of cells is in bench.cells, bench.runner runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from bench.client import Job, JobResult

MUCH_BYTES = 50_000_000
# The rows of `make bench`, and the word for those of all groups (bench.long_cells.GROUPS).
MATRIX, ALL_ROWS = "matrix", "all"


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
    commits: bool = False  # flush=commit too, but acked after the write: compared with page cache
    seconds: float = 1.2
    warmup_s: float = 0.3
    pause_s: float = 0.0  # without load, between the fill and the load
    settles: bool = False  # the load begins when the broker has nothing left to do for the fill
    whole: bool = False  # its window is never shortened
    measured: int = 0
    target: float | None = None  # of the first version, see bench/notes/performance.md
    quick: bool = False  # also in the quick subset
    alone: bool = False  # a point between others: not in the comparison with peers
    both_cores: bool = False  # also run with the server free to use both cores
    load: float | None = None  # x of the plots
    group: str = MATRIX  # of rows, for --rows

    @property
    def on_commit(self) -> bool:
        """Whether kafkawire runs it with flush=commit."""
        return self.durable or self.commits

    @property
    def writes_much(self) -> bool:
        """Whether it fills so much page cache that the state of free memory matters: see
        bench.warm."""
        return any(written_bytes(job, self.seconds) >= MUCH_BYTES for job in self.fill) or (
            self.load_writes_much
        )

    @property
    def load_writes_much(self) -> bool:
        """The same for what is measured, without the fill."""
        return any(written_bytes(job, self.seconds) >= MUCH_BYTES for job in self.jobs)

    @property
    def cost_unit(self) -> str:
        """The unit of the broker's CPU time: a MB where the rate is in MB/s, a record of a tail,
        else a request."""
        if self.metric is Metric.MB_S:
            return "MB"
        return "record" if self.jobs[self.measured].mode == "tail" else "request"

    def cost_us(self, measured: JobResult) -> float | None:
        """CPU microseconds of the broker per `cost_unit`; None where another load shares them."""
        loads = [job for job in self.jobs if job.mode not in ("tail", "idle")]
        counts = {
            "MB": measured.bytes / 1e6, "record": measured.records, "request": measured.requests
        }  # fmt: skip
        count = counts[self.cost_unit]
        return measured.server_cpu_s / count * 1e6 if count and len(loads) == 1 else None


def written_bytes(job: Job, seconds: float) -> float:
    """The most that a produce job writes: its bound, or its rate for this long; 0 where neither is
    known, since such jobs write small records."""
    if bound := int(job.options.get("bytes", 0)):
        return bound
    size = int(job.options.get("records", 1)) * int(job.options.get("record_bytes", 100))
    return int(job.options.get("rate", 0)) * size * seconds if job.mode == "produce" else 0.0


def scaled(cell: Cell, share: float) -> Cell:
    """The cell with this share of its bytes and times, to try it out."""

    def smaller(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        return tuple(
            Job(job.mode, {**job.options, "bytes": max(int(int(job.options["bytes"]) * share), 1)})
            if "bytes" in job.options
            else job
            for job in jobs
        )

    if share == 1:
        return cell
    return replace(
        cell,
        jobs=smaller(cell.jobs),
        fill=smaller(cell.fill),
        seconds=max(cell.seconds * share, 0.3),
        warmup_s=cell.warmup_s * share,
        pause_s=cell.pause_s * share,
    )


def ratio(metric: Metric, reached: float, target: float) -> float:
    """At least 1 means reached: reached/target for rates, target/reached for latencies."""
    if not reached or not target:
        return 0.0
    return target / reached if metric.lower_is_better else reached / target
