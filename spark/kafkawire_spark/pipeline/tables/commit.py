"""Shared parts of commits to Delta and Iceberg: their description of a run, and retries.

A commit is optimistic: read the table, check whether it has the run, and commit if there was no
other commit in between; otherwise read again. So the result of a commit is certain even after a
lost response.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from kafkawire.reading.model.source import PartitionRange, SourceError, Unreachable
from kafkawire_spark.pipeline.jobs.layout import parse_path
from kafkawire_spark.pipeline.jobs.state import FileFacts, RunRecord

TRIES = 20
"""Attempts of a commit, each after another writer's commit: at most a minute, with the waits."""
GIVE_UP_S = 300.0
"""Time limit for attempts that wait for a response; after it there is no further attempt."""
WAIT_S, WAIT_S_MAX = 0.05, 5.0
Found = TypeVar("Found")
OFFSETS_BYTES_MAX = 16 << 10
"""Maximum size of the ranges in the commit itself, which is read with every other commit."""


class CommitError(SourceError):
    """A run or replacement cannot be committed; one sentence."""


class Unsettled(CommitError, Unreachable):
    """A commit was tried until its time was over: other writers were first, or the catalog gave no
    answer."""


class Conflict(Exception):
    """Another writer committed meanwhile, or the result of a commit is unknown: read the table
    again."""


def properties(record: RunRecord) -> dict[str, str]:
    """Properties of a commit that describe its run. `kafkawire.offsets`: topic -> partition ->
    [base, end), left out if it is very large; the run's record has it, too."""
    ranges: dict[str, dict[str, list[int]]] = {}
    for share in record.shares:
        topic, partition, base, end = share.range
        known = ranges.setdefault(topic, {}).setdefault(str(partition), [base, end])
        known[:] = [min(known[0], base), max(known[1], end)]
    said = {
        "kafkawire.job": record.job,
        "kafkawire.run": str(record.run),
        "kafkawire.record": f"_kafkawire/commits/{record.run:020}.json",
    }
    text = json.dumps(ranges, separators=(",", ":"), ensure_ascii=False)
    if len(text.encode()) <= OFFSETS_BYTES_MAX:
        said["kafkawire.offsets"] = text
    return said


def is_next(last: int, number: int, what: str, where: str) -> bool:
    """Return True if `number` is to be committed after `last`; False if it already is. CommitError
    if a run between them is missing: its rows would never be committed."""
    if number > last + 1:
        raise CommitError(
            f"{what} {number} cannot be committed to {where}: the last one it has is {last}"
        )
    return number == last + 1


def until_settled(attempt: Callable[[], Found], what: str, where: str) -> Found:
    """Call `attempt` until it does not raise Conflict; return its result. Raises Unsettled after
    too many conflicts."""
    wait, reason, begun, tries = WAIT_S, "", time.monotonic(), 0
    while tries < TRIES and time.monotonic() - begun < GIVE_UP_S:
        tries += 1
        try:
            return attempt()
        except Conflict as conflict:
            reason = f" ({conflict})" if str(conflict) else ""
            time.sleep(random.uniform(0, wait))
            wait = min(2 * wait, WAIT_S_MAX)
    raise Unsettled(
        f"{what} cannot be settled with {where}: {tries} times other commits came "
        f"first, or there was no answer{reason}"
    )


def facts(
    path: str, rows: int, size_bytes: int, values: Sequence[tuple[str, str | None]], stats: str
) -> FileFacts:
    """Describe a file in a table's metadata. A file of another tool (which compacted the table) has
    the topic "" and the partition -1."""
    name = parse_path(path)
    part, run = (name[0], name[2] if name[1] == "r" else 0) if name else (_OF_ANOTHER_TOOL, 0)
    return FileFacts(path, rows, size_bytes, *part, tuple(values), run, stats)


_OF_ANOTHER_TOOL = PartitionRange("", -1, 0, 0)
