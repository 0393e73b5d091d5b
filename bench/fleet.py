"""Several brokers at once, of which one runs and the others are stopped.

Each is started alone, timed, warmed, and stopped (SIGSTOP) until it is measured. Called by the
comparisons, with the native client (bench.peers) and with real ones (bench.clients).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import cells, report
from bench.cell import Cell, scaled
from bench.peer_recipes import NotInstalled, installed
from bench.runner import CellResult, Place, run_cell
from bench.server import Recipe, Server, kafkawire

OURS = "kafkawire"
WARM_CELLS = ("small acks=1 8 in flight", "bulk 100 KB none", "fetch 16 consumers")
# A broker that is slow by an order of magnitude needs longer to be measured at all.
SLOW_FACTOR = 2.0
FACTS_HEAD = ("broker", "start s", "idle RSS MiB", "idle RssAnon MiB")


def recipes(peers: Sequence[str], asked: Sequence[str]) -> list[Recipe]:
    """kafkawire with both durabilities, and every available peer; the reasons for others are
    printed. `asked`: those that are built even if that takes long."""
    found = [kafkawire(durable=False), kafkawire(durable=True)]
    for peer in dict.fromkeys([*peers, *asked]):
        try:
            found.append(installed(peer, peer in asked))
        except NotInstalled as error:
            print(f"without {peer}: {error}")
    return found


class Fleet:
    """The brokers of one set, all started, all paused except the one that is measured."""

    def __init__(
        self,
        chosen: Sequence[Recipe],
        folder: Path,
        cores: set[int],
        window: float = 1.0,
        scale: float = 1.0,
    ) -> None:
        self.window = window  # of a cell's seconds
        self.scale = scale  # of what is written before the first cell
        self.servers = [
            Server(r, folder / f"{r.name}{'-durable' * r.durable}".replace(" ", "-"), cores)
            for r in chosen
        ]
        self.facts: list[list[str]] = []

    def start(self, place: Place, warm: bool, step: report.Step) -> None:
        """Start and warm each one alone, then pause it."""
        for server in self.servers:
            recipe = server.recipe
            step(f"start and warm {recipe.name}", False)
            server.discard()
            server.start()
            time.sleep(1.0)
            memory = server.memory()
            name = recipe.name + ", fsync" * (recipe.name == OURS and recipe.durable)
            figures = [server.start_s[0], memory.rss_bytes / report.MIB]
            figures.append(memory.anon_bytes / report.MIB)
            self.facts.append([name, *map(report.number, figures)])
            self._warm(server, place, recipe.warm_s if warm else 0.0)
            server.pause()

    def _warm(self, server: Server, place: Place, seconds: float) -> None:
        """Write files that are overwritten later; half of the time small requests, the rest bulk
        and fetches."""
        if not server.recipe.slow:
            run_cell(server, scaled(cells.warm_up(server.recipe.durable), self.scale), place)
        small, bulk, fetch = map(cells.named, WARM_CELLS)
        for cell, share in ((small, 2), (bulk, 1), (fetch, 1)):
            left = seconds * share / 4
            while left > 0:
                run_cell(server, cell, place, min(left, 5.0))
                left -= 5.0

    @contextmanager
    def running(self, server: Server) -> Iterator[Server]:
        """Resume this one while the context lasts."""
        server.resume()
        try:
            yield server
        finally:
            server.pause()

    def measure(self, server: Server, cell: Cell, place: Place) -> CellResult:
        """Run once while the others are paused."""
        with self.running(server):
            factor = SLOW_FACTOR if server.recipe.slow else 1.0 if cell.whole else self.window
            return run_cell(server, cell, place, cell.seconds * factor)

    def discard(self) -> None:
        """End all brokers."""
        for server in self.servers:
            server.discard()
