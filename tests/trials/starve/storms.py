"""The hostile clients of a starve trial; each storm holds its sockets until it is closed.

Blocking, for threads: plain sockets of tests.kit.hostile.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random

from kafkawire.messages.metadata import MetadataRequest
from tests.kit.hostile import HalfOpen, NeverReader, SlowSender, fetch_of, frame_of

MIB = 1 << 20
SPARE_DESCRIPTORS = 500
"""Descriptors left for everything else in this process and in the broker."""


@dataclass(frozen=True, slots=True)
class Storm:
    """One kind of hostile client: `begin` opens `count` of them and registers them with the
    stack."""

    name: str
    most: int
    begin: Callable[[int, int, Random, ExitStack], None]


def never_readers(port: int, count: int, rng: Random, stack: ExitStack) -> None:
    """Clients that ask for far more than they ever read."""
    for _ in range(count):
        asked = fetch_of("old", [0], rng.choice((1, 8, 55)) * MIB, rng.choice((0, 0, 3)))
        if rng.random() < 0.2:
            asked = frame_of(3, 9, MetadataRequest(topics=None))
        stack.callback(NeverReader(port, asked, rng.choice((1, 10, 50))).close)


def slow_senders(port: int, count: int, rng: Random, stack: ExitStack) -> None:
    """Clients that announce a large Produce and send a part of it."""
    for _ in range(count):
        size = rng.choice((1, 20, 90)) * MIB
        stack.callback(SlowSender(port, size, rng.randrange(size // 8)).close)


def half_open(port: int, count: int, rng: Random, stack: ExitStack) -> None:
    """Clients that send nothing, or the beginning of a request."""
    for _ in range(count):
        stack.callback(HalfOpen(port, rng.choice((b"", b"\0", b"\0\0\0\x20\0\x12"))).close)


def come_and_go(port: int, count: int, rng: Random, stack: ExitStack) -> None:
    """Connections that are closed at once, some within a request."""
    for _ in range(count):
        HalfOpen(port, rng.choice((b"", b"\0\0\0\x20", b"\xff" * 10))).close()


STORMS = (
    Storm("never-readers", 300, never_readers),
    Storm("slow senders", 150, slow_senders),
    Storm("half-open connections", 5000, half_open),
    Storm("connections given up at once", 2000, come_and_go),
)


def allowed(wanted: int) -> int:
    """The number of sockets that the limits of this process allow, at most `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + SPARE_DESCRIPTORS:
        soft = min(hard, wanted + SPARE_DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(0, min(wanted, soft - SPARE_DESCRIPTORS))
