"""The internal topics of streams groups, which the broker creates (KIP-1071): changelog and
repartition topics.

A heartbeat of a group that lacks topics has them created after its answer. While that lasts no
other heartbeat does, and after an error none for a while; heartbeats show the error meanwhile.
Kafka: DefaultAutoTopicCreationManager.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from kafkawire.codec.errors import KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.log_lines import shorten_for_log
from kafkawire.messages.create_topics import CreatableTopic

logger = logging.getLogger(__name__)

MAX_ERRORS = 1_000
"""Topics whose error is kept, some 300 bytes each. Kafka keeps as many."""

CreateTopics = Callable[[Sequence[CreatableTopic]], Awaitable[Sequence[object]]]
"""Creates topics; a result for each, KafkaError for one that was not created."""


class StreamsTopics:
    """Creates internal topics, and knows which were refused a moment ago."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._creating: set[str] = set()
        self._errors: dict[str, tuple[str, float]] = {}  # topic -> text, until when (monotonic)

    def start_creation(
        self, group_id: str, topics: Iterable[CreatableTopic], create: CreateTopics, pause_ms: int
    ) -> None:
        """Begin to create topics, but for those that are being created, or were refused within
        `pause_ms`."""
        now_s = self._env.clock.monotonic()
        due = [
            topic
            for topic in topics
            if topic.name not in self._creating and not self._error_of(topic.name, now_s)
        ]
        if due:
            self._creating.update(topic.name for topic in due)
            creating = self._create(group_id, due, create, pause_ms)
            self._env.spawn(creating, f"create internal topics of {group_id!r}")

    async def _create(
        self, group_id: str, topics: list[CreatableTopic], create: CreateTopics, pause_ms: int
    ) -> None:
        try:
            results = await create(topics)
            failures = [result if isinstance(result, KafkaError) else None for result in results]
        except KafkaError as error:
            failures = [error] * len(topics)
        finally:
            self._creating.difference_update(topic.name for topic in topics)
        until_s = self._env.clock.monotonic() + pause_ms / 1000
        for topic, failure in zip(topics, failures, strict=True):
            if failure is None:
                self._errors.pop(topic.name, None)
                continue
            text = failure.message or failure.code.sentence
            logger.warning(
                "group %s: its internal topic %s cannot be created: %s. The group has no tasks "
                "until the topic exists; the next heartbeats try again",
                shorten_for_log(group_id), shorten_for_log(topic.name), text,
            )  # fmt: skip
            self._errors.pop(topic.name, None)
            # The oldest is dropped.
            if len(self._errors) >= MAX_ERRORS:
                del self._errors[next(iter(self._errors))]
            self._errors[topic.name] = (text, until_s)

    def errors_of(self, topics: Iterable[CreatableTopic]) -> dict[str, str]:
        """Return why some of the topics were refused a moment ago."""
        now_s = self._env.clock.monotonic()
        return {topic.name: text for topic in topics if (text := self._error_of(topic.name, now_s))}

    def _error_of(self, name: str, now_s: float) -> str | None:
        text, until_s = self._errors.get(name, (None, 0.0))
        return text if now_s < until_s else None
