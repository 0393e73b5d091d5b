"""`python -m bench.peers`: the same cells against kafkawire and its peers, interleaved run by run.

Every broker is started once, pinned alike, warmed, and stopped (SIGSTOP) while another is measured;
each round runs a cell on every broker before the next round, so that drift of the machine affects
all alike. Cells acknowledged from the page cache compare brokers that do so; cells acknowledged
after an fsync compare those that fsync. A second set runs with the server free to use both cores.
Brokers that are not available here are estimated from a table: see bench.reference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import cells, client, reference, report
from bench.admin import AdminError
from bench.cell import Cell, ratio
from bench.client import LoadError
from bench.fleet import FACTS_HEAD, OURS, Fleet, recipes
from bench.peer_recipes import DEFAULT_PEERS, PEERS, QUICK_PEERS, NotInstalled, versions
from bench.runner import CellResult, Place, warmed
from bench.server import Server, ServerError


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

    def row(self) -> list[str]:
        """A line of the table."""
        us = median(r.value for r in self.ours)
        them = median(r.value for r in self.theirs)
        ratios = self.ratios or [0.0]
        low, middle, high = ratios[0], median(ratios), ratios[-1]
        cpu = [median(r.result.cpu_us for r in side) for side in (self.ours, self.theirs)]
        errors = {text for run in [*self.ours, *self.theirs] for text in run.errors}
        row = [self.cell.name, self.peer, self.cell.metric.value]
        row += [
            report.number(v) for v in (us, them, middle, low, high, *cpu, cpu[1] / (cpu[0] or 1e-9))
        ]
        return [*row, "; ".join(sorted(errors))]

    def as_json(self) -> dict[str, object]:
        """For the JSON file."""
        return {
            "cell": self.cell.name,
            "peer": self.peer,
            "unit": self.cell.metric.value,
            "ratios": self.ratios,
            "ours": [run.as_json() for run in self.ours],
            "theirs": [run.as_json() for run in self.theirs],
        }


HEAD = (
    "cell", "peer", "unit", "kafkawire", "peer's", "ratio", "min", "max",
    "our cpu us", "its cpu us", "cpu ratio", "",
)  # fmt: skip
ESTIMATE_HEAD = ("cell", "peer", "ratio")
ESTIMATE_NOTE = (
    "not measured here: their ratio to Kafka in a table of another day (bench/reference.py), "
    "times ours to Kafka above"
)
# Share of a cell's window in `python -m bench`: there are many brokers and rounds.
WINDOW = 0.7


class Tournament:
    """All cells of one set over all rounds."""

    def __init__(self, fleet: Fleet, place: Place, rounds: int) -> None:
        self.fleet = fleet
        self.place = place
        self.rounds = rounds
        self.comparisons: list[Comparison] = []
        self.failed: list[str] = []

    def run(self, todo: Sequence[Cell], step: report.Step) -> None:
        """Run cell by cell; in each round every broker once, with the order rotated by one each
        time."""
        for cell in todo:
            servers = [
                s
                for s in self.fleet.servers
                if s.recipe.durable == cell.durable and (cell.quick or not s.recipe.slow)
            ]
            runs: dict[str, list[CellResult]] = {s.recipe.name: [] for s in servers}
            for number in range(self.rounds):
                turn = number % len(servers)
                for server in servers[turn:] + servers[:turn]:
                    name = server.recipe.name
                    step(f"{cell.name}: {name}, round {number + 1}", False)
                    if name in runs:
                        self._run(server, cell, runs)
            self._compare(cell, runs)
            step(self._summary(cell, runs), True)

    def _run(self, server: Server, cell: Cell, runs: dict[str, list[CellResult]]) -> None:
        name = server.recipe.name
        try:
            runs[name].append(self.fleet.measure(server, cell, self.place))
        except (LoadError, AdminError) as error:
            self.failed.append(f"{name}: {cell.name}: {error}")
            del runs[name]  # not in this cell's further rounds
        except ServerError as error:
            self.failed.append(f"{name}: {cell.name}: {error}")
            del runs[name]
            self.fleet.servers.remove(server)  # it has ended: not in any further cell

    def _compare(self, cell: Cell, runs: dict[str, list[CellResult]]) -> None:
        ours = runs.get(OURS)
        for name, theirs in runs.items():
            if ours and name != OURS:
                self.comparisons.append(Comparison(cell, name, ours, theirs))

    def estimates(self) -> list[list[str]]:
        """Rows for the brokers that were not measured, derived through Kafka, which was."""
        rows = []
        for found in self.comparisons:
            if found.peer != reference.base(found.cell):
                continue
            measured = {c.peer for c in self.comparisons if c.cell == found.cell}
            guessed = reference.estimates(found.cell, found.ratios, measured)
            rows += [
                [found.cell.name, f"{name} *", report.number(r)] for name, r in guessed.items()
            ]
        return rows

    @staticmethod
    def _summary(cell: Cell, runs: dict[str, list[CellResult]]) -> str:
        figures = [f"{n} {report.number(median(r.value for r in f))}" for n, f in runs.items()]
        return f"{cell.name} ({cell.metric.value}): {', '.join(figures)}"


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m bench.peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", default="", help="only cells whose name has one of these words")
    parser.add_argument("--quick", action="store_true", help="only the small subset of cells")
    parser.add_argument("--with", dest="more", action="append", default=[], choices=[*PEERS])
    parser.add_argument("--only", action="append", default=[], choices=[*PEERS])
    parser.add_argument("--cold", action="store_true", help="don't warm (for trying things out)")
    parser.add_argument("--both", action="store_true", help="with the both-cores set, if --quick")
    parser.add_argument("--no-both", action="store_true", help="without the both-cores set")
    parser.add_argument("--no-warm", action="store_true", help="hold no warm memory (bench.warm)")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--data", type=Path, default=client.OUT / "peers", help="folder, removed")
    return parser.parse_args(given)


def one_set(
    options: argparse.Namespace,
    place: Place,
    todo: Sequence[Cell],
    cores: set[int],
    title: str,
    step: report.Step,
) -> tuple[Tournament, dict[str, object]]:
    """Starts the fleet, runs the cells, shows and returns the tables."""
    needed = {cell.durable for cell in todo}
    usual = QUICK_PEERS if options.quick or len(cores) > 1 else DEFAULT_PEERS
    chosen = [r for r in recipes(options.only or usual, options.more) if r.durable in needed]
    fleet = Fleet(chosen, options.data, cores, WINDOW)
    tournament = Tournament(fleet, place, options.rounds)
    try:
        fleet.start(place, not options.cold, step)
        tournament.run(todo, step)
    finally:
        fleet.discard()
    rows = [comparison.row() for comparison in tournament.comparisons]
    report.show(title, HEAD, rows)
    report.show("start and idle memory", FACTS_HEAD, fleet.facts)
    guessed = tournament.estimates()
    if guessed:
        report.show(f"* {ESTIMATE_NOTE}", ESTIMATE_HEAD, guessed)
    content: dict[str, object] = {
        "title": title,
        "rounds": options.rounds,
        "cells": [comparison.as_json() for comparison in tournament.comparisons],
        "head": HEAD,
        "rows": rows,
        "facts": fleet.facts,
        "estimates": guessed,
        "failed": tournament.failed,
    }
    return tournament, content


def sets_of(options: argparse.Namespace) -> list[tuple[list[Cell], set[int], str]]:
    """The sets to run: title, cores and brokers of each."""
    todo = cells.chosen(options.cells, options.quick)
    if not options.cells:
        todo = [cell for cell in todo if not cell.alone]
    sets = [(todo, {options.server_core}, "one core for the server")]
    free = [cell for cell in todo if cell.both_cores]
    if free and not options.no_both and (options.both or not options.quick):
        both = {options.server_core, options.client_core}
        sets.append((free, both, "both cores for the server, which shares one with the client"))
    return sets


def run(options: argparse.Namespace) -> list[str]:
    """Run all sets; return the errors. The JSON file is written after each."""
    sets = sets_of(options)
    every = [cell for todo, _, _ in sets for cell in todo]
    place = Place(options.server_core, options.client_core)
    content: dict[str, object] = {"machine": report.machine(), "versions": versions()}
    contents, failed = [], []
    with (
        report.progress(len(every)) as step,
        warmed(
            place,
            [] if options.no_warm else every,
            options.data,
            lambda text: step(text, False),
        ) as (place, page_cache),
    ):
        content["facts"] = [f.as_json() for f in report.page_cache_facts(page_cache)]
        for todo, cores, title in sets:
            tournament, found = one_set(options, place, todo, cores, title, step)
            contents.append(found)
            failed += tournament.failed
            path = report.write_json("peers.json", content | {"sets": contents})
    print(path)
    return failed


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 when a run failed, 2 when nothing could be compared."""
    options = arguments(sys.argv[1:] if given is None else given)
    try:
        failed = run(options)
    except (LoadError, AdminError, ServerError, NotInstalled, OSError) as error:
        print(f"bench.peers: {error}", file=sys.stderr)
        return 2
    for text in failed:
        print(f"FAILED {text}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
