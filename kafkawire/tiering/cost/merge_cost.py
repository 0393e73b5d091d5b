"""Decide whether merging objects of the remote tier saves money. Pure.

A merge reads objects without a local file once and writes the result once. It saves read requests,
since every reader needs two per object, for its index and its data. At Amazon S3's list prices
merging three objects into one saves money; where egress is charged, merges rarely do, and objects
stay small. At zero prices every merge is worth it.
"""

from __future__ import annotations

from math import ceil

from kafkawire.tiering.cost.prices import Prices

READS = 4
"""How often an object is read in its lifetime: by late consumers, Spark, scrubs, restores."""
REQUESTS_PER_READ = 2


def puts_of(size_bytes: float, part_bytes: int) -> int:
    """Requests to write one object: multipart create, parts, complete, check."""
    parts = ceil(size_bytes / part_bytes)
    return 1 if parts <= 1 else parts + 3


def pays(
    objects: int, size_bytes: int, fetched: int, fetched_bytes: int, part_bytes: int, prices: Prices
) -> bool:
    """Return whether one object of `size_bytes` saves more than reading the `fetched` objects
    without a local file (`fetched_bytes`) costs."""
    requests = {"GET": fetched, "PUT": puts_of(size_bytes, part_bytes), "DELETE": objects}
    price = prices.of_requests(requests) + prices.of_transfer(size_bytes, fetched_bytes)
    return price <= prices.of_requests({"GET": READS * REQUESTS_PER_READ * (objects - 1)})
