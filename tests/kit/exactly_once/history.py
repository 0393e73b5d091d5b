"""Histories of transactional clients: what they sent, what was answered, what readers saw.

Recorded by simulated clients and by client processes, and judged by `checker`. Nothing here knows
the broker: every value that is written is unique, times come from one clock that never goes back,
and a partition is a topic name (with its incarnation, where a topic is created again) and an index.

A client process writes each call of a `History` method as a line of JSON before or after the step
that it reports, so that a killed client leaves what it did until then: see `Journal` and `replay`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TextIO

Partition = tuple[str, int]
Row = tuple[int, str]
"""An offset and the value there."""
Key = tuple[str, str, int]
"""A group, a topic and a partition index: what a committed offset is stored under."""


class Outcome(Enum):
    """The result of a transaction, as its client knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Instance:
    """One life of a producer. `producer`: the id and epoch that it began with, which order the
    instances of a transactional id; `started`: when its InitProducerId was answered."""

    name: str
    transactional_id: str
    producer: tuple[int, int]
    started: float


@dataclass(slots=True)
class Write:
    """One record. `acked`: when its Produce was answered; `offset`: the one answered, -1 if
    unknown."""

    partition: Partition
    value: str
    sent: float
    acked: float | None = None
    offset: int = -1


@dataclass(slots=True)
class Attempt:
    """One transaction of one instance. `offsets`: what it commits for a group; `inputs`: the
    positions that its writes were computed from. `commit_sent`: None if the client never asked for
    a commit, so that nothing of it may become visible."""

    number: str
    instance: str
    writes: list[Write] = field(default_factory=list)
    offsets: dict[Key, int] = field(default_factory=dict)
    inputs: list[tuple[str, Partition, int]] = field(default_factory=list)
    commit_sent: float | None = None
    ended: float | None = None
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class Poll:
    """One read_committed fetch, without what the client filtered: rows of [start, end)."""

    reader: str
    partition: Partition
    start: int
    end: int
    rows: list[Row]
    asked: float
    answered: float
    stable: int = -1
    high: int = -1


@dataclass(slots=True)
class OffsetRead:
    """One OffsetFetch of one partition. `stable`: RequireStable was set."""

    key: Key
    offset: int
    stable: bool
    asked: float
    answered: float


@dataclass(slots=True)
class Final:
    """One partition at the end, when everything has settled. `committed`: as read_committed;
    `written`: as read_uncommitted; `damaged`: the offsets at which nothing can be read."""

    start: int
    stable: int
    high: int
    committed: list[Row]
    written: list[Row]
    damaged: list[int] = field(default_factory=list)


class History:
    """Everything that happened, in the order in which it was reported."""

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self.attempts: dict[str, Attempt] = {}
        self.writes: dict[str, Write] = {}
        self.polls: list[Poll] = []
        self.offset_reads: list[OffsetRead] = []
        self.final: dict[Partition, Final] = {}
        self.final_offsets: dict[Key, int] = {}
        self.hanging: list[str] = []
        self.deleted: set[str] = set()

    def started(
        self, instance: str, transactional_id: str, producer_id: int, epoch: int, at: float
    ) -> None:
        """Report that InitProducerId of a new instance was answered."""
        producer = (producer_id, epoch)
        self.instances[instance] = Instance(instance, transactional_id, producer, at)

    def began(self, attempt: str, instance: str) -> None:
        """Report that an instance begins a transaction."""
        self.attempts[attempt] = Attempt(attempt, instance)

    def sent(self, attempt: str, topic: str, index: int, value: str, at: float) -> None:
        """Report that a record is about to be sent."""
        write = Write((topic, index), value, at)
        self.attempts[attempt].writes.append(write)
        self.writes[value] = write

    def acked(self, value: str, offset: int, at: float) -> None:
        """Report that the Produce of a record was answered without an error."""
        write = self.writes[value]
        write.acked, write.offset = at, offset

    def consumed(self, attempt: str, group: str, topic: str, index: int, offset: int) -> None:
        """Report that a record is computed from the one at this position."""
        self.attempts[attempt].inputs.append((group, (topic, index), offset))

    def offset(self, attempt: str, group: str, topic: str, index: int, offset: int) -> None:
        """Report that a TxnOffsetCommit is about to be sent."""
        self.attempts[attempt].offsets[(group, topic, index)] = offset

    def committing(self, attempt: str, at: float) -> None:
        """Report that the first EndTxn with a commit is about to be sent."""
        self.attempts[attempt].commit_sent = at

    def ended(self, attempt: str, outcome: str, at: float) -> None:
        """report the result: the value of an Outcome."""
        done = self.attempts[attempt]
        done.outcome, done.ended = Outcome(outcome), at

    def polled(
        self,
        reader: str,
        topic: str,
        index: int,
        start: int,
        end: int,
        rows: Iterable[Iterable[Any]],
        asked: float,
        answered: float,
        stable: int = -1,
        high: int = -1,
    ) -> None:
        """Report a fetch."""
        seen = [(int(offset), str(value)) for offset, value in rows]
        poll = Poll(reader, (topic, index), start, end, seen, asked, answered, stable, high)
        self.polls.append(poll)

    def read_offset(
        self,
        group: str,
        topic: str,
        index: int,
        offset: int,
        stable: bool,
        asked: float,
        answered: float,
    ) -> None:
        """Report an OffsetFetch."""
        key = (group, topic, index)
        self.offset_reads.append(OffsetRead(key, offset, stable, asked, answered))


class Journal:
    """Writes calls of History methods as lines, for another process to `replay`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __getattr__(self, method: str) -> Any:
        def note(*arguments: Any) -> None:
            self._out.write(json.dumps([method, *arguments]) + "\n")
            self._out.flush()

        return note


def replay(history: History, lines: Iterable[str]) -> None:
    """Repeat the calls that a Journal has written. A line that a kill has torn is ignored."""
    for line in lines:
        if not line.endswith("\n"):
            return
        method, *arguments = json.loads(line)
        getattr(history, method)(*arguments)
