"""The order in which changes of leadership are applied: what is lost ends before anything begins.

Covers: kafkawire.broker.following.applier.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kafkawire.broker.following.applier import Moves, apply_moves

PARTITIONS = {1: ("t", 0), 2: ("__consumer_offsets", 7), 3: ("__schedule_state", 0)}


class Part:
    """The log, or a service: its calls."""

    topic = "__schedule_state"

    def __init__(self, name: str, calls: list[tuple[str, str, list[int]]]) -> None:
        self.name = name
        self.calls = calls

    async def resign(self, numbers: Any) -> None:
        self.calls.append((self.name, "resign", list(numbers)))

    async def lead(self, numbers: Any) -> None:
        self.calls.append((self.name, "lead", list(numbers)))


async def test_all_that_was_lost_ends_before_anything_begins() -> None:
    calls: list[tuple[str, str, list[int]]] = []
    log, groups, schedules = (Part(name, calls) for name in ("log", "groups", "schedules"))

    def locate(number: int) -> Any:
        if number not in PARTITIONS:
            return None  # deleted meanwhile
        topic, index = PARTITIONS[number]
        return SimpleNamespace(topic=topic, index=index)

    async def load() -> Any:
        return groups

    catalog: Any = SimpleNamespace(locate=locate)
    services: Any = {"__consumer_offsets": load}
    unknown: Any = (log, schedules)
    moves = Moves([1, 2, 9], [2, 3])
    await apply_moves(catalog, unknown[0], services, unknown[1], moves)
    assert calls == [
        ("log", "resign", [1, 2, 9]),
        ("groups", "resign", [7]),
        ("schedules", "resign", []),
        ("log", "lead", [2, 3]),
        ("groups", "lead", [7]),
        ("schedules", "lead", [0]),
    ]
