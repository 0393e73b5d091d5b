"""`python -m bench.micro.console [--topics N] [--groups G] [--viewers V]`: the console on a large
cluster, and what its viewers cost the broker.

A broker with 10,000 topics and 1,000 groups with a commit each. A console process is started; the
time of its pages is that of its answers: the first one, which knows nothing yet, later ones, and a
page of records of a topic with 100,000. Then the latency of one paced producer (100 records a
second, acks=all), alternately without viewers and with ten that read pages all the time, one of
them live; and the memory of the console. Broker and console share the machine's cores, as they do
where they run together. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles

import psutil

from bench.report import markdown, number
from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import call_coordinator, commit, leaders
from kafkawire.client.producer import append
from kafkawire.codec.batches import Record, pack
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.testing.process import BrokerProcess

CREATE_TOPICS, AT_ONCE = 19, 1000
BIG, RECORDS, IN_BATCH = "records", 100_000, 500
PRODUCES, PAUSE_S, ROUNDS = 500, 0.01, 3
VIEWED = ("", "topics?sort=lag", "groups", f"topics/{BIG}/records", "topics/topic-00001")
LIVE = f"topics/{BIG}/records/live"


def batch(first: int, count: int) -> bytes:
    now = time.time_ns() // 1_000_000
    rows = [
        Record(at, now, b"key-%d" % (first + at), b'{"number": %d}' % (first + at))
        for at in range(count)
    ]
    return bytes(pack(rows))


def fill(bootstrap: str, topics: int, groups: int) -> None:
    with Cluster(bootstrap) as cluster:
        names = [BIG, *(f"topic-{at:05}" for at in range(topics - 1))]
        for at in range(0, topics, AT_ONCE):
            rows = [CreatableTopic(name, 1, -1) for name in names[at : at + AT_ONCE]]
            cluster.request(CREATE_TOPICS, CreateTopicsRequest(rows, 60_000))
        for at in range(groups):
            place = {(names[at + 1], 0): 0}
            call_coordinator(lambda at=at, place=place: commit(cluster, f"group-{at}", place))  # type: ignore[misc]
        (leader,) = leaders(cluster, [BIG]).values()
        for first in range(0, RECORDS, IN_BATCH):
            append(cluster, leader, {(BIG, 0): batch(first, IN_BATCH)})


def read(url: str) -> float:
    """Return the seconds of one page."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:
        answer.read()
    return time.perf_counter() - began


def p99_of_produce(bootstrap: str) -> float:
    """Return the 99th percentile of paced produces in seconds."""
    took = []
    with Cluster(bootstrap) as cluster:
        (leader,) = leaders(cluster, [BIG]).values()
        for each in range(PRODUCES):
            data = {(BIG, 0): batch(each, 1)}
            began = time.perf_counter()
            append(cluster, leader, data)
            took.append(time.perf_counter() - began)
            time.sleep(PAUSE_S)
    return quantiles(took, n=100)[98]


def view(url: str, at: int) -> None:
    """Read pages as a person does, until the process ends."""
    while True:
        if at == 0:
            with urllib.request.urlopen(url + LIVE, timeout=60) as answer:
                while answer.readline():
                    pass
        else:
            read(url + VIEWED[at % len(VIEWED)])
            time.sleep(1.0)


def view_all(url: str, count: int) -> None:
    threads = [threading.Thread(target=view, args=(url, at), daemon=True) for at in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


@contextmanager
def viewers(url: str, count: int) -> Iterator[None]:
    """Have so many viewers during the block, in a process of their own."""
    child = get_context("spawn").Process(target=view_all, args=(url, count), daemon=True)
    child.start()
    time.sleep(2.0)  # all have opened a page
    try:
        yield
    finally:
        child.kill()
        child.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--viewers", type=int, default=10)
    chosen = parser.parse_args()
    rows: list[list[str]] = []

    def add(name: str, value: float, unit: str, goal: str = "") -> None:
        rows.append([name, f"{number(value)} {unit}", goal])

    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder) / "data") as broker:
        fill(broker.bootstrap, chosen.topics, chosen.groups)
        command = [sys.executable, "-m", "kafkawire", "console", "--listen", "127.0.0.1:0"]
        command += ["--server", broker.bootstrap]
        console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert console.stdout is not None
        try:
            url = console.stdout.readline().strip()
            read(url + "static/console.css")  # it is started
            add("first page, of topics", 1000 * read(url + "topics"), "ms", "300 ms")
            began = time.perf_counter()
            while "Numbers follow" in str(urllib.request.urlopen(url + "topics").read()):
                time.sleep(0.02)
            add("its numbers, after", 1000 * (time.perf_counter() - began), "ms")
            pages: dict[str, Callable[[], float]] = {
                "a page of topics": lambda: read(url + "topics"),
                "topics by lag": lambda: read(url + "topics?sort=lag"),
                "groups": lambda: read(url + "groups"),
                "overview": lambda: read(url),
                "50 newest of 100,000 records": lambda: read(url + f"topics/{BIG}/records"),
                "one of 100,000 by key": lambda: read(url + f"topics/{BIG}/records?key=key-7"),
            }
            for name, page in pages.items():
                page()
                goal = "200 ms" if "newest" in name else ""
                add(name, 1000 * median(page() for _ in range(5)), "ms", goal)
            alone, watched = [], []
            for _ in range(ROUNDS):
                alone.append(p99_of_produce(broker.bootstrap))
                with viewers(url, chosen.viewers):
                    watched.append(p99_of_produce(broker.bootstrap))
            add("produce p99, no viewers", 1000 * median(alone), "ms")
            add(f"produce p99, {chosen.viewers} viewers", 1000 * median(watched), "ms", "unchanged")
            memory = psutil.Process(console.pid).memory_info().rss
            add("memory of the console", memory / 1e6, "MB", "120 MB")
        finally:
            console.terminate()
            console.wait()
    print(markdown(["", "measured", "goal"], rows))


if __name__ == "__main__":
    main()
