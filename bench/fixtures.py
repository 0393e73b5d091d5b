"""`python -m bench.fixtures`: brokers for tests, by the same ten tests with consumer groups.

kafkawire's pytest fixture, with a broker for each test and with one for all, compared with kfake
and with Apache Kafka as single processes that a session fixture starts. Containers are not
measured: Kafka's image starts the same JVM. Seconds are those of the whole pytest run, with the
start of the broker; memory is the proportional set size (PSS) after the tests, with the fork server
of the fixture. The table is in docs/testing.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench import report
from bench.peer_recipes import NotInstalled, home, install, kafka, kfake
from bench.server import Recipe, Server
from kafkawire.testing import TEST_SETTINGS, BrokerProcess
from kafkawire.testing.forks import close_shared

ROOT = Path(__file__).parent.parent
HEAD = ("", "start to ready", "10 group tests", "MB installed", "MB memory")
TESTS = """
import uuid

import pytest
from kafka import KafkaConsumer, KafkaProducer


@pytest.mark.parametrize("number", range(10))
def test_group(bootstrap, number):
    topic, group = f"orders-{uuid.uuid4()}", f"shop-{uuid.uuid4()}"
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for value in range(10):
        producer.send(topic, b"%d" % value)
    producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    )
    assert [next(consumer).value for _ in range(10)] == [b"%d" % value for value in range(10)]
    consumer.commit()
    consumer.close()
"""
OWN = """
import pytest


@pytest.fixture
def bootstrap(kafkawire_broker):
    return kafkawire_broker.bootstrap
"""
OTHER = """
import os
from pathlib import Path

import pytest

from bench.peer_recipes import kafka, kfake
from bench.server import Server


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peer") / "data"
    server = Server({PEER}(), folder, os.sched_getaffinity(0))
    server.start()
    yield f"127.0.0.1:{server.port}"
    server.stop()
"""


def tests_s(conftest: str, *options: str) -> float:
    """Return the seconds of a pytest run."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "conftest.py").write_text(conftest)
        Path(folder, "test_groups.py").write_text(TESTS)
        # Plugins of the development environment, which take seconds of a run's end.
        off = [f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "anyio", "asyncio")]
        command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", *off, *options]
        began = time.monotonic()
        subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return time.monotonic() - began


def pss_mb(pid: int) -> float:
    """Return the memory of a process, of shared pages its share."""
    found = re.search(r"^Pss: *(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def use(bootstrap: str) -> None:
    """Run the ten tests against a running broker."""
    fixture = f"import pytest\n@pytest.fixture\ndef bootstrap():\n    return {bootstrap!r}\n"
    tests_s(fixture)


def installed_mb(name: str) -> float:
    """Return the size of an installed package and of all that it requires."""
    return sum(map(_size_of, {*_required(name, set())})) / 1e6


def _required(name: str, seen: set[str]) -> Iterator[str]:
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return
    seen.add(key)
    yield key
    for line in importlib.metadata.requires(name) or ():
        if "extra ==" not in line:
            try:
                importlib.metadata.distribution(required := re.split(r"[^\w.-]", line)[0])
            except importlib.metadata.PackageNotFoundError:  # of another platform
                continue
            yield from _required(required, seen)


def _size_of(name: str) -> int:
    if name == "kafkawire":  # editable
        return sum(each.stat().st_size for each in (ROOT / name).rglob("*.py"))
    files = importlib.metadata.files(name) or ()
    return sum(at.stat().st_size for each in files if (at := Path(str(each.locate()))).is_file())


def own_rows(rounds: int) -> list[tuple[str, ...]]:
    """Measure kafkawire's fixture."""
    starts: list[tuple[float, float]] = []
    memory = 0.0
    for _ in range(rounds):
        began = time.monotonic()
        with BrokerProcess(settings=TEST_SETTINGS) as broker:
            first = time.monotonic() - began
            use(broker.bootstrap)
            status = Path(f"/proc/{broker.pid}/status").read_text()
            parent = re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE)
            memory = pss_mb(broker.pid) + (pss_mb(int(parent[1])) if parent else 0.0)
        began = time.monotonic()
        with BrokerProcess(settings=TEST_SETTINGS):
            starts.append((first, time.monotonic() - began))
        close_shared()
    first, more = (median(each) for each in zip(*starts, strict=True))
    size = f"{installed_mb('kafkawire'):.0f}"
    of_each = median(tests_s(OWN) for _ in range(rounds))
    of_all = median(tests_s(OWN, "-okafkawire_scope=session") for _ in range(rounds))
    ready = f"{first:.2f} s, then {more:.2f} s"
    return [
        ("kafkawire, a broker for each test", ready, f"{of_each:.1f} s", size, f"{memory:.0f}"),
        ("kafkawire, one for all", ready, f"{of_all:.1f} s", size, f"{memory:.0f}"),
    ]


def peer_row(recipe: Recipe, name: str, rounds: int, size: str) -> tuple[str, ...]:
    """Measure another broker."""
    starts: list[float] = []
    memory = 0.0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(recipe, Path(folder, "data"), os.sched_getaffinity(0))
            starts.append(server.start())
            try:
                use(f"127.0.0.1:{server.port}")
                memory = pss_mb(server.pid)
            finally:
                server.stop()
    took = median(tests_s(OTHER.replace("{PEER}", recipe.name.lower())) for _ in range(rounds))
    return name, f"{median(starts):.2f} s", f"{took:.1f} s", size, f"{memory:.0f}"


def peer_rows(rounds: int) -> Iterator[tuple[str, ...]]:
    """Measure the peers that are available here."""
    for recipe, name in ((kfake(), "kfake"), (kafka(), "Apache Kafka")):
        try:
            install(recipe.name.lower())
        except NotInstalled as why:
            print(f"{name}: {why}", file=sys.stderr)
            continue
        at = home() / "bin" / "kfake-bench" if name == "kfake" else home() / "kafka" / "libs"
        files = [at] if at.is_file() else [*at.iterdir()]
        size = f"{sum(each.stat().st_size for each in files) / 1e6:.0f}"
        yield peer_row(recipe, name, rounds, size)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.fixtures", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs, of which the median is shown")
    rounds = parser.parse_args().rounds
    before = report.machine()
    rows = [*own_rows(rounds), *peer_rows(rounds)]
    report.show("brokers for tests", HEAD, rows)
    print(f"load {before['load_average']:.1f} before, {os.getloadavg()[0]:.1f} after")
    print(report.write_json("fixtures.json", {"machine": before, "rows": rows}))


if __name__ == "__main__":
    main()
