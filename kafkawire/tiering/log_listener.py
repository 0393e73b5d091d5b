"""Listener of the log: forwards its notifications to the parts of the remote tier.

Notifications arrive in the middle of another caller's work, so they are only recorded here; the
tasks of the components act on them later. The components are looked up at each call, because a
switch of tiers replaces them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from kafkawire.log.partition.partition import Partition
from kafkawire.metadata.catalog import TopicInfo
from kafkawire.tiering.publishing.publisher import Rounds
from kafkawire.tiering.retention.disable_topic import TopicDisabler
from kafkawire.tiering.retention.local_retention import LocalTier
from kafkawire.tiering.retention.object_deletion import Remover
from kafkawire.tiering.upload.uploader import Uploader


class NotifiedComponents(Protocol):
    """The components of the remote tier that act on changes of the log."""

    local: LocalTier
    remover: Remover
    rounds: Rounds
    topic_disabler: TopicDisabler
    uploader: Uploader


class TieringLogListener:
    """The listener that forwards log notifications to the remote tier."""

    def __init__(self, components: NotifiedComponents, partitions: Mapping[int, Partition]) -> None:
        self._components = components
        self._partitions = partitions

    def segments(self, ids: Collection[int]) -> None:
        self._components.uploader.note_segments(ids)
        self._components.remover.schedule_check()

    def log_starts(self, numbers: Collection[int]) -> None:
        """Note the new log start for the manifest, unless the partition was never tiered."""
        for number in numbers:
            partition = self._partitions.get(number)
            if partition is None or partition.dispatch_offset or partition.config.tiered:
                self._components.rounds.log_start_moved(number)
        self._components.remover.schedule_check()

    def topics(self, infos: Collection[TopicInfo]) -> None:
        """Note the topic for the manifest, which has all topics, tiered or not."""
        for info in infos:
            self._components.rounds.topic_changed(info)
        self._components.local.settings_changed()

    def topic_altered(self, info: TopicInfo) -> None:
        """Topic settings changed: check whether and when its segments are uploaded."""
        self._components.rounds.topic_changed(info)
        self._components.topic_disabler.note_changed(info)
        self._components.uploader.note_all()
        self._components.local.settings_changed()
        self._components.remover.wake()

    def topic_removed(self, info: TopicInfo) -> None:
        self._components.rounds.topic_deleted(info.id)
        self._components.topic_disabler.remove_topic(info.id)
        self._components.remover.wake()

    def defaults(self) -> None:
        """Default settings changed, which may affect every topic."""
        self._components.uploader.note_all()
        self._components.local.settings_changed()
        self._components.remover.wake()
