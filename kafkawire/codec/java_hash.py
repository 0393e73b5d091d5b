"""Java's String.hashCode, by which Kafka finds the coordinator partition of a name.

Pure; used by kafkawire.groups and kafkawire.transactions.
"""

from __future__ import annotations

import struct
from functools import lru_cache

REMEMBERED_NAMES = 8192
"""Number of group and transactional ids whose hash is cached: members repeat theirs every few
seconds, and the hash takes as long as a heartbeat. With `REMEMBERED_CHARS`, at most 5 MiB."""
REMEMBERED_CHARS = 249


def partition_of(name: str, partitions: int) -> int:
    """Return the coordinator partition of `name`, 0 to `partitions` - 1: the hash with its sign bit
    cleared, modulo the partition count (Kafka: Utils.abs(id.hashCode) % partitions)."""
    hash_of = _hash if len(name) <= REMEMBERED_CHARS else _hash.__wrapped__
    return (hash_of(name) & 0x7FFFFFFF) % partitions


@lru_cache(REMEMBERED_NAMES)
def _hash(name: str) -> int:
    code = 0
    for (unit,) in struct.iter_unpack(">H", name.encode("utf-16-be", "surrogatepass")):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code
