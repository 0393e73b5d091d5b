"""`python -m bench.tenants`: the latency of a tenant next to one who floods the broker, with and
without quotas.

The neighbour sends 1,000 small Produces a second, evenly. Alternating in each round: it is alone;
the flooding tenant sends as much as is accepted, without quotas; the same with quotas. There are
two floods: bytes (64 KiB in each request) and requests (100 bytes). The broker has one core, the
client of both tenants the other. A quota is of the last ten seconds, so a tenant that has been idle
may send so much at once: it does so before the window that is measured, in which it floods on. Each
run of a tenant has a client id of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import cells, client, report
from bench.admin import Admin
from bench.cell import scaled
from bench.client import Job, JobResult, LoadError
from bench.peer_recipes import NotInstalled, install, kafka
from bench.runner import Place, run_cell
from bench.server import Recipe, Server, ServerError, kafkawire

QUOTAS = {"producer_byte_rate": 1_000_000.0, "request_percentage": 10.0}
NEIGHBOUR: dict[str, int | str] = {"connections": 8, "rate": 1000, "record_bytes": 100}
FLOODS: dict[str, dict[str, int | str]] = {
    "bytes": {"connections": 4, "inflight": 5, "record_bytes": 1024, "records": 64},
    "requests": {"connections": 64, "inflight": 5, "record_bytes": 100},
}
SECONDS = 4.0
WARMUP_S = 3.0
"""Until what quotas allow at once is used up: the bytes and the time of ten seconds."""


@dataclass(frozen=True, slots=True)
class State:
    """The load of one window. `flood`: one of FLOODS, empty if the neighbour is alone."""

    flood: str
    limited: bool

    @property
    def name(self) -> str:
        """Words for the table."""
        if not self.flood:
            return "alone"
        return f"flood of {self.flood}, {'with' if self.limited else 'without'} quotas"


STATES = (
    State("", False),
    *(State(flood, limited) for flood in FLOODS for limited in (False, True)),
)


@dataclass(frozen=True, slots=True)
class Window:
    """The result of one window; latencies of the neighbour in microseconds."""

    broker: str
    state: str
    p50_us: float
    p99_us: float
    flood_mb_s: float
    flood_requests_s: float


class Tenants:
    """Runs windows on one broker, each with new client ids and topics."""

    def __init__(self, server: Server, place: Place, seconds: float) -> None:
        self._server = server
        self._place = place
        self._seconds = seconds
        self._runs = 0

    def run(self, state: State) -> Window:
        """Run one window. LoadError if a response was wrong."""
        self._runs += 1
        neighbour, flooding = (f"{name}-{self._runs}" for name in ("neighbour", "flooding"))
        jobs = [Job("produce", {**NEIGHBOUR, "topic": neighbour, "client": neighbour})]
        if state.flood:
            flood = FLOODS[state.flood]
            jobs.append(Job("produce", {**flood, "topic": flooding, "client": flooding}))
        with Admin(self._server.port) as admin:
            for topic in (neighbour, flooding):
                admin.create_topic(topic)
            if state.limited:
                admin.set_quotas(flooding, QUOTAS)
            try:
                found = client.run(jobs, self._options())
            finally:
                for topic in (neighbour, flooding):
                    admin.delete_topic(topic)
        return self._window(state, found)

    def _options(self) -> dict[str, int | float | str]:
        return {
            "port": self._server.port, "server_pid": self._server.pid, "warmup": WARMUP_S,
            "client_core": self._place.client_core, "seconds": self._seconds,
        }  # fmt: skip

    def _window(self, state: State, found: list[JobResult]) -> Window:
        wrong = [job.error for job in found if job.error]
        if wrong:
            raise LoadError(f"{state.name}: {wrong[0]}")
        neighbour, flood = found[0], found[1] if len(found) > 1 else None
        return Window(
            self._server.recipe.name,
            state.name,
            neighbour.latency_us["p50"],
            neighbour.latency_us["p99"],
            flood.mb_s if flood else 0.0,
            flood.requests_s if flood else 0.0,
        )


def measure(
    servers: Sequence[Server], place: Place, rounds: int, seconds: float
) -> Iterator[tuple[str, Window | None]]:
    """Run all states on all brokers, in each round; yield what was done."""
    tenants = [Tenants(server, place, seconds) for server in servers]
    for number in range(rounds):
        for one, server in zip(tenants, servers, strict=True):
            server.resume()
            try:
                for state in STATES:
                    yield f"round {number + 1}, {server.recipe.name}, {state.name}", one.run(state)
            finally:
                server.pause()


def rows(windows: Sequence[Window]) -> list[list[str]]:
    """The table: medians, and the ratio of the 99th percentile to that of the same round alone."""
    found = []
    for broker in dict.fromkeys(each.broker for each in windows):
        alone = [each.p99_us for each in windows if (each.broker, each.state) == (broker, "alone")]
        for state in STATES:
            here = [each for each in windows if (each.broker, each.state) == (broker, state.name)]
            times = [each.p99_us / one for each, one in zip(here, alone, strict=False)]
            figures = [
                statistics.median(getattr(each, name) for each in here)
                for name in ("p50_us", "p99_us", "flood_mb_s", "flood_requests_s")
            ]
            texts = [report.number(figure) if figure else "" for figure in figures]
            ratio = report.number(statistics.median(times)) if state.flood else ""
            found.append([f"{broker}: {state.name}", *texts[:2], ratio, *texts[2:]])
    return found


HEAD = ("", "p50 us", "p99 us", "p99 to alone", "flood MB/s", "flood requests/s")


def started(
    stack: ExitStack, recipes: Sequence[Recipe], folder: Path, place: Place
) -> list[Server]:
    """Start and warm each one alone, then pause it."""
    servers = []
    for recipe in recipes:
        server = Server(recipe, folder / recipe.name.replace(" ", "-"), {place.server_core})
        stack.callback(server.discard)
        server.start()
        cell = scaled(cells.warm_up(recipe.durable), 1.0)
        run_cell(server, cell, place, recipe.warm_s or None)
        server.pause()
        servers.append(server)
    return servers


def main() -> int:
    """Measure, print the table, and write bench/out/tenants.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each window")
    parser.add_argument("--kafka", action="store_true", help="compare with Apache Kafka")
    options = parser.parse_args()
    place, recipes = Place(), [kafkawire()]
    try:
        if options.kafka:
            install("kafka")
            recipes.append(kafka())
        windows: list[Window] = []
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            servers = started(stack, recipes, folder, place)
            total = options.rounds * len(STATES) * len(servers)
            step = stack.enter_context(report.progress(total))
            for text, window in measure(servers, place, options.rounds, options.seconds):
                if window is not None:
                    windows.append(window)
                step(text, True)
    except (NotInstalled, ServerError, LoadError) as wrong:
        print(wrong, file=sys.stderr)
        return 1
    report.show("A neighbour of a tenant who floods", HEAD, rows(windows))
    report.write_json("tenants.json", {"windows": [asdict(each) for each in windows]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
