"""`python -m bench.micro.schedule`: schedule topics at rest and with a million waiting records.

Starts a broker of its own (flush=commit, all cores). At rest: `--rest` records that are due one
after the other, ten milliseconds apart, while nothing else happens; how late the broker appended
each is the time of the append (the target has LogAppendTime) after the due time. At full speed:
`--records` records of 100 bytes, due in random order within `--spread` seconds after a kill -9 and
a start: rate and CPU time of producing them, memory, the start, and the deliveries.

`--trace` records the steps of the broker's event loop (bench.traced), and prints how many took
longer than five milliseconds. The trace itself costs time: rates with it are no results.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench import report
from bench.server import Server, kafkawire
from bench.stalls import under_trace
from kafkawire.cli.shared.progress import bars
from kafkawire.progress import Progress

VALUE = b"x" * 100
REST_EVERY_MS = 10
REST_BEGINS_S = 8.0  # longer than records are read ahead, and than the index waits to be saved
STEP_S = 0.005
TRACE_LIMIT_S = 20.0
MB = 1_000_000
Row = tuple[str, str]


class Schedule:
    """A schedule topic of one partition, its target, and clients for both."""

    def __init__(self, server: Server, name: str, targets: int) -> None:
        bootstrap = f"127.0.0.1:{server.port}"
        self.name, self.bootstrap = name, bootstrap
        admin, target = AdminClient({"bootstrap.servers": bootstrap}), f"{name}-target"
        for topic in (
            NewTopic(target, targets, 1, config={"message.timestamp.type": "LogAppendTime"}),
            NewTopic(name, 1, 1, config={"schedule.target.topic": target}),
        ):
            admin.create_topics([topic])[topic.topic].result()

    def produce(self, dues: list[int], progress: Progress) -> None:
        """Append one record for each due time, in milliseconds."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20, "acks": "all"})
        for number, due_ms in enumerate(dues):
            while True:
                try:
                    producer.produce(self.name, VALUE, timestamp=due_ms)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 1000 == 0:
                producer.poll(0)
                progress("records", number, len(dues))
        producer.flush()

    def delivered(self, count: int, limit_s: float) -> list[tuple[int, int]]:
        """Consume that many deliveries; return (offset in the schedule topic, ms of the append)."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "bench",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([f"{self.name}-target"])
        found: list[tuple[int, int]] = []
        until = time.monotonic() + limit_s
        while len(found) < count and time.monotonic() < until:
            for message in consumer.consume(10_000, 0.5):
                (_, place), *_ = message.headers() or []
                found.append((int(place.rpartition(b"-")[2]), message.timestamp()[1]))
        consumer.close()
        return found


def lateness(dues: list[int], found: list[tuple[int, int]]) -> str:
    """Describe how long after their due times records were appended, and check each came once."""
    assert sorted(offset for offset, _ in found) == list(range(len(dues))), "not exactly once"
    late = sorted(at_ms - dues[offset] for offset, at_ms in found)
    assert late[0] >= 0, "early"
    middle, high = late[len(late) // 2], late[len(late) * 99 // 100]
    return f"p50 {middle} ms, p99 {high} ms, most {late[-1]} ms"


def at_rest(server: Server, count: int, progress: Progress) -> list[Row]:
    """Measure how late records are if there is nothing else to do."""
    schedule = Schedule(server, "rest", 1)
    begins_ms = int((time.time() + REST_BEGINS_S) * 1000)
    dues = [begins_ms + number * REST_EVERY_MS for number in range(count)]
    schedule.produce(dues, progress)
    found = schedule.delivered(count, REST_BEGINS_S + count * REST_EVERY_MS / 1000 + 60)
    return [("at rest, late", lateness(dues, found))]


def at_full_speed(
    server: Server, count: int, spread_s: float, wait_s: float, progress: Progress
) -> list[Row]:
    """Measure a lot of records that wait, and then are due."""
    schedule = Schedule(server, "many", 3)
    empty = server.memory().anon_bytes
    rnd = random.Random(1)
    begins_ms = int((time.time() + wait_s) * 1000)
    dues = [begins_ms + rnd.randrange(int(spread_s * 1000)) for _ in range(count)]
    began, cpu_s = time.monotonic(), server.tree_cpu_s()
    schedule.produce(dues, progress)
    took = time.monotonic() - began
    server.settle()
    cpu_s = server.tree_cpu_s() - cpu_s
    rows = [
        ("produced a second", f"{count / took:,.0f} ({cpu_s / count * 1e6:.0f} us of CPU each)"),
        ("memory of what waits", f"{(server.memory().anon_bytes - empty) / MB:,.0f} MB"),
    ]
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    rows.append(("start after kill -9", f"{server.start():.2f} s"))
    server.settle()
    rows.append(("memory after the start", f"{server.memory().anon_bytes / MB:,.0f} MB in all"))
    left_s = begins_ms / 1000 - time.time()
    if left_s < 0:
        raise SystemExit(f"--wait is too short by {-left_s:.0f} s: records are due already")
    time.sleep(left_s)
    cpu_s = server.cpu_s()
    found = schedule.delivered(count, spread_s + 300)
    cpu_s = server.cpu_s() - cpu_s
    took = (max(at_ms for _, at_ms in found) - begins_ms) / 1000
    rows += [
        ("due a second", f"{count / spread_s:,.0f}"),
        ("delivered a second", f"{count / took:,.0f} ({cpu_s / count * 1e6:.0f} us of CPU each)"),
        ("late", lateness(dues, found)),
    ]
    return rows


def steps(server: Server, path: Path) -> list[Row]:
    """Return the long steps of the event loop from the trace."""
    os.kill(server.pid, signal.SIGUSR2)
    until = time.monotonic() + TRACE_LIMIT_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.1)
    stalls = json.loads(path.read_text())["stalls"]
    cpu_ms = sorted((cpu_s * 1000 for _, _, cpu_s, _ in stalls if cpu_s > STEP_S), reverse=True)
    longest = ", ".join(f"{each:.1f}" for each in cpu_ms[:5])
    return [("steps over 5 ms of CPU", f"{len(cpu_ms)}" + (f": {longest} ms" if longest else ""))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--spread", type=float, default=50.0, help="seconds in which they are due")
    parser.add_argument("--wait", type=float, default=75.0, help="seconds until the first is due")
    parser.add_argument("--rest", type=int, default=1_000)
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, bars() as progress:
        recipe, trace = kafkawire(durable=True), Path(folder) / "trace.json"
        if given.trace:
            recipe = under_trace(recipe, trace)
        server = Server(recipe, Path(folder) / "data", os.sched_getaffinity(0))
        try:
            server.start()
            rows = at_rest(server, given.rest, progress) if given.rest else []
            rows += at_full_speed(server, given.records, given.spread, given.wait, progress)
            rows += steps(server, trace) if given.trace else []
        finally:
            server.stop()
    report.show("schedule topics", ("what", "figure"), rows)


if __name__ == "__main__":
    main()
