"""Records produced over the console's HTTP API: one in a request, and many.

    python -m bench.micro.http [--seconds 5]

The broker, the console and the client are processes of their own. Each row has the records a second
as the client sees them, and how many the console would do if it had a core for itself: records by
its seconds of CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from urllib.parse import urlsplit

import psutil

from kafkawire.testing import create_topic
from kafkawire.testing.process import BrokerProcess

TOPIC, VALUE = "orders", "x" * 100
ROWS = ((64, 1), (1, 1), (8, 100), (4, 1000))
"""Connections, and records in a request."""


async def client(host: str, port: int, body: bytes, until: float) -> list[float]:
    """Return the latencies of one connection in milliseconds."""
    reader, writer = await asyncio.open_connection(host, port)
    head = (
        f"POST /api/topics/{TOPIC}/records HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    found = []
    while (begun := time.perf_counter()) < until:
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answer.split(b"\r\n", 1)[0], answer
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        found.append((time.perf_counter() - begun) * 1000)
    writer.close()
    return found


async def row(url: str, console: psutil.Process, clients: int, records: int, s: float) -> None:
    """Measure and print one row."""
    at = urlsplit(url)
    body = json.dumps({"records": [{"key": "k", "value": VALUE}] * records}).encode()
    assert at.hostname is not None
    assert at.port is not None
    before, begun = console.cpu_times(), time.perf_counter()
    found = await asyncio.gather(
        *(client(at.hostname, at.port, body, begun + s) for _ in range(clients))
    )
    seconds, after = time.perf_counter() - begun, console.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    latencies = sorted(each for part in found for each in part)
    total = len(latencies) * records
    print(
        f"{clients:3} connections, {records:4} in a request: {total / seconds:8,.0f} records/s, "
        f"{total / cpu:8,.0f} per second of CPU of the console, p50 "
        f"{latencies[len(latencies) // 2]:.1f} ms, p99 {latencies[len(latencies) * 99 // 100]:.1f} "
        "ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    given = parser.parse_args()
    with BrokerProcess() as broker:
        create_topic(broker.bootstrap, TOPIC, partitions=3)
        command = [sys.executable, "-m", "kafkawire", "console", "--server", broker.bootstrap,
                   "--listen", "127.0.0.1:0", "--allow-changes"]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
            assert started.stdout is not None
            url = started.stdout.readline().strip()
            process = psutil.Process(started.pid)
            try:
                for clients, records in ROWS:
                    asyncio.run(row(url, process, clients, records, given.seconds))
            finally:
                started.terminate()


if __name__ == "__main__":
    main()
