"""Groups: listed, described, and their activity where the broker is kafkawire.

Classic groups; groups of KIP-848, share and streams groups on brokers that have them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import BrokerError, ClientError, check
from kafkawire.client.offsets import Partition
from kafkawire.codec.errors import ErrorCode

DESCRIBE_GROUPS, LIST_GROUPS, GROUP_ACTIVITY = 15, 16, 10001
CONSUMER_GROUP_DESCRIBE, SHARE_GROUP_DESCRIBE, STREAMS_GROUP_DESCRIBE = 69, 77, 89
CONSUMER, SHARE, STREAMS = "consumer", "share", "streams"
NOT_READY = "NotReady"
"""The state of a streams group whose topics are missing, or have other numbers of partitions."""
DEAD = "Dead"
GROUPS_OF_REQUEST = 250
"""Groups of one request: few round trips, and an answer of a few MB with large groups."""


class GroupListing(NamedTuple):
    """A group and the broker that coordinates it; `state` and `kind` are empty for old brokers."""

    group: str
    state: str
    kind: str
    protocol_type: str
    coordinator: int


Task = tuple[str, int]
"""Subtopology and partition."""


class MemberTasks(NamedTuple):
    """The tasks of a member of a streams group, those that it is to have, and its process."""

    active: list[Task]
    standby: list[Task]
    warmup: list[Task]
    target: list[Task]
    target_standby: list[Task]
    process: str


class SubtopologyTopics(NamedTuple):
    """The topics of a subtopology: those it reads, writes to for others, and keeps its state in."""

    name: str
    sources: list[str]
    sinks: list[str]
    changelogs: list[str]


class GroupMember(NamedTuple):
    """A member. `topics`: those it subscribes to; None if that is not known. `epoch` only in groups
    of Kafka 4's protocols; `target`, the partitions that it is to have, not in share groups.
    `tasks` only in streams groups, where `assigned` are the partitions of active tasks."""

    member: str
    instance: str | None
    client: str
    host: str
    assigned: list[Partition]
    topics: list[str] | None
    epoch: int | None = None
    target: list[Partition] | None = None
    tasks: MemberTasks | None = None


class GroupDescription(NamedTuple):
    """A group with its members. `protocol`: the assignor; `kind`: classic, consumer, share or
    streams; `epoch` and `assignment_epoch`, that of the target assignment, not in classic ones.
    `topology` of a streams group; `missing`: topics of it that do not exist."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: list[GroupMember]
    kind: str = "classic"
    epoch: int | None = None
    assignment_epoch: int | None = None
    topology: Sequence[SubtopologyTopics] = ()
    missing: Sequence[str] = ()


def list_groups(
    cluster: Cluster, *, states: Sequence[str] = (), kinds: Sequence[str] = ()
) -> list[GroupListing]:
    """Return the groups of all brokers that pass both filters, sorted; an empty filter is off."""
    from kafkawire.messages.list_groups import ListGroupsRequest

    found: list[GroupListing] = []
    for node in cluster.nodes():
        asked = ListGroupsRequest(states_filter=list(states), types_filter=list(kinds))
        answer = cluster.node(node).request(LIST_GROUPS, asked)
        check(f"groups of broker {node}", answer.error_code)
        found += [
            GroupListing(row.group_id, row.group_state, row.group_type, row.protocol_type, node)
            for row in answer.groups
        ]
    return sorted(found)


def describe_group(cluster: Cluster, name: str, node: int | None = None) -> GroupDescription:
    """Return state and members of a group. BrokerError GROUP_ID_NOT_FOUND if there is none. `node`:
    its coordinator; None: it is looked up."""
    if node is None:
        node = cluster.coordinator_id(name)
    found = describe_groups(cluster, [name], node)[name]
    if isinstance(found, BrokerError):
        raise found
    return found


def describe_groups(
    cluster: Cluster, names: Sequence[str], node: int
) -> dict[str, GroupDescription | BrokerError]:
    """Return state and members of groups that the broker `node` coordinates, GROUPS_OF_REQUEST a
    request; or why one cannot be described, such as GROUP_ID_NOT_FOUND."""
    from kafkawire.messages.describe_groups import DescribeGroupsRequest

    connection = cluster.node(node)
    found: dict[str, GroupDescription | BrokerError] = {}
    for part in batched_groups(names):
        asked = DescribeGroupsRequest(groups=list(part))
        for row in connection.request(DESCRIBE_GROUPS, asked).groups:
            # Versions before 6 have no error for a group that does not exist.
            code = row.error_code or (
                ErrorCode.GROUP_ID_NOT_FOUND if row.group_state == DEAD else 0
            )
            found[row.group_id] = (
                BrokerError(f"group {row.group_id}", code, row.error_message)
                if code
                else _classic(row, node)
            )
    for describe in (_describe_newer, _describe_share, _describe_streams):
        absent = [name for name, each in found.items() if _is_absent(each)]
        for part in batched_groups(absent):
            found.update(describe(cluster, part, node))
    return found


def batched_groups(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the groups of each request."""
    for at in range(0, len(names), GROUPS_OF_REQUEST):
        yield names[at : at + GROUPS_OF_REQUEST]


def _is_absent(found: GroupDescription | BrokerError) -> bool:
    return isinstance(found, BrokerError) and found.code == ErrorCode.GROUP_ID_NOT_FOUND


def _classic(row: Any, node: int) -> GroupDescription:
    consumers = row.protocol_type == CONSUMER
    members = [
        GroupMember(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            assignment(each.member_assignment) if consumers else [],
            subscription(each.member_metadata) if consumers else None,
        )
        for each in row.members
    ]
    return GroupDescription(
        row.group_id, row.group_state, row.protocol_type, row.protocol_data, node, members
    )


def _describe_by(
    cluster: Cluster, node: int, key: int, message: Any, read: Callable[[Any], GroupDescription]
) -> dict[str, GroupDescription | BrokerError]:
    """Return what one of the newer requests says of its groups, without those that it does not
    know."""
    connection = cluster.node(node)
    found: dict[str, GroupDescription | BrokerError] = {}
    if not connection.supports(key):
        return found
    for row in connection.request(key, message).groups:
        # A broker may advertise this request although it does not serve the protocol.
        if row.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            found[row.group_id] = (
                BrokerError(f"group {row.group_id}", row.error_code, row.error_message)
                if row.error_code
                else read(row)
            )
    return found


def _describe_newer(
    cluster: Cluster, names: Sequence[str], node: int
) -> dict[str, GroupDescription | BrokerError]:
    """Describe those of the groups that are groups of KIP-848."""
    from kafkawire.messages.consumer_group_describe import ConsumerGroupDescribeRequest

    def read(answer: Any) -> GroupDescription:
        members = [
            GroupMember(
                row.member_id,
                row.instance_id,
                row.client_id,
                row.client_host,
                _partitions(row.assignment),
                None if row.subscribed_topic_regex else list(row.subscribed_topic_names),
                row.member_epoch,
                _partitions(row.target_assignment),
            )
            for row in answer.members
        ]
        return GroupDescription(
            answer.group_id, answer.group_state, CONSUMER, answer.assignor_name, node, members,
            CONSUMER, answer.group_epoch, answer.assignment_epoch,
        )  # fmt: skip

    asked = ConsumerGroupDescribeRequest(group_ids=list(names))
    return _describe_by(cluster, node, CONSUMER_GROUP_DESCRIBE, asked, read)


def _describe_share(
    cluster: Cluster, names: Sequence[str], node: int
) -> dict[str, GroupDescription | BrokerError]:
    """Describe those of the groups that are share groups."""
    from kafkawire.messages.share_group_describe import ShareGroupDescribeRequest

    def read(answer: Any) -> GroupDescription:
        members = [
            GroupMember(
                row.member_id,
                None,
                row.client_id,
                row.client_host,
                _partitions(row.assignment),
                list(row.subscribed_topic_names),
                row.member_epoch,
            )
            for row in answer.members
        ]
        return GroupDescription(
            answer.group_id, answer.group_state, SHARE, answer.assignor_name, node, members,
            SHARE, answer.group_epoch, answer.assignment_epoch,
        )  # fmt: skip

    asked = ShareGroupDescribeRequest(group_ids=list(names))
    return _describe_by(cluster, node, SHARE_GROUP_DESCRIBE, asked, read)


def _describe_streams(
    cluster: Cluster, names: Sequence[str], node: int
) -> dict[str, GroupDescription | BrokerError]:
    """Describe those of the groups that are streams groups."""
    from kafkawire.messages.streams_group_describe import StreamsGroupDescribeRequest

    asked = StreamsGroupDescribeRequest(group_ids=list(names))

    def read(answer: Any) -> GroupDescription:
        return _streams(cluster, answer, node)

    return _describe_by(cluster, node, STREAMS_GROUP_DESCRIBE, asked, read)


def _streams(cluster: Cluster, answer: Any, node: int) -> GroupDescription:
    topology = [
        SubtopologyTopics(
            row.subtopology_id,
            [*row.source_topics, *(topic.name for topic in row.repartition_source_topics)],
            list(row.repartition_sink_topics),
            [topic.name for topic in row.state_changelog_topics],
        )
        for row in (() if answer.topology is None else answer.topology.subtopologies or ())
    ]
    sources = {each.name: each.sources for each in topology}
    names = sorted({topic for each in topology for topic in (*each.sources, *each.changelogs)})
    sizes = _count_partitions(cluster, names)
    members: list[GroupMember] = []
    for row in answer.members:
        now, target = row.assignment, row.target_assignment
        tasks = MemberTasks(
            _tasks(now.active_tasks), _tasks(now.standby_tasks), _tasks(now.warmup_tasks),
            _tasks(target.active_tasks), _tasks(target.standby_tasks), row.process_id,
        )  # fmt: skip
        members.append(
            GroupMember(
                row.member_id,
                row.instance_id,
                row.client_id,
                row.client_host,
                _partitions_of_tasks(tasks.active, sources, sizes),
                sorted({topic for found in sources.values() for topic in found}),
                row.member_epoch,
                _partitions_of_tasks(tasks.target, sources, sizes),
                tasks,
            )
        )
    return GroupDescription(
        answer.group_id, answer.group_state, STREAMS, answer.assignor_name or "", node, members,
        STREAMS,
        answer.group_epoch, answer.assignment_epoch, topology,
        [topic for topic in names if topic not in sizes],
    )  # fmt: skip


def _count_partitions(cluster: Cluster, names: Sequence[str]) -> dict[str, int]:
    """Return the number of partitions of each topic that exists."""
    if not names:
        return {}
    found = cluster.metadata(names).topics
    return {topic.name: len(topic.partitions) for topic in found if not topic.error_code}


def _tasks(rows: Any) -> list[Task]:
    return [(row.subtopology_id, index) for row in rows for index in row.partitions]


def _partitions_of_tasks(
    tasks: Sequence[Task], sources: Mapping[str, Sequence[str]], sizes: Mapping[str, int]
) -> list[Partition]:
    """Return the partitions that tasks read: of smaller topics the last tasks read none."""
    return [
        (topic, index)
        for name, index in tasks
        for topic in sources.get(name, ())
        if index < sizes.get(topic, 0)
    ]


def _partitions(assignment: Any) -> list[Partition]:
    return [
        (topic.topic_name, index)
        for topic in assignment.topic_partitions
        for index in topic.partitions
    ]


class ActivityReader:
    """Asks coordinators for the activity of groups, over one connection to each broker; a context
    manager. A broker that closes it is not asked again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._connections: dict[int, ClientConnection | None] = {}

    def read(self, name: str, node: int) -> Any:
        """Return the GroupActivityResponse of a group from its coordinator; None if that broker is
        not kafkawire, or older than this API."""
        from kafkawire.messages.group_activity import GroupActivityRequest

        try:
            if node not in self._connections:
                self._connections[node] = self._cluster.separate(node)
            connection = self._connections[node]
            if connection is None:
                return None
            answer = connection.request_own(GROUP_ACTIVITY, GroupActivityRequest(group_id=name))
        except ClientError:
            self._close(node)
            self._connections[node] = None
            return None
        return None if answer.error_code else answer

    def _close(self, node: int) -> None:
        connection = self._connections.get(node)
        if connection is not None:
            connection.close()

    def __enter__(self) -> ActivityReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in self._connections:
            self._close(node)


def assignment(data: bytes) -> list[Partition]:
    """Return the partitions in a consumer's assignment (ConsumerProtocolAssignment, any version:
    later ones only append fields); empty for other bytes."""
    found: list[Partition] = []
    try:
        (count,) = struct.unpack_from(">2xi", data, 0)
        at = 6
        for _ in range(count):
            topic, at = _string(data, at)
            (indexes,) = struct.unpack_from(">i", data, at)
            at += 4
            if not 0 <= indexes * 4 <= len(data) - at:
                return []
            found += [(topic, index) for index in struct.unpack_from(f">{indexes}i", data, at)]
            at += 4 * indexes
    except (struct.error, UnicodeDecodeError):
        return []
    return found


def subscription(data: bytes) -> list[str] | None:
    """Return the topics in a consumer's subscription (ConsumerProtocolSubscription, any version);
    None for other bytes."""
    topics: list[str] = []
    try:
        (count,) = struct.unpack_from(">2xi", data, 0)
        at = 6
        if not 0 <= count <= len(data) // 2:  # a topic takes at least two bytes
            return None
        for _ in range(count):
            topic, at = _string(data, at)
            topics.append(topic)
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


def _string(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    end = at + 2 + length
    if length < 0 or end > len(data):
        raise struct.error("a string does not fit")
    return data[at + 2 : end].decode("utf-8"), end
