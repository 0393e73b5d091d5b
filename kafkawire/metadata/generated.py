"""Generated values of rows: the time, and random ids."""

from __future__ import annotations

import os
import time


def now_ms() -> int:
    """Milliseconds since 1970, for the time columns; nothing is decided by it."""
    return time.time_ns() // 1_000_000


def random_id() -> bytes:
    """16 random bytes with the marks of a version 4 UUID, as Kafka's Uuid.randomUuid: none that
    begins with a dash as text, which command lines would take for an option."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if raw[0] >> 2 != 62:  # the 62nd letter of url-safe base64 is the dash
            return bytes(raw)
