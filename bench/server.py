"""A broker as a child process: started on given cores, timed until it accepts, measured, stopped.

Independent of the kind of broker: a Recipe says what to start (kafkawire's is here, the peers' in
peer_recipes). Runs on Linux only, like the load client (epoll, /proc, core pinning). Called by the
runner.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.cell import Cell

READY_LIMIT_S = 90.0
STOP_LIMIT_S = 30.0
# After a fill: quiet is a broker that used less than this share of a core in so many steps.
SETTLE_LIMIT_S, SETTLE_STEP_S, SETTLE_STEPS, SETTLE_SHARE = 15.0, 0.4, 2, 0.08
# The most that an fsynced bulk row writes. The broker that syncs is configured to keep this much of
# old journals, and a margin, so that these rows overwrite: its default is 512 MiB.
RECYCLED_BYTES = 2_000_000_000


class ServerError(Exception):
    """The broker did not start, or has ended."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to start one kind of broker."""

    name: str
    command: Callable[[int, Path], Sequence[str]]  # port, data folder -> argv
    prepare: Callable[[int, Path], None] | None = None  # config files, formatting
    env: Mapping[str, str] = field(default_factory=dict)
    durable: bool = False  # an ack means fsynced
    warm_s: float = 0.0  # load before the first figure
    slow: bool = False  # by an order of magnitude: only the quick cells, in longer windows
    in_folder: bool = False  # runs with the data folder as its working directory
    only_durable: bool = False  # syncs before every ack, so it is compared in page cache rows too

    def runs(self, cell: Cell) -> bool:
        """Whether a peer is compared in this cell: an ack means the same as the cell asks for."""
        return self.durable == cell.durable or self.only_durable


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes: all, and those not backed by files."""

    rss_bytes: int
    anon_bytes: int


def kafkawire(durable: bool = False, root: Path | None = None) -> Recipe:
    """Our broker with flush=os, or flush=commit; `root`: a source tree other than the installed
    one."""
    settings = [
        # Like Kafka's node here: the heartbeat cell creates a thousand groups, one after the other,
        "group.initial.rebalance.delay.ms=0",
        # and a deleted topic's files must go before the next cell, not minutes later.
        "log.retention.check.interval.ms=500",
    ]
    settings += (
        ["flush=commit", f"recycle.bytes={RECYCLED_BYTES * 5 // 4}"] if durable else ["flush=os"]
    )

    def command(port: int, folder: Path) -> list[str]:
        words = [sys.executable, "-P", "-m", "kafkawire", "serve"]
        words += ["--listen", f"127.0.0.1:{port}", "--data", str(folder), "--log-level", "warning"]
        for setting in settings:
            words += ["--set", setting]
        return words

    env = {"PYTHONPATH": str(root)} if root else {}
    return Recipe("kafkawire", command, env=env, durable=durable)


def free_port() -> int:
    """A port that no process listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One running broker. start() and stop() may alternate; its data stays until discard()."""

    def __init__(self, recipe: Recipe, folder: Path, cores: set[int]) -> None:
        self.recipe = recipe
        self.folder = folder
        self.cores = cores
        self.host, self.port = "127.0.0.1", free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start_s: list[float] = []
        self.start_cpu_s: list[float] = []

    @property
    def pid(self) -> int:
        """The pid of the running process."""
        if self.process is None or self.process.poll() is not None:
            raise ServerError(f"{self.recipe.name} is not running\n{self.tail()}")
        return self.process.pid

    def start(self) -> float:
        """Start it and wait for the first accepted connection; return the seconds it took."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.recipe.prepare:
            self.recipe.prepare(self.port, self.folder)
        command = self.recipe.command(self.port, self.folder)
        began = time.monotonic()
        with open(self._log, "ab") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=os.environ | self.recipe.env,
                cwd=self.folder if self.recipe.in_folder else None,
                preexec_fn=self._before_exec,
            )
        while not self._accepts():
            self.pid  # noqa: B018 - raises when it has ended
            if time.monotonic() - began > READY_LIMIT_S:
                self.stop()
                raise ServerError(f"{self.recipe.name} is not ready after {READY_LIMIT_S:.0f} s")
            time.sleep(0.002)
        self.start_s.append(time.monotonic() - began)
        self.start_cpu_s.append(self.cpu_s())
        return self.start_s[-1]

    def _before_exec(self) -> None:
        os.sched_setaffinity(0, self.cores)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1.0):
            return True
        return False

    @property
    def _log(self) -> Path:
        return self.folder.with_suffix(".log")

    def tail(self) -> str:
        """The last lines of its output."""
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return ""

    def long_steps(self) -> int:
        """Lines so far on steps that held the event loop for over 5 ms, at most one a second."""
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace").count("held the event loop")
        return 0

    def cpu_s(self) -> float:
        """User and system seconds so far, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def tree_cpu_s(self) -> float:
        """User and system seconds so far of the process and its children, ended ones included."""
        ticks, todo = 0, [self.pid]
        while todo:
            folder = Path(f"/proc/{todo.pop()}")
            with contextlib.suppress(OSError):  # it has ended meanwhile
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
                for children in folder.glob("task/*/children"):
                    todo += map(int, children.read_text().split())
        return ticks / os.sysconf("SC_CLK_TCK")

    def settle(self, limit_s: float = SETTLE_LIMIT_S) -> bool:
        """Wait until it does next to nothing, but not longer than this; whether it has come to
        that."""
        limit, quiet, before = time.monotonic() + limit_s, 0, self.tree_cpu_s()
        while quiet < SETTLE_STEPS and time.monotonic() < limit:
            time.sleep(SETTLE_STEP_S)
            now = self.tree_cpu_s()
            quiet = quiet + 1 if now - before <= SETTLE_STEP_S * SETTLE_SHARE else 0
            before = now
        return quiet == SETTLE_STEPS

    def memory(self) -> Memory:
        """Resident memory now."""
        found = {}
        for row in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = row.partition(":")
            if name in ("VmRSS", "RssAnon"):
                found[name] = int(value.split()[0]) * 1024
        return Memory(found.get("VmRSS", 0), found.get("RssAnon", 0))

    def disk_bytes(self) -> int:
        """The disk space used by its data folder."""
        total = 0
        for at, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(os.path.join(at, name)).st_blocks * 512
        return total

    def pause(self) -> None:
        """Stop the process (SIGSTOP), so that it takes no CPU time from another broker's run."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after pause()."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it: SIGTERM, after a while SIGKILL."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def discard(self) -> None:
        """End it and remove its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._log.unlink(missing_ok=True)


class RunningServer(Server):
    """A broker that runs already, at an address. It is not started, stopped or changed except for
    the topics of the rows. `pid`: of its process on this machine, 0: its CPU time and memory are
    unknown."""

    def __init__(self, host: str, port: int, pid: int = 0) -> None:
        recipe = Recipe(f"{host}:{port}", lambda _port, _folder: [])
        super().__init__(recipe, Path(os.devnull), set())
        self.host = socket.gethostbyname(host)
        self.port = port
        self._pid = pid

    @property
    def pid(self) -> int:
        """The pid of its process, or 0."""
        return self._pid

    def start(self) -> float:
        """Check that it accepts a connection; return 0."""
        if not self._accepts():
            raise ServerError(f"no broker accepts connections at {self.host}:{self.port}")
        return 0.0

    def stop(self) -> None:
        """Do nothing."""

    def discard(self) -> None:
        """Do nothing."""

    def memory(self) -> Memory:
        """Resident memory now; 0 if it is unknown."""
        return super().memory() if self._pid else Memory(0, 0)

    def disk_bytes(self) -> int:
        """Return 0: its folder is unknown."""
        return 0

    def settle(self, limit_s: float = SETTLE_LIMIT_S) -> bool:
        """As of a Server; if its CPU time is unknown, wait for the whole time."""
        if self._pid:
            return super().settle(limit_s)
        time.sleep(limit_s)
        return True
