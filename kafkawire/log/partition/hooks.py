"""Notifications from the log to its listeners: the remote tier and the local manifest.

Each is called on the event loop, in the step that changed memory and after SQL has the change; it
must neither raise nor take long: a listener notes the change and does its work later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kafkawire.log.journal.file import Journal
    from kafkawire.metadata.catalog import TopicInfo


class LogListener(Protocol):
    """A listener to changes of the log."""

    def segments(self, ids: Collection[int]) -> None:
        """Called with segments that are new, or whose rows or mappings have changed."""

    def log_starts(self, numbers: Collection[int]) -> None:
        """Called with partitions whose log start has moved."""

    def topics(self, infos: Collection[TopicInfo]) -> None:
        """Called with topics that are new or have new partitions."""

    def topic_altered(self, info: TopicInfo) -> None:
        """Called with a topic whose settings have changed."""

    def topic_removed(self, info: TopicInfo) -> None:
        """Called with a deleted topic, as it was before."""

    def defaults(self) -> None:
        """Called when the broker's defaults for topics have changed."""


@dataclass(slots=True)
class Hooks:
    """The listeners of one log; `kafkawire.log.append.commit_log` has it. `rolled` is called
    with journals that take no more frames."""

    rolled: Callable[[list[Journal]], None]
    listeners: list[LogListener] = field(default_factory=list)
    # Transactions that failed and may have been committed all the same: their changes were not
    # reported.
    doubts: int = 0
    _when_stored: list[Callable[[], None]] = field(default_factory=list)

    def register(self, listener: LogListener) -> None:
        """Report changes to `listener` from now on."""
        self.listeners.append(listener)

    def when_stored(self, fn: Callable[[], None]) -> None:
        """Call `fn` whenever SQL has durably changed what journals or segments depend on (for
        kafkawire.log.recovery.identity)."""
        self._when_stored.append(fn)

    def report_stored(self) -> None:
        """Report that SQL has durably changed what journals or segments depend on."""
        for fn in self._when_stored:
            fn()

    def in_doubt(self) -> None:
        self.doubts += 1

    def segments(self, ids: Collection[int]) -> None:
        self.report_stored()
        for each in self.listeners:
            each.segments(ids)

    def log_starts(self, numbers: Collection[int]) -> None:
        self.report_stored()
        for each in self.listeners:
            each.log_starts(numbers)

    def topics(self, infos: Collection[TopicInfo]) -> None:
        self.report_stored()
        for each in self.listeners:
            each.topics(infos)

    def topic_altered(self, info: TopicInfo) -> None:
        self.report_stored()
        for each in self.listeners:
            each.topic_altered(info)

    def topic_removed(self, info: TopicInfo) -> None:
        self.report_stored()
        for each in self.listeners:
            each.topic_removed(info)

    def defaults(self) -> None:
        self.report_stored()
        for each in self.listeners:
            each.defaults()
