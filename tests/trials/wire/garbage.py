"""Frames that no client would send, derived from valid ones; pure."""

from __future__ import annotations

import struct
from random import Random

WAITING = {0: "Produce", 1: "Fetch", 11: "JoinGroup", 14: "SyncGroup"}
"""A mutated request may lawfully be unanswered for long: acks=0, or a wait of days."""
HOW = (
    "flip", "flips", "cut", "longer", "insert", "length", "key", "version", "lengths", "random"
)  # fmt: skip
MAX_FRAME_BYTES = 104_857_600


def key_of(frame: bytes) -> int:
    """The API key of a frame; -1 where it has none."""
    return int(struct.unpack_from(">h", frame, 4)[0]) if len(frame) >= 6 else -1


def whole(frame: bytes) -> bool:
    """Whether the length prefix matches the rest of the frame, so that a response is due."""
    if len(frame) < 4:
        return False
    (size,) = struct.unpack_from(">i", frame)
    return bool(0 < size <= len(frame) - 4)


def _sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def mutated(rng: Random, frame: bytes) -> tuple[str, bytes]:
    """A valid frame after a random change, and a description of the change."""
    how = rng.choice(HOW)
    body = bytearray(frame[4:])
    at = rng.randrange(len(body))
    if how == "flip":
        body[at] ^= 1 << rng.randrange(8)
    elif how == "flips":
        for _ in range(rng.randint(2, 20)):
            body[rng.randrange(len(body))] = rng.randrange(256)
    elif how == "cut":
        del body[at:]
    elif how == "longer":
        body += rng.randbytes(rng.choice((1, 7, 1000)))
    elif how == "insert":
        body[at:at] = rng.randbytes(rng.choice((1, 2, 4, 100)))
    elif how == "length":
        size = rng.choice((0, -1, 1, 2**31 - 1, -(2**31), MAX_FRAME_BYTES + 1, 5))
        return how, struct.pack(">i", size) + bytes(body)
    elif how == "key":
        body[0:2] = struct.pack(">h", rng.choice((-1, 4, 7, 99, 32767, 10000, -32768)))
    elif how == "version":
        body[2:4] = struct.pack(">h", rng.choice((-1, 99, 32767, -32768)))
    elif how == "lengths":
        wild = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00",
                           b"\xff\xff\xff\xff\x07", b"\xff" * 10, b"\x7f\xff"))  # fmt: skip
        body[at : at + len(wild)] = wild
    else:
        return how, rng.randbytes(rng.randint(1, 400))
    return how, _sized(bytes(body))


def many_records(count: int) -> bytes:
    """The body of a batch of `count` records with distinct keys and nothing else in them."""
    out = bytearray()
    for number in range(count):
        key = b"%06x" % number
        delta = _varint(number)
        one = b"\0\0" + delta + b"\x0c" + key + b"\x01\0"
        out += _varint(len(one)) + one
    return bytes(out)


def many_headers(count: int) -> bytes:
    """The body of a batch of one record with `count` headers."""
    one = b"\0\0\0\x02k\x01" + _varint(count) + b"\x02h\x01" * count
    return _varint(len(one)) + one


def _varint(number: int) -> bytes:
    left, out = number << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
