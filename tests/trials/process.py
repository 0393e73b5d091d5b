"""The broker under trial: its process, its children, their memory and CPU use; Linux only (/proc).

Only processes that were started here, and their children, are ever signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from kafkawire.testing.control import BrokerFailed
from kafkawire.testing.process import BrokerProcess
from tests.trials.context import Context

ORPHANS_GONE_WITHIN_S = 60.0
"""A child notices the end of its pipes at once; on a busy machine it may have to wait for CPU
time."""
START_WITHIN_S = 90.0
COMMAND_WITHIN_S = 180.0
CONTEXT_LINES = 30
"""Lines of a traceback: enough to see where it comes from."""
WRONG = re.compile(r"\bCRITICAL\b|Traceback \(most recent call last\)")
"""Log lines that must not appear for a broker that was only killed, however often."""
LINES_BEFORE = 2
MAX_COMPLAINTS = 20
UNANSWERABLE = "no way to say so"
"""A request failed and could not even be refused."""
CLOSING = "closing the connection of "
"""The line that gives the reason for closing a connection; another one follows each time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return (self.out + self.err).strip()

    def document(self) -> Any:
        """Standard output as JSON; None if it is not JSON."""
        with contextlib.suppress(ValueError):
            return json.loads(self.out)
        return None


def command(*words: str, environ: Mapping[str, str] | None = None) -> Outcome:
    """Run `kafkawire WORDS`; code -9 with a sentence if it does not end in time."""
    line = [sys.executable, "-P", "-m", "kafkawire", *words]
    env = {k: v for k, v in os.environ.items() if not k.startswith("KAFKAWIRE_")}
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, errors="replace", check=False,
            timeout=COMMAND_WITHIN_S, env={**env, **(environ or {})}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome(-9, "", f"`kafkawire {' '.join(words)}` did not end in {COMMAND_WITHIN_S} s")
    return Outcome(done.returncode, done.stdout, done.stderr)


class Log:
    """Reads the output of a broker line by line, however long it becomes. `closings` counts the
    lines that give a reason for closing a connection, `warnings` has the last lines at WARNING or
    above, `complaints` the lines that must not appear, with their context, and `unanswerable` the
    requests that failed without a response."""

    def __init__(self) -> None:
        self.closings = 0
        self.warnings: deque[str] = deque(maxlen=100)
        self.complaints: list[str] = []
        self.unanswerable: list[str] = []
        self._before: deque[str] = deque(maxlen=LINES_BEFORE)
        self._left = 0

    def add(self, line: str) -> None:
        """Take the next line."""
        line = line.rstrip("\n")
        if CLOSING in line:
            self.closings += 1
        if UNANSWERABLE in line and len(self.unanswerable) < MAX_COMPLAINTS:
            self.unanswerable.append(line)
        if re.search(r" (WARNING|ERROR|CRITICAL) ", line):
            self.warnings.append(line)
        if self._left:
            self._left -= 1
            self.complaints[-1] += f"\n{line}"
        elif WRONG.search(line) and len(self.complaints) < MAX_COMPLAINTS:
            self._left = CONTEXT_LINES
            self.complaints.append("\n".join((*self._before, line)))
        self._before.append(line)


def report_log(context: Context, log: Log) -> None:
    """Report tracebacks in the log and requests without a response: clients must not be able to
    cause either."""
    for text in (*log.complaints, *log.unanswerable):
        context.broken(f"the broker logged: {text}")


class WatchedProcess(BrokerProcess):
    """A broker process of which every line is read; `output` has only the last 2,000."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.log = Log()

    def _keep(self, output: Iterable[str]) -> None:
        super()._keep(self._read(output))

    def _read(self, stream: Iterable[str]) -> Iterator[str]:
        for line in stream:
            self.log.add(line)
            yield line


class Victim:
    """One data folder and the broker on it. `starts`, `kills`, `child_kills` count."""

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, str],
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.process = WatchedProcess(
            data,
            settings=settings,
            arguments=arguments,
            environ=environ,
            start_timeout_s=START_WITHIN_S,
        )
        self.starts = self.kills = self.child_kills = 0
        self._orphans: dict[int, str] = {}

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def output(self) -> str:
        return self.process.output

    async def start(self) -> None:
        """Start and wait until it serves; raises BrokerFailed."""
        self.starts += 1
        await asyncio.to_thread(self.process.start)

    async def start_and_kill(self, after_s: float) -> None:
        """Start the broker, and kill it after a delay, most likely during recovery."""
        self.starts += 1
        before = self.process._child
        starting = asyncio.create_task(asyncio.to_thread(self.process.start))
        while self.process._child is before and not starting.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await asyncio.sleep(after_s)
        self.signal_kill()
        with contextlib.suppress(BrokerFailed):
            await starting
        await asyncio.to_thread(self.process.kill)  # it may have been ready before the kill

    def signal_kill(self) -> None:
        """SIGKILL to the broker alone; its children are left to end by themselves."""
        self.kills += 1
        self._orphans |= {pid: started_at(pid) for pid in children(self.process.pid)}
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.signal_kill()
        await asyncio.to_thread(self.process.kill)

    async def stop(self) -> None:
        """SIGTERM, and wait; raises BrokerFailed."""
        await asyncio.to_thread(self.process.stop, 60.0)

    def kill_child(self, rng: Random) -> str:
        """SIGKILL to one of its child processes; return its module, empty where there is none."""
        there = sorted(children(self.process.pid)) if self.process.running else []
        if not there:
            return ""
        pid = rng.choice(there)
        words = module_of(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.child_kills += 1
        return words

    async def orphans(self) -> list[str]:
        """Children of killed brokers that are still running; returns as soon as all have ended."""
        end = time.monotonic() + ORPHANS_GONE_WITHIN_S
        while left := [pid for pid, at in self._orphans.items() if started_at(pid) == at != ""]:
            if time.monotonic() > end:
                return [command_line(pid) for pid in left]
            await asyncio.sleep(0.05)
        self._orphans.clear()
        return []

    @property
    def log(self) -> Log:
        """The output of the broker over all its starts."""
        return self.process.log

    def complaints(self) -> list[str]:
        """Lines that a broker without damage must not write, each with the lines that follow it."""
        return self.log.complaints

    def usage(self) -> Usage:
        """Memory and CPU time of the broker process now."""
        return usage(self.process.pid)


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of a process, and the CPU time of its first thread, which runs the event loop."""

    rss: int
    peak_rss: int
    loop_cpu_s: float
    descriptors: int


def usage(pid: int) -> Usage:
    """Raises OSError for a process that is gone."""
    fields = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()
    rss, peak = (int(fields[name][0]) << 10 for name in ("VmRSS", "VmHWM"))
    loop = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return Usage(rss, peak, int(loop[0]) / 1e9, len(os.listdir(f"/proc/{pid}/fd")))


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
            for child in map(int, text.split()):
                found += [child, *children(child)]
    return found


def started_at(pid: int) -> str:
    """The start time of a process, which distinguishes it from a later one with the same pid; empty
    if it has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else rest[18]


def module_of(pid: int) -> str:
    """The module that a Python process runs (python -m MODULE); its command line for others."""
    words = command_line(pid).split()
    return words[words.index("-m") + 1] if "-m" in words[:-1] else " ".join(words)


def command_line(pid: int) -> str:
    """The command line of a process, shortened."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()
