"""Histories of clients without transactions: what they sent, what was answered, what they read.

Recorded by clients in threads (`clients`) or in a simulation, and judged by `checker`. Nothing here
knows the broker. Values are unique: a client's name and a number. Times come from one clock that
never goes back; `History(loop.time)` takes virtual time. Where values become visible by a
transaction, use `tests.kit.exactly_once.history`: there each write belongs to an attempt whose end
decides about it, here each has a result of its own.

    history.began("p1", [("t", 0)], idempotent=True, acks_all=True)
    sending = history.send("p1", ("t", 0), "p1-1")
    history.ok(sending, offset=7)
    history.read("r1", ("t", 0), 7, "p1-1", epoch=3)
    history.final[("t", 0)] = Final(0, 8, [(7, "p1-1", 3)])
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from tests.kit.exactly_once.history import Partition

NO_PARTITION: Partition = ("", -1)


class Kind(StrEnum):
    """The kind of a step."""

    PRODUCE = "produce"
    READ = "read"
    COMMIT = "commit"
    """An OffsetCommit of a group."""
    COMMITTED = "committed"
    """An OffsetFetch of a group."""
    BEGAN = "began"
    ENDED = "ended"
    FAULT = "fault"
    HEALED = "healed"


class Result(StrEnum):
    """`INVOKE`: the step begins; the others end it. `FAIL`: refused for good, without any effect;
    `UNKNOWN`: it may have taken effect, or may still do so."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a history. `step`: the same for the beginning and the end of a step; `offset`
    and `epoch` (leader epoch): -1 where unknown; `note`: an error's text."""

    step: int
    client: str
    kind: Kind
    result: Result
    at: float
    partition: Partition = NO_PARTITION
    offset: int = -1
    value: str = ""
    epoch: int = -1
    group: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Client:
    """One client. `group`: its consumer group, empty: none; `partitions`: those in which it makes
    progress, its group as a whole if it has one. Rules about duplicates and order are for
    `idempotent` producers, the one about lost records for those with acks=all."""

    name: str
    partitions: tuple[Partition, ...]
    group: str = ""
    idempotent: bool = False
    acks_all: bool = False


FinalRow = tuple[int, str, int]
"""Offset, value and leader epoch (-1: unknown)."""


@dataclass(frozen=True, slots=True)
class Final:
    """All of a partition once everything has settled: offsets [start, end)."""

    start: int
    end: int
    rows: list[FinalRow]


class History:
    """Events in the order in which they were reported, by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clients: dict[str, Client] = {}
        self.events: list[Event] = []
        self.final: dict[Partition, Final] = {}
        self._clock = clock
        self._steps = 0
        self._lock = threading.Lock()

    def began(
        self,
        client: str,
        partitions: Iterable[Partition],
        *,
        group: str = "",
        idempotent: bool = False,
        acks_all: bool = False,
    ) -> None:
        """Report that a client starts; its name is used once."""
        assert client not in self.clients, f"there was a client {client}"
        self.clients[client] = Client(client, tuple(partitions), group, idempotent, acks_all)
        self._new(client, Kind.BEGAN, Result.OK, group=group)

    def ended(self, client: str) -> None:
        """Report that a client was asked to stop, so that no progress is expected of it."""
        self._new(client, Kind.ENDED, Result.OK)

    def send(self, client: str, partition: Partition, value: str) -> Event:
        """Report that a record is about to be sent; `ok`, `fail` or `unknown` ends the step."""
        return self._new(client, Kind.PRODUCE, Result.INVOKE, partition, value=value)

    def read(
        self, client: str, partition: Partition, offset: int, value: str, epoch: int = -1
    ) -> None:
        """Report that a consumer returned a record."""
        group = self.clients[client].group
        self._new(client, Kind.READ, Result.OK, partition, offset, value, epoch, group)

    def read_refused(self, client: str, partition: Partition, note: str) -> None:
        """Report that a consumer may not continue at its position after records that it has
        read, as when the log became shorter."""
        self._new(client, Kind.READ, Result.FAIL, partition, note=note)

    def commit(self, client: str, group: str, partition: Partition, offset: int) -> Event:
        """Report that an offset is about to be committed; `ok`, `fail` or `unknown` ends it."""
        return self._new(client, Kind.COMMIT, Result.INVOKE, partition, offset, group=group)

    def ask_committed(self, client: str, group: str, partition: Partition) -> Event:
        """Report that a group's committed offset is about to be asked for; `ok` has the offset, -1
        where there is none."""
        return self._new(client, Kind.COMMITTED, Result.INVOKE, partition, group=group)

    def ok(self, step: Event, offset: int | None = None) -> None:
        """Report that a step succeeded. `offset`: the one in the answer."""
        self._end(step, Result.OK, step.offset if offset is None else offset)

    def fail(self, step: Event, note: str = "") -> None:
        """Report that a step was refused and has no effect, now or later."""
        self._end(step, Result.FAIL, step.offset, note)

    def unknown(self, step: Event, note: str = "") -> None:
        """Report that a step's client does not know whether it took effect."""
        self._end(step, Result.UNKNOWN, step.offset, note)

    def fault(self, note: str) -> Event:
        """Report that something is about to be broken."""
        return self._new("", Kind.FAULT, Result.OK, note=note)

    def healed(self, note: str = "") -> Event:
        """Report that nothing is broken any more: from now on every client makes progress."""
        return self._new("", Kind.HEALED, Result.OK, note=note)

    def _new(
        self,
        client: str,
        kind: Kind,
        result: Result,
        partition: Partition = NO_PARTITION,
        offset: int = -1,
        value: str = "",
        epoch: int = -1,
        group: str = "",
        note: str = "",
    ) -> Event:
        with self._lock:
            self._steps += 1
            at = self._clock()
            made = Event(
                self._steps, client, kind, result, at, partition, offset, value, epoch, group, note
            )
            self.events.append(made)
        return made

    def _end(self, step: Event, result: Result, offset: int, note: str = "") -> None:
        with self._lock:
            self.events.append(
                Event(
                    step.step, step.client, step.kind, result, self._clock(), step.partition,
                    offset, step.value, step.epoch, step.group, note,
                )
            )  # fmt: skip

    def save(self, path: Path) -> None:
        """Write events and final rows as lines of JSON, to be examined after a failure."""
        with path.open("w", encoding="utf-8") as out:
            for event in self.events:
                out.write(json.dumps(astuple(event)) + "\n")
            for partition, final in self.final.items():
                out.write(json.dumps(["final", partition, *astuple(final)]) + "\n")


def waits_for_acks(
    history: History, since: float = float("-inf"), until: float = float("inf")
) -> Mapping[Partition, float]:
    """Return for each partition the longest time (seconds) between two successive acknowledged
    records, counting those acknowledged within [since, until] and these bounds where they are
    finite; infinity where there are no two such times. While producers send without pause, that is
    how long a partition was not writable."""
    times: dict[Partition, list[float]] = defaultdict(list)
    for event in history.events:
        if event.kind is Kind.PRODUCE:
            acked = times[event.partition]
            if event.result is Result.OK and since <= event.at <= until:
                acked.append(event.at)
    bounds = [each for each in (since, until) if abs(each) != float("inf")]
    longest = {}
    for partition, acked in times.items():
        ordered = sorted([*acked, *bounds])
        waits = (later - earlier for earlier, later in pairwise(ordered))
        longest[partition] = max(waits, default=float("inf"))
    return longest
