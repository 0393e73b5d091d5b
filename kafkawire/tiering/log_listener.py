"""Listener of the log: forwards its notifications to the parts of the remote tier.

Each is called in the middle of another caller's work: what it leads to is noted here and done
later, by the tasks of the parts. These may be others after a switch of tiers, so they are found
each time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kafkawire.metadata.catalog import TopicInfo

if TYPE_CHECKING:
    from kafkawire.tiering.service import Tiering


def listen(tiering: Tiering) -> None:
    """Receive notifications from now on."""
    tiering.log.hooks.register(TieringLogListener(tiering))


class TieringLogListener:
    """The listener that forwards log notifications to the remote tier."""

    def __init__(self, tiering: Tiering) -> None:
        self._tiering = tiering

    def segments(self, ids: Collection[int]) -> None:
        """There may be something to upload, or to remove."""
        self._tiering.uploader.note(ids)
        self._tiering.remover.nudge()

    def log_starts(self, numbers: Collection[int]) -> None:
        """The manifest says so soon; of a partition that was never tiered it need not."""
        for number in numbers:
            partition = self._tiering.log.partitions.get(number)
            if partition is None or partition.dispatch_offset or partition.config.tiered:
                self._tiering.rounds.log_start_moved(number)
        self._tiering.remover.nudge()

    def topics(self, infos: Collection[TopicInfo]) -> None:
        """The manifest has all topics, tiered or not."""
        for info in infos:
            self._tiering.rounds.topic_changed(info)
        self._tiering.local.settings_changed()

    def topic_altered(self, info: TopicInfo) -> None:
        """It may be tiered now, or not any more, or by another time."""
        self._tiering.rounds.topic_changed(info)
        self._tiering.topic_disabler.note(info)
        self._tiering.uploader.note_all()
        self._tiering.local.settings_changed()
        self._tiering.remover.wake()

    def topic_removed(self, info: TopicInfo) -> None:
        """Its objects go when its rows have gone."""
        self._tiering.rounds.topic_deleted(info.id)
        self._tiering.topic_disabler.forget(info.id)
        self._tiering.remover.wake()

    def defaults(self) -> None:
        """Any topic may have other settings."""
        self._tiering.uploader.note_all()
        self._tiering.local.settings_changed()
        self._tiering.remover.wake()
