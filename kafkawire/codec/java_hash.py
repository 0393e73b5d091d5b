"""Java's String.hashCode, by which Kafka finds the coordinator partition of a name.

Pure; used by kafkawire.groups and kafkawire.transactions.
"""

from __future__ import annotations

import struct
from functools import lru_cache

_SIGN_BIT = 1 << 31
REMEMBERED_NAMES = 8192
"""Number of group and transactional ids whose hash is cached: members repeat theirs every few
seconds, and the hash takes as long as a heartbeat. With `REMEMBERED_CHARS`, at most 5 MiB."""
REMEMBERED_CHARS = 249


def partition_of(name: str, partitions: int) -> int:
    """Return the coordinator partition of a transactional id, 0 to `partitions` - 1, as Kafka does:
    the absolute value of the hash, modulo the partition count (Utils.abs(id.hashCode) %
    partitions)."""
    code = _hash_of(name)
    return (code if code < _SIGN_BIT else 2 * _SIGN_BIT - code) % _SIGN_BIT % partitions


def group_partition_of(name: str, partitions: int) -> int:
    """Return the coordinator partition of a group, 0 to `partitions` - 1: the hash with its sign
    bit cleared, modulo the partition count.

    Kafka takes the absolute value, as `partition_of` does. Where the hash is negative the two
    differ, and the groups of existing data folders are stored by this rule. Clients ask for the
    coordinator and do not compute the partition.
    """
    return _hash_of(name) % _SIGN_BIT % partitions


def _hash_of(name: str) -> int:
    """Return the 32 bits of Java's hash as a number without a sign."""
    return (_hash if len(name) <= REMEMBERED_CHARS else _hash.__wrapped__)(name)


@lru_cache(REMEMBERED_NAMES)
def _hash(name: str) -> int:
    code = 0
    for (unit,) in struct.iter_unpack(">H", name.encode("utf-16-be", "surrogatepass")):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code
