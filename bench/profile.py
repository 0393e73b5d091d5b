"""`python -m bench.profile`: where the microseconds of one produce and one fetch are spent.

Each cell runs three times on a new broker: plain (the real cost of a request), under cProfile (the
distribution of that cost over Python functions) and, where perf is available, sampled by it
(kernel, interpreter, C libraries). cProfile makes every call slower, so its shares are scaled to
the plain cost and are a guide, not a measurement. Writes bench/out/profile.md for
bench/notes/performance.md.
"""

from __future__ import annotations

import argparse
import os
import pstats
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import cells, client, report
from bench.admin import AdminError
from bench.cell import ALL_ROWS, Cell
from bench.client import BENCH, LoadError
from bench.runner import CellResult, Place, run_cell
from bench.server import Recipe, Server, ServerError, kafkawire

CELLS = ("paced 2000/s", "small acks=1 8 in flight", "fetch warm 4 consumers")
ROWS = 16  # the rest is one line
PERF_HZ = 997
PYTHON_HEAD = ("function", "us/request", "share %", "calls/request")
ENTRY = "kafkawire/handlers/{}.py start"
LOOP = ("asyncio/runners.py run", "run_until_complete", "run_forever", "poll' of 'select.epoll'")
PERF_HEAD = ("where", "us/request", "share %")

# First match wins: a symbol's or library's pattern, the line it is counted in.
KERNEL = (
    (r"sock|tcp|inet|skb|ip_|net_|napi|loopback|__dev|softirq|sk_", "kernel: network"),
    (r"epoll|poll|futex|schedule|wake|switch|clock|timer", "kernel: waiting and waking"),
    (r"copy|memcpy|rep_movs|clear_page", "kernel: copying"),
    (r"ext4|xfs|btrfs|file|page|folio|write|jbd|blk|bio|iomap", "kernel: files and pages"),
    (r"entry|syscall|exit_to|return_thunk|pti|irq", "kernel: system call entry and exit"),
)
LIBRARIES = (
    (r"^loop\.|uvloop", "uvloop"),
    (r"crc32c", "crc32c"),
    (r"^(lib)?python", "Python interpreter"),
    (r"sqlite", "SQLite"),
    (r"libc|ld-linux|vdso", "libc"),
)


Doing = Callable[[], object]


@dataclass(slots=True)
class Breakdown:
    """One cell: its plain result and the two tables."""

    cell: Cell
    plain: CellResult
    python: list[list[str]]
    perf: list[list[str]]

    def markdown(self) -> str:
        """A section for the document."""
        result = self.plain.result
        text = (
            f"### {self.cell.name}\n\n{report.number(self.plain.value)} {self.plain.unit}; "
            f"{report.number(result.cpu_us)} us of server CPU a request; "
            f"p50 {report.number(result.latency_us['p50'])} us.\n\n"
        )
        if self.perf:
            text += report.markdown(PERF_HEAD, self.perf) + "\n"
        return text + report.markdown(PYTHON_HEAD, self.python)


def under_cprofile(recipe: Recipe, output: Path) -> Recipe:
    """The same broker started through profiled.py: signals start and stop the profile."""

    def command(port: int, folder: Path) -> list[str]:
        words = list(recipe.command(port, folder))
        at = words.index("-m")
        return [*words[:at], str(BENCH / "profiled.py"), str(output), *words[at + 1 :]]

    return Recipe(f"{recipe.name} under cProfile", command, durable=recipe.durable)


def place_name(path: str, function: str) -> str:
    """`kafkawire/log/partition/partition.py append` rather than a whole path."""
    if path == "~":
        return function.strip("<>")
    parts = Path(path).parts
    for root in ("kafkawire", "log", "groups", "offsets", "site-packages", "lib"):
        if root in parts:
            at = len(parts) - 1 - parts[::-1].index(root)
            kept = parts[at + 1 :] if root in ("site-packages", "lib") else parts[at:]
            return f"{'/'.join(kept)} {function}"
    return f"{parts[-1]} {function}"


def python_rows(output: Path, entry: str, cpu_us: float) -> list[list[str]]:
    """Own time per function, the waiting in the selector left out, scaled to cpu_us.

    `entry` is the function called once for each request.
    """
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, object]]
    stats = pstats.Stats(str(output)).stats  # type: ignore[attr-defined]
    times: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for (path, _, function), (_, count, own, _, _) in stats.items():
        name = place_name(path, function)
        if name.endswith(LOOP):
            continue  # the loop itself: mostly waiting, and perf shows its part
        times[name] += own
        calls[name] += count
    total = sum(times.values()) or 1.0
    requests = calls.get(entry) or 1
    ranked = sorted(times, key=lambda name: -times[name])
    rows = [
        [
            name,
            report.number(times[name] / total * cpu_us),
            report.number(times[name] / total * 100),
            report.number(calls[name] / requests),
        ]
        for name in ranked[:ROWS]
    ]
    rest = sum(times[name] for name in ranked[ROWS:])
    return [*rows, ["the rest", report.number(rest / total * cpu_us),
                    report.number(rest / total * 100), ""]]  # fmt: skip


def perf_category(library: str, symbol: str, kernel: bool) -> str:
    """The line of the table a sample belongs to."""
    for pattern, name in KERNEL if kernel else LIBRARIES:
        if re.search(pattern, symbol if kernel else library):
            return name
    return "kernel: other" if kernel else f"{library}"


def perf_rows(data: Path, cpu_us: float) -> list[list[str]]:
    """Samples by kernel area and library."""
    words = ["perf", "report", "-i", str(data), "--stdio", "--sort", "dso,sym", "-g", "none"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    shares: dict[str, float] = defaultdict(float)
    for row in done.stdout.splitlines():
        found = re.match(r"\s*([\d.]+)%\s+(\S+)\s+\[(.)\]\s+(\S+)", row)
        if found:
            share, library, kind, symbol = found.groups()
            shares[perf_category(library, symbol, kind == "k")] += float(share)
    total = sum(shares.values()) or 1.0
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])
    return [
        [name, report.number(share / total * cpu_us), report.number(share / total * 100)]
        for name, share in ranked
        if share / total > 0.002
    ]


class Profiler:
    """Runs one cell on fresh brokers."""

    def __init__(self, folder: Path, place: Place, seconds: float) -> None:
        self.folder = folder
        self.place = place
        self.seconds = seconds

    def run(self, cell: Cell) -> Breakdown:
        """Run plain (with perf in a second plain run, so that it does not affect the first), then
        under cProfile."""
        recipe = kafkawire(cell.on_commit)
        perf: list[list[str]] = []
        server = self._server(recipe)
        try:
            server.start()
            run_cell(server, cells.warm_up(cell.on_commit), self.place)
            plain = run_cell(server, cell, self.place, self.seconds)
            if shutil.which("perf"):
                perf = self._perf(server, cell, plain.result.cpu_us)
        finally:
            server.discard()
        python = self._cprofile(recipe, cell, plain.result.cpu_us)
        return Breakdown(cell, plain, python, perf)

    def _server(self, recipe: Recipe) -> Server:
        server = Server(recipe, self.folder / "data", {self.place.server_core})
        server.discard()
        return server

    def _run_with_hooks(self, server: Server, cell: Cell, begin: Doing, end: Doing) -> CellResult:
        """Run the cell with `begin` called once the load is steady, `end` before it ends."""

        def companion() -> None:
            time.sleep(cell.warmup_s + 0.5)
            begin()
            time.sleep(self.seconds)
            end()

        return run_cell(server, cell, self.place, self.seconds + 1.0, companion)

    def _perf(self, server: Server, cell: Cell, cpu_us: float) -> list[list[str]]:
        data = self.folder / "perf.data"
        words = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(PERF_HZ)]
        words += ["-p", str(server.pid), "-o", str(data)]
        started: list[subprocess.Popen[bytes]] = []

        def begin() -> None:
            started.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))

        self._run_with_hooks(server, cell, begin, lambda: started[0].terminate())
        started[0].wait()
        return perf_rows(data, cpu_us) if data.exists() else []

    def _cprofile(self, recipe: Recipe, cell: Cell, cpu_us: float) -> list[list[str]]:
        output = self.folder / "cprofile.out"
        output.unlink(missing_ok=True)
        server = self._server(under_cprofile(recipe, output.resolve()))
        try:
            server.start()
            pid = server.pid
            self._run_with_hooks(
                server,
                cell,
                lambda: os.kill(pid, signal.SIGUSR1),
                lambda: os.kill(pid, signal.SIGUSR2),
            )
            limit = time.monotonic() + 10
            while not output.exists() and time.monotonic() < limit:
                time.sleep(0.05)
            if not output.exists():
                raise ServerError(f"no profile was written\n{server.tail()}")
            return python_rows(output, ENTRY.format(cell.jobs[0].mode), cpu_us)
        finally:
            server.discard()


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, 2 when the broker or the client could not run."""
    parser = argparse.ArgumentParser("python -m bench.profile")
    parser.add_argument("--cells", help="words of their names; the usual three when not given")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    options = parser.parse_args(sys.argv[1:] if given is None else given)
    folder = client.OUT / "profile"
    folder.mkdir(parents=True, exist_ok=True)
    profiler = Profiler(folder, Place(options.server_core, options.client_core), options.seconds)
    sections = []
    try:
        chosen = (
            cells.chosen(options.cells, False, ALL_ROWS)
            if options.cells
            else map(cells.named, CELLS)
        )
        for cell in chosen:
            breakdown = profiler.run(cell)
            sections.append(breakdown.markdown())
            report.show(cell.name, PERF_HEAD, breakdown.perf)
            report.show(cell.name, PYTHON_HEAD, breakdown.python)
    except (LoadError, AdminError, ServerError, OSError) as error:
        print(f"bench.profile: {error}", file=sys.stderr)
        return 2
    path = client.OUT / "profile.md"
    path.write_text("\n".join(sections))
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
