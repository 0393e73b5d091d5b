"""Cost of the checks of batches for a Produce, by codec and by value of record.validation.

    python -m bench.micro.validation [--rounds 7] [--seconds 0.6] [--rows WORD] [--cores 1]

One broker for each value, all on one core (`--cores 2`: and free to use the client's), of which one
runs at a time; they take turns in each round. A row is a batch of 16 KB, 100 KB or 1 MB of records
of 1,000 bytes, or of 100 KB of records of 100, before its compression. Per row: CPU time of the
broker for a request with record.validation=head, what standard and full add to it for a MB of
records, and the ratios head/standard and head/full of CPU time, as the median, lowest and highest
of the rounds: 0.95 is a loss of 5 %.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.cell import Cell, Metric
from bench.client import Job, LoadError
from bench.loads import MB, produce
from bench.payload import COMPRESS
from bench.report import number, show
from bench.runner import Place, run_cell
from bench.server import Recipe, Server, kafkawire

VALUES = ("head", "standard", "full")
SIZES = ((16, 1000), (100, 1000), (1000, 1000), (1000, 100))
"""Records of a batch, and bytes of each."""
BYTES = 2000 * MB
HEAD = ("batch", "head us", "standard us/MB", "ratio", "min", "max", "full us/MB", "ratio")


def with_validation(value: str) -> Recipe:
    """This broker with a value of record.validation."""
    plain = kafkawire()

    def command(port: int, folder: Path) -> list[str]:
        return [*plain.command(port, folder), "--set", f"record.validation={value}"]

    return replace(plain, name=value, command=command)


def job(codec: str, records: int, size: int) -> Job:
    """Batches of one codec."""
    options: dict[str, int | str] = {"records": records, "record_bytes": size, "bytes": BYTES}
    return produce(**options, **({} if codec == "none" else {"codec": codec}))


def cpu_us(server: Server, cell: Cell, place: Place, seconds: float) -> float:
    """The CPU time of a request; the others are paused."""
    server.resume()
    found = run_cell(server, cell, place, seconds)
    server.pause()
    if found.errors:
        raise LoadError(f"{cell.name}: {found.errors[0]}")
    return found.result.cpu_us


def line(name: str, mb: float, rounds: list[Mapping[str, float]]) -> list[str]:
    """The figures of a row, with so many MB of records in a batch."""

    def added(value: str) -> str:
        return number(median(found[value] - found["head"] for found in rounds) / mb)

    def ratios(value: str) -> list[float]:
        return sorted(found["head"] / found[value] for found in rounds)

    standard, full = ratios("standard"), ratios("full")
    return [name, number(median(found["head"] for found in rounds)), added("standard"),
            *map(number, (median(standard), standard[0], standard[-1])),
            added("full"), number(median(full))]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.6)
    parser.add_argument("--rows", default="", help="only rows with this word")
    parser.add_argument("--cores", type=int, choices=(1, 2), default=1, help="of the brokers")
    given = parser.parse_args()
    server_core, client_core, *_ = sorted(os.sched_getaffinity(0))
    place = Place(server_core, client_core)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        servers = []
        for value in VALUES:
            cores = {server_core, client_core} if given.cores > 1 else {server_core}
            server = Server(with_validation(value), folder / value, cores)
            stack.callback(server.discard)
            server.start()
            server.pause()
            servers.append(server)
        rows = []
        for codec in ("none", *COMPRESS):
            for records, size in SIZES:
                name = f"{records * size // 1000} KB of {size} B, {codec}"
                if given.rows not in name:
                    continue
                cell = Cell(name, (job(codec, records, size),), Metric.MB_S)
                rounds: list[Mapping[str, float]] = []
                for each in range(given.rounds + 1):
                    order = servers if each % 2 else servers[::-1]
                    found = {
                        server.recipe.name: cpu_us(server, cell, place, given.seconds)
                        for server in order
                    }
                    if each:  # the first one warms
                        rounds.append(found)
                rows.append(line(name, records * size / MB, rounds))
                print("  ".join(rows[-1]), flush=True)
    show(f"CPU of a Produce by record.validation, {given.rounds} rounds", HEAD, rows)


if __name__ == "__main__":
    main()
