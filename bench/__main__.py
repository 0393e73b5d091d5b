"""`python -m bench`: the whole matrix against kafkawire in three minutes; `--quick`: a subset.

Start the broker pinned to one core and the load client on the other, run each cell, print one table
of figures and targets, and write bench/out/bench.json and bench.png. The client's own maximum and
the page cache of the machine are measured first, so that the limits of the environment are known.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench import cells, client, loads, plots, report
from bench.admin import AdminError
from bench.cell import MATRIX, Cell, scaled
from bench.client import LoadError
from bench.peer_recipes import PEERS, NotInstalled, installed
from bench.report import Fact
from bench.runner import CellResult, Place, run_cell, warmed
from bench.server import Recipe, RunningServer, Server, ServerError, kafkawire

START = "start to first connection"
CEILING_JOBS = (
    ("ceiling: small, 1 in flight", loads.produce(), "req/s"),
    ("ceiling: small, 8 in flight", loads.produce(inflight=8), "req/s"),
    ("ceiling: bulk 100 KB", loads.bulk(100), "MB/s"),
    ("ceiling: fetch 1 MB", loads.fetch(connections=16), "MB/s"),
)


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only the cells with a target")
    parser.add_argument("--cells", default="", help="only cells whose name has one of these words")
    report.add_rows_options(parser, MATRIX)
    parser.add_argument("--seconds", type=float, help="window of every cell")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--data", type=Path, default=client.OUT / "data", help="folder, removed")
    parser.add_argument("--list", action="store_true", help="only name the cells")
    parser.add_argument("--broker", default="kafkawire", choices=["kafkawire", *PEERS])
    parser.add_argument(
        "--at", metavar="HOST:PORT", type=_address,
        help="a broker of any kind that runs already; the rows create and delete topics bench-*",
    )  # fmt: skip
    parser.add_argument("--pid", type=int, default=0, help="its process, for CPU time and memory")
    parser.add_argument("--no-ceiling", action="store_true", help="don't measure the client")
    parser.add_argument("--no-warm", action="store_true", help="hold no warm memory (bench.warm)")
    return parser.parse_args(given)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: it must be HOST:PORT, such as 127.0.0.1:9092")
    return host.strip("[]"), int(port)


def ceilings(place: Place, seconds: float) -> list[Fact]:
    """The client against its own responder."""
    facts = []
    for name, job, unit in CEILING_JOBS:
        found = client.ceiling(job, seconds, place.server_core, place.client_core)
        facts.append(Fact(name, found.requests_s if unit == "req/s" else found.mb_s, unit))
    return facts


def start_facts(server: Server, starts: int) -> list[Fact]:
    """Start-up time (median) and idle memory, before any load."""
    for _ in range(starts - 1):
        server.start()
        server.stop()
    server.start()
    time.sleep(1.0)
    memory = server.memory()
    limit = cells.IDLE_TARGET_BYTES / report.MIB
    return [
        Fact(START, median(server.start_s), "s", cells.START_TARGET_S),
        Fact("CPU time of a start", median(server.start_cpu_s), "s"),
        Fact("idle memory (RSS)", memory.rss_bytes / report.MIB, "MiB", limit),
        Fact("idle memory (RssAnon)", memory.anon_bytes / report.MIB, "MiB", limit),
    ]


def flatness(results: Sequence[CellResult]) -> list[Fact]:
    """The ratio of the cost of a request with many connections (partitions, ...) to its cost with
    few."""
    cost = {found.cell: found.result.cpu_us for found in results}
    return [
        Fact(f"CPU of a request: {many} / {few}", cost[many] / cost[few], "x", cells.FLAT_TARGET)
        for many, few in cells.FLAT
        if cost.get(many) and cost.get(few)
    ]


class Bench:
    """One run of the matrix: a server for each durability, one after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.place = Place(options.server_core, options.client_core)
        chosen = cells.chosen(options.cells, options.quick, options.rows)
        self.cells = [scaled(cell, options.scale) for cell in chosen]
        self.ran: list[Cell] = []
        self.results: list[CellResult] = []
        self.facts: list[Fact] = []
        self.failed: list[str] = []

    def run(self) -> None:
        """Run everything; the results are in the lists."""
        wanted = [] if self.options.no_warm else self.cells
        with (
            report.progress(len(self.cells)) as step,
            warmed(self.place, wanted, self.options.data, lambda text: step(text, False)) as found,
        ):
            self.place, page_cache = found
            self.facts += report.page_cache_facts(page_cache)
            if not self.options.no_ceiling:
                self.facts += ceilings(self.place, 0.5)
            if self.options.at is not None:
                host, port = self.options.at
                self._load(RunningServer(host, port, self.options.pid), self.cells, step)
            else:
                for recipe, todo in self._brokers():
                    if todo:
                        self._serve(recipe, todo, step)
        self.facts += flatness(self.results)

    def rows(self) -> list[list[str]]:
        """The rows of the table."""
        facts = [report.fact_row(fact) for fact in self.facts]
        return facts + [report.cell_row(found) for found in self.results]

    def _brokers(self) -> list[tuple[Recipe, list[Cell]]]:
        """kafkawire with both settings of `flush`, or a peer, with the cells of each."""
        if self.options.broker != "kafkawire":
            recipe = installed(self.options.broker)
            return [(recipe, [cell for cell in self.cells if recipe.runs(cell)])]
        return [
            (kafkawire(commits), [cell for cell in self.cells if cell.on_commit == commits])
            for commits in (False, True)
        ]

    def _serve(self, recipe: Recipe, todo: Sequence[Cell], step: report.Step) -> None:
        folder = self.options.data / ("durable" if recipe.durable else "cached")
        server = Server(recipe, folder, {self.place.server_core})
        server.discard()
        try:
            if any(fact.name == START for fact in self.facts):
                server.start()
            else:
                self.facts += start_facts(server, 3)
            self._load(server, todo, step)
            self.facts.append(
                Fact(f"memory after all cells ({folder.name})",
                     server.memory().rss_bytes / report.MIB, "MiB")
            )  # fmt: skip
        finally:
            server.discard()

    def _load(self, server: Server, todo: Sequence[Cell], step: report.Step) -> None:
        """Run cells on a server."""
        durable = server.recipe.durable
        if not server.start_s:
            server.start()
        run_cell(server, scaled(cells.warm_up(durable), self.options.scale), self.place)
        for cell in todo:
            self._cell(server, cell, step)

    def _cell(self, server: Server, cell: Cell, step: report.Step) -> None:
        step(cell.name, False)
        try:
            found = run_cell(server, cell, self.place, self.options.seconds)
        except (LoadError, AdminError) as error:
            self.failed.append(f"{cell.name}: {error}")
            step(f"{cell.name}: {error}", True)
            server.stop()  # the next cell gets a new broker, whatever state this one is in
            server.discard()
            server.start()
            return
        self.ran.append(cell)
        self.results.append(found)
        step(f"{cell.name}: {report.number(found.value)} {found.unit}", True)


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 when a check of the client failed, 2 when the bench could not run."""
    options = arguments(sys.argv[1:] if given is None else given)
    bench = Bench(options)
    if options.list:
        print("\n".join(cell.name for cell in bench.cells))
        return 0
    began = time.monotonic()
    quiet = report.Quiet()
    try:
        bench.run()
    except (LoadError, AdminError, ServerError, NotInstalled, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    bench.facts.append(Fact("CPU stolen by other machines", quiet.stolen_percent(), "%"))
    rows = bench.rows()
    where = "{}:{}".format(*options.at) if options.at else f"{options.broker} on one core"
    report.show(where, report.CELL_HEAD, rows)
    name = "bench.json" if options.rows == MATRIX else "bench-rows.json"  # not published
    path = report.write_json(name, content(bench, time.monotonic() - began))
    print(f"\n{path}")
    picture = plots.draw(client.OUT, bench.ran, bench.results)
    print(picture or "no plots: pip install 'kafkawire[bench]' brings matplotlib")
    for text in bench.failed:
        print(f"FAILED {text}", file=sys.stderr)
    wrong = any(found.errors for found in bench.results)
    return 1 if wrong or bench.failed else 0


def content(bench: Bench, took_s: float) -> dict[str, object]:
    """The JSON file."""
    return {
        "machine": report.machine(),
        "took_s": round(took_s, 1),
        "facts": [fact.as_json() for fact in bench.facts],
        "head": report.CELL_HEAD,
        "rows": bench.rows(),
        "cells": [found.as_json() for found in bench.results],
        "failed": bench.failed,
    }


if __name__ == "__main__":
    sys.exit(main())
