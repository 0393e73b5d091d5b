"""`python -m bench.stalls`: where the event loop and the threads of the broker wait after bulk.

Runs rows of the bench (paced load in the seconds after 900 MB of bulk, with both settings of
`flush`, unless other cells are given) on a broker that records long steps of its event loop, jobs
of its threads and calls of the disk (bench.traced), and samples from outside where the kernel makes
its threads wait and how many pages are dirty. Prints the longest stalls of the loop with their
cause, the longest jobs of threads, what took the most time, and a timeline. Everything that was
recorded is in bench/out/stalls.json.

The trace costs time of its own (a timer every 2 ms, a sampler on the core of the client): its
latencies are no results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import cells, client, report, stall_causes
from bench.admin import AdminError
from bench.cell import ALL_ROWS, Cell, scaled
from bench.client import BENCH, LoadError
from bench.runner import CellResult, Place, run_cell, warmed
from bench.server import Recipe, Server, ServerError, kafkawire
from bench.stall_causes import Memory, Recording, Task

CELLS = "after bulk: paced 2000/s flush="
THREADS_S, MEMORY_S = 0.1, 0.02
# CPU time between two samples that is worth a note.
USED_S = 0.0002
# Where threads wait that have nothing to do; for others than the loop's, locks as well.
IDLE = ("0", "ep_poll", "do_epoll_wait")
STACK_SYMBOLS = 3
# Of /proc/PID/stat after the name: the core that the thread last ran on, the parent.
CORE_FIELD = 36
PARENT_FIELD = 1
# Of the first row of /proc/stat.
STEAL_FIELD = 8
WRITE_LIMIT_S = 30.0


def under_trace(recipe: Recipe, output: Path) -> Recipe:
    """The same broker started through traced.py; SIGUSR2 makes it write its trace."""

    def command(port: int, folder: Path) -> list[str]:
        words = list(recipe.command(port, folder))
        at = words.index("-m")
        return [*words[:at], str(BENCH / "traced.py"), str(output), *words[at + 1 :]]

    env = dict(recipe.env) or {"PYTHONPATH": str(BENCH.parent)}
    return Recipe(f"{recipe.name} traced", command, env=env, durable=recipe.durable)


def kernel_stack(text: str) -> str:
    """The innermost functions of /proc/PID/task/TID/stack, without offsets."""
    names = [row.split("]")[-1].partition("+")[0].strip() for row in text.splitlines()]
    return " < ".join(names[:STACK_SYMBOLS])


def memory_now(text: str, stat: str, at: float) -> Memory:
    """Dirty and Writeback of /proc/meminfo, steal of /proc/stat."""
    found = {}
    for row in text.splitlines():
        name, _, value = row.partition(":")
        if name in ("Dirty", "Writeback"):
            found[name] = int(value.split()[0]) * 1024
    stolen_s = int(stat.split(maxsplit=STEAL_FIELD + 1)[STEAL_FIELD]) / os.sysconf("SC_CLK_TCK")
    return Memory(at, found.get("Dirty", 0), found.get("Writeback", 0), stolen_s)


def tasks_now(broker: int) -> dict[int, Task]:
    """Every thread of the machine by its number. Some milliseconds of work."""
    found: dict[int, Task] = {}
    for process in (name for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            name, _, rest = read(f"/proc/{process}/stat").partition("(")[2].rpartition(")")
            if int(process) == broker:
                name = "the broker"
            elif int(rest.split()[PARENT_FIELD]) == broker:
                name = "a child of the broker"
            for thread in os.listdir(f"/proc/{process}/task"):
                folder = f"/proc/{process}/task/{thread}"
                comm, _, rest = read(f"{folder}/stat").partition("(")[2].rpartition(")")
                cpu_s = int(read(f"{folder}/schedstat").split()[0]) / 1e9
                found[int(thread)] = Task(name, comm, int(rest.split()[CORE_FIELD]), cpu_s)
    return found


class Sampler:
    """Reads /proc in a thread: dirty pages, and where threads of the broker wait in the kernel."""

    def __init__(self, pid: int, core: int, every_s: float) -> None:
        self.pid = pid
        self.core = core
        self.every_s = every_s
        self.waits: list[tuple[float, int, str]] = []
        self.memory: list[Memory] = []
        self.used: list[tuple[float, int, float]] = []
        self._cpu_ns: dict[int, int] = {}
        self._over = threading.Event()
        self._threads: list[int] = []
        self._children: list[int] = []
        self._thread = threading.Thread(target=self._run, name="bench-stalls")

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        os.sched_setaffinity(0, {self.core})  # this thread's: off the server's core
        listed = measured = 0.0
        while not self._over.wait(self.every_s):
            at = time.monotonic()
            if at - listed > THREADS_S:
                listed = at
                self._list()
            if at - measured > MEMORY_S:
                measured = at
                self.memory.append(memory_now(read("/proc/meminfo"), read("/proc/stat"), at))
            for thread in self._threads:
                with contextlib.suppress(OSError):
                    self._sample(thread)
            for thread in [*self._threads, *self._children]:
                with contextlib.suppress(OSError):
                    self._sample_cpu(thread)

    def _list(self) -> None:
        """The broker's threads, and the main threads of its children."""
        with contextlib.suppress(OSError):
            folder = f"/proc/{self.pid}/task"
            self._threads = [int(name) for name in os.listdir(folder)]
            children = [read(f"{folder}/{thread}/children") for thread in self._threads]
            self._children = [int(child) for row in children for child in row.split()]

    def _sample_cpu(self, thread: int) -> None:
        now = int(read(f"/proc/{thread}/schedstat").split()[0])
        used_s = (now - self._cpu_ns.get(thread, now)) / 1e9
        self._cpu_ns[thread] = now
        if used_s >= USED_S:
            self.used.append((time.monotonic(), thread, used_s))

    def _sample(self, thread: int) -> None:
        folder = f"/proc/{self.pid}/task/{thread}"
        where = read(f"{folder}/wchan")
        if where in IDLE or (where.startswith("futex") and thread != self.pid):
            return
        with contextlib.suppress(PermissionError):  # without it the innermost function is known
            where = kernel_stack(read(f"{folder}/stack")) or where
        self.waits.append((time.monotonic(), thread, where))


def read(path: str) -> str:
    """A small file of /proc, without buffers and decoders between."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096).decode()
    finally:
        os.close(descriptor)


def trace_of(server: Server, output: Path) -> dict[str, Any]:
    """Ask the broker for its trace."""
    output.unlink(missing_ok=True)
    os.kill(server.pid, signal.SIGUSR2)
    limit = time.monotonic() + WRITE_LIMIT_S
    while not output.exists():
        if time.monotonic() > limit:
            raise ServerError(f"no trace was written\n{server.tail()}")
        server.pid  # noqa: B018 - raises when it has ended
        time.sleep(0.05)
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def traced(cell: Cell, place: Place, folder: Path, every_s: float) -> tuple[CellResult, Recording]:
    """Run the cell on a new broker under the trace."""
    output = (client.OUT / "trace.json").resolve()
    client.OUT.mkdir(exist_ok=True)
    server = Server(under_trace(kafkawire(cell.on_commit), output), folder, {place.server_core})
    server.discard()
    load_at: list[float] = []
    tasks: list[dict[int, Task]] = []

    def companion() -> None:
        load_at.append(time.monotonic())
        tasks.append(tasks_now(server.pid))
        time.sleep(cell.warmup_s + cell.seconds)
        tasks.append(tasks_now(server.pid))

    try:
        server.start()
        began = time.monotonic()
        with Sampler(server.pid, place.client_core, every_s) as sampler:
            result = run_cell(server, cell, place, companion=companion)
        run = stall_causes.recording(trace_of(server, output))
    finally:
        server.discard()
        output.unlink(missing_ok=True)
    run.waits, run.memory, run.used = sampler.waits, sampler.memory, sampler.used
    run.before, run.after = tasks
    run.began, run.load_at = began, load_at[0]
    run.ended = run.load_at + cell.warmup_s + cell.seconds
    return result, run


def show(cell: Cell, result: CellResult, run: Recording, count: int) -> None:
    """Print the tables."""
    times = result.result.latency_us
    print(f"\n{cell.name}: " + ", ".join(f"{k} {report.number(times[k] / 1e3)} ms"
          for k in ("p50", "p99", "p999", "max")))  # fmt: skip
    stalls = stall_causes.stall_rows(run, count)
    if stalls:
        report.show("longest stalls of the event loop", stall_causes.STALL_HEAD, stalls)
    else:
        print("no stall of the event loop over 5 ms")
    jobs = stall_causes.job_rows(run, count)
    report.show("longest jobs of threads", stall_causes.JOB_HEAD, jobs)
    summary = stall_causes.summary_rows(run)[:count]
    report.show("most time during the load", stall_causes.SUMMARY_HEAD, summary)
    used = stall_causes.cpu_rows(run, count)
    report.show("who used the cores during the load", stall_causes.CPU_HEAD, used)
    report.show("timeline", stall_causes.TIMELINE_HEAD, stall_causes.timeline_rows(run))


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m bench.stalls")
    parser.add_argument("--cells", default=CELLS, help="words of their names, of all groups")
    parser.add_argument("--scale", type=float, default=1.0, help="of bytes, windows and pauses")
    parser.add_argument("--longest", type=int, default=15, help="rows of a table")
    parser.add_argument(
        "--sample-ms", type=float, default=2.0, help="between samples of the kernel"
    )
    parser.add_argument("--no-warm", action="store_true", help="hold no warm memory (bench.warm)")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--data", type=Path, default=client.OUT / "stalls", help="folder, removed")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 when a check of the client failed, 2 when the bench could not run."""
    options = arguments(sys.argv[1:] if given is None else given)
    todo = [scaled(cell, options.scale) for cell in cells.chosen(options.cells, False, ALL_ROWS)]
    place = Place(options.server_core, options.client_core)
    content: dict[str, object] = {"machine": report.machine()}
    wrong: list[str] = []
    try:
        with warmed(
            place, [] if options.no_warm else todo, options.data.parent, lambda text: None
        ) as (place, _):
            for cell in todo:
                result, run = traced(cell, place, options.data, options.sample_ms / 1e3)
                show(cell, result, run, options.longest)
                wrong += result.errors
                content[cell.name] = {"result": result.as_json(), "trace": asdict(run)}
    except (LoadError, AdminError, ServerError, OSError) as error:
        print(f"bench.stalls: {error}", file=sys.stderr)
        return 2
    print(report.write_json("stalls.json", content))
    for text in wrong:
        print(f"FAILED {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
