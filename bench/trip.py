"""Print the functions, files and packages that one request passes: `python -m bench.trip`.

A broker runs in this process, warm: each request was served three times before. Functions of the
event loop and of other threads count, if each of three such requests passes them; those of
background tasks do not. `--list` prints them in the order of their first call.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata
from rich.console import Console
from rich.table import Table

from kafkawire.reading import open_bucket
from kafkawire.testing import TopicProducer, broker

ROOT = f"{Path(__file__).parent.parent / 'kafkawire'}/"
WARM_UP = REPEATS = 3
SETTLE_S = 0.4
"""After a request: what it starts, such as a commit of the log, has ended."""
COMMIT = {TopicPartition("trip", 0): OffsetAndMetadata(1, "", -1)}
SETTINGS = {"journal.roll.ms": 1000, "cut.interval.ms": 100}
UPLOAD_S = 4.0
"""From a record to its object: the roll of its journal, the cut, the upload, the manifest."""


class Function(NamedTuple):
    """A function that was called: its file below kafkawire/, and its name."""

    file: str
    name: str


class Calls:
    """Functions of kafkawire that are called while `recording`, in order."""

    def __init__(self) -> None:
        self.recording = False
        self.found: dict[Function, None] = {}

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Record a call; see threading.setprofile."""
        code = frame.f_code
        if self.recording and event == "call" and code.co_filename.startswith(ROOT):
            file = code.co_filename.removeprefix(ROOT)
            if not file.startswith("testing/"):
                name = getattr(code, "co_qualname", code.co_name)
                self.found[Function(file, name)] = None

    def of(self, request: Callable[[], object], settle_s: float = SETTLE_S) -> list[Function]:
        """Return the functions that a request passes each time."""
        for _ in range(WARM_UP):
            request()
            time.sleep(settle_s)
        passed: list[dict[Function, None]] = []
        for _ in range(REPEATS):
            self.found = {}
            self.recording = True
            request()
            time.sleep(settle_s)
            self.recording = False
            passed.append(self.found)
        return [each for each in passed[0] if all(each in found for found in passed)]


def trips(calls: Calls, folder: str) -> dict[str, list[Function]]:
    """Return the functions of each trip, without those of an idle broker."""
    found: dict[str, list[Function]] = {}
    with broker() as running:
        where = running.bootstrap
        producer = KafkaProducer(bootstrap_servers=where, acks="all", enable_idempotence=False)
        consumer = KafkaConsumer(bootstrap_servers=where, group_id="trip", enable_auto_commit=False)
        partition = TopicPartition("trip", 0)

        def produce() -> None:
            producer.send("trip", b"value").get(10)

        def fetch() -> None:
            consumer.seek(partition, 0)
            assert consumer.poll(timeout_ms=5000)

        produce()
        consumer.assign([partition])
        idle = set(calls.of(lambda: None))
        requests: dict[str, Callable[[], object]] = {
            "Produce of one batch, acks=all": produce,
            "Fetch of one batch": fetch,
            "OffsetCommit": lambda: consumer.commit(COMMIT),
        }
        for name, request in requests.items():
            found[name] = [each for each in calls.of(request) if each not in idle]
        producer.close()
        consumer.close()
    with broker(settings={**SETTINGS, "tier.url": folder}) as running:
        topics = TopicProducer(running.bootstrap)
        idle = set(calls.of(lambda: None, UPLOAD_S))
        upload = calls.of(lambda: topics.send("trip", b"value", key=b"key"), UPLOAD_S)
        found["Produce, then upload of the record"] = [each for each in upload if each not in idle]
    sys.setprofile(calls.profile)
    with open_bucket(folder) as reader:
        found["look-up of a key in a bucket"] = calls.of(lambda: reader.latest("trip", b"key"))
    sys.setprofile(None)
    return found


def main() -> None:
    """Print a table of the trips, and their functions with `--list`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the functions of each trip")
    listed = parser.parse_args().list
    calls = Calls()
    threading.setprofile(calls.profile)
    with tempfile.TemporaryDirectory() as folder:
        found = trips(calls, folder)
    table = Table("trip", "functions", "files", "packages")
    for name, functions in found.items():
        files = {each.file for each in functions}
        packages = {file.rpartition("/")[0] for file in files}
        table.add_row(name, *map(str, (len(functions), len(files), len(packages))))
    Console().print(table)
    for name, functions in found.items() if listed else ():
        print(f"\n{name}")
        for each in functions:
            print(f"  {each.file} {each.name}")


if __name__ == "__main__":
    main()
