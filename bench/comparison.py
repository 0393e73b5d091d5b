"""One cell against one peer, and the losses of a whole run, worst first.

Pure: figures in, rows of tables out. Called by the comparison (bench.peers), which shows them, and
by bench.publish, which writes the same into the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from bench import report
from bench.cell import Cell, Metric, ratio
from bench.runner import CellResult

HEAD = (
    "cell", "peer", "unit", "kafkawire", "peer's", "ratio", "min", "max", "our p99.9",
    "its p99.9", "our cpu us", "its cpu us", "per", "cpu ratio", "",
)  # fmt: skip
LOSS_HEAD = ("row", "figure", "set", "ours", "peer", "peer's", "ratio", "rounds")


@dataclass(frozen=True, slots=True)
class Loss:
    """A figure in which a peer is better: medians over the rounds, and the median of the ratios of
    each round; below 1, the smaller the worse. `rounds`: in how many of `of` it was below 1."""

    row: str
    figure: str
    ours: float
    peer: str
    theirs: float
    ratio: float
    rounds: int
    of: int

    def as_json(self) -> dict[str, object]:
        """For the JSON file."""
        return asdict(self)


@dataclass(slots=True)
class Comparison:
    """One cell against one peer: a figure each and their ratio, per round."""

    cell: Cell
    peer: str
    ours: list[CellResult] = field(default_factory=list)
    theirs: list[CellResult] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Sorted; at least 1 means we are as good (for p99 it is theirs over ours). A run without a
        result is left out: its error is in the row."""
        pairs = zip(self.ours, self.theirs, strict=True)
        found = (ratio(self.cell.metric, a.value, b.value) for a, b in pairs)
        return sorted(value for value in found if value)

    @property
    def cost_ratios(self) -> list[float]:
        """The same for the CPU time of the two brokers; none where another load shares it."""
        pairs = zip(self.ours, self.theirs, strict=True)
        found = ((a.cost_us, b.cost_us) for a, b in pairs)
        return sorted(theirs / ours for ours, theirs in found if ours and theirs)

    def row(self) -> list[str]:
        """A line of the table."""
        ratios = self.ratios or [0.0]
        figures = [*self._values, median(ratios), ratios[0], ratios[-1]]
        row = [self.cell.name, self.peer, self.cell.metric.value, *map(report.number, figures)]
        late = [median(r.result.latency_us["p999"] for r in side) for side in self._sides]
        timed = self.cell.metric is Metric.P99_US
        row += [report.number(value) if timed else "" for value in late]
        costs, unit = self._costs, self.cell.cost_unit
        row += map(report.optional, costs)
        row += [unit if costs[0] is not None else ""]
        row += [report.number(median(self.cost_ratios)) if self.cost_ratios else ""]
        errors = {text for side in self._sides for run in side for text in run.errors}
        return [*row, "; ".join(sorted(errors))]

    def losses(self) -> list[Loss]:
        """Figures that are below the peer's: the cell's own, and the CPU time."""
        unit = f"cpu us/{self.cell.cost_unit}"
        kinds = (
            (self.cell.metric.value, self._values, self.ratios),
            (unit, self._costs, self.cost_ratios),
        )
        return [
            Loss(
                self.cell.name, figure, ours, self.peer, theirs, median(ratios),
                sum(value < 1 for value in ratios), len(ratios),
            )
            for figure, (ours, theirs), ratios in kinds
            if ratios and median(ratios) < 1 and ours is not None and theirs is not None
        ]  # fmt: skip

    def as_json(self) -> dict[str, object]:
        """For the JSON file."""
        return {
            "cell": self.cell.name,
            "peer": self.peer,
            "unit": self.cell.metric.value,
            "ratios": self.ratios,
            "cost_ratios": self.cost_ratios,
            "losses": [found.as_json() for found in self.losses()],
            "ours": [run.as_json() for run in self.ours],
            "theirs": [run.as_json() for run in self.theirs],
        }

    @property
    def _sides(self) -> tuple[list[CellResult], list[CellResult]]:
        return self.ours, self.theirs

    @property
    def _values(self) -> tuple[float, float]:
        return median(r.value for r in self.ours), median(r.value for r in self.theirs)

    @property
    def _costs(self) -> tuple[float | None, float | None]:
        known = [[r.cost_us for r in side if r.cost_us is not None] for side in self._sides]
        first, second = (median(side) if side else None for side in known)
        return first, second


def loss_rows(found: Iterable[tuple[str, Loss]]) -> list[list[str]]:
    """The table of losses, worst first; each with the title of its set."""
    ranked = sorted(found, key=lambda pair: pair[1].ratio)
    return [
        [
            each.row, each.figure, title, report.number(each.ours), each.peer,
            report.number(each.theirs), report.number(each.ratio), f"{each.rounds} of {each.of}",
        ]
        for title, each in ranked
    ]  # fmt: skip


def losses_of(comparisons: Sequence[Comparison], title: str) -> list[tuple[str, Loss]]:
    """The losses of a set, with its title."""
    return [(title, each) for comparison in comparisons for each in comparison.losses()]
