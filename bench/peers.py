"""`python -m bench.peers`: the same cells against kafkawire and its peers, interleaved run by run.

Every broker is started once, pinned alike, warmed, and stopped where it stands (SIGSTOP) while
another is measured; each round runs a cell on every broker before the next round, so that drift of
the machine hits all alike. Cells acked from the page cache compare brokers that ack so; cells acked
after an fsync compare those that fsync. A second set runs with the server free to use both cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import cells, client, report
from bench.admin import AdminError
from bench.cell import Cell, ratio
from bench.client import LoadError
from bench.peer_recipes import DEFAULT_PEERS, PEERS, NotInstalled, installed
from bench.runner import CellResult, Place, run_cell
from bench.server import Recipe, Server, ServerError, kafkawire


@dataclass(slots=True)
class Comparison:
    """One cell against one peer: a figure each and their ratio, per round."""

    cell: Cell
    peer: str
    ours: list[CellResult] = field(default_factory=list)
    theirs: list[CellResult] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Sorted; at least 1 means we are as good (for p99 it is theirs over ours)."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return sorted(ratio(self.cell.metric, a.value, b.value) for a, b in pairs)

    def row(self) -> list[str]:
        """A line of the table."""
        us = median(r.value for r in self.ours)
        them = median(r.value for r in self.theirs)
        low, middle, high = self.ratios[0], median(self.ratios), self.ratios[-1]
        cpu = [median(r.result.cpu_us for r in side) for side in (self.ours, self.theirs)]
        errors = {text for run in [*self.ours, *self.theirs] for text in run.errors}
        row = [self.cell.name, self.peer, self.cell.metric.value]
        row += [report.number(v) for v in (us, them, middle, low, high, *cpu)]
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
    "our cpu us", "its cpu us", "",
)  # fmt: skip
WARM_CELLS = ("small acks=1 8 in flight", "bulk 100 KB none", "fetch 16 consumers")
FACTS_HEAD = ("broker", "start s", "idle RSS MiB", "idle RssAnon MiB")


class Fleet:
    """The brokers of one set, all started, all paused but the one that is measured."""

    def __init__(self, recipes: Sequence[Recipe], folder: Path, cores: set[int]) -> None:
        self.servers = [Server(r, folder / r.name.replace(" ", "-"), cores) for r in recipes]
        self.facts: list[list[str]] = []

    def start(self, place: Place, warm: bool, step: report.Step) -> None:
        """Starts and warms each alone, then pauses it."""
        for server in self.servers:
            step(f"start and warm {server.recipe.name}", False)
            server.discard()
            server.start()
            time.sleep(1.0)
            memory = server.memory()
            self.facts.append(
                [
                    server.recipe.name,
                    report.number(server.start_s[0]),
                    report.number(memory.rss_bytes / report.MIB),
                    report.number(memory.anon_bytes / report.MIB),
                ]
            )
            self._warm(server, place, server.recipe.warm_s if warm else 1.0)
            server.pause()

    def _warm(self, server: Server, place: Place, seconds: float) -> None:
        """Half of the time small requests, a quarter bulk, a quarter fetches."""
        small, bulk, fetch = map(cells.named, WARM_CELLS)
        for cell, share in ((small, 2), (bulk, 1), (fetch, 1)):
            left = max(seconds, 2.0) * share / 4
            while left > 0:
                run_cell(server, cell, place, min(left, 5.0))
                left -= 5.0

    def measure(self, server: Server, cell: Cell, place: Place) -> CellResult:
        """One run, the others paused."""
        server.resume()
        try:
            return run_cell(server, cell, place)
        finally:
            server.pause()

    def discard(self) -> None:
        """Ends all."""
        for server in self.servers:
            server.discard()


class Tournament:
    """All cells of one set over all rounds."""

    def __init__(self, fleet: Fleet, place: Place, rounds: int) -> None:
        self.fleet = fleet
        self.place = place
        self.rounds = rounds
        self.comparisons: list[Comparison] = []
        self.failed: list[str] = []

    def run(self, todo: Sequence[Cell], step: report.Step) -> None:
        """Cell by cell; in each round every broker once, the order turned by one each time."""
        for cell in todo:
            servers = [s for s in self.fleet.servers if s.recipe.durable == cell.durable]
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

    def _compare(self, cell: Cell, runs: dict[str, list[CellResult]]) -> None:
        ours = runs.get("kafkawire")
        for name, theirs in runs.items():
            if ours and name != "kafkawire":
                self.comparisons.append(Comparison(cell, name, ours, theirs))

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
    parser.add_argument("--no-both", action="store_true", help="without the both-cores set")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--data", type=Path, default=client.OUT / "peers", help="folder, removed")
    return parser.parse_args(given)


def recipes(options: argparse.Namespace) -> list[Recipe]:
    """kafkawire with both durabilities, and every peer that can be had."""
    found = [kafkawire(durable=False), kafkawire(durable=True)]
    for peer in options.only or [*DEFAULT_PEERS, *options.more]:
        try:
            found.append(installed(peer))
        except NotInstalled as error:
            print(f"without {peer}: {error}")
    return found


def one_set(
    options: argparse.Namespace, todo: Sequence[Cell], cores: set[int], title: str
) -> tuple[Tournament, dict[str, object]]:
    """Starts the fleet, runs the cells, shows and returns the tables."""
    place = Place(options.server_core, options.client_core)
    needed = {cell.durable for cell in todo}
    fleet = Fleet([r for r in recipes(options) if r.durable in needed], options.data, cores)
    tournament = Tournament(fleet, place, options.rounds)
    try:
        with report.progress(len(todo)) as step:
            fleet.start(place, not options.cold, step)
            tournament.run(todo, step)
    finally:
        fleet.discard()
    rows = [comparison.row() for comparison in tournament.comparisons]
    report.show(title, HEAD, rows)
    report.show("start and idle memory", FACTS_HEAD, fleet.facts)
    text = report.markdown(HEAD, rows) + "\n" + report.markdown(FACTS_HEAD, fleet.facts)
    content: dict[str, object] = {
        "title": title,
        "cells": [comparison.as_json() for comparison in tournament.comparisons],
        "facts": fleet.facts,
        "failed": tournament.failed,
        "markdown": text,
    }
    return tournament, content


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 when a run failed, 2 when nothing could be compared."""
    options = arguments(sys.argv[1:] if given is None else given)
    todo = cells.chosen(options.cells, options.quick)
    sets = [(todo, {options.server_core}, "one core for the server")]
    free = [cell for cell in todo if cell.both_cores]
    if free and not options.no_both:
        both = {options.server_core, options.client_core}
        sets.append((free, both, "both cores for the server, which shares one with the client"))
    contents, failed = [], []
    try:
        for some, cores, title in sets:
            tournament, content = one_set(options, some, cores, title)
            contents.append(content)
            failed += tournament.failed
    except (LoadError, AdminError, ServerError, NotInstalled, OSError) as error:
        print(f"bench.peers: {error}", file=sys.stderr)
        return 2
    print(report.write_json("peers.json", {"machine": report.machine(), "sets": contents}))
    for text in failed:
        print(f"FAILED {text}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
