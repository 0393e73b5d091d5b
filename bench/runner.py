"""Runs a cell on a server: topics, what must be in them, the load, then delete and wait for space.

Called by the bench, the peers' comparison, the guard and the profile; prints nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from bench import client
from bench.admin import Admin
from bench.cell import Cell, ratio
from bench.client import Job, JobResult
from bench.server import Server

# After a delete: how long to wait for the folder to shrink, and when it counts as still.
SPACE_LIMIT_S = 15.0
SPACE_STILL_S = 0.4


@dataclass(frozen=True, slots=True)
class Place:
    """Which cores the two sides are pinned to."""

    server_core: int = 0
    client_core: int = 1


@dataclass(slots=True)
class CellResult:
    """One run of one cell."""

    cell: str
    unit: str
    value: float
    target: float | None
    ratio: float | None
    result: JobResult
    others: list[JobResult] = field(default_factory=list)
    rss_bytes: int = 0
    anon_bytes: int = 0

    @property
    def errors(self) -> list[str]:
        """What the client found wrong, empty when all its checks held."""
        jobs = [self.result, *self.others]
        return [f"{job.mode}: {job.error} ({job.errors} errors)" for job in jobs if job.errors]

    def as_json(self) -> dict[str, object]:
        """Everything, for the JSON file."""
        return asdict(self) | {
            "cpu_us": self.result.cpu_us,
            "client_busy": self.result.client_busy,
        }


_made = 0  # topic names are never used twice in one process


def _names(cell: Cell) -> dict[str, str]:
    global _made
    _made += 1
    return {key: f"bench-{_made}-{key}" for key in cell.topics}


def _named(jobs: Sequence[Job], names: dict[str, str]) -> list[Job]:
    """The jobs with their topics' real names."""
    return [
        Job(job.mode, dict(job.options) | {"topic": names[str(job.options["topic"])]})
        if "topic" in job.options
        else job
        for job in jobs
    ]


def wait_for_space(server: Server, before_bytes: int) -> None:
    """Returns when the folder is back at its size, or has stopped shrinking."""
    limit = time.monotonic() + SPACE_LIMIT_S
    smallest, since = server.disk_bytes(), time.monotonic()
    while time.monotonic() < limit:
        size = server.disk_bytes()
        if size <= before_bytes or time.monotonic() - since > SPACE_STILL_S:
            return
        if size < smallest:
            smallest, since = size, time.monotonic()
        time.sleep(0.05)


def run_cell(
    server: Server,
    cell: Cell,
    place: Place,
    seconds: float | None = None,
    beside: Callable[[], None] | None = None,
) -> CellResult:
    """One run. A failed check is in the result; LoadError where the run could not go on.

    `beside` runs in a thread from the moment the load starts.
    """
    names = _names(cell)
    before_bytes = server.disk_bytes()
    options: dict[str, int | float | str] = {
        "port": server.port,
        "server_pid": server.pid,
        "client_core": place.client_core,
        "warmup": cell.warmup_s,
        "seconds": cell.seconds if seconds is None else seconds,
    }
    with Admin(server.port) as admin:
        try:
            for key, partitions in cell.topics.items():
                admin.create_topic(names[key], partitions)
            if cell.fill:
                filled = client.run(
                    _named(cell.fill, names), options | {"warmup": 0, "seconds": 60}
                )
                wrong = [job.error for job in filled if job.error]
                if wrong:
                    raise client.LoadError(f"{cell.name}: filling: {wrong[0]}")
            companion = threading.Thread(target=beside) if beside else None
            if companion:
                companion.start()
            jobs = client.run(_named(cell.jobs, names), options)
            if companion:
                companion.join()
        finally:
            for name in names.values():
                admin.delete_topic(name)
    memory = server.memory()
    wait_for_space(server, before_bytes)
    main = jobs.pop(cell.measured)
    value = cell.metric.of(main)
    return CellResult(
        cell.name,
        cell.metric.value,
        value,
        cell.target,
        ratio(cell.metric, value, cell.target) if cell.target else None,
        main,
        jobs,
        memory.rss_bytes,
        memory.anon_bytes,
    )
