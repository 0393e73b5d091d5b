"""The causes of stalls: what ran, and where the kernel made a thread wait, while none was served.

Pure: takes what bench.traced recorded in the broker and what bench.stalls sampled from outside,
returns rows of tables. All times are seconds of one clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import report

MB = 1e6
# The share of a stall that names its cause.
MOST = 0.5
SLOT_S = 0.5
LOOP_MODULES = ("asyncio.runners", "asyncio.base_events", "uvloop")
# Samples of CPU time come a little later than what they are about.
SAMPLE_S = 0.003

STALL_HEAD = (
    "stall at s", "ms", "cpu ms", "no core ms", "waited ms", "what ran", "in the kernel",
    "dirty MB", "writeback MB", "cause",
)  # fmt: skip
JOB_HEAD = (
    "job at s", "pool", "function", "queued ms", "ran ms", "to the loop ms", "in the kernel",
    "dirty MB", "writeback MB",
)  # fmt: skip
CPU_HEAD = ("process", "thread", "core", "cpu ms", "of the load %")
SUMMARY_HEAD = ("what", "count", "p50 ms", "p99 ms", "max ms", "total ms")
TIMELINE_HEAD = (
    "from s", "phase", "dirty MB", "writeback MB", "syncs", "longest ms", "stalls", "longest ms",
    "stalled ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the disk, a step of the loop or a collection, on one thread."""

    what: str
    thread: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class JobRun:
    """A job handed to a thread, from the loop and back to it."""

    pool: str
    function: str
    queued: float
    began: float
    ended: float
    delivered: float
    thread: int

    @property
    def whole_s(self) -> float:
        """From the loop's request to the loop's notice."""
        return self.delivered - self.queued


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which the event loop did not come to its timer."""

    began: float
    ended: float
    cpu_s: float  # that its thread ran
    no_core_s: float  # that its thread was ready to run, and another one ran on the core

    @property
    def length_s(self) -> float:
        """Its length."""
        return self.ended - self.began

    @property
    def waited_s(self) -> float:
        """For the disk, a lock or the interpreter lock."""
        return max(self.length_s - self.cpu_s - self.no_core_s, 0.0)


@dataclass(frozen=True, slots=True)
class Memory:
    """Page cache that is not on the disk: written to, and on its way. `stolen_s`: CPU time so far
    in which the host of this virtual machine let all its cores together wait."""

    at: float
    dirty_bytes: int
    writeback_bytes: int
    stolen_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """A thread of any process: the core it last ran on, and its CPU time so far."""

    process: str
    thread: str
    core: int
    cpu_s: float


@dataclass(slots=True)
class Recording:
    """Everything about one run. `waits`: (when, thread, where in the kernel) of samples; `stacks`:
    (when, functions, the innermost first) of the loop's thread; `used`: (when, thread, seconds) of
    CPU time of the broker's threads and children since the sample before; `names`: of its threads;
    `before` and `after`: all threads of the machine when the load began and ended; `load_at`: the
    end of the fill."""

    loop_thread: int
    calls: list[Call] = field(default_factory=list)
    jobs: list[JobRun] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    stacks: list[tuple[float, list[str]]] = field(default_factory=list)
    waits: list[tuple[float, int, str]] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    used: list[tuple[float, int, float]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    before: dict[int, Task] = field(default_factory=dict)
    after: dict[int, Task] = field(default_factory=dict)
    began: float = 0.0
    load_at: float = 0.0
    ended: float = 0.0

    def within(self, began: float) -> bool:
        """Whether something that began then belongs to the run."""
        return self.began <= began <= self.ended


def recording(found: Mapping[str, Any]) -> Recording:
    """The recording that bench.traced wrote."""
    return Recording(
        int(found["loop_thread"]),
        [Call(*each) for each in found["calls"]],
        [JobRun(*each) for each in found["jobs"]],
        [Stall(*each) for each in found["stalls"]],
        [(at, list(names)) for at, names in found["stacks"]],
        names={int(thread): name for thread, name in found["threads"].items()},
    )


def overlap_s(began: float, ended: float, other: Call) -> float:
    """Seconds that both have in common."""
    return max(min(ended, other.ended) - max(began, other.began), 0.0)


def ran(run: Recording, stall: Stall) -> str:
    """The name of what the loop's thread did: the shortest call that covers much of the stall, else
    the innermost function of ours in its stacks, else the call that covers the most."""
    calls = [call for call in run.calls if call.thread == run.loop_thread]
    covers = [(overlap_s(stall.began, stall.ended, call), call) for call in calls]
    much = [call for share, call in covers if share > stall.length_s * MOST]
    if much:
        return min(much, key=lambda call: call.ended - call.began).what
    stacks = [names for at, names in run.stacks if stall.began <= at <= stall.ended and names]
    if stacks:
        return Counter(map(innermost, stacks)).most_common(1)[0][0]
    seconds, longest = max(covers, key=lambda pair: pair[0], default=(0.0, None))
    return f"partly {longest.what}" if longest and seconds else "unknown"


def innermost(names: Sequence[str]) -> str:
    """The innermost function of ours in a stack, or the loop's own code where it calls none."""
    if names[0].startswith(LOOP_MODULES):
        return "the loop itself, no function"
    return next((name for name in names if "kafkawire" in name), names[0])


def kernel_wait(run: Recording, thread: int, began: float, ended: float) -> str:
    """Where the kernel made this thread wait in most samples; empty where in none."""
    found = Counter(where for at, who, where in run.waits if who == thread and began <= at <= ended)
    return found.most_common(1)[0][0] if found else ""


def memory_at(run: Recording, at: float) -> Memory:
    """The newest sample before this time."""
    before = [each for each in run.memory if each.at <= at]
    return before[-1] if before else Memory(at, 0, 0)


def stolen_s(run: Recording, began: float, ended: float) -> float:
    """CPU time that the host did not give to this virtual machine, by the samples around."""
    after = next((each for each in run.memory if each.at >= ended), None)
    before = memory_at(run, began)
    return after.stolen_s - before.stolen_s if after and before.stolen_s else 0.0


def cause(run: Recording, stall: Stall) -> str:
    """One phrase: what an improvement has to change."""
    if stolen_s(run, stall.began, stall.ended) > stall.length_s * MOST:
        return "the host of this virtual machine stopped it (steal)"
    if stall.cpu_s > stall.length_s * MOST:
        return "computed"
    if stall.no_core_s > stall.length_s * MOST:
        return f"another thread or process had the core: {others(run, stall)}"
    where = kernel_wait(run, run.loop_thread, stall.began, stall.ended)
    if where.startswith("futex"):
        return f"waited for a lock or the interpreter lock: {others(run, stall)}"
    return f"waited in the kernel: {where}" if where else "waited, no sample of where"


def others(run: Recording, stall: Stall) -> str:
    """The other work meanwhile: the thread or child of the broker that used the most CPU time, and
    the job of a thread that covers most of the stall."""
    used: dict[int, float] = defaultdict(float)
    for at, thread, seconds in run.used:
        if thread != run.loop_thread and stall.began < at <= stall.ended + SAMPLE_S:
            used[thread] += seconds
    found = []
    if used:
        thread, seconds = max(used.items(), key=lambda pair: pair[1])
        task = run.after.get(thread)
        name = run.names.get(thread) or (task.process if task else f"thread {thread}")
        found.append(f"{name} used {report.number(seconds * 1e3)} ms")
    else:
        found.append("no thread of the broker ran")
    jobs = [
        (min(stall.ended, job.ended) - max(stall.began, job.began), job)
        for job in run.jobs
        if job.ended > stall.began and job.began < stall.ended
    ]
    if jobs:
        _, longest = max(jobs, key=lambda pair: pair[0])
        found.append(f"{longest.pool}: {longest.function} was under way")
    return ", ".join(found)


def stall_rows(run: Recording, count: int) -> list[list[str]]:
    """The longest stalls, the longest first; times count from the end of the fill."""
    stalls = [stall for stall in run.stalls if run.within(stall.began)]
    rows = []
    for stall in sorted(stalls, key=lambda each: -each.length_s)[:count]:
        memory = memory_at(run, stall.ended)
        parts = (stall.length_s, stall.cpu_s, stall.no_core_s, stall.waited_s)
        rows.append(
            [
                f"{stall.began - run.load_at:.3f}",
                *(report.number(part * 1e3) for part in parts),
                ran(run, stall),
                kernel_wait(run, run.loop_thread, stall.began, stall.ended),
                *megabytes(memory),
                cause(run, stall),
            ]
        )
    return rows


def job_rows(run: Recording, count: int) -> list[list[str]]:
    """The longest commits, writes and other jobs of threads, the longest first."""
    jobs = [job for job in run.jobs if run.within(job.queued)]
    rows = []
    for job in sorted(jobs, key=lambda each: -each.whole_s)[:count]:
        times = (job.began - job.queued, job.ended - job.began, job.delivered - job.ended)
        rows.append(
            [
                f"{job.queued - run.load_at:.3f}",
                job.pool,
                job.function,
                *(report.number(max(part, 0.0) * 1e3) for part in times),
                kernel_wait(run, job.thread, job.began, job.ended),
                *megabytes(memory_at(run, job.ended)),
            ]
        )
    return rows


def megabytes(memory: Memory) -> list[str]:
    """Dirty pages and those under writeback."""
    return [report.number(memory.dirty_bytes / MB), report.number(memory.writeback_bytes / MB)]


def cpu_rows(run: Recording, count: int) -> list[list[str]]:
    """Who used the cores during the load, those of all processes and of the kernel."""
    used = []
    for number, task in run.after.items():
        before = run.before.get(number)
        used.append((task.cpu_s - (before.cpu_s if before else 0.0), number, task))
    ranked = sorted(used, key=lambda found: -found[0])[:count]
    length_s = run.ended - run.load_at
    return [
        [
            task.process,
            run.names.get(number, task.thread),
            str(task.core),
            report.number(cpu_s * 1e3),
            report.number(cpu_s / length_s * 100),
        ]
        for cpu_s, number, task in ranked
        if cpu_s > 0
    ]


def summary_rows(run: Recording) -> list[list[str]]:
    """Each kind of job, call and step after the fill: how many, how long; the most time first."""
    durations: dict[str, list[float]] = defaultdict(list)
    for job in run.jobs:
        if run.load_at <= job.queued <= run.ended:
            durations[f"{job.pool}: {job.function}, in its thread"].append(job.ended - job.began)
            durations[f"{job.pool}: {job.function}, there and back"].append(job.whole_s)
    for call in run.calls:
        if run.load_at <= call.began <= run.ended:
            side = "on the loop" if call.thread == run.loop_thread else "in a thread"
            what = "pwritev" if call.what.startswith("pwritev") else call.what
            durations[f"{what}, {side}"].append(call.ended - call.began)
    for stall in run.stalls:
        if run.load_at <= stall.began <= run.ended:
            durations["stall of the loop"].append(stall.length_s)
    ranked = sorted(durations.items(), key=lambda pair: -sum(pair[1]))
    return [[what, str(len(times)), *spread(times)] for what, times in ranked]


def spread(times: Iterable[float]) -> list[str]:
    """Median, 99th percentile, greatest and sum, in milliseconds."""
    found = sorted(times)
    at = (found[len(found) // 2], found[int(len(found) * 0.99)], found[-1], sum(found))
    return [report.number(value * 1e3) for value in at]


def timeline_rows(run: Recording) -> list[list[str]]:
    """One row for each half second: dirty pages, syncs, stalls."""
    rows = []
    first = int((run.began - run.load_at) / SLOT_S) - 1
    for slot in range(first, int((run.ended - run.load_at) / SLOT_S) + 1):
        begin = run.load_at + slot * SLOT_S
        end = begin + SLOT_S
        if end <= run.began:
            continue
        memory = [each for each in run.memory if begin <= each.at < end]
        syncs = [c for c in run.calls if c.what == "sync" and begin <= c.ended < end]
        stalls = [s for s in run.stalls if begin <= s.began < end]
        rows.append(
            [
                f"{slot * SLOT_S:.1f}",
                "fill" if slot < 0 else "load",
                most(each.dirty_bytes / MB for each in memory),
                most(each.writeback_bytes / MB for each in memory),
                str(len(syncs)),
                most((call.ended - call.began) * 1e3 for call in syncs),
                str(len(stalls)),
                most(stall.length_s * 1e3 for stall in stalls),
                report.number(sum(stall.length_s for stall in stalls) * 1e3),
            ]
        )
    return rows


def most(values: Iterable[float]) -> str:
    """The greatest value, empty where there is none."""
    found: Sequence[float] = list(values)
    return report.number(max(found)) if found else ""
