"""`python -m bench.peers`: the same cells against kafkawire and its peers, interleaved run by run.

Every broker is started once, pinned alike, warmed, and stopped (SIGSTOP) while another is measured;
each round runs a cell on every broker before the next round, so that drift of the machine affects
all alike. Cells acknowledged from the page cache compare brokers that do so; cells acknowledged
after an fsync compare those that fsync (klite always does, and is in both). A second set runs with
the server free to use both cores. The last table lists every figure in which a peer is better,
worst first. Brokers that are not available here are estimated from a table: see bench.reference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench import cells, client, reference, report
from bench.admin import AdminError
from bench.cell import ALL_ROWS, Cell, scaled
from bench.client import LoadError
from bench.comparison import HEAD, LOSS_HEAD, Comparison, Loss, loss_rows, losses_of
from bench.fleet import FACTS_HEAD, OURS, Fleet, recipes
from bench.peer_recipes import DEFAULT_PEERS, PEERS, QUICK_PEERS, NotInstalled, versions
from bench.runner import CellResult, Place, warmed
from bench.server import Recipe, Server, ServerError

ESTIMATE_HEAD = ("cell", "peer", "ratio")
ESTIMATE_NOTE = (
    "not measured here: their ratio to Kafka in a table of another day (bench/reference.py), "
    "times ours to Kafka above"
)
# Share of a cell's window in `python -m bench`: there are many brokers and rounds.
WINDOW = 0.7


def takes_part(recipe: Recipe, cell: Cell) -> bool:
    """Whether this broker runs the cell: ours with the setting of `flush` it is about, a peer where
    its ack means the same."""
    return recipe.durable == cell.on_commit if recipe.name == OURS else recipe.runs(cell)


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
                if takes_part(s.recipe, cell) and (cell.quick or not s.recipe.slow)
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
    report.add_rows_options(parser, ALL_ROWS)
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
    usual = QUICK_PEERS if options.quick or len(cores) > 1 else DEFAULT_PEERS
    chosen = [
        recipe
        for recipe in recipes(options.only or usual, options.more)
        if any(takes_part(recipe, cell) for cell in todo)
    ]
    fleet = Fleet(chosen, options.data, cores, WINDOW, options.scale)
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
    """The sets to run: cells, cores and title of each."""
    todo = cells.chosen(options.cells, options.quick, options.rows)
    if not options.cells:
        todo = [cell for cell in todo if not cell.alone]
    todo = [scaled(cell, options.scale) for cell in todo]
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
    losses: list[tuple[str, Loss]] = []
    compared = 0
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
            losses += losses_of(tournament.comparisons, title)
            compared += len(tournament.comparisons)
            path = report.write_json("peers.json", content | {"sets": contents})
    if compared:
        show_losses(losses)
    else:
        failed.append("no broker was compared with kafkawire")
    print(path)
    return failed


def show_losses(losses: Sequence[tuple[str, Loss]]) -> None:
    """Print the last table: every figure in which a peer is better, worst first."""
    if losses:
        report.show("slower or dearer than a peer, worst first", LOSS_HEAD, loss_rows(losses))
    else:
        print("\nno peer is faster or cheaper: every ratio's median is at least 1")


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
