"""Record sets compressed before the run, for the load client's cells with a codec.

The client (C, no dependencies) frames and sums them into batches; what it can't do is compress. The
values look like log lines, so they compress as user data does (about 3:1), the same on every run.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import cramjam

VARIANTS = 8  # different batches, so that no cache sees one batch only
CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

# LZ4 frame, version 1, independent blocks of at most 64 KiB, no checksums: the only kind Kafka's
# Java code reads for certain (it refuses linked blocks). The last byte is the header's checksum.
LZ4_HEAD = bytes.fromhex("04224d18604082")
LZ4_BLOCK_BYTES = 64 << 10
# Its magic, then version 1, compatible with 1.
SNAPPY_HEAD = b"\x82SNAPPY\0" + bytes.fromhex("0000000100000001")
SNAPPY_BLOCK_BYTES = 32 << 10


def varint(value: int) -> bytes:
    """Zig-zag varint of the record format."""
    number = (value << 1) ^ (value >> 63)
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(delta: int, value: bytes) -> bytes:
    """One record: no key, no headers."""
    body = b"\0\0" + varint(delta) + varint(-1) + varint(len(value)) + value + b"\0"
    return varint(len(body)) + body


def line(chance: random.Random, size: int) -> bytes:
    """A value of `size` bytes."""
    words = ["user", "order", "checkout", "session", "cart", "timeout", "retry", "ok", "failed"]
    text = ""
    while len(text) < size:
        text += (
            f'{{"id":{chance.getrandbits(48)},"at":{chance.randrange(10**9)},'
            f'"event":"{chance.choice(words)}","path":"/{chance.choice(words)}/'
            f'{chance.randrange(10**5)}","ms":{chance.random() * 100:.3f}}}'
        )
    return text[:size].encode()


def lz4(data: bytes) -> bytes:
    """One frame of independent blocks."""
    parts = [LZ4_HEAD]
    for at in range(0, len(data), LZ4_BLOCK_BYTES):
        block = data[at : at + LZ4_BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += [struct.pack("<I", len(packed)), packed]
        else:
            parts += [struct.pack("<I", len(block) | 1 << 31), block]
    return b"".join([*parts, struct.pack("<I", 0)])


def zstd(data: bytes) -> bytes:
    """One frame, level 3 as the clients'."""
    return bytes(cramjam.zstd.compress(data, level=3))


def gzip(data: bytes) -> bytes:
    """One member, level 6 as the clients'."""
    return bytes(cramjam.gzip.compress(data, level=6))


def snappy(data: bytes) -> bytes:
    """snappy-java's framing, of blocks of 32 KiB."""
    parts = [SNAPPY_HEAD]
    for at in range(0, len(data), SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + SNAPPY_BLOCK_BYTES]))
        parts += [struct.pack(">I", len(block)), block]
    return b"".join(parts)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "lz4": lz4, "zstd": zstd, "gzip": gzip, "snappy": snappy
}  # fmt: skip


def payload_file(folder: Path, codec: str, record_bytes: int, records: int) -> Path:
    """The file for `payload=`; made once."""
    path = folder / f"payload-{codec}-{records}x{record_bytes}.bin"
    if path.exists():
        return path
    chance = random.Random(7)
    out = bytearray()
    for _ in range(VARIANTS):
        plain = b"".join(record(i, line(chance, record_bytes)) for i in range(records))
        packed = COMPRESS[codec](plain)
        out += struct.pack(">I", len(packed)) + packed
    unfinished = path.with_suffix(f".{os.getpid()}.new")  # two runs may make it at once
    unfinished.write_bytes(out)
    unfinished.replace(path)
    return path
