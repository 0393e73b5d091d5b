"""Read ranges of the source again, to learn why offsets have no row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kafkawire.reading.model.source import Account, DamagedData, SourceError, Task, TaskPart
from kafkawire_spark.audit.continuity import Range

if TYPE_CHECKING:
    from kafkawire.reading.catalog import SourceCatalog

PARTS_AT_ONCE = 10_000
"""Ranges read as one task, which share connections and, if adjacent, requests: as many as in a
Spark task."""


def accounts_of(
    catalog: SourceCatalog,
    parts: Sequence[TaskPart],
    progress: Callable[[int], None] = lambda done: None,
) -> list[Account]:
    """Return one report for each part, in order; unreadable offsets are DAMAGED, deleted ones LOST.
    `progress` is called with the number done. Raises SourceError."""
    found: list[Account] = []
    for at in range(0, len(parts), PARTS_AT_ONCE):
        some = tuple(parts[at : at + PARTS_AT_ONCE])
        found += _read(catalog, Task(some), lambda done, at=at: progress(at + done))  # type: ignore[misc]
    return found


def _read(catalog: SourceCatalog, task: Task, progress: Callable[[int], None]) -> list[Account]:
    from kafkawire.reading.model.columns import Selection
    from kafkawire.reading.read_task import read_task

    def on_damage(error: DamagedData, data: bytes) -> None:
        """It is counted."""

    source = replace(catalog.source, fail_on_data_loss=False)
    selection, accounts = Selection(("_offset",)), list[Account]()
    batches = read_task(
        source, catalog.places, task, selection, on_damage=on_damage, accounts=accounts
    )
    for _ in batches:
        progress(len(accounts) - 1)  # the last one is still being read
    for account in accounts:
        if account.missing:
            topic, partition = account.range[:2]
            raise SourceError(f"{topic}-{partition} could not be read to its end")
    progress(len(accounts))
    return accounts


def with_records(account: Account) -> list[Range]:
    """Return the ranges between the gaps; after the last listed gap there may be some, too."""
    _, _, at, end = account.range
    found = []
    for gap in account.gaps:
        if at < gap.base:
            found.append(Range(at, gap.base))
        at = gap.end
    if at < end:
        found.append(Range(at, end))
    return found
