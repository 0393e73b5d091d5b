"""The cost of cutting for concurrent traffic: produce p99 with and without, at 40 % of the disk.

`python -m bench.micro.cutting [--seconds S] [--share 0.4]` measures the disk's rate of sequential
writes (1 GB, synced), paces produces of 16 KB batches at a share of it to a broker that cuts its
journals as soon as they are rolled, and to one that never does, alternately; prints p50 and p99 of
each, their ratio, and how much was not cut yet when the load ended. Bounded: three rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench import client, loads, report
from bench.cell import Cell, Metric
from bench.runner import Place, run_cell
from bench.server import Server, kafkawire

BATCH_BYTES = 16_000
DISK_BYTES = 1_000_000_000
CUTS = ("hot.bytes=1048576", "journal.bytes=67108864", "cut.interval.ms=200")
KEEPS = ("hot.bytes=17179869184", "journal.bytes=67108864")
HEAD = ("", "p50 us", "p99 us", "worst p99", "MB/s", "MB not cut at the end")


def disk_mb_s(folder: Path) -> float:
    """The rate of a sequential write of a new file until it is synced, MB/s."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "disk-rate"
    block = os.urandom(1 << 20)
    with open(path, "wb", buffering=0) as file:
        began = time.monotonic()
        for _ in range(DISK_BYTES >> 20):
            file.write(block)
        os.fsync(file.fileno())
        took = time.monotonic() - began
    path.unlink()
    return DISK_BYTES / 1e6 / took


def not_cut_mb(server: Server) -> float:
    """The journals with data in the broker's folder, MB."""
    journals = server.folder / "brokers" / "1" / "journals"
    return sum(path.stat().st_size for path in journals.glob("*.journal")) / 1e6


Figures = tuple[float, float, float, float]  # p50 us, p99 us, MB/s, MB not cut


def measure(cell: Cell, settings: tuple[str, ...], folder: Path) -> tuple[Figures, list[str]]:
    """Run once on a new broker; return its figures, and the errors that the client found."""
    place = Place()
    recipe = kafkawire()

    def command(port: int, data: Path) -> list[str]:
        more = [word for setting in settings for word in ("--set", setting)]
        return [*recipe.command(port, data), *more]

    # The worker runs on either core, as in production; the client shares one of them.
    cores = {place.server_core, place.client_core}
    server = Server(replace(recipe, command=command), folder, cores)
    left = [0.0]

    def scan() -> None:
        time.sleep(cell.seconds * 0.95)
        left.append(not_cut_mb(server))

    try:
        server.start()
        found = run_cell(server, cell, place, companion=scan)
    finally:
        server.discard()
    latency = found.result.latency_us
    mb_s = found.result.requests_s * BATCH_BYTES / 1e6
    return (latency["p50"], latency["p99"], mb_s, left[-1]), found.errors


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.cutting")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--share", type=float, default=0.4, help="of the disk's rate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=client.OUT / "cutting", help="folder, removed")
    return parser.parse_args()


def main() -> int:
    """Exit code 0, 1 when a check of the client failed."""
    options = arguments()
    disk = disk_mb_s(options.data)
    wanted = disk * options.share
    job = loads.bulk(16, rate=int(wanted * 1e6 / BATCH_BYTES), inflight=loads.OPEN_LOOP)
    cell = Cell("cutting", (job,), Metric.P99_US, seconds=options.seconds)
    runs: dict[str, list[Figures]] = {"cutting": [], "not cutting": []}
    errors: set[str] = set()
    for _ in range(options.rounds):
        for name, settings in (("cutting", CUTS), ("not cutting", KEEPS)):
            figures, wrong = measure(cell, settings, options.data / name.replace(" ", "-"))
            runs[name].append(figures)
            errors.update(wrong)
    rows = []
    for name, of in runs.items():
        p50, p99, mb_s, left = (median(column) for column in zip(*of, strict=True))
        worst = max(figures[1] for figures in of)
        rows.append([name, *map(report.number, (p50, p99, worst, mb_s, left))])
    report.show(f"produces at {wanted:.0f} MB/s, the disk takes {disk:.0f}", HEAD, rows)
    cut, kept = (median(figures[1] for figures in of) for of in runs.values())
    print(f"p99 with cutting / without: {cut / kept:.2f} (wanted: below 2)")
    print(f"the disk before and after: {disk:.0f} and {disk_mb_s(options.data):.0f} MB/s")
    for error in errors:
        print(f"FAILED {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
