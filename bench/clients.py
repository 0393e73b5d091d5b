"""`python -m bench.clients`: end to end, the same jobs of real clients against kafkawire and Kafka.

ProducerPerformance and ConsumerPerformance (Java), librdkafka through confluent-kafka, kafka-python
and aiokafka produce records of 100 B and 1 KB with acks=1 and acks=all, and consume them, with
their default batching. Both brokers acknowledge from the page cache, run on one core with the
client on the other, are warm, and alternate in each round. Measured: records a second, as the
client sees it, and the broker's CPU time. Checked: every record acknowledged, the expected end
offset of the log, no record missing in what is read. Clients that are not installed are skipped
with a message.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench import cells, client, report
from bench.admin import Admin, AdminError
from bench.client import Job, LoadError
from bench.client_kinds import KINDS, ClientError, Kind, Run, Work, run_work, works
from bench.fleet import OURS, Fleet
from bench.peer_recipes import NotInstalled, installed, versions
from bench.runner import Place, wait_for_space, warmed
from bench.server import Server, ServerError, kafkawire
from bench.warm import giving

HEAD = (
    "job", "client", "kafkawire", "Kafka", "ratio", "min", "max",
    "our CPU s/M", "its CPU s/M", "ratio",
)  # fmt: skip
THEIRS = "Kafka"
# A batch of the topics that are read: 16 KB, like the Java producer's.
FILL_BATCH_BYTES = 16_000


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m bench.clients")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="", help="words of their names, with commas")
    parser.add_argument("--jobs", default="", help="words of the jobs' names, with commas")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual numbers of records")
    parser.add_argument("--cold", action="store_true", help="don't warm (for trying things out)")
    parser.add_argument("--no-warm", action="store_true", help="hold no warm memory (bench.warm)")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--data", type=Path, default=client.OUT / "clients", help="folder, removed")
    return parser.parse_args(given)


def named(text: str, name: str) -> bool:
    """Whether a name has one of the comma-separated words; no words: every name."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    return not words or any(word in name.lower() for word in words)


class Row:
    """One job of one client: a run of each broker per round."""

    def __init__(self, kind: Kind, work: Work) -> None:
        self.kind = kind
        self.work = work
        self.runs: dict[str, list[Run]] = {OURS: [], THEIRS: []}

    def ratios(self) -> list[float]:
        """Records a second, ours to theirs, sorted."""
        pairs = zip(self.runs[OURS], self.runs[THEIRS], strict=True)
        return sorted(ours.records_s / theirs.records_s for ours, theirs in pairs)

    def cells(self) -> list[str]:
        """The row's cells in the table."""
        rates = [median(run.records_s for run in self.runs[name]) for name in (OURS, THEIRS)]
        cpu = [median(run.cpu_s_per_million for run in self.runs[n]) for n in (OURS, THEIRS)]
        ratios = self.ratios()
        figures = [*rates, median(ratios), ratios[0], ratios[-1], *cpu, cpu[1] / (cpu[0] or 1e-9)]
        return [self.work.name, self.kind.name, *map(report.number, figures)]

    def as_json(self) -> dict[str, object]:
        """For the JSON file."""
        return {
            "job": self.work.name,
            "client": self.kind.name,
            "ratios": self.ratios(),
            "runs": {name: [run.as_json() for run in runs] for name, runs in self.runs.items()},
        }


class Course:
    """All jobs of all clients over all rounds."""

    def __init__(self, fleet: Fleet, place: Place, options: argparse.Namespace) -> None:
        self.fleet = fleet
        self.place = place
        self.options = options
        self.rows: list[Row] = []
        self.failed: list[str] = []
        self.made = 0

    def run(self, todo: Sequence[tuple[Kind, Work]], step: report.Step) -> None:
        """Run every broker once in each round, with the order rotated by one each time."""
        for size in sorted({work.size for _, work in todo if work.job == "consume"}):
            step(f"fill topics with records of {size} B", False)
            most = max(w.records for _, w in todo if (w.job, w.size) == ("consume", size))
            self._fill(size, most)
        for kind, work in todo:
            row = Row(kind, work)
            try:
                for number in range(self.options.rounds):
                    turn = number % len(self.fleet.servers)
                    for server in self.fleet.servers[turn:] + self.fleet.servers[:turn]:
                        name = server.recipe.name
                        step(f"{work.name}, {kind.name}: {name}, round {number + 1}", False)
                        with self.fleet.running(server):
                            row.runs[name].append(self._run(server, kind, work))
            except (ClientError, AdminError) as error:
                self.failed.append(f"{work.name}, {kind.name}: {error}")
                step(self.failed[-1], True)
                continue
            self.rows.append(row)
            step("  ".join(row.cells()), True)

    def _fill(self, size: int, records: int) -> None:
        """Fill a topic for reading on each broker, with the native client."""
        per_batch = max(FILL_BATCH_BYTES // size, 1)
        bound = (records // per_batch + 100) * (per_batch * (size + 12) + 200)
        job: dict[str, int | str] = {"topic": f"read-{size}", "acks": -1, "inflight": 4}
        job |= {"records": per_batch, "record_bytes": size, "bytes": bound}
        for server in self.fleet.servers:
            with self.fleet.running(server), Admin(server.port) as admin:
                admin.create_topic(f"read-{size}")
                run = {"port": server.port, "seconds": 60, "client_core": self.place.client_core}
                client.run([Job("produce", job)], run)
                if (end := admin.end_offset(f"read-{size}")) < records:
                    raise LoadError(f"only {end} of {records} records were filled in")

    def _run(self, server: Server, kind: Kind, work: Work) -> Run:
        if work.job == "consume":
            return run_work(server, kind, work, f"read-{work.size}", self.place.client_core)
        self.made += 1
        topic = f"written-{self.made}"
        before_bytes = server.disk_bytes()
        with giving(self.place.room), Admin(server.port) as admin:
            admin.create_topic(topic)
            try:
                found = run_work(server, kind, work, topic, self.place.client_core)
                if (end := admin.end_offset(topic)) != work.records:
                    raise ClientError(f"{work.records} records acked, {end} in the log")
            finally:
                admin.delete_topic(topic)
            wait_for_space(server, before_bytes)
        return found


def course(options: argparse.Namespace, todo: Sequence[tuple[Kind, Work]]) -> Course:
    """Start both brokers, run everything, write the JSON file."""
    place = Place(options.server_core, options.client_core)
    recipes = [kafkawire(durable=False), installed("kafka")]
    fleet = Fleet(recipes, options.data, {options.server_core})
    wanted = [] if options.no_warm else [cells.warm_up(False)]
    with (
        report.progress(len(todo)) as step,
        warmed(place, wanted, options.data, lambda text: step(text, False)) as (place, page_cache),
    ):
        found = Course(fleet, place, options)
        try:
            fleet.start(place, not options.cold, step)
            found.run(todo, step)
        finally:
            fleet.discard()
    content = {
        "machine": report.machine(),
        "facts": [fact.as_json() for fact in report.page_cache_facts(page_cache)],
        "versions": versions()
        | {kind.name: kind.version() for kind in dict.fromkeys(k for k, _ in todo)},
        "rounds": options.rounds,
        "jobs": [row.as_json() for row in found.rows],
        "head": HEAD,
        "rows": [row.cells() for row in found.rows],
        "failed": found.failed,
    }
    print(report.write_json("clients.json", content))
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 when a job failed, 2 when nothing could be compared."""
    options = arguments(sys.argv[1:] if given is None else given)
    todo = []
    for kind in KINDS:
        if not named(options.clients, kind.name):
            continue
        if missing := kind.missing():
            print(f"without {kind.name}: {missing}")
            continue
        found = works(kind, options.share)
        todo += [(kind, work) for work in found if named(options.jobs, work.name)]
    todo.sort(key=lambda pair: pair[1].order)
    try:
        ran = course(options, todo)
    except (LoadError, AdminError, ServerError, NotInstalled, OSError) as error:
        print(f"bench.clients: {error}", file=sys.stderr)
        return 2
    report.show("records a second, end to end", HEAD, [row.cells() for row in ran.rows])
    for text in ran.failed:
        print(f"FAILED {text}", file=sys.stderr)
    return 1 if ran.failed else 0


if __name__ == "__main__":
    sys.exit(main())
