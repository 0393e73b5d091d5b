"""Whether merging objects of the remote tier is worth its price. Pure.

A merge reads what has no local file once and writes it once. It saves requests of those who read:
each object they come by costs them two, for its index and for its data. By list prices of Amazon S3
three objects that become one pay; where bytes out of the bucket cost money, many fewer do, and
objects stay small. At no price at all every merge pays.
"""

from __future__ import annotations

from math import ceil

from kafkawire.tiering.cost.prices import Prices

READS = 4
"""How often an object is read in its life: by late consumers, Spark, scrubs, restores."""
REQUESTS_PER_READ = 2


def puts_of(size_bytes: float, part_bytes: int) -> int:
    """Requests that write one object: a large one is begun, sent in parts, finished, checked."""
    parts = ceil(size_bytes / part_bytes)
    return 1 if parts <= 1 else parts + 3


def pays(
    objects: int, size_bytes: int, fetched: int, fetched_bytes: int, part_bytes: int, prices: Prices
) -> bool:
    """Whether one object of `size_bytes` instead of so many is worth reading those of them that
    have no local file (`fetched`, of `fetched_bytes`)."""
    requests = {"GET": fetched, "PUT": puts_of(size_bytes, part_bytes), "DELETE": objects}
    price = prices.of_requests(requests) + prices.of_transfer(size_bytes, fetched_bytes)
    return price <= prices.of_requests({"GET": READS * REQUESTS_PER_READ * (objects - 1)})
