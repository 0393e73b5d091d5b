"""Topics and clients of the trial."""

from __future__ import annotations

from tests.kit.exactly_once.clients import GROUP
from tests.kit.exactly_once.history import Key, Partition

SOURCES: list[Partition] = [("a", 0), ("a", 1)]
PLAIN: list[Partition] = [("b", 0)]
COPIES: list[Partition] = [("c", 0), ("c", 1)]
WRITTEN = SOURCES + PLAIN
EVERY = WRITTEN + COPIES
KEYS: list[Key] = [(GROUP, *each) for each in SOURCES]
VERSIONS = {"one": (1, 11), "old": (1, 9), "two": (2, 12), "copy0": (1, 10), "copy1": (2, 12)}
"""Transactional ids: the version of their transactions, and of their Produce."""
CLIENTS = (*VERSIONS, "reader0", "reader1")
