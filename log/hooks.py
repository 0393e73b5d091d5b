"""What a log tells those above it, the remote tier above all; nobody listens until one is set.

Each is called on the loop, in the step that changed memory and after SQL has the change; it must
neither raise nor take long: who listens notes what it was told and does its work later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkawire.metadata.catalog import TopicInfo
    from log.journal import Journal


def _nobody(*_: Any) -> None:
    """Nobody listens."""


@dataclass(slots=True)
class Hooks:
    """One for each log; `log.commitlog` holds it.

    `rolled`: journals take no more (for the manager); `segments`: ids of segments that are new, or
    whose rows or mappings are others than before; `log_starts`: numbers of partitions whose log
    start has moved; `topics`: topics that are new or have got further partitions;
    `topic_altered`: one has other settings; `topic_removed`: one is deleted, as it was;
    `defaults`: the settings that topics have from the broker are others.
    """

    rolled: Callable[[list[Journal]], None] = _nobody
    segments: Callable[[Collection[int]], None] = _nobody
    log_starts: Callable[[Collection[int]], None] = _nobody
    topics: Callable[[Collection[TopicInfo]], None] = _nobody
    topic_altered: Callable[[TopicInfo], None] = _nobody
    topic_removed: Callable[[TopicInfo], None] = _nobody
    defaults: Callable[[], None] = _nobody
