"""`python -m bench.micro.sql_load`: what one broker asks of PostgreSQL.

One broker on PostgreSQL and MinIO (those of the tests), with a topic of `--partitions` partitions.
Each of them gets a record a second, and its records are in the remote tier within `--lag` seconds.
Prints transactions and changed rows in a second, at rest without the topic, at rest with it, and
under that load, with durability=local and s3. Needs PostgreSQL, MinIO and confluent-kafka.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench import report
from bench.client import LoadError
from bench.postgres import REPORTED_S, SqlLoad, load_of
from tests.kit import minio
from tests.kit.machines import Machine
from tests.kit.postgres import new_database, postgres

TOPIC = "trickle"
HEAD = ("one broker", "transactions/s", "changed rows/s", "of which")
TABLES = 5
"""Tables that are listed."""


def trickle(bootstrap: str, partitions: int, seconds: float) -> None:
    """Send a record to each partition in each second. Raises LoadError if one is refused."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 2})
    failed: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    began, sent = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        producer.produce(TOPIC, bytes(100), partition=sent % partitions, on_delivery=delivered)
        sent += 1
        producer.poll(max(0.0, began + sent / partitions - time.monotonic()))
    if producer.flush(60) or failed:
        raise LoadError(f"records were not acknowledged: {failed[:3]}")


def measured(machine: Machine, url: str, partitions: int, lag_s: float) -> list[SqlLoad]:
    """Return the load at rest, at rest with a topic, and under load."""
    machine.start()
    try:
        rest = partial(time.sleep, lag_s / 2)
        time.sleep(REPORTED_S)
        empty = load_of(url, rest)
        admin = AdminClient({"bootstrap.servers": machine.bootstrap, "log_level": 2})
        admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(60)
        time.sleep(REPORTED_S)
        idle = load_of(url, rest)
        trickle(machine.bootstrap, partitions, lag_s)  # until the uploads have a steady rate
        return [
            empty, idle, load_of(url, partial(trickle, machine.bootstrap, partitions, 2 * lag_s))
        ]  # fmt: skip
    finally:
        machine.kill()


def figures(load: SqlLoad) -> list[str]:
    """Return the columns of a row."""
    most = sorted(load.rows.items(), key=lambda each: -each[1])[:TABLES]
    tables = ", ".join(f"{name} {count:.1f}" for name, count in most if count >= 0.05)
    return [f"{load.transactions:.1f}", f"{sum(load.rows.values()):.1f}", tables]


def main() -> None:
    """Measure each durability with a database and a bucket of its own; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=1000, help="(1000)")
    parser.add_argument("--lag", type=float, default=60.0, help="tiering.max.lag.ms in s (60)")
    given = parser.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder, postgres() as url:
        patch = pytest.MonkeyPatch()
        with minio.running(Path(folder, "minio")) as server, patch.context() as environment:
            for durability in ("local", "s3"):
                database = asyncio.run(new_database(url))
                settings = {
                    "cluster.takeover.enable": True, "durability": durability,
                    "tier.url": minio.new_tier(server, environment),
                    "tiering.max.lag.ms": round(given.lag * 1000),
                }  # fmt: skip
                machine = Machine(
                    Path(folder, durability), server.endpoint, settings, ["--metadata", database]
                )
                loads = measured(machine, database, given.partitions, given.lag)
                names = (
                    "no topics", f"{given.partitions} partitions at rest",
                    f"{given.partitions} records/s to them",
                )  # fmt: skip
                for name, load in zip(names, loads, strict=True):
                    rows.append([f"{durability}: {name}", *figures(load)])
    report.show(f"PostgreSQL, uploads within {given.lag:g} s", HEAD, rows)


if __name__ == "__main__":
    main()
