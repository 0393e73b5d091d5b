"""Topics created and deleted, and offsets of groups reset."""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.client.admin import create_topic as request_topic
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError, check
from kafkawire.client.offsets import EARLIEST, LATEST, commit, leaders, list_offsets

DELETE_TOPICS = 20
TIMEOUT_MS = 30_000


class ChangesDisabled(ClientError):
    """The console was started to read only."""


def check_may_change(may_change: bool) -> None:
    """Raise ChangesDisabled unless changes are allowed."""
    if not may_change:
        raise ChangesDisabled("The console only reads: it was started without --allow-changes")


def create_topic(
    cluster: Cluster,
    may_change: bool,
    name: str,
    partitions: int,
    configs: Mapping[str, str | None],
) -> None:
    """Create a topic with the broker's replication factor; `partitions` -1: its default."""
    check_may_change(may_change)
    request_topic(cluster, name, partitions, configs)


def delete_topic(cluster: Cluster, may_change: bool, name: str) -> None:
    """Delete a topic and all its records. BrokerError for an unknown topic."""
    from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

    check_may_change(may_change)
    asked = DeleteTopicsRequest(topics=[], topic_names=[name], timeout_ms=TIMEOUT_MS)
    if cluster.first.version(DELETE_TOPICS) >= 6:
        asked.topics, asked.topic_names = [DeleteTopicState(name=name)], []
    answer = cluster.request(DELETE_TOPICS, asked).responses[0]
    check(f"topic {name}", answer.error_code, answer.error_message)


def reset_group(
    cluster: Cluster,
    may_change: bool,
    group: str,
    topic: str,
    where: str,
    at: int | None,
    partition: int | None,
) -> dict[int, int]:
    """Commit new offsets of a topic, or of one partition, for a group without members, and return
    them. `where`: oldest, newest, offset, or time with its milliseconds in `at`; an offset outside
    of the log becomes its start or end. BrokerError."""
    check_may_change(may_change)
    led_by = {
        place: node
        for place, node in leaders(cluster, [topic]).items()
        if partition in (None, place[1])
    }
    if not led_by:
        raise ClientError(f"topic {topic} has no partition {partition}")
    starts = list_offsets(cluster, dict.fromkeys(led_by, EARLIEST), led_by)
    ends = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by)
    wanted = {"oldest": starts, "newest": ends}.get(where, {})
    if where == "time" and at is not None:
        found = list_offsets(cluster, dict.fromkeys(led_by, at), led_by)
        wanted = {place: ends[place] if offset < 0 else offset for place, offset in found.items()}
    elif where == "offset" and at is not None:
        wanted = {place: min(max(at, starts[place]), ends[place]) for place in starts}
    for place, code in commit(cluster, group, wanted).items():
        check(f"group {group}, {place[0]}-{place[1]}", code)
    return {index: offset for (_, index), offset in wanted.items()}
