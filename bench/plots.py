"""PNG plots of a bench run: rate and p99 against load.

Needs matplotlib (the `bench` extra); without it the bench prints a message and continues. Reads
only the results passed to it. Called by the bench.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cell import Cell
from bench.runner import CellResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float]


def points(
    cells: Sequence[Cell], results: Sequence[CellResult], prefix: str, figure: str
) -> list[Point]:
    """(load, figure) of the cells whose name begins with this; figure: a latency's name or
    "rate"."""
    found = []
    for cell, result in zip(cells, results, strict=True):
        if cell.load is None or not cell.name.startswith(prefix):
            continue
        job = result.result
        value = job.requests_s if figure == "rate" else job.latency_us.get(figure, job.mb_s)
        found.append((cell.load, value))
    return sorted(found)


def line(axes: Axes, series: list[Point], label: str, style: str = "o-") -> None:
    """One series, if there is any."""
    if series:
        axes.plot([x for x, _ in series], [y for _, y in series], style, label=label)


def rate_and_p99(
    axes: Axes, cells: Sequence[Cell], results: Sequence[CellResult], prefix: str, what: str
) -> None:
    """Closed loop: requests a second (left), p99 (right)."""
    if not points(cells, results, prefix, "rate"):
        axes.set_title(f"{prefix.strip()}: not run")
        return
    line(axes, points(cells, results, prefix, "rate"), "requests/s")
    axes.set(xlabel=what, ylabel="requests/s", xscale="log")
    axes.set_ylim(bottom=0)
    right = axes.twinx()
    line(right, points(cells, results, prefix, "p99"), "p99", "s--r")
    right.set(ylabel="p99, us (dashed)", yscale="log")


def latencies(axes: Axes, cells: Sequence[Cell], results: Sequence[CellResult]) -> None:
    """Open loop: p50 and p99 against the offered rate."""
    for prefix, word in (("paced ", "produce"), ("tail ", "produce to delivery")):
        for figure, style in (("p50", "o:"), ("p99", "o-")):
            line(axes, points(cells, results, prefix, figure), f"{word} {figure}", style)
    axes.set(xlabel="offered requests/s", ylabel="us", xscale="log", yscale="log")
    if axes.lines:
        axes.legend()


def draw(folder: Path, cells: Sequence[Cell], results: Sequence[CellResult]) -> Path | None:
    """Write bench.png; None where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, ((first, second), (third, fourth)) = pyplot.subplots(2, 2, figsize=(12, 8))
    rate_and_p99(first, cells, results, "connections ", "connections, one request each")
    rate_and_p99(second, cells, results, "partitions ", "partitions of the topic")
    latencies(third, cells, results)
    line(fourth, points(cells, results, "bulk ", "mb_s"), "bulk produce")
    fourth.set(xlabel="batch, KB", ylabel="MB/s", xscale="log")
    fourth.set_ylim(bottom=0)
    for axes in (first, second, third, fourth):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    path = folder / "bench.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
