"""Hooks: plug-ins that are called when something has happened in a broker.

`BrokerHooks` has a method for each event; an entry point of the group `kafkawire.hooks` refers to a
callable without arguments that returns one. `HookRunner` calls all hooks of a broker in one thread,
one event after another, from a bounded queue: a hook that is slow, raises or never returns loses
events, which are counted, and holds no request.

Events say what is in force already; none is repeated after a crash of the broker.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kafkawire.plugins import (
    HOOKS,
    PluginError,
    call_plugin,
    describe_plugin,
    load_plugin,
    sentence_of,
)

logger = logging.getLogger(__name__)

MAX_QUEUED = 1000
"""Events that wait for hooks, some 500 bytes each; a request that creates more topics at once than
this loses events."""
CLOSE_WITHIN_S = 2.0
"""How long the end of a broker waits for events that are queued."""


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic exists now. Every broker of a cluster reports it."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic is deleted. Every broker of a cluster reports it."""

    name: str


@dataclass(frozen=True, slots=True)
class CutRange:
    """Offsets [base_offset, end_offset) of a partition in a segment."""

    topic: str
    partition: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class SegmentCut:
    """Records of the journals are in a new segment, a file in the data folder. `segment`: its uuid
    in hexadecimal."""

    segment: str
    size_bytes: int
    ranges: Sequence[CutRange]


@dataclass(frozen=True, slots=True)
class SegmentUploaded:
    """A segment is in the remote tier and its manifest. `object_id`: uuid of the object."""

    segment: str
    object_id: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentRemoved:
    """A segment is deleted: expired, merged into another, or of deleted topics. Its object in the
    remote tier follows after tier.delete.delay.ms."""

    segment: str


@dataclass(frozen=True, slots=True)
class LeadershipGained:
    """This broker leads partitions that another one led before, or that another one created."""

    partitions: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """Another broker leads partitions of this one."""

    partitions: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class GroupRebalanced:
    """A group has a new assignment, which its members have or are about to get. `details`: as in
    the log of the broker."""

    group: str
    members: int
    details: str


Event: TypeAlias = (
    TopicCreated
    | TopicDeleted
    | SegmentCut
    | SegmentUploaded
    | SegmentRemoved
    | LeadershipGained
    | LeadershipLost
    | GroupRebalanced
)


class BrokerHooks:
    """The callbacks of a plug-in; those that it does not override do nothing. They may block."""

    def topic_created(self, event: TopicCreated) -> None: ...

    def topic_deleted(self, event: TopicDeleted) -> None: ...

    def segment_cut(self, event: SegmentCut) -> None: ...

    def segment_uploaded(self, event: SegmentUploaded) -> None: ...

    def segment_removed(self, event: SegmentRemoved) -> None: ...

    def leadership_gained(self, event: LeadershipGained) -> None: ...

    def leadership_lost(self, event: LeadershipLost) -> None: ...

    def group_rebalanced(self, event: GroupRebalanced) -> None: ...

    def close(self) -> None:
        """Release what the hook holds; called when the broker stops."""


METHODS: Mapping[type[Event], str] = {
    TopicCreated: "topic_created",
    TopicDeleted: "topic_deleted",
    SegmentCut: "segment_cut",
    SegmentUploaded: "segment_uploaded",
    SegmentRemoved: "segment_removed",
    LeadershipGained: "leadership_gained",
    LeadershipLost: "leadership_lost",
    GroupRebalanced: "group_rebalanced",
}


def open_hooks(names: Iterable[str]) -> HookRunner | None:
    """Create the hooks of these plug-ins; None without any. Raises PluginError."""
    found: dict[str, BrokerHooks] = {}
    for name in names:
        factory = load_plugin(HOOKS, name)
        what = describe_plugin(HOOKS, name)
        found[name] = call_plugin(what, factory)
        if not isinstance(found[name], BrokerHooks):
            raise PluginError(f"{what} cannot be used: it returns no kafkawire.hooks.BrokerHooks")
    return HookRunner(found) if found else None


class HookRunner:
    """Calls hooks in a thread of its own. `calls`, `failures` and `dropped`: number of events by
    name of the hook; an event that finds the queue full counts as dropped for the hook that is
    being called."""

    def __init__(self, hooks: Mapping[str, BrokerHooks], max_queued: int = MAX_QUEUED) -> None:
        self._hooks = hooks
        self._queue: queue.Queue[Event | None] = queue.Queue(max_queued)
        self._current = next(iter(hooks))
        self._full = False
        self._closing = False
        self.calls: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        # A daemon: a hook that never returns must not hold the end of the process.
        self._thread = threading.Thread(target=self._run, name="hooks", daemon=True)
        self._thread.start()

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._hooks)

    def emit(self, event: Event) -> None:
        """Queue an event, or drop it if the hooks are too slow. Never blocks."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            name = self._current
            self.dropped[name] += 1
            # One line until the queue was empty: there are many such events.
            if not self._full:
                self._full = True
                logger.warning(
                    "the hook %s is too slow: %d events wait for it, and %s events are dropped "
                    "until it has caught up",
                    name, self._queue.maxsize, METHODS[type(event)],
                )  # fmt: skip

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Call the hooks for what is queued, within a time limit, and end the thread. Blocks."""
        self._closing = True
        try:
            self._queue.put(None, timeout=within_s)
        except queue.Full:
            pass
        else:
            self._thread.join(within_s)
        if self._thread.is_alive():
            left = max(self._queue.qsize() - 1, 0)
            logger.warning(
                "the hook %s has not returned in time: %d events are dropped", self._current, left
            )

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            method = METHODS[type(event)]
            for name, hooks in self._hooks.items():
                self._call(name, method, getattr(hooks, method), event)
            if self._full and self._queue.empty():
                self._full = False
                logger.info("the hook %s has caught up", self._current)
        for name, hooks in self._hooks.items():
            self._call(name, "close", hooks.close)

    def _call(self, name: str, method: str, call: Callable[..., object], *event: Event) -> None:
        self._current = name
        try:
            call(*event)
        except BaseException as failure:  # SystemExit too: the thread continues with the next event
            self.failures[name] += 1
            logger.warning("the hook %s failed in %s: %s", name, method, sentence_of(failure))
        else:
            self.calls[name] += 1
