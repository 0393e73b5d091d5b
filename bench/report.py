"""The output of a bench run: one table, one JSON file, the machine it ran on.

rich draws the table where the output is a terminal; elsewhere the same rows are plain aligned text,
which also suits bench/notes/performance.md. Called by the bench, the comparison and the guard.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.cell import ALL_ROWS
from bench.client import BENCH, OUT
from bench.long_cells import GROUPS
from bench.runner import CellResult
from bench.warm import PageCache

MIB = 1 << 20

Step = Callable[[str, bool], None]
"""The current step; True when it is complete."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure that is not a load cell: start-up time, idle memory."""

    name: str
    value: float
    unit: str
    target: float | None = None  # lower is better for all of these

    @property
    def ratio(self) -> float | None:
        """target/reached."""
        return self.target / self.value if self.target and self.value else None

    def as_json(self) -> dict[str, object]:
        """For the JSON file."""
        return asdict(self) | {"ratio": self.ratio}


def page_cache_facts(found: PageCache | None) -> list[Fact]:
    """The first figures of a report: the machine's rate for any broker that writes files."""
    if found is None:
        return []
    return [
        Fact("page cache, pages that lay free", found.cold_mb_s, "MB/s"),
        Fact("page cache, pages just used (bulk rows)", found.warm_mb_s, "MB/s"),
    ]


def number(value: float) -> str:
    """Short and aligned: three or more significant digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def optional(value: float | None) -> str:
    """A number or nothing."""
    return "" if value is None else number(value)


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table: rich on a terminal, aligned text elsewhere. All columns but the first are
    right-aligned."""
    if sys.stdout.isatty():
        table = Table(title=title, header_style="bold", title_justify="left")
        for place, name in enumerate(head):
            table.add_column(name, justify="right" if place else "left", no_wrap=not place)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    print(f"\n{title}")
    print("\n".join(plain(head, rows)), flush=True)


def plain(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned lines, with a rule under the header."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        return "  ".join(cells).rstrip()

    return [line(head), "  ".join("-" * width for width in widths), *map(line, rows)]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|---" + "|--:" * (len(head) - 1) + "|")
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def rows_options(text: str) -> str:
    """The value of --rows, checked."""
    for name in text.split(",") if text != ALL_ROWS else ():
        if name not in GROUPS:
            known = ", ".join(GROUPS)
            raise argparse.ArgumentTypeError(f"{name} is not one of {known}, {ALL_ROWS}")
    return text


def add_rows_options(parser: argparse.ArgumentParser, usual: str) -> None:
    """Add --rows, which groups of rows to run, and --scale."""
    groups = ", ".join(GROUPS)
    parser.add_argument(
        "--rows", type=rows_options, default=usual, metavar="GROUPS",
        help=f"groups of rows, with commas between: {groups}; {ALL_ROWS}: every one ({usual})",
    )  # fmt: skip
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="SHARE",
        help="of all bytes, windows and pauses, to try rows out: 0.1 is a tenth",
    )  # fmt: skip


CELL_HEAD = (
    "cell", "reached", "unit", "target", "ratio", "p50 us", "p99 us", "p99.9 us", "cpu us", "per",
    "client %", "RSS MiB", "long steps", "",
)  # fmt: skip


def cell_row(found: CellResult) -> list[str]:
    """A cell's line of the table."""
    result = found.result
    timed = result.latency_us["count"] > 0
    return [
        found.cell,
        number(found.value),
        found.unit,
        optional(found.target),
        optional(found.ratio),
        number(result.latency_us["p50"]) if timed else "",
        number(result.latency_us["p99"]) if timed else "",
        number(result.latency_us["p999"]) if timed else "",
        optional(found.cost_us),
        found.cost_unit if found.cost_us is not None else "",
        f"{result.client_busy * 100:.0f}" if found.unit != "p99 us" else "spins",
        number(found.rss_bytes / MIB),
        str(found.long_steps or ""),
        "; ".join(found.errors),
    ]


def fact_row(fact: Fact) -> list[str]:
    """A fact's line of the same table."""
    row = [fact.name, number(fact.value), fact.unit, optional(fact.target), optional(fact.ratio)]
    return row + [""] * (len(CELL_HEAD) - len(row))


def machine() -> dict[str, object]:
    """The hardware and software that the figures depend on."""
    model = platform.processor()
    for row in Path("/proc/cpuinfo").read_text().splitlines():
        if row.startswith("model name"):
            model = row.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "commit": commit(),
    }


class Quiet:
    """The share of the machine that other work used since this was created: noise invalidates every
    figure."""

    def __init__(self) -> None:
        self.before = self._read()

    @staticmethod
    def _read() -> list[int]:
        return [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]

    def stolen_percent(self) -> float:
        """CPU time the hypervisor gave to other machines, of what this one wanted or left idle."""
        spent = [now - then for now, then in zip(self._read(), self.before, strict=True)]
        return spent[7] / (sum(spent[:8]) or 1) * 100


def commit() -> str:
    """The commit of the source tree; empty outside a git clone."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=BENCH, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def write_json(name: str, content: dict[str, object]) -> Path:
    """Write a file into bench/out/."""
    OUT.mkdir(exist_ok=True)
    path = OUT / name
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


@contextmanager
def progress(total: int) -> Iterator[Step]:
    """Yield step(text, done): a bar on a terminal, elsewhere one line for each finished step."""
    if not sys.stdout.isatty():
        began, count = time.monotonic(), 0

        def plain_step(text: str, done: bool) -> None:
            nonlocal count
            count += done
            if done:
                print(f"[{count}/{total} {time.monotonic() - began:4.0f}s] {text}", flush=True)

        yield plain_step
        return
    what = TextColumn("{task.description}")
    with Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), what) as bar:
        task = bar.add_task("", total=total)

        def step(text: str, done: bool) -> None:
            bar.update(task, description=text, advance=int(done))

        yield step
