"""Run a cell on a server: create and fill topics, apply the load, then delete and wait for space.

Called by the bench, the peers' comparison, the guard and the profile; prints nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bench import client
from bench.admin import Admin
from bench.cell import Cell, ratio
from bench.client import Job, JobResult
from bench.server import Server
from bench.warm import (
    PageCache,
    Report,
    Room,
    available_bytes,
    giving,
    page_cache,
    resting,
)

# After a delete: how long to wait for the folder to shrink, for the first change, and for each
# further one.
SPACE_LIMIT_S = 15.0
SPACE_BEGIN_S = 0.8
SPACE_STILL_S = 0.25
# Fewer are deleted while the next cell is prepared.
MANY_PARTITIONS = 200


@dataclass(frozen=True, slots=True)
class Place:
    """The cores that the two sides are pinned to, and the warm memory of cells that write much."""

    server_core: int = 0
    client_core: int = 1
    room: Room | None = None


@dataclass(slots=True)
class CellResult:
    """The result of one run of one cell."""

    cell: str
    unit: str
    value: float
    target: float | None
    ratio: float | None
    result: JobResult
    others: list[JobResult] = field(default_factory=list)
    rss_bytes: int = 0
    anon_bytes: int = 0
    cost_us: float | None = None  # CPU of the broker per cost_unit
    cost_unit: str = ""
    long_steps: int = 0  # see Server.long_steps

    @property
    def errors(self) -> list[str]:
        """The errors that the client found, empty when all its checks passed."""
        jobs = [self.result, *self.others]
        return [f"{job.mode}: {job.error} ({job.errors} errors)" for job in jobs if job.errors]

    def as_json(self) -> dict[str, object]:
        """Everything, for the JSON file."""
        return asdict(self) | {
            "cpu_us": self.result.cpu_us,
            "client_busy": self.result.client_busy,
        }


_made = 0  # topic names are never used twice in one process


@contextmanager
def warmed(
    place: Place, todo: Sequence[Cell], folder: Path, report: Report
) -> Iterator[tuple[Place, PageCache | None]]:
    """The place with a warm room where any of the cells wants one, and the rates it gives."""
    if not any(cell.writes_much for cell in todo):
        yield place, None
        return
    room = Room(available_bytes(), place.client_core)
    try:
        yield replace(place, room=room), page_cache(folder, room, report)
    finally:
        room.close()


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
    """Return when the folder is back at its size, or has stopped shrinking."""
    limit = time.monotonic() + SPACE_LIMIT_S
    smallest, patience, since = server.disk_bytes(), SPACE_BEGIN_S, time.monotonic()
    while time.monotonic() < limit:
        size = server.disk_bytes()
        if size <= before_bytes or time.monotonic() - since > patience:
            return
        if size < smallest:
            smallest, patience, since = size, SPACE_STILL_S, time.monotonic()
        time.sleep(0.02)


def run_cell(
    server: Server,
    cell: Cell,
    place: Place,
    seconds: float | None = None,
    companion: Callable[[], None] | None = None,
) -> CellResult:
    """Run a cell once. A failed check is in the result; LoadError where the run could not continue.

    `companion` runs in a thread from the moment the load starts.
    """
    names = _names(cell)
    before_bytes = server.disk_bytes() if cell.writes_much else 0
    before_steps = server.long_steps()
    with giving(place.room if cell.writes_much else None):
        with Admin(server.port, server.host) as admin:
            try:
                for key, partitions in cell.topics.items():
                    admin.create_topic(names[key], partitions)
                jobs = _load(server, cell, place, names, seconds, companion)
                memory = server.memory()
            finally:
                for name in names.values():
                    admin.delete_topic(name)
        if cell.writes_much:
            wait_for_space(server, before_bytes)
        elif sum(cell.topics.values()) >= MANY_PARTITIONS:
            time.sleep(SPACE_BEGIN_S)
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
        cell.cost_us(main),
        cell.cost_unit,
        server.long_steps() - before_steps,
    )


def _load(
    server: Server,
    cell: Cell,
    place: Place,
    names: dict[str, str],
    seconds: float | None,
    companion: Callable[[], None] | None,
) -> list[JobResult]:
    """Fill the topics and run the jobs."""
    options: dict[str, int | float | str] = {
        "host": server.host,
        "port": server.port,
        "server_pid": server.pid,
        "client_core": place.client_core,
        "warmup": cell.warmup_s,
        "seconds": cell.seconds if seconds is None else seconds,
    }
    if cell.fill:
        filled = client.run(_named(cell.fill, names), options | {"warmup": 0, "seconds": 60})
        wrong = [job.error for job in filled if job.error]
        if wrong:
            raise client.LoadError(f"{cell.name}: filling: {wrong[0]}")
    if cell.settles:
        server.settle()
    time.sleep(cell.pause_s)
    thread = threading.Thread(target=companion) if companion else None
    with resting(place.room if cell.fill and not cell.load_writes_much else None):
        if thread:
            thread.start()
        jobs = client.run(_named(cell.jobs, names), options)
        if thread:
            thread.join()
    return jobs
