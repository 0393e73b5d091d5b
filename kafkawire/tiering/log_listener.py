"""Listener of the log: forwards its notifications to the parts of the remote tier.

Notifications arrive in the middle of another caller's work, so they are only recorded here; the
tasks of the components act on them later. The components are looked up at each call, because a
switch of tiers replaces them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kafkawire.metadata.catalog import TopicInfo

if TYPE_CHECKING:
    from kafkawire.tiering.service import Tiering


def listen(tiering: Tiering) -> None:
    """Subscribe to notifications of the log."""
    tiering.log.hooks.register(TieringLogListener(tiering))


class TieringLogListener:
    """The listener that forwards log notifications to the remote tier."""

    def __init__(self, tiering: Tiering) -> None:
        self._tiering = tiering

    def segments(self, ids: Collection[int]) -> None:
        """Segments changed: check for uploads and deletions."""
        self._tiering.uploader.note(ids)
        self._tiering.remover.schedule_check()

    def log_starts(self, numbers: Collection[int]) -> None:
        """Note the new log start for the manifest, unless the partition was never tiered."""
        for number in numbers:
            partition = self._tiering.log.partitions.get(number)
            if partition is None or partition.dispatch_offset or partition.config.tiered:
                self._tiering.rounds.log_start_moved(number)
        self._tiering.remover.schedule_check()

    def topics(self, infos: Collection[TopicInfo]) -> None:
        """Note the topic for the manifest, which has all topics, tiered or not."""
        for info in infos:
            self._tiering.rounds.topic_changed(info)
        self._tiering.local.settings_changed()

    def topic_altered(self, info: TopicInfo) -> None:
        """Topic settings changed: check whether and when its segments are uploaded."""
        self._tiering.rounds.topic_changed(info)
        self._tiering.topic_disabler.note(info)
        self._tiering.uploader.note_all()
        self._tiering.local.settings_changed()
        self._tiering.remover.wake()

    def topic_removed(self, info: TopicInfo) -> None:
        """A topic was deleted; its objects are deleted after its rows."""
        self._tiering.rounds.topic_deleted(info.id)
        self._tiering.topic_disabler.forget(info.id)
        self._tiering.remover.wake()

    def defaults(self) -> None:
        """Default settings changed, which may affect every topic."""
        self._tiering.uploader.note_all()
        self._tiering.local.settings_changed()
        self._tiering.remover.wake()
