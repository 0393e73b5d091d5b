"""Kafka's murmur2 hash of a key, which chooses its partition. Pure.

For single keys; kafkawire_spark.sink.rows hashes columns.
"""

from __future__ import annotations

_SEED, _M = 0x9747B28C, 0x5BD1E995
_MASK = 0xFFFFFFFF
_SIGN_BIT = 1 << 31


def murmur2(data: bytes) -> int:
    """Return the 32 bits of org.apache.kafka.common.utils.Utils.murmur2, as a number without a
    sign."""
    whole = len(data) & ~3
    hashed = _SEED ^ len(data)
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        part = (part ^ part >> 24) * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ part
    if whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def key_partition(key: bytes, partitions: int) -> int:
    """Return the partition of a key, as Kafka's DefaultPartitioner: the hash without its sign bit,
    modulo the number of partitions."""
    return murmur2(key) % _SIGN_BIT % partitions
