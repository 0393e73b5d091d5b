"""Writes changes of topics and settings to the log: what, which values, and which client asked.

The number of lines is bounded, since one request may create a million topics. The audit log gets
every change, and has a bound of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kafkawire.broker.overrides import ResourceType
from kafkawire.codec.configs.pending import PENDING
from kafkawire.codec.configs.settings import BROKER_CONFIGS
from kafkawire.hooks import HookRunner, TopicCreated, TopicDeleted
from kafkawire.log_lines import LineLimit, shorten_for_log
from kafkawire.metadata.catalog import ALL_BROKERS, ConfigChange, TopicInfo
from kafkawire.security.audit import Audit, caller_of

logger = logging.getLogger(__name__)

BURST = 200
"""Lines at once: a deployment that creates its topics."""
LINES_PER_S = 5.0
"""Lines per second after a burst."""
BROKER = "the broker"
"""Asks for what clients need: internal topics, a command of its own."""


class ChangeLog:
    """Reports changes that are in force. `sender` names the client (`RequestContext.sender`)."""

    def __init__(
        self, now: Callable[[], float], audit: Audit, hooks: HookRunner | None = None
    ) -> None:
        self._audit = audit
        self._hooks = hooks
        self._limit = LineLimit(now, BURST, LINES_PER_S)

    def report_topic_created(self, topic: TopicInfo, sender: str) -> None:
        """Report a new topic with the settings that it has of its own."""
        configs = "".join(f", {key}={value}" for key, value in sorted(topic.configs.items()))
        count = len(topic.partitions)
        self._audit.record_change(
            caller_of(sender), "topic created", topic=topic.name, partitions=count,
            configs=dict(topic.configs),
        )  # fmt: skip
        size = partitions(count) if count else "a view"
        self._write("topic %s created by %s: %s%s", topic.name, sender, size, configs)
        if self._hooks is not None:
            self._hooks.emit(TopicCreated(topic.name, count, dict(topic.configs)))

    def report_topic_deleted(self, topic: TopicInfo, sender: str) -> None:
        """Report a deleted topic, as it was before."""
        count = len(topic.partitions)
        self._audit.record_change(caller_of(sender), "topic deleted", topic=topic.name)
        had = f"it had {partitions(count)}" if count else "it was a view"
        self._write("topic %s deleted by %s: %s", topic.name, sender, had)
        if self._hooks is not None:
            self._hooks.emit(TopicDeleted(topic.name))

    def report_partitions_added(self, name: str, before: int, after: int, sender: str) -> None:
        self._audit.record_change(
            caller_of(sender), "partitions added", topic=name, partitions=after
        )
        self._write(
            "topic %s has %s instead of %d, added by %s", name, partitions(after), before, sender
        )

    def report_records_deleted(self, name: str, index: int, log_start: int, sender: str) -> None:
        self._audit.record_change(
            caller_of(sender), "records deleted", topic=name, partition=index, log_start=log_start
        )
        self._write(
            "records of %s-%d below offset %d deleted by %s", name, index, log_start, sender
        )

    def report_reassignment(self, partition: str, target: int | None, sender: str) -> None:
        """Report a partition that is to be moved; `target` None: its move was cancelled."""
        self._audit.record_change(
            caller_of(sender), "partition reassigned", partition=partition, broker=target
        )
        to = "stays where it is" if target is None else f"is to be moved to broker {target}"
        self._write("partition %s %s, asked by %s", partition, to, sender)

    def report_broker_removed(self, node_id: int, sender: str) -> None:
        self._audit.record_change(caller_of(sender), "broker removed", broker=node_id)
        self._write("broker %d was removed from the cluster by %s", node_id, sender)

    def report_setting_changed(self, change: ConfigChange, before: str | None, sender: str) -> None:
        """Report a changed setting. The value of an unknown one is left out, because it may be a
        secret."""
        resource = _resource(change)
        name = change.key.removeprefix(PENDING)
        known = change.resource_type != ResourceType.BROKER or name in BROKER_CONFIGS
        details = {"value": change.value} if known else {}
        self._audit.record_change(
            caller_of(sender), "setting changed", resource=resource, name=change.key, **details
        )
        if not known:
            if change.value is not None:
                logger.warning(
                    "%s: stored %s for %s, but this broker does not know the setting: it has no "
                    "effect", resource, shorten_for_log(change.key), sender,
                )  # fmt: skip
            return
        value = "its default" if change.value is None else repr(change.value)
        was = "its default" if before is None else repr(before)
        self._write("%s: %s is now %s, was %s; set by %s", resource, change.key, value, was, sender)

    def _write(self, line: str, *values: object) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        omitted = self._limit.admit()
        if omitted is None:
            return
        if omitted:
            logger.warning("%d changes of topics were not logged: too many at a time", omitted)
        logger.info(line, *values)


def partitions(count: int) -> str:
    """Return a number of partitions in words."""
    return "1 partition" if count == 1 else f"{count} partitions"


def _resource(change: ConfigChange) -> str:
    if change.resource_type == ResourceType.BROKER and change.name == ALL_BROKERS:
        return "all brokers"
    return f"{ResourceType(change.resource_type).name.lower()} {shorten_for_log(change.name)}"
