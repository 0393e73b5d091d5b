"""`python -m bench.raw_gets s3://BUCKET/PREFIX SECONDS`: MB/s of ranged GETs by boto3 alone.

Eight threads repeatedly read the segment objects under the prefix in ranges of 8 MiB: the reference
for the cold fetches of bench.micro.cold. boto3 finds credentials and endpoint in the environment.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import boto3
from botocore.config import Config

THREADS = 8
RANGE_BYTES = 8 << 20


def ranges(store: Any, bucket: str, prefix: str) -> Iterator[tuple[str, int, int]]:
    """(key, first byte, last byte) of all objects, repeated endlessly."""
    found = store.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/segments/")["Contents"]
    return cycle(
        [
            (one["Key"], at, min(at + RANGE_BYTES, one["Size"]) - 1)
            for one in found
            for at in range(0, one["Size"], RANGE_BYTES)
        ]
    )


def main(url: str, seconds: float) -> None:
    """Measure and print one number."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    config = Config(max_pool_connections=THREADS, s3={"addressing_style": "path"})
    store = boto3.client("s3", config=config)
    work, lock = ranges(store, bucket, prefix), threading.Lock()
    sizes: list[int] = []
    end = time.monotonic() + seconds

    def read() -> None:
        while time.monotonic() < end:
            with lock:
                key, first, last = next(work)
            body = store.get_object(Bucket=bucket, Key=key, Range=f"bytes={first}-{last}")["Body"]
            sizes.append(len(body.read()))

    began = time.monotonic()
    threads = [threading.Thread(target=read) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(sizes) / 1e6 / (time.monotonic() - began))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
