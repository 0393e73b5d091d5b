"""`python -m bench.guard`: is this tree slower than the commit before it?

A short subset of the cells, on this machine, alternating between the working tree and the other
commit (a git worktree in a temporary folder), so that drift hits both. Fails when the median of a
cell's ratios is below 0.85; machines are noisy, so a failing cell is run again before it counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench import cells, client, report
from bench.admin import AdminError
from bench.cell import Cell, ratio
from bench.client import BENCH, LoadError
from bench.runner import Place, run_cell, warmed
from bench.server import Server, ServerError, kafkawire

ROOT = BENCH.parent
FLOOR = 0.85
CELLS = (
    "small acks=1 1 in flight",
    "small acks=1 8 in flight",
    "bulk 100 KB none",
    "bulk 100 KB lz4",
    "fetch 16 consumers",
    "small fsynced 16 connections",
)
HEAD = ("cell", "unit", "now", "before", "ratio", "min", "max", "")


class GuardError(Exception):
    """The other commit is not available."""


def git(*words: str) -> str:
    """Output of a git command in this tree."""
    done = subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode:
        raise GuardError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """The tree of another commit, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="kafkawire-guard-") as folder:
        path = Path(folder) / "tree"
        git("worktree", "add", "--detach", "--quiet", str(path), revision)
        try:
            yield path
        finally:
            git("worktree", "remove", "--force", str(path))


def other_revision(given: str | None) -> str:
    """The revision to compare with: with uncommitted changes the last commit, else the one before
    it."""
    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short", given or ("HEAD" if changed else "HEAD~1"))


class Pair:
    """The two trees' brokers with the same settings; one runs, the other is paused."""

    def __init__(self, before: Path, folder: Path, durable: bool, place: Place) -> None:
        self.place = place
        self.now = Server(kafkawire(durable, ROOT), folder / "now", {place.server_core})
        self.before = Server(kafkawire(durable, before), folder / "before", {place.server_core})

    def start(self) -> None:
        """Start both, each warmed with a run that does not count."""
        for server in (self.before, self.now):
            server.discard()
            server.start()
            run_cell(server, cells.warm_up(server.recipe.durable), self.place, 2.0)
            server.pause()

    def measure(self, cell: Cell, rounds: int) -> list[tuple[float, float]]:
        """(now, before) for each round; who goes first alternates."""
        found = []
        for number in range(rounds):
            values: dict[Server, float] = {}
            order = (self.now, self.before) if number % 2 else (self.before, self.now)
            for server in order:
                server.resume()
                result = run_cell(server, cell, self.place, 1.0)
                server.pause()
                if result.errors:
                    raise LoadError(f"{cell.name}: {result.errors[0]}")
                values[server] = result.value
            found.append((values[self.now], values[self.before]))
        return found

    def discard(self) -> None:
        """End both brokers."""
        self.now.discard()
        self.before.discard()


def judge(cell: Cell, pairs: Sequence[tuple[float, float]]) -> tuple[bool, list[str]]:
    """Whether it is fast enough, and its line of the table."""
    ratios = sorted(ratio(cell.metric, now, before) for now, before in pairs)
    fine = median(ratios) >= FLOOR
    figures = [median(n for n, _ in pairs), median(b for _, b in pairs)]
    figures += [median(ratios), ratios[0], ratios[-1]]
    row = [cell.name, cell.metric.value, *map(report.number, figures), "" if fine else "SLOWER"]
    return fine, row


def compare(before: Path, folder: Path, place: Place, rounds: int) -> bool:
    """All cells; True when none is slower."""
    rows, all_fine = [], True
    chosen = [cells.named(name) for name in CELLS]
    with (
        report.progress(len(chosen)) as step,
        warmed(place, chosen, folder, lambda text: step(text, False)) as (place, _),
    ):
        for durable in (False, True):
            pair = Pair(before, folder, durable, place)
            try:
                pair.start()
                for cell in (c for c in chosen if c.durable == durable):
                    step(cell.name, False)
                    pairs = pair.measure(cell, rounds)
                    fine, row = judge(cell, pairs)
                    if not fine:
                        pairs += pair.measure(cell, rounds * 2)
                        fine, row = judge(cell, pairs)
                    rows.append(row)
                    all_fine &= fine
                    step(cell.name, True)
            finally:
                pair.discard()
    report.show(f"this tree against the other commit (floor {FLOOR})", HEAD, rows)
    return all_fine


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 when a cell is slower, 2 when the two can't be compared."""
    parser = argparse.ArgumentParser("python -m bench.guard")
    parser.add_argument("--against", help="a commit; the one before this tree when not given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    options = parser.parse_args(sys.argv[1:] if given is None else given)
    try:
        revision = other_revision(options.against)
        print(f"comparing with {revision}")
        with worktree(revision) as before:
            place = Place(options.server_core, options.client_core)
            fine = compare(before, client.OUT / "guard", place, options.rounds)
    except (GuardError, LoadError, AdminError, ServerError, OSError) as error:
        print(f"bench.guard: {error}", file=sys.stderr)
        return 2
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
