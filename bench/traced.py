"""Run a broker and record where its event loop and its threads wait: `traced.py OUTPUT MODULE
ARGUMENT...`.

Recorded are jobs handed to threads (queued, begun, ended, delivered to the loop), calls of the disk
and steps of the event loop that took long, garbage collections, and beats of a timer on the loop
that came late, with the stack of the loop's thread meanwhile. SIGUSR2 writes everything as JSON to
OUTPUT. Times are those of CLOCK_MONOTONIC, which all processes share. Not imported by any module:
bench.stalls starts the broker through this file.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import runpy
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any

from kafkawire.log.io import disk, ports, watchdog

# Shorter calls and steps are not recorded, syncs and jobs always.
EVENT_S = 0.0005
BEAT_S = 0.002
LATE_S = 0.005
# The newest are kept; a minute of heavy load is some 100,000.
MAX_EVENTS = 500_000
STACK_FRAMES = 12

now = time.monotonic


class Trace:
    """The recorded events, in lists that bench.stall_causes reads."""

    def __init__(self) -> None:
        self.loop_thread = threading.get_native_id()
        self.loop_ident = threading.get_ident()
        self.calls: deque[tuple[str, int, float, float]] = deque(maxlen=MAX_EVENTS)
        self.jobs: deque[list[Any]] = deque(maxlen=MAX_EVENTS)
        self.stalls: deque[tuple[float, float, float, float]] = deque(maxlen=MAX_EVENTS)
        self.stacks: deque[tuple[float, list[str]]] = deque(maxlen=MAX_EVENTS)
        self.due = 0.0  # of the next beat; 0: the loop does not run yet
        self.cpu_s = self.waited_s = 0.0  # at the last beat
        self._schedstat = -1

    def call(self, what: str, began: float, always: bool = False) -> None:
        """Note that a call or step has ended."""
        ended = now()
        if always or ended - began >= EVENT_S:
            self.calls.append((what, threading.get_native_id(), began, ended))

    def start_beats(self) -> None:
        """Start the timer, once there is a loop, and the thread that watches it."""
        self._schedstat = os.open(f"/proc/self/task/{self.loop_thread}/schedstat", os.O_RDONLY)
        self._beat_later()
        threading.Thread(target=self._watch, name="trace", daemon=True).start()

    def _beat_later(self) -> None:
        self.cpu_s, self.waited_s = self._used()
        self.due = now() + BEAT_S
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        at, due = now(), self.due
        if at - due > LATE_S:
            cpu_s, waited_s = self._used()
            self.stalls.append((due, at, cpu_s - self.cpu_s, waited_s - self.waited_s))
        self._beat_later()

    def _used(self) -> tuple[float, float]:
        """Seconds in which the loop's thread ran, and in which it waited for a core."""
        ran, waited = os.pread(self._schedstat, 80, 0).split()[:2]
        return int(ran) / 1e9, int(waited) / 1e9

    def _watch(self) -> None:
        """Note the stack of the loop's thread while a beat is late."""
        while True:
            time.sleep(BEAT_S)
            if now() - self.due > LATE_S:
                frame = sys._current_frames().get(self.loop_ident)
                names: list[str] = []
                while frame is not None and len(names) < STACK_FRAMES:
                    code = frame.f_code
                    names.append(f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}")
                    frame = frame.f_back
                self.stacks.append((now(), names))

    def write(self, path: str) -> None:
        """Write everything; the file appears whole."""
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        content = {
            "loop_thread": self.loop_thread,
            "threads": names,
            "calls": list(self.calls),
            "jobs": list(self.jobs),
            "stalls": list(self.stalls),
            "stacks": list(self.stacks),
        }
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.rename(path + ".new", path)


def name_of(fn: Callable[..., object]) -> str:
    """A function's name without its module, or its representation."""
    return str(getattr(fn, "__qualname__", fn))


def trace_calls(trace: Trace, owner: type, name: str, describe: Callable[..., str]) -> None:
    """Record the calls of a method of the disk."""
    original = getattr(owner, name)

    @wraps(original)
    def traced(*args: Any, **options: Any) -> Any:
        began = now()
        try:
            return original(*args, **options)
        finally:
            trace.call(describe(*args), began, name == "sync")

    setattr(owner, name, traced)


def trace_disk(trace: Trace) -> None:
    """Record what waits for the file system."""

    def gathered(_: object, buffers: Any, *__: object) -> str:
        return f"pwritev of {sum(map(len, buffers)) / 1e6:.1f} MB"

    trace_calls(trace, disk.DiskFile, "pwritev", gathered)
    for name in ("sync", "allocate", "truncate", "map", "close", "pread"):
        trace_calls(trace, disk.DiskFile, name, lambda *_, name=name: name)
    for name in ("open", "rename", "remove", "sync_dir", "listdir", "free_bytes"):
        trace_calls(trace, disk.DiskFileSystem, name, lambda *_, name=name: name)


def trace_threads(trace: Trace) -> None:
    """Record jobs handed to threads: pool and function; when queued, begun, ended, delivered; the
    thread."""
    submit, submit_then = disk.ThreadOffload.submit, disk.ThreadOffload.submit_then

    def traced(pool: str, fn: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[[], None]]:
        job: list[Any] = [pool, name_of(fn), now(), 0.0, 0.0, 0.0, 0]

        def timed(*given: Any) -> Any:
            job[3], job[6] = now(), threading.get_native_id()
            try:
                return fn(*given)
            finally:
                job[4] = now()

        def delivered() -> None:
            job[5] = now()
            trace.jobs.append(job)

        return timed, delivered

    def submit_traced(
        self: Any, pool: str, fn: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        timed, delivered = traced(pool, fn)
        future = submit(self, pool, timed, *args)
        future.add_done_callback(lambda _: delivered())
        return future

    def submit_then_traced(
        self: Any, pool: str, done: ports.Done[Any], fn: Callable[..., Any], *args: Any
    ) -> None:
        timed, delivered = traced(pool, fn)

        def done_traced(outcome: Any, failure: BaseException | None) -> None:
            delivered()
            done(outcome, failure)

        submit_then(self, pool, done_traced, timed, *args)

    disk.ThreadOffload.submit = submit_traced  # type: ignore[method-assign]
    disk.ThreadOffload.submit_then = submit_then_traced  # type: ignore[method-assign]


def trace_loop(trace: Trace) -> None:
    """Record long steps: those the watchdog measures, and callbacks of the next iteration."""

    class Traced(watchdog.Watchdog):
        """Records by the wall clock what its base class reports by CPU time."""

        def end_call(self, begun: float, who: Callable[[], str]) -> float:
            """End a stretch; `begun` is of perf_counter, which is CLOCK_MONOTONIC on Linux."""
            ended = super().end_call(begun, who)
            if ended - begun >= EVENT_S:
                trace.calls.append((who(), trace.loop_thread, begun, ended))
            return ended

    def timed(fn: Callable[..., object], *args: Any) -> None:
        began = now()
        try:
            fn(*args)
        finally:
            trace.call(f"callback {name_of(fn)}", began)

    def call_soon(_: ports.Env, fn: Callable[..., object], *args: Any) -> asyncio.Handle:
        if not trace.due:
            trace.start_beats()
        return asyncio.get_running_loop().call_soon(timed, fn, *args)

    disk.Watchdog = Traced  # type: ignore[attr-defined]
    ports.Env.call_soon = call_soon  # type: ignore[method-assign, assignment]


def trace_collector(trace: Trace) -> None:
    """Record garbage collections."""
    began = 0.0

    def collected(phase: str, about: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = now()
        else:
            trace.call(f"garbage collection of generation {about['generation']}", began)

    gc.callbacks.append(collected)


def main() -> None:
    """Run the module; end with its exit code."""
    output, module = sys.argv[1:3]
    trace = Trace()
    for install in (trace_disk, trace_threads, trace_loop, trace_collector):
        install(trace)
    signal.signal(signal.SIGUSR2, lambda *_: trace.write(output))
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
