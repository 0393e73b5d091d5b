"""Loads that cells are made of: produces of small records, bulk produces, fetches.

Used by the tables of cells (bench.cells, bench.long_cells) and by what measures with one load of
its own.
"""

from __future__ import annotations

from bench.client import Job

GB = 1_000_000_000
MB = 1_000_000
# Rings hold this many unanswered requests a connection before the open loop must wait.
OPEN_LOOP = 512


def produce(**options: int | str) -> Job:
    """One 100-byte record a request over 16 connections, unless other options are given."""
    known: dict[str, int | str] = {"topic": "a", "connections": 16}
    return Job("produce", known | options)


def fetch(**options: int | str) -> Job:
    """Responses of 1 MiB, read repeatedly, with every batch's offset checked."""
    known: dict[str, int | str] = {"topic": "a", "connections": 1}
    return Job("fetch", known | options)


def bulk(size: int, **options: int | str) -> Job:
    """Batches of `size` KB in 1,000-byte records."""
    return produce(**({"records": size, "record_bytes": 1000} | options))


def paced(rate: int, **options: int | str) -> Job:
    """Small produces at a fixed rate, whether or not the broker keeps up."""
    return produce(**({"rate": rate, "inflight": OPEN_LOOP} | options))


def tail(rate: int) -> tuple[Job, Job]:
    """Small produces at a fixed rate with their send time, and the consumer that measures their
    age."""
    return paced(rate, stamp=1, connections=4), Job("tail", {"topic": "a", "connections": 1})
