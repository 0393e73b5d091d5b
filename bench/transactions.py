"""`python -m bench.transactions`: transactions, side by side with Apache Kafka in one run.

Raw producers and readers (bench.transaction_load) on one core, the broker on the other; kafkawire
and Kafka alternate in each round, so that what else the machine does affects both. Measured:
transactions of 100 records and of one record, the same load without transactions, Fetches of
committed and of all records, with acks from the page cache, as Kafka's are, and for kafkawire with
an fsync, too; Produces followed by a request that does nothing, which bounds what transactions
can reach, as each is a Produce and an EndTxn; what open transactional ids cost in memory, and how
long their coordinator loads.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import client, report
from bench.admin import Admin, AdminError
from bench.client import BENCH, LoadError
from bench.fleet import Fleet
from bench.peer_recipes import NotInstalled, installed, versions
from bench.runner import Place
from bench.server import Server, ServerError, kafkawire
from bench.transaction_load import LOADING, framed
from kafkawire.codec.compile import decode, encode
from kafkawire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

HEAD = ("load", "unit", "kafkawire", "kafkawire, fsync", "Kafka", "ours to Kafka's", "min", "max")
CPU_HEAD = (
    "CPU us of the broker for one",
    "kafkawire",
    "kafkawire, fsync",
    "Kafka",
    "Kafka's to ours",
)
SHARE_HEAD = ("part of the load without transactions", "kafkawire", "kafkawire, fsync", "Kafka")
FACTS_HEAD = ("kafkawire", "figure", "unit", "bound")
PRODUCERS = 8
LIST_TRANSACTIONS = 66
OPEN_IDS = 10_000
RUN_LIMIT_S = 180
PLAIN, PAIRS, MANY, ONE, ONE_PLAIN = (
    "100 records a request",
    "100 records in every second request",
    "100 records a transaction",
    "one record a transaction",
    "one record a request",
)
ALL, COMMITTED = "fetch all records", "fetch committed records"
LOADS: dict[str, dict[str, Any]] = {
    PLAIN: {"mode": "plain"},
    PAIRS: {"mode": "pairs"},
    MANY: {"mode": "transactions"},
    ONE_PLAIN: {"mode": "plain", "records": 1},
    ONE: {"mode": "transactions", "records": 1},
    ALL: {"mode": "fetch", "isolation": 0},
    COMMITTED: {"mode": "fetch", "isolation": 1},
}
"""Producers write to one topic, which the readers then read; the loads are in this order."""


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m bench.transactions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--cold", action="store_true", help="don't warm (for trying things out)")
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument("--ids", type=int, default=OPEN_IDS, help="open transactional ids")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--data", type=Path, default=client.OUT / "transactions")
    return parser.parse_args(given)


def run_load(port: int, core: int, **options: Any) -> dict[str, Any]:
    """One run of bench.transaction_load. Raises LoadError."""
    words = [sys.executable, "-m", "bench.transaction_load", json.dumps({"port": port, **options})]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        cwd=BENCH.parent,
        timeout=RUN_LIMIT_S,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    if done.returncode:
        raise LoadError((done.stderr or "no reason given").strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def figure(load: str, found: dict[str, Any]) -> float:
    """Records or transactions a second, MB/s of fetches."""
    if LOADS[load]["mode"] == "fetch":
        return float(found["bytes"] / found["seconds"] / 1e6)
    return float(found["records"] / found["seconds"])


def unit(load: str) -> str:
    """The unit of `figure`."""
    return "MB/s" if LOADS[load]["mode"] == "fetch" else "records/s"


def label(server: Server) -> str:
    """The column of a broker."""
    return server.recipe.name + ", fsync" * server.recipe.durable


class Course:
    """All loads over all rounds: a figure for each, by load and column."""

    def __init__(self, fleet: Fleet, options: argparse.Namespace) -> None:
        self.fleet = fleet
        self.options = options
        self.figures: dict[str, dict[str, list[float]]] = {load: {} for load in LOADS}
        self.cpu_us: dict[str, dict[str, list[float]]] = {load: {} for load in LOADS}
        self.failed: list[str] = []

    def run(self, step: report.Step) -> None:
        """Run every broker in each round, in an order that changes."""
        servers = self.fleet.servers
        for number in range(self.options.rounds):
            turn = number % len(servers)
            for server in servers[turn:] + servers[:turn]:
                step(f"{label(server)}, round {number + 1}", False)
                with self.fleet.running(server):
                    self._run(server, f"t-{number}", step)

    def warm(self, seconds: float) -> None:
        """Let each broker serve transactions for a while."""
        for server in self.fleet.servers:
            with self.fleet.running(server), Admin(server.port) as admin:
                admin.create_topic("warm", PRODUCERS)
                time_s = seconds if server.recipe.warm_s else min(seconds, 3.0)
                load = {"topic": "warm", "seconds": time_s, "prefix": "warm"}
                run_load(server.port, self.options.client_core, **load)
                admin.delete_topic("warm")

    def _run(self, server: Server, topic: str, step: report.Step) -> None:
        with Admin(server.port) as admin:
            admin.create_topic(topic, PRODUCERS)
            for load, options in LOADS.items():
                before_s = server.cpu_s()
                try:
                    found = run_load(
                        server.port,
                        self.options.client_core,
                        topic=topic,
                        producers=PRODUCERS,
                        seconds=self.options.seconds,
                        prefix=topic,
                        **options,
                    )
                except LoadError as error:
                    self.failed.append(f"{load}, {label(server)}: {error}")
                    step(self.failed[-1], True)
                    continue
                cpu_us = (server.cpu_s() - before_s) / found["all_rounds"] * 1e6
                self.cpu_us[load].setdefault(label(server), []).append(cpu_us)
                value = figure(load, found)
                self.figures[load].setdefault(label(server), []).append(value)
                text = f"{load}, {label(server)}: {report.number(value)} {unit(load)}"
                text += f", p99 {report.number(found['p99_ms'])} ms"
                step(f"{text}, CPU {report.number(cpu_us)} us", True)
            admin.delete_topic(topic)

    def rows(self) -> list[list[str]]:
        """The table of all loads."""
        return [self._row(load) for load in LOADS]

    def _row(self, load: str) -> list[str]:
        by_column = self.figures[load]
        medians = [report.number(median(by_column.get(name, [0.0]))) for name in HEAD[2:5]]
        pairs = zip(by_column.get("kafkawire", []), by_column.get("Kafka", []), strict=False)
        ratios = sorted(ours / theirs for ours, theirs in pairs if theirs)
        shown = [median(ratios), ratios[0], ratios[-1]] if ratios else []
        return [load, unit(load), *medians, *(map(report.number, shown) if shown else [""] * 3)]

    def cpu_rows(self) -> list[list[str]]:
        """CPU time of the broker by transaction, request or Fetch: it depends less on what else
        the machine does than the rates."""
        rows = []
        for load, by_column in self.cpu_us.items():
            medians = [median(by_column.get(name, [0.0])) for name in HEAD[2:5]]
            ratio = report.number(medians[2] / medians[0]) if medians[0] and medians[2] else ""
            rows.append([load, *map(report.number, medians), ratio])
        return rows

    def shares(self) -> list[list[str]]:
        """The part of a load that it reaches with transactions, median of the rounds."""
        return [
            [f"{load} / {base}", *(self._share(load, base, name) for name in SHARE_HEAD[1:])]
            for load, base in ((PAIRS, PLAIN), (MANY, PLAIN), (ONE, ONE_PLAIN), (COMMITTED, ALL))
        ]

    def _share(self, load: str, base: str, name: str) -> str:
        pairs = zip(
            self.figures[load].get(name, []), self.figures[base].get(name, []), strict=False
        )
        ratios = [value / other for value, other in pairs if other]
        return report.number(median(ratios)) if ratios else ""


def open_ids(options: argparse.Namespace) -> list[list[str]]:
    """Memory of many open transactional ids, and the time that their coordinators load after a
    restart."""
    server = Server(kafkawire(durable=True), options.data / "ids", {options.server_core})
    server.discard()
    server.start()
    try:
        with Admin(server.port) as admin:
            admin.create_topic("ids", PRODUCERS)
        load = {"topic": "ids", "mode": "open", "producers": PRODUCERS, "records": 1}
        run_load(server.port, options.client_core, **load, ids=2, prefix="first")
        before = server.memory().anon_bytes
        run_load(server.port, options.client_core, **load, ids=options.ids // PRODUCERS)
        grown = (server.memory().anon_bytes - before) / report.MIB
        server.stop()
        server.start()
        begun_cpu_s = server.cpu_s()
        loaded_s = loading_s(server.port, options.ids)
        loaded_cpu_s = server.cpu_s() - begun_cpu_s
    finally:
        server.discard()
    count = f"{options.ids:,} open transactional ids"
    return [
        [f"memory of {count}", report.number(grown), "MiB", "50"],
        [f"loading {count} after a restart", report.number(loaded_s), "s", "2"],
        ["of that CPU time of the broker", report.number(loaded_cpu_s), "s", "2"],
    ]


def loading_s(port: int, least: int) -> float:
    """Seconds until all transactional ids are listed. Raises LoadError for fewer."""
    request = framed(LIST_TRANSACTIONS, 0, encode(ListTransactionsRequest(), 0))
    began = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", port)) as connection,
        connection.makefile("rb") as answers,
    ):
        while True:
            connection.sendall(request)
            answer = answers.read(int.from_bytes(answers.read(4), "big"))
            found = decode(ListTransactionsResponse, 0, answer[5:])
            spent_s = time.monotonic() - began
            if found.error_code != LOADING:
                break
            time.sleep(0.01)
    if len(found.transaction_states) < least:
        raise LoadError(f"{len(found.transaction_states)} transactional ids after a restart")
    return spent_s


def course(options: argparse.Namespace) -> Course:
    """Start the brokers, run everything, write the JSON file, show the tables."""
    recipes = [kafkawire(durable=False), kafkawire(durable=True)]
    if not options.without_kafka:
        recipes.append(installed("kafka"))
    fleet = Fleet(recipes, options.data, {options.server_core})
    place = Place(options.server_core, options.client_core)
    steps = options.rounds * len(recipes) * len(LOADS)
    with report.progress(steps) as step:
        found = Course(fleet, options)
        try:
            fleet.start(place, False, step)
            found.warm(3.0 if options.cold else 30.0)
            found.run(step)
        finally:
            fleet.discard()
        facts = open_ids(options) if options.ids else []
    content = {
        "machine": report.machine(),
        "versions": {} if options.without_kafka else versions(),
        "rounds": options.rounds,
        "head": HEAD,
        "rows": found.rows(),
        "cpu_head": CPU_HEAD,
        "cpu": found.cpu_rows(),
        "share_head": SHARE_HEAD,
        "shares": found.shares(),
        "facts_head": FACTS_HEAD,
        "ids": facts,
        "figures": found.figures,
        "failed": found.failed,
    }
    print(report.write_json("transactions.json", content))
    report.show("transactions", HEAD, found.rows())
    report.show("CPU time", CPU_HEAD, found.cpu_rows())
    report.show("with transactions to without", SHARE_HEAD, found.shares())
    if facts:
        report.show("open transactional ids", FACTS_HEAD, facts)
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 when a load failed, 2 when nothing could be compared."""
    options = arguments(sys.argv[1:] if given is None else given)
    try:
        ran = course(options)
    except (LoadError, AdminError, ServerError, NotInstalled, OSError) as error:
        print(f"bench.transactions: {error}", file=sys.stderr)
        return 2
    return 1 if ran.failed else 0


if __name__ == "__main__":
    sys.exit(main())
