"""Notifications from the log to its listeners: the remote tier and the local manifest.

Each is called on the loop, in the step that changed memory and after SQL has the change; it must
neither raise nor take long: who listens notes what it was notified and does its work later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kafkawire.log.journal.file import Journal
    from kafkawire.metadata.catalog import TopicInfo


class LogListener(Protocol):
    """The listeners."""

    def segments(self, ids: Collection[int]) -> None:
        """Segments that are new, or whose rows or mappings are others than before."""

    def log_starts(self, numbers: Collection[int]) -> None:
        """Partitions whose log start has moved."""

    def topics(self, infos: Collection[TopicInfo]) -> None:
        """Topics that are new or have got further partitions."""

    def topic_altered(self, info: TopicInfo) -> None:
        """It has other settings."""

    def topic_removed(self, info: TopicInfo) -> None:
        """It is deleted; as it was."""

    def defaults(self) -> None:
        """The settings that topics have from the broker are others."""


@dataclass(slots=True)
class Hooks:
    """One for each log; `kafkawire.log.append.commit_log` holds it. `rolled`: journals take no more
    (for the manager). `doubts`: transactions that failed and may have been done all the same, so
    that their changes were reported to no listener."""

    rolled: Callable[[list[Journal]], None]
    listeners: list[LogListener] = field(default_factory=list)
    doubts: int = 0
    _when_stored: list[Callable[[], None]] = field(default_factory=list)

    def register(self, listener: LogListener) -> None:
        """Report changes to `listener` from now on."""
        self.listeners.append(listener)

    def when_stored(self, fn: Callable[[], None]) -> None:
        """Call `fn` whenever SQL has durably changed what journals or segments depend on (for
        kafkawire.log.recovery.identity)."""
        self._when_stored.append(fn)

    def stored(self) -> None:
        """Report that SQL has durably changed what journals or segments depend on."""
        for fn in self._when_stored:
            fn()

    def in_doubt(self) -> None:
        """Note a transaction that failed and may have been done all the same."""
        self.doubts += 1

    def segments(self, ids: Collection[int]) -> None:
        self.stored()
        for each in self.listeners:
            each.segments(ids)

    def log_starts(self, numbers: Collection[int]) -> None:
        self.stored()
        for each in self.listeners:
            each.log_starts(numbers)

    def topics(self, infos: Collection[TopicInfo]) -> None:
        self.stored()
        for each in self.listeners:
            each.topics(infos)

    def topic_altered(self, info: TopicInfo) -> None:
        self.stored()
        for each in self.listeners:
            each.topic_altered(info)

    def topic_removed(self, info: TopicInfo) -> None:
        self.stored()
        for each in self.listeners:
            each.topic_removed(info)

    def defaults(self) -> None:
        self.stored()
        for each in self.listeners:
            each.defaults()
