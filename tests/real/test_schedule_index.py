"""The index of waiting records of a broker that was killed: deleted, replaced, with damaged pages,
with another bit in a record or a due time. It is made again from the schedule topic, and nothing is
delivered twice, early, wrong or not at all.

Covers: kafkawire.schedules.waiting, kafkawire.schedules.backlog.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafkawire.testing.control import TEST_SETTINGS
from kafkawire.testing.process import BrokerProcess
from tests.kit.waiting import wait_until
from tests.real.test_schedules import LATER, Delivered, create

pytestmark = pytest.mark.real

RECORDS = 600
CANCELLED = 200
DUE_IN_MS = 6_000
HEADER_BYTES = 100
"""The header of an SQLite file; damage after it is found by the first read of a page."""


def send(bootstrap: str, due_ms: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        key = b"%d" % number
        producer.produce(LATER, key, key, partition=number % 3, timestamp=due_ms)
    for number in range(CANCELLED):
        producer.produce(LATER, None, b"%d" % number, partition=number % 3)
    assert producer.flush(60) == 0


def saved(path: Path) -> int:
    """The records in the index of a running broker."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return int(connection.execute("SELECT count(*) FROM waiting").fetchone()[0])
    finally:
        connection.close()


def spoil(path: Path, how: str) -> None:
    """Do something to the file of a broker that does not run."""
    if how.startswith("a bit"):
        flip(path, "record" if how == "a bit of a record" else "due")
        return
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    if how == "deleted":
        path.unlink()
    elif how == "another file":
        path.write_bytes(b"not SQLite at all" * 1000)
    else:
        size = max(path.stat().st_size, 1 << 16)
        path.write_bytes(path.read_bytes()[:HEADER_BYTES].ljust(size, b"\x5a"))


def flip(path: Path, column: str) -> None:
    """Change a bit of one record that waits: its value, or its due time by 34 years."""
    connection = sqlite3.connect(path)
    try:
        where = "number, at FROM waiting WHERE at = 150 LIMIT 1"
        found, number, at = connection.execute(f"SELECT {column}, {where}").fetchone()
        if column == "due":
            changed = found ^ 1 << 40
        else:
            changed = found[:-2] + bytes([found[-2] ^ 1]) + found[-1:]  # its value, then no header
        query = f"UPDATE waiting SET {column} = ? WHERE number = ? AND at = ?"
        connection.execute(query, (changed, number, at))
        connection.commit()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "how",
    ["deleted", "another file", "damaged pages", "a bit of a record", "a bit of a due time"],
)
def test_index_is_made_again(tmp_path: Path, how: str) -> None:
    with BrokerProcess(tmp_path, settings=TEST_SETTINGS) as broker:
        create(broker.bootstrap, cleanup_policy="compact")
        due_ms = time.time_ns() // 1_000_000 + DUE_IN_MS
        send(broker.bootstrap, due_ms)
        (path,) = tmp_path.rglob("schedules.db")
        wait_until(lambda: saved(path) > 0, "a save")
        broker.kill()
        spoil(path, how)
        broker.start()
        reader = Delivered(broker.bootstrap)
        reader.until(RECORDS - CANCELLED)
        more = 500
        send_marker(broker.bootstrap, more)
        reader.until(RECORDS - CANCELLED + more)
        reader.close()
        if how != "deleted":
            assert f"the index of waiting records {path} is damaged" in broker.output
    found = reader.values()
    expected = {b"%d" % number for number in range(CANCELLED, RECORDS)}
    assert {value for value in found if not value.startswith(b"marker")} == expected
    assert set(found.values()) == {1}
    for row in reader.rows:
        assert row.timestamp()[1] >= due_ms, "never early"


def send_marker(bootstrap: str, count: int) -> None:
    """Send records that are due now: what is delivered before them has been read."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(LATER, b"marker %d" % number, b"marker %d" % number, partition=number % 3)
    assert producer.flush(60) == 0
