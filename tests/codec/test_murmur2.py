"""The partition of a key, compared with kafka-python's."""

from __future__ import annotations

import random

from kafka.partitioner.default import murmur2 as theirs

from kafkawire.codec.murmur2 import key_partition, murmur2


def test_hash_equals_other_client() -> None:
    source = random.Random(1)
    for size in (*range(20), 1000):
        for _ in range(20):
            key = source.randbytes(size)
            assert murmur2(key) == theirs(key) & 0xFFFFFFFF


def test_known_hashes_of_kafka() -> None:
    """From org.apache.kafka.common.utils.UtilsTest.testMurmur2."""
    for key, expected in [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)]:
        assert murmur2(key) == expected & 0xFFFFFFFF
    assert key_partition(b"foobar", 7) == (-790332482 & 0x7FFFFFFF) % 7
