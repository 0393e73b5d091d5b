"""The topics of the cluster, as far as group state machines read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

TopicRevision = tuple[int, int]
"""Differs after each creation and deletion of a topic, and when partitions are added."""


class ClusterTopics(Protocol):
    """Topics by name and id. Each method but `topic_names` has a constant cost."""

    def topic_revision(self) -> TopicRevision: ...
    def topic_id(self, name: str) -> bytes | None: ...
    def topic_name(self, topic_id: bytes) -> str | None: ...
    def topic_size(self, name: str) -> int | None:
        """Return the number of partitions; None if there is no such topic."""

    def topic_names(self) -> Iterable[str]: ...


class NoTopics:
    """A cluster without topics."""

    def topic_revision(self) -> TopicRevision:
        return (0, 0)

    def topic_id(self, name: str) -> bytes | None:
        return None

    def topic_name(self, topic_id: bytes) -> str | None:
        return None

    def topic_size(self, name: str) -> int | None:
        return None

    def topic_names(self) -> Iterable[str]:
        return ()
