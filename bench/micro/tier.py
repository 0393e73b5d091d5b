"""Throughput of the remote tier on an object store, compared with boto3 alone on the same bytes.

`python -m bench.micro.tier [--mebibytes 256] [--rounds 5]` starts a MinIO (like the tests; or takes
`--endpoint URL` with boto3's own credentials), then uploads and reads the same random bytes
alternately: through `kafkawire.tiering.store.process.StoreProcess` like the broker, and by plain
boto3 in a process of its own (`upload_file` with its defaults; range GETs by a pool of threads).
Each round has both, so that other load on the machine affects both; the ratio is the median of the
rounds' ratios. A table, and `out/micro_tier.json`. Bounded: twice the megabytes, in a temporary
folder.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench import report
from kafkawire.objectstore.url import parse_tier
from kafkawire.tiering.store.port import ObjectPart
from kafkawire.tiering.store.process import StoreProcess
from tests.kit import minio

PREFIX = "tier"
MEMORY_BYTES = 64 << 20
MIB = 1 << 20


@dataclass(frozen=True)
class Line:
    """One row: megabytes a second (10^6) of both in each round, and the target ratio."""

    what: str
    ours: list[float]
    raw: list[float]
    wanted: float

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(a / b for a, b in zip(self.ours, self.raw, strict=True))

    def row(self) -> list[str]:
        """The cells of the table."""
        rates = [report.number(statistics.median(rates)) for rates in (self.ours, self.raw)]
        return [self.what, *rates, f"{self.ratio:.2f}", f"{self.wanted:.1f}"]


@contextmanager
def storage(endpoint: str | None, folder: Path) -> Iterator[None]:
    """An S3 endpoint whose settings are in the environment, for this process and its children."""
    if endpoint is not None:
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        yield
        return
    if minio.source() is None:
        sys.exit("there is no MinIO: `make minio` builds one, or name another S3 by --endpoint")
    with minio.running(folder) as server:
        os.environ.update(server.environ)
        yield


# Plain boto3, in a process of its own


@cache
def _client() -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client("s3", config=Config(max_pool_connections=32))


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


def raw_upload(bucket: str, files: Sequence[tuple[str, str]]) -> float:
    """Seconds for all files (key, path) at once, by `upload_file` with its defaults."""
    client, pool = _client(), _threads(len(files))
    began = time.perf_counter()
    list(pool.map(lambda file: client.upload_file(file[1], bucket, file[0]), files))
    return time.perf_counter() - began


def raw_read(bucket: str, key: str, size: int, step: int, at_once: int) -> float:
    """Seconds for an object in ranges of `step` bytes, this many at once."""
    client = _client()

    def one(start: int) -> None:
        asked = f"bytes={start}-{min(size, start + step) - 1}"
        body = client.get_object(Bucket=bucket, Key=key, Range=asked)["Body"].read()
        assert len(body) == min(step, size - start)

    began = time.perf_counter()
    list(_threads(at_once).map(one, range(0, size, step)))
    return time.perf_counter() - began


# Through the store


async def our_upload(store: StoreProcess, files: Sequence[tuple[str, str]]) -> float:
    """Like `raw_upload`, through the store."""
    began = time.perf_counter()
    await asyncio.gather(*(store.upload(key, path) for key, path in files))
    return time.perf_counter() - began


async def our_read(store: StoreProcess, key: str, size: int, step: int, at_once: int) -> float:
    """Like `raw_read`, through the store."""
    starts = iter(range(0, size, step))

    async def reader(at: int) -> None:
        for start in starts:
            await store.read(key, [ObjectPart(start, min(step, size - start), at)])

    began = time.perf_counter()
    await asyncio.gather(*(reader(step * n) for n in range(at_once)))
    return time.perf_counter() - began


@dataclass
class Bench:
    """A bucket, the store over it, and the process of plain boto3."""

    bucket: str
    store: StoreProcess
    raw: Executor
    folder: Path
    rounds: int

    def file(self, name: str, mebibytes: int) -> tuple[str, str]:
        """(name, path) of a new file of random bytes."""
        path = self.folder / name
        with path.open("wb") as out:
            for _ in range(mebibytes):
                out.write(os.urandom(MIB))
        return name, str(path)

    async def measure(
        self,
        what: str,
        size: int,
        ours: Callable[[], Awaitable[float]],
        raw: Callable[..., float],
        arguments: tuple[Any, ...],
        wanted: float,
    ) -> Line:
        """Alternate rounds of both, after one that does not count."""
        loop = asyncio.get_running_loop()
        line = Line(what, [], [], wanted)
        for number in range(self.rounds + 1):
            both = [
                size / 1e6 / await ours(),
                size / 1e6 / await loop.run_in_executor(self.raw, raw, self.bucket, *arguments),
            ]
            if number:
                line.ours.append(both[0])
                line.raw.append(both[1])
        return line

    async def uploads(self, what: str, mebibytes: int, count: int) -> Line:
        """Upload this many files at once."""
        files = [self.file(f"{count}-{n}", mebibytes // count) for n in range(count)]
        named = [(f"{PREFIX}/raw-{name}", path) for name, path in files]
        size = mebibytes // count * count * MIB
        return await self.measure(
            what, size, lambda: our_upload(self.store, files), raw_upload, (named,), 0.8
        )

    async def reads(self, key: str, mebibytes: int, step: int, at_once: int) -> Line:
        """Read an object from its first byte to its last."""
        size = mebibytes * MIB
        what = f"read, ranges of {step // MIB} MiB, {at_once} at once"
        arguments = (f"{PREFIX}/{key}", size, step, at_once)
        return await self.measure(
            what, size, lambda: our_read(self.store, key, size, step, at_once), raw_read,
            arguments, 0.5,
        )  # fmt: skip


async def run(mebibytes: int, rounds: int, folder: Path) -> list[Line]:
    """All rows."""
    bucket = f"bench-{uuid.uuid4().hex[:12]}"
    store = StoreProcess(parse_tier(f"s3://{bucket}/{PREFIX}"), MEMORY_BYTES)
    with ProcessPoolExecutor(1, get_context("spawn")) as raw:
        bench = Bench(bucket, store, raw, folder, rounds)
        try:
            lines = [
                await bench.uploads(f"upload, one object of {mebibytes} MiB", mebibytes, 1),
                await bench.uploads(f"upload, four of {mebibytes // 4} MiB at once", mebibytes, 4),
                await bench.uploads("upload, 8 MiB objects, four at once", 32, 4),
            ]
            for step, at_once in ((8, 4), (4, 4), (1, 8), (1, 1)):
                lines.append(await bench.reads("1-0", mebibytes, step * MIB, at_once))
            return lines
        finally:
            await store.close()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--endpoint")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with storage(given.endpoint, folder / "minio"):
            lines = asyncio.run(run(given.mebibytes, given.rounds, folder))
    head = ("MB/s, medians", "store", "boto3", "ratio", "wanted")
    report.show("the store and plain boto3", head, [line.row() for line in lines])
    content: dict[str, object] = {
        "machine": report.machine(),
        "lines": [asdict(line) for line in lines],
    }
    print(f"written to {report.write_json('micro_tier.json', content)}")


if __name__ == "__main__":
    main()
