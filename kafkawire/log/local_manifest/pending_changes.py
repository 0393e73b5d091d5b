"""Pending changes of the manifest, and the choice of those for the next delta. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeVar

from kafkawire.offsets.catalog.port import ObjectRow, SegmentRange, SegmentRow

K = TypeVar("K")


class Added(NamedTuple):
    """An object, the segment it is a copy of, and its mapped ranges."""

    row: ObjectRow
    segment: SegmentRow
    mappings: list[SegmentRange]


MAX_ROWS = 2000
"""Topics or partitions of one delta: packing them takes some milliseconds on the event loop."""


@dataclass(slots=True)
class Changes:
    """Noted changes. Topics and partitions are noted by id or number; their state is read when the
    delta is built. `waiting` are called when a delta with all changes is written; `sliced`: there
    are more than fit into one."""

    topics: dict[bytes, None] = field(default_factory=dict)
    deleted_topics: dict[bytes, None] = field(default_factory=dict)
    partitions: dict[int, None] = field(default_factory=dict)
    cluster: bool = False
    added: dict[bytes, Added] = field(default_factory=dict)
    deleted: dict[bytes, int] = field(default_factory=dict)
    commits: dict[int, int] = field(default_factory=dict)
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    sliced: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.topics or self.deleted_topics or self.partitions or self.cluster
            or self.added or self.deleted or self.commits
        )  # fmt: skip

    def topic(self, topic_id: bytes) -> None:
        self.topics[topic_id] = None

    def topic_deleted(self, topic_id: bytes) -> None:
        self.topics.pop(topic_id, None)
        self.deleted_topics[topic_id] = None

    def objects(
        self, added: Iterable[Added], deleted: Mapping[bytes, int], commits: Mapping[int, int]
    ) -> None:
        """Note added and removed objects, and known commit offsets."""
        for each in added:
            self.added[each.row.uuid] = each
        self.deleted.update(deleted)
        self._raise_commits(commits)

    def without(
        self, added: Iterable[Added], deleted: Mapping[bytes, int], commits: Mapping[int, int]
    ) -> tuple[list[Added], dict[bytes, int], dict[int, int]]:
        """Return the given changes without those that are already pending."""
        return (
            [each for each in added if each.row.uuid not in self.added],
            {uuid: at for uuid, at in deleted.items() if self.deleted.get(uuid) != at},
            {n: offset for n, offset in commits.items() if self.commits.get(n, -1) < offset},
        )

    def take_all(self) -> Changes:
        """Take the changes for the next delta."""
        self.sliced = True
        # Topics first, so that no delta has a partition whose topic was in no delta.
        if len(self.topics) > MAX_ROWS:
            return Changes(topics=_first(self.topics))
        if len(self.partitions) > MAX_ROWS:
            topics, self.topics = self.topics, {}
            return Changes(topics=topics, partitions=_first(self.partitions))
        # The last slice: with it everything else, and the waiters of all of them.
        self.sliced = False
        taken = Changes(
            self.topics, self.deleted_topics, self.partitions, self.cluster, self.added,
            self.deleted, self.commits, self.waiting,
        )  # fmt: skip
        self.topics, self.deleted_topics, self.partitions, self.cluster = {}, {}, {}, False
        self.added, self.deleted, self.commits, self.waiting = {}, {}, {}, []
        return taken

    def put_back(self, taken: Changes) -> None:
        """Put back changes that did not get into a delta."""
        # A topic that was deleted meanwhile stays deleted.
        for topic_id in taken.topics:
            if topic_id not in self.deleted_topics:
                self.topics[topic_id] = None
        self.deleted_topics |= taken.deleted_topics
        self.partitions |= taken.partitions
        self.cluster = self.cluster or taken.cluster
        # What was noted meanwhile is newer.
        self.added = taken.added | self.added
        self.deleted = taken.deleted | self.deleted
        self._raise_commits(taken.commits)
        self.waiting += taken.waiting

    def _raise_commits(self, commits: Mapping[int, int]) -> None:
        for number, offset in commits.items():
            self.commits[number] = max(offset, self.commits.get(number, 0))

    def answer(self, failure: Exception | None) -> None:
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if future.done():
                continue
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)


def _first(noted: dict[K, None]) -> dict[K, None]:
    """Take some of them out of `noted`."""
    names = dict.fromkeys(islice(noted, MAX_ROWS))
    for name in names:
        del noted[name]
    return names
