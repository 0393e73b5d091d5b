"""Plan the offsets of a run: from the end of the last run to the current end, or to a limit. Pure
except for catalog queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kafkawire.reading.model.source import DataLoss, PartitionRange, Task, TaskPart
from kafkawire.reading.plan import plan_tasks
from kafkawire_spark.pipeline.jobs.job import LATEST, SourceSection
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import Positions
from kafkawire_spark.source.options import TopicSubscription
from kafkawire_spark.source.ranges import (
    CatalogContents,
    limit_offsets,
    list_subscribed_partitions,
    why_shorter,
)

Key = tuple[str, int]
SHARE_BYTES = 4 << 20
"""Minimum stored bytes of a task: some 50 ms of work. Smaller tasks make more and smaller files."""


def partitions(
    catalog: CatalogContents, reading: SourceSection, known: Positions, remade: Collection[str]
) -> list[Key]:
    """Return the topics and partitions to read. Raises SourceError for a topic that never existed.

    A topic that was read before and deleted raises DataLoss, unless that is allowed or it matched
    the pattern, because its records after the last run are lost. A topic that was deleted and
    created again (`remade`) raises DataLoss or is left out, because the table already has its
    offsets with other records.
    """
    if remade and reading.source.fail_on_data_loss:
        raise DataLoss(
            f"the topic {min(remade)} was deleted and created again since the last run, "
            "so its offsets are new: use another table; "
            "fail_on_data_loss = false goes on without it"
        )
    named = reading.subscribe or tuple(reading.assign or ())
    gone = [name for name in named if name not in catalog.topics and name in known]
    if gone and reading.source.fail_on_data_loss:
        raise DataLoss(
            f"the topic {gone[0]} is gone, and what it had after the last run; "
            "fail_on_data_loss = false goes on without it"
        )
    names = tuple(name for name in reading.subscribe if name not in gone)
    pairs = tuple(
        (topic, partition)
        for topic, parts in (reading.assign or {}).items()
        if topic not in gone
        for partition in sorted(set(parts))
    )
    if not (names or pairs or reading.pattern):
        return []
    found = list_subscribed_partitions(catalog, TopicSubscription(names, reading.pattern, pairs))
    return [key for key in found if key[0] not in remade]


def starts(
    catalog: CatalogContents, reading: SourceSection, keys: Sequence[Key], known: Positions | None
) -> dict[Key, int]:
    """Return the start of each partition. One that is new since the last run is read from its
    beginning, because `latest` refers to the first run of the job."""
    found = {}
    for topic, partition in keys:
        before = None if known is None else known.get(topic, {}).get(partition)
        found[topic, partition] = (
            before if before is not None else _first(catalog, reading, topic, partition, known)
        )
    return found


def _first(
    catalog: CatalogContents,
    reading: SourceSection,
    topic: str,
    partition: int,
    known: Positions | None,
) -> int:
    bounds = catalog.bounds(topic, partition)
    if isinstance(reading.starting, Mapping):
        given = reading.starting.get(topic, {}).get(partition, bounds.start)
        return _in_topic(given, bounds.end, topic, partition, "starting_offsets")
    return bounds.end if reading.starting == LATEST and known is None else bounds.start


def _in_topic(offset: int, end: int, topic: str, partition: int, key: str) -> int:
    if offset > end:
        raise JobError(f"[source] {key} has {offset} for {topic}-{partition}, which ends at {end}")
    return offset


def ranges(
    catalog: CatalogContents,
    reading: SourceSection,
    known: Positions | None,
    max_offsets: int,
    remade: Collection[str] = (),
) -> tuple[list[PartitionRange], Positions, bool]:
    """Plan a run: return a range for each partition with new offsets, the start of the next run,
    and whether there is more. `known`: where the last run ended, None for the first. Raises
    SourceError, DataLoss."""
    keys = partitions(catalog, reading, known or {}, remade)
    begin = starts(catalog, reading, keys, known)
    latest = {key: _end(catalog, reading, key, begin[key]) for key in keys}
    upto = limit_offsets(catalog, begin, latest, max_offsets) if max_offsets else latest
    found = [PartitionRange(*key, begin[key], upto[key]) for key in keys if upto[key] > begin[key]]
    ends = {topic: dict(parts) for topic, parts in (known or {}).items()}
    for (topic, partition), offset in upto.items():
        ends.setdefault(topic, {})[partition] = offset
    return found, ends, upto != latest


def _end(catalog: CatalogContents, reading: SourceSection, key: Key, begin: int) -> int:
    """Return the end of the range of a partition. Raises DataLoss if it was created again since."""
    topic, partition = key
    bounds = catalog.bounds(topic, partition)
    source = reading.source
    if begin > bounds.end and source.fail_on_data_loss:
        tail = (
            "; a topic that was created again needs another table"
            if source.bootstrap
            else ", or its newest records are only at the broker: bootstrap"
        )
        raise DataLoss(
            f"{topic}-{partition} was read up to offset {begin} and ends at {bounds.end}: "
            f"{why_shorter(source, bounds.end)}{tail}"
        )
    if bounds.start > begin and source.fail_on_data_loss:
        raise DataLoss(
            f"offsets [{begin}, {bounds.start}) of {topic}-{partition} were deleted before they "
            "were read; fail_on_data_loss = false goes on without them"
        )
    end = bounds.end
    if isinstance(reading.ending, Mapping):
        given = reading.ending.get(topic, {}).get(partition)
        end = end if given is None else min(end, given)
    return max(begin, end)


def tasks_of(
    parts: Sequence[TaskPart], task_bytes: int, parallelism: int
) -> list[tuple[PartitionRange, ...]]:
    """Return the ranges of each task, adjacent ones of a partition merged: as many tasks as run
    concurrently, if each has enough for a file of its own."""
    enough = sum(part.size_bytes for part in parts) // SHARE_BYTES
    tasks = plan_tasks(parts, task_bytes=task_bytes, min_tasks=max(1, min(parallelism, enough)))
    return [_merge_adjacent_ranges(task) for task in tasks]


def _merge_adjacent_ranges(task: Task) -> tuple[PartitionRange, ...]:
    found: dict[Key, PartitionRange] = {}
    for part in task.parts:
        topic, partition, base, end = part.range
        before = found.get((topic, partition))
        if before is not None:
            assert before.end == base  # plan_tasks keeps the order of offsets
            base = before.base
        found[topic, partition] = PartitionRange(topic, partition, base, end)
    return tuple(found.values())


def is_worth_a_run(
    found: Sequence[PartitionRange], reading: SourceSection, known: Positions | None
) -> bool:
    """True if there is anything to write, or a starting offset `latest` to remember."""
    return bool(found) or (known is None and reading.starting == LATEST)
