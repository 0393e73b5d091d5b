"""Recovery after kill -9: gigabytes of journals over 10,000 partitions, and how long a start takes.

`python -m bench.micro.recovery [--gb 10] [--batch 16384] [--partitions 10000]` writes the journals
through the broker's own log in a child that kills itself while it is writing, then starts a broker
on the folder and measures the time to the first accepted produce (acks=all). `--batch 200` is the
other row of the table. Nothing is cut into segments meanwhile, so all of it is in the journals.
The folder is temporary and deleted at the end; at most 12 GB.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench.micro.topics import Caller, produce
from bench.server import Server, kafkawire
from kafkawire.broker.broker import Broker
from kafkawire.codec.batches import build
from kafkawire.log.io.disk import real_env
from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.metadata.sql import open_metadata

MAX_GB = 12
PER_TOPIC = 100
TARGET_S = 3.0
BATCH_BYTES = 4_000_000  # appended before other callbacks of the loop run
SETTINGS = {"cut.interval.ms": "86400000", "flush": "commit"}
RUNS = 3


def name_of(number: int) -> str:
    """A topic's name."""
    return f"recovery-{number:04d}"


async def write(folder: str, size_bytes: int, batch_bytes: int, count: int) -> None:
    """Fill the journals, then end the process with SIGKILL."""
    broker = await Broker.start(
        real_env(), open_metadata("", folder), folder, SETTINGS, {"PLAINTEXT": ("127.0.0.1", 1)}
    )
    topics = [CreatableTopic(name_of(n), PER_TOPIC, 1) for n in range(count // PER_TOPIC)]
    for start in range(0, len(topics), 50):
        await broker.topics.create(topics[start : start + 50])
    partitions = [broker.table.find_by_name(t.name, i) for t in topics for i in range(PER_TOPIC)]
    now_ms = int(time.time() * 1000)
    blank = bytes(build([(None, b"")], timestamp_ms=now_ms))
    batch = bytes(build([(None, b"x" * max(0, batch_bytes - len(blank)))], timestamp_ms=now_ms))
    written = at = 0
    log = broker.log.commit_log
    while written < size_bytes:
        for _ in range(BATCH_BYTES // len(batch)):
            partitions[at % count].append(memoryview(bytearray(batch)), now_ms)
            at += 1
        written += BATCH_BYTES
        await asyncio.sleep(0)
        if log.full or written % (BATCH_BYTES * 16) == 0:
            await log.wait_until_committed()
    await log.wait_until_committed()
    for partition in partitions[:: count // 100]:  # some of it is still being written
        partition.append(memoryview(bytearray(batch)), now_ms)
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)


def measure(folder: Path, gb: float, batch_bytes: int, count: int) -> None:
    """Write, then start a few times, each after a kill."""
    argv = [sys.executable, "-m", "bench.micro.recovery", "--write", str(folder)]
    argv += ["--gb", str(gb), "--batch", str(batch_bytes), "--partitions", str(count)]
    began = time.monotonic()
    code = subprocess.run(argv, check=False).returncode
    assert code == -signal.SIGKILL, f"the writer ended with {code}"
    print(f"{gb} GB in batches of {batch_bytes} bytes over {count:,} partitions, "
          f"written in {time.monotonic() - began:.0f} s, kill -9")  # fmt: skip
    plain = kafkawire(durable=True)
    uncut = ["--set", f"cut.interval.ms={SETTINGS['cut.interval.ms']}"]
    recipe = replace(plain, command=lambda port, where: [*plain.command(port, where), *uncut])
    server = Server(recipe, folder, os.sched_getaffinity(0))
    try:
        for run in range(RUNS):
            began = time.monotonic()
            server.start()
            listening = time.monotonic() - began
            caller = Caller(server.port)
            code = produce(caller, name_of(0))
            assert not code, f"produce: error {code}"
            took = time.monotonic() - began
            print(
                f"  start {run + 1}: listening after {listening:.2f} s, first produce accepted "
                f"after {took:.2f} s (target {TARGET_S:.0f} s: {took / TARGET_S:.2f}), "
                f"{server.cpu_s():.2f} s of CPU, {server.memory().rss_bytes / 1e6:,.0f} MB"
            )
            os.kill(server.pid, signal.SIGKILL)
            server.stop()
    finally:
        server.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gb", type=float, default=10.0, help="bytes of batches; default 10")
    parser.add_argument("--batch", type=int, default=16_384, help="bytes of a batch")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--write", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 0 < options.gb <= MAX_GB:
        sys.exit(f"--gb {options.gb}: it must be above 0 and at most {MAX_GB}")
    if options.partitions % PER_TOPIC or options.partitions < PER_TOPIC:
        sys.exit(f"--partitions {options.partitions}: it must be a multiple of {PER_TOPIC}")
    if options.write:
        size = int(options.gb * 1e9)
        asyncio.run(write(options.write, size, options.batch, options.partitions))
    with tempfile.TemporaryDirectory(prefix="kafkawire-recovery-") as folder:
        measure(Path(folder) / "data", options.gb, options.batch, options.partitions)


if __name__ == "__main__":
    main()
