"""Topics and partitions in columns, so that a million of them take bytes rather than objects.

A topic is a row: its name, id and settings, and the runs of its partitions (a run: consecutive
partition numbers of consecutive indexes). Partitions are columns in number order; each belongs to
a lead group, which has a leader and an epoch, so that one change moves all its partitions.
`TopicInfo` objects are created on access and are immutable *snapshots*: a change of the topic is
visible in the next one. The newest are cached. Pure; `catalog.Catalog` owns one, `rows` fills it.

A topic with one partition takes about 400 bytes (measured): half of them its name and id.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafkawire.codec.configs.view_rules import VIEW_SOURCE
from kafkawire.codec.format_errors import FormatError

KEPT_PARTITIONS = 50_000
"""Maximum number of partitions in cached snapshots: 10 MB, more than clients request at a time. A
full cache is emptied, which is cheaper than tracking use."""
MIN_DELETED_ROWS = 10_000
"""Minimum number of rows of deleted partitions before the columns are rebuilt without them."""
GONE = -1  # in the columns of topics and groups: the partition's topic was deleted
COUNTED_ROWS = 50_000
"""Partitions that are counted at a time: about a millisecond."""

Run = tuple[int, int]  # first partition number, how many


class LeadGroup(NamedTuple):
    """Partitions that are led together. `leader`: a node id; `epoch` rises with each new leader.
    The leader epoch of a partition is `epoch` plus the base that the partition has."""

    id: int
    leader: int
    epoch: int


def local_group(leader: int) -> LeadGroup:
    """Return the new lead group of the partitions that only the log of `leader` holds; no other
    broker can ever lead it."""
    return LeadGroup(leader, leader, 0)


@dataclass(slots=True)
class PartitionInfo:
    """One partition. `number` is unique and never reused, `index` is Kafka's partition."""

    number: int
    index: int
    leader: int  # a node id
    leader_epoch: int


@dataclass(slots=True)
class TopicInfo:
    """A snapshot of one topic. `partitions[i].index == i`; `configs`: its overridden settings as
    strings; `created_ms`: 0 if unknown."""

    id: bytes
    name: str
    internal: bool
    partitions: Sequence[PartitionInfo]
    configs: Mapping[str, str]
    created_ms: int = 0


class TopicFacts(NamedTuple):
    """A topic with only the number of its partitions."""

    partitions: int
    internal: bool
    created_ms: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Location:
    """The topic, index and leader of a partition number."""

    topic_id: bytes
    topic: str
    index: int
    leader: int
    leader_epoch: int


class Directory:
    """The columns. `rows_by_name` and `rows_by_id`: rows of existing topics; `partitions`: their
    number of partitions; `changes`: number of created and deleted topics."""

    __slots__ = (
        "_base", "_configs", "_count", "_created", "_described_in", "_first", "_free", "_group",
        "_groups", "_holes", "_ids", "_internal", "_kept", "_kept_partitions", "_more", "_names",
        "_number", "_slots", "_topic", "changes", "partitions", "rows_by_id", "rows_by_name",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rows_by_name: dict[str, int] = {}
        self.rows_by_id: dict[bytes, int] = {}
        self.partitions = 0
        self.changes = 0
        # Topics, by row. Rows of deleted topics are reused.
        self._names: list[str] = []
        self._ids: list[bytes] = []
        self._first = array("q")  # the first run
        self._count = array("i")
        self._described_in = array("q")
        self._created = array("q")
        self._more: dict[int, list[Run]] = {}  # further runs, of the few topics that have any
        self._internal: set[int] = set()
        self._configs: dict[int, dict[str, str]] = {}
        self._free: list[int] = []
        # Partitions, in order of `_number`.
        self._number = array("q")
        self._topic = array("i")
        self._group = array("i")  # index in `_groups`
        self._base = array("i")  # of the leader epoch
        self._groups: list[LeadGroup] = []
        self._slots: dict[int, int] = {}  # group id -> index in `_groups`
        self._holes = 0
        self._kept: dict[int, TopicInfo] = {}
        self._kept_partitions = 0

    def load_topics(self, part: Sequence[Sequence[Any]]) -> None:
        """Load topics: (id, name, internal, created_ms) each, while the directory is filled."""
        if not part:
            return
        ids, names, internal, created = zip(*part, strict=True)
        start = len(self._names)
        self._ids.extend(map(bytes, ids))
        self._names.extend(names)
        if any(internal):
            self._internal.update(start + at for at, flag in enumerate(internal) if flag)
        rows = list(range(start, start + len(names)))  # the dicts share the numbers
        self.rows_by_name.update(zip(names, rows, strict=True))
        self.rows_by_id.update(zip(self._ids[start:], rows, strict=True))
        empty = bytes(8 * len(names))
        self._first.frombytes(empty)
        self._described_in.frombytes(empty)
        self._created.extend(created)
        self._count.frombytes(empty[: self._count.itemsize * len(names)])

    def load_partitions(self, part: Sequence[Sequence[Any]]) -> None:
        """Load partitions: (topic_id, number, lead group, base of its epoch) each, in number order,
        after their topics and groups. Those of unknown topics are left out: these are deleted.
        Raises FormatError for an unknown group."""
        if not part:
            return
        ids, numbers, groups, bases = zip(*part, strict=True)
        topics = [row for row in map(self.rows_by_id.get, ids) if row is not None]
        if len(topics) < len(ids):
            known = self.rows_by_id
            self.load_partitions([row for row in part if bytes(row[0]) in known])
            return
        self._number.extend(numbers)
        self._topic.extend(topics)
        try:
            self._group.extend(map(self._slots.__getitem__, groups))
        except KeyError as missing:
            raise FormatError(f"there is no lead group {missing}") from None
        self._base.extend(bases)
        self.partitions += len(numbers)
        first, count, more = self._first, self._count, self._more
        for number, topic in zip(numbers, topics, strict=True):
            have = count[topic]
            if not have:
                first[topic] = number
                count[topic] = 1
            elif number == first[topic] + have and topic not in more:
                count[topic] = have + 1
            else:
                self._extend_runs(topic, number, 1)

    def load_config(self, topic_id: bytes, key: str, value: str) -> None:
        """Load a setting of a topic; no effect if that does not exist."""
        row = self.rows_by_id.get(topic_id)
        if row is not None:
            self._configs.setdefault(row, {})[key] = value

    def info(self, row: int) -> TopicInfo:
        """Return a snapshot of the topic at `row`."""
        found = self._kept.get(row)
        if found is not None:
            return found
        made = self._make(row)
        if self._kept_partitions > KEPT_PARTITIONS:
            self._kept.clear()
            self._kept_partitions = 0
        self._kept[row] = made
        self._kept_partitions += 1 + len(made.partitions)
        return made

    def locate(self, number: int) -> Location | None:
        """Return the topic and index of a partition number; None if it does not exist."""
        at = self._find(number)
        if at < 0:
            return None
        row = self._topic[at]
        index = number - self._first[row]
        if not 0 <= index < self._count[row]:
            index = self._count[row]
            for first, count in self._more[row]:
                if first <= number < first + count:
                    index += number - first
                    break
                index += count
        return Location(self._ids[row], self._names[row], index, *self._leading(at))

    def partition(self, row: int, index: int) -> PartitionInfo | None:
        """Return one partition of the topic at `row`, without creating the others."""
        after = index
        for first, count in self._runs(row):
            if 0 <= after < count:
                number = first + after
                at = self._find(number)
                return PartitionInfo(number, index, *self._leading(at))
            after -= count
        return None

    def partition_count(self, row: int) -> int:
        """Return the number of partitions of the topic at `row`."""
        return self._count[row] + sum(count for _, count in self._more.get(row, ()))

    def size_of_source(self, row: int) -> int:
        """Return the number of partitions of the source of the view topic at `row`; 0 if it is no
        view, or its source does not exist."""
        source = self.rows_by_name.get(self._configs.get(row, {}).get(VIEW_SOURCE, ""))
        return 0 if source is None else self.partition_count(source)

    def id_of(self, row: int) -> bytes:
        return self._ids[row]

    def name_of(self, row: int) -> str:
        return self._names[row]

    def facts(self, row: int) -> TopicFacts:
        """Return the topic at `row`, without creating its partitions."""
        return TopicFacts(
            self.partition_count(row),
            row in self._internal,
            self._created[row],
            self._configs.get(row, {}),
        )

    def last_number(self) -> int:
        """Return the greatest partition number; 0 if there is none."""
        return self._number[-1] if self._number else 0

    def add(self, info: TopicInfo) -> None:
        """Add a topic whose name and id are free."""
        self.changes += 1
        row = self._free.pop() if self._free else self._new_row()
        self._names[row], self._ids[row] = info.name, info.id
        self._described_in[row] = 0
        self._created[row] = info.created_ms
        self.rows_by_name[info.name] = row
        self.rows_by_id[info.id] = row
        if info.internal:
            self._internal.add(row)
        if info.configs:
            self._configs[row] = dict(info.configs)
        self.add_partitions(row, info.partitions)

    def add_partitions(self, row: int, added: Sequence[PartitionInfo]) -> None:
        """Add partitions of a topic, in index order."""
        self._forget(row)
        start = 0
        while start < len(added):
            first = added[start].number
            stop = start + 1
            while stop < len(added) and added[stop].number == first + stop - start:
                stop += 1
            self._add_run(row, added[start:stop])
            start = stop

    def remove(self, row: int) -> TopicInfo:
        """Remove a topic and return it."""
        info = self.info(row)
        self.changes += 1
        self._forget(row)
        for first, count in self._runs(row):
            at = self._find(first)
            for hole in range(at, at + count):
                self._topic[hole] = self._group[hole] = GONE
            self._holes += count
            self.partitions -= count
        del self.rows_by_name[info.name], self.rows_by_id[info.id]
        self._names[row], self._ids[row] = "", b""
        self._first[row] = self._count[row] = 0
        self._more.pop(row, None)
        self._internal.discard(row)
        self._configs.pop(row, None)
        self._free.append(row)
        if self._holes > max(MIN_DELETED_ROWS, len(self._number) // 2):
            self._drop_deleted_rows()
        return info

    def list_configured(self) -> Iterator[tuple[bytes, Mapping[str, str]]]:
        """Yield (topic id, overridden settings) of the topics that have any."""
        return ((self._ids[row], own) for row, own in self._configs.items())

    def set_config(self, row: int, key: str, value: str | None) -> None:
        """Set a setting; None removes it. The dict is replaced, because snapshots share the old
        one."""
        self._forget(row)
        settings = dict(self._configs.get(row, {}))
        if value is None:
            settings.pop(key, None)
        else:
            settings[key] = value
        if settings:
            self._configs[row] = settings
        else:
            self._configs.pop(row, None)

    def set_leader_epochs(self, epochs: Mapping[int, int]) -> None:
        """Set new leader epochs (partition number -> epoch); unknown numbers are ignored."""
        for number, epoch in epochs.items():
            at = self._find(number)
            if at >= 0:
                self._base[at] = epoch - self._groups[self._group[at]].epoch
                self._forget(self._topic[at])

    def groups(self) -> Sequence[LeadGroup]:
        """Return all lead groups."""
        return tuple(self._groups)

    def group(self, group_id: int) -> LeadGroup | None:
        """Return a lead group; None if it does not exist."""
        slot = self._slots.get(group_id)
        return None if slot is None else self._groups[slot]

    def set_group(self, group: LeadGroup) -> None:
        """Add a lead group, or set its leader and epoch."""
        self._kept.clear()
        self._kept_partitions = 0
        slot = self._slots.get(group.id)
        if slot is None:
            self._slots[group.id] = len(self._groups)
            self._groups.append(group)
        else:
            self._groups[slot] = group

    def of_group(self, group_id: int) -> Iterator[int]:
        """Yield the partition numbers of a lead group."""
        slot = self._slots[group_id]
        columns = zip(self._number, self._group, strict=True)
        return (number for number, group in columns if group == slot)

    def sizes_of_group(self, group_id: int) -> Iterator[int]:
        """Yield numbers of partitions of a lead group, whose sum is that of all."""
        slot = self._slots[group_id]
        for start in range(0, len(self._group), COUNTED_ROWS):
            yield self._group[start : start + COUNTED_ROWS].count(slot)

    def move(self, number: int, group_id: int, base: int) -> None:
        """Move a partition to a lead group, where its leader epoch is that of the group plus
        `base`."""
        at = self._find(number)
        if at >= 0:
            self._group[at] = self._slots[group_id]
            self._base[at] = base
            self._forget(self._topic[at])

    def described_in(self, topic_id: bytes) -> int:
        """Return the journal with the topic's newest catalog frame; 0 if unknown."""
        row = self.rows_by_id.get(topic_id)
        return 0 if row is None else self._described_in[row]

    def record_journal(self, topic_id: bytes, journal: int) -> None:
        """Record that a catalog frame of the topic was written; no effect if the topic was
        deleted."""
        row = self.rows_by_id.get(topic_id)
        if row is not None:
            self._described_in[row] = journal

    def not_described(self) -> Iterator[bytes]:
        """Return the topics without a known catalog frame."""
        known = self._described_in
        return (topic_id for topic_id, row in self.rows_by_id.items() if not known[row])

    def _find(self, number: int) -> int:
        """Return the row of an existing partition, or -1."""
        at = bisect_left(self._number, number)
        if at == len(self._number) or self._number[at] != number or self._topic[at] == GONE:
            return -1
        return at

    def _leading(self, at: int) -> tuple[int, int]:
        """Return the leader and the leader epoch of a partition."""
        group = self._groups[self._group[at]]
        return group.leader, group.epoch + self._base[at]

    def _local_slot(self, leader: int) -> int:
        """Return the index of the group of partitions in the log of `leader`; add it if needed."""
        slot = self._slots.get(leader)
        if slot is None:
            slot = self._slots[leader] = len(self._groups)
            self._groups.append(local_group(leader))
        return slot

    def _runs(self, row: int) -> list[Run]:
        first = [(self._first[row], self._count[row])] if self._count[row] else []
        return first + self._more.get(row, [])

    def _make(self, row: int) -> TopicInfo:
        partitions: list[PartitionInfo] = []
        for first, count in self._runs(row):
            at = self._find(first)
            led = [self._groups[group] for group in self._group[at : at + count]]
            bases = self._base[at : at + count]
            index = len(partitions)
            partitions += [
                PartitionInfo(first + more, index + more, group.leader, group.epoch + base)
                for more, (group, base) in enumerate(zip(led, bases, strict=True))
            ]
        return TopicInfo(
            self._ids[row],
            self._names[row],
            row in self._internal,
            partitions,
            self._configs.get(row, {}),
            self._created[row],
        )

    def _forget(self, row: int) -> None:
        """Drop the outdated snapshot of a topic."""
        old = self._kept.pop(row, None)
        if old is not None:
            self._kept_partitions -= 1 + len(old.partitions)

    def _new_row(self) -> int:
        self._names.append("")
        self._ids.append(b"")
        self._first.append(0)
        self._count.append(0)
        self._described_in.append(0)
        self._created.append(0)
        return len(self._names) - 1

    def _add_run(self, row: int, run: Iterable[PartitionInfo]) -> None:
        run = list(run)
        first, count = run[0].number, len(run)
        at = bisect_left(self._number, first)
        assert at == len(self._number) or self._number[at] >= first + count, "number given twice"
        self._number[at:at] = array("q", range(first, first + count))
        self._topic[at:at] = array("i", [row]) * count
        groups = [self._local_slot(info.leader) for info in run]
        self._group[at:at] = array("i", groups)
        self._base[at:at] = array(
            "i",
            [
                info.leader_epoch - self._groups[slot].epoch
                for info, slot in zip(run, groups, strict=True)
            ],
        )
        self.partitions += count
        if not self._count[row]:
            self._first[row], self._count[row] = first, count
        else:
            self._extend_runs(row, first, count)

    def _extend_runs(self, row: int, first: int, count: int) -> None:
        more = self._more.setdefault(row, [])
        last = more[-1] if more else (self._first[row], self._count[row])
        if sum(last) != first:
            more.append((first, count))
        elif more:
            more[-1] = last[0], last[1] + count
        else:
            self._count[row] += count
            del self._more[row]

    def _drop_deleted_rows(self) -> None:
        keep = [at for at, topic in enumerate(self._topic) if topic != GONE]
        self._number = array("q", [self._number[at] for at in keep])
        self._group = array("i", [self._group[at] for at in keep])
        self._base = array("i", [self._base[at] for at in keep])
        self._topic = array("i", [self._topic[at] for at in keep])
        self._holes = 0
