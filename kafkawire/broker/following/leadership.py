"""Applies changes of leadership that another broker made, in the order that keeps one writer.

The catalog has the new leaders already. First everything that was lost ends: the log answers
NOT_LEADER_OR_FOLLOWER and writes nothing more for the partitions, coordinators answer
NOT_COORDINATOR. Then what was gained begins to load.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkawire.broker.following.applier import Moves
    from kafkawire.coordination.service import CoordinatorService
    from kafkawire.log.manager import Log
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.schedules.starter import ScheduleStarter

Services = Mapping[str, Callable[[], Awaitable["CoordinatorService[Any]"]]]
"""Topics of coordinators, and what returns the service of each."""


async def apply_moves(
    catalog: Catalog, log: Log, services: Services, schedules: ScheduleStarter, moves: Moves
) -> None:
    """End what this broker lost, and begin what it gained. Schedules are notified of each change:
    a partition of a schedule topic may be among them."""
    await log.resign(moves.lost)
    for topic, indexes in _internal(catalog, services, moves.lost).items():
        await (await services[topic]()).resign(indexes)
    await schedules.resign(_indexes(catalog, schedules.topic, moves.lost))
    await log.lead(moves.gained)
    for topic, indexes in _internal(catalog, services, moves.gained).items():
        await (await services[topic]()).lead(indexes)
    await schedules.lead(_indexes(catalog, schedules.topic, moves.gained))


def _indexes(catalog: Catalog, topic: str, numbers: Iterable[int]) -> list[int]:
    """Return the indexes of those of the partitions that are of this topic."""
    found = (catalog.locate(number) for number in numbers)
    return [each.index for each in found if each is not None and each.topic == topic]


def _internal(catalog: Catalog, services: Services, numbers: Iterable[int]) -> dict[str, list[int]]:
    """Return those of the partitions that have coordinators: indexes by topic."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        location = catalog.locate(number)
        if location is not None and location.topic in services:
            found.setdefault(location.topic, []).append(location.index)
    return found
