"""The rows of the table of settings that are about share groups (KIP-932, KIP-1191); data only.

The names of settings of groups and their defaults and bounds follow the rule of `group_rows`; those
of dead letters, and the last five of share groups, have no default in the broker's settings.
"""

from __future__ import annotations

from dataclasses import replace

from kafkawire.codec.configs.group_rows import of_broker, of_group
from kafkawire.codec.configs.row import LIST, MIB, NO, B, Config, ConfigType, I, S

SIMPLE = "simple"
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"

SHARE_SESSION_TIMEOUT = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL = "share.heartbeat.interval.ms"
SHARE_ASSIGNMENT_INTERVAL = "share.assignment.interval.ms"
RECORD_LOCK_DURATION = "share.record.lock.duration.ms"
DELIVERY_COUNT_LIMIT = "share.delivery.count.limit"
MAX_RECORD_LOCKS = "share.partition.max.record.locks"
AUTO_OFFSET_RESET = "share.auto.offset.reset"
ISOLATION_LEVEL = "share.isolation.level"
RENEW_ENABLE = "share.renew.acknowledge.enable"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
RETRY_DELAY = "share.retry.delay.ms"
RETRY_DELAY_MAX = "share.retry.delay.max.ms"
DEFAULT_RETRY_DELAY_MAX_MS = 300_000
DEAD_LETTER_COPY = "errors.deadletterqueue.copy.record.enable"

# fmt: off
_BOUNDED_ROWS = (
    of_group(SHARE_SESSION_TIMEOUT, 45_000,
             "A member of a share group that sends no heartbeat for this time is removed.", 1),
    of_group(SHARE_HEARTBEAT_INTERVAL, 5_000,
             "The interval of heartbeats that the members of a share group are given.", 1),
    of_group(SHARE_ASSIGNMENT_INTERVAL, 1_000,
             "The least time between two assignments of a share group (KIP-1263).", 0),
    of_group(RECORD_LOCK_DURATION, 30_000,
             "A record that a member of a share group has acquired and not acknowledged within "
             "this time is delivered again.", 1_000),
    of_group(DELIVERY_COUNT_LIMIT, 5,
             "The number of deliveries after which a record of a share group is archived.", 2),
    of_group(MAX_RECORD_LOCKS, 2_000,
             "The most offsets of one partition that are in flight in a share group.", 100),
)

SHARE_GROUP_ROWS = (
    *_BOUNDED_ROWS,
    Config(AUTO_OFFSET_RESET, S, "latest",
           "Where a share group begins in a partition that it has not read before: `latest`, "
           "`earliest`, or `by_duration:` and a duration in ISO 8601, like `by_duration:PT1H`.",
           dynamic=True),
    Config(ISOLATION_LEVEL, S, READ_UNCOMMITTED,
           "Whether a share group gets records of transactions only once they are committed.",
           choices=(READ_COMMITTED, READ_UNCOMMITTED), dynamic=True),
    Config(RENEW_ENABLE, B, True,
           "Whether members of a share group may renew the locks of records (KIP-1222).",
           dynamic=True),
    Config(RETRY_DELAY, I, 0,
           "How long a record that a member has released is not delivered again: twice as long "
           "after each further delivery. 0: not at all. Kafka does not have this setting.",
           at_least=0, dynamic=True),
    Config(RETRY_DELAY_MAX, I, DEFAULT_RETRY_DELAY_MAX_MS,
           "The longest delay of `share.retry.delay.ms`. Kafka does not have this setting.",
           at_least=0, dynamic=True),
    Config(DEAD_LETTER_TOPIC, S, "",
           "The topic for the dead letters of a share group (KIP-1191); empty: it has none.",
           dynamic=True),
    Config(DEAD_LETTER_COPY, B, False,
           "Whether dead letters have the key and value of their records.", dynamic=True),
)
"""Settings of single share groups: of the resource type GROUP."""

_BOUNDS = {SHARE_SESSION_TIMEOUT: (45_000, 60_000), SHARE_HEARTBEAT_INTERVAL: (5_000, 15_000),
           SHARE_ASSIGNMENT_INTERVAL: (0, 15_000), RECORD_LOCK_DURATION: (15_000, 60_000),
           DELIVERY_COUNT_LIMIT: (2, 10), MAX_RECORD_LOCKS: (100, 4_000)}
_RANGES = {
    RECORD_LOCK_DURATION: ((1_000, 3_600_000), (1_000, 30_000), (30_000, 3_600_000)),
    DELIVERY_COUNT_LIMIT: ((2, 10), (2, 5), (5, 25)),
    MAX_RECORD_LOCKS: ((100, 10_000), (100, 2_000), (2_000, 10_000)),
}
"""Ranges of the broker's default, and of its least and greatest value for groups."""


def _of_broker(row: Config) -> tuple[Config, ...]:
    rows = of_broker(row, *_BOUNDS[row.name])
    ranges = _RANGES.get(row.name)
    if ranges is None:
        return rows
    return tuple(
        replace(side, at_least=low, at_most=high)
        for side, (low, high) in zip(rows, ranges, strict=True)
    )


SHARE_BROKER_ROWS = (
    *(side for row in _BOUNDED_ROWS for side in _of_broker(row)),
    Config("group.share.max.size", I, 200, "The most members of one share group.",
           at_least=1, at_most=1_000),
    Config("group.share.assignors", LIST, [SIMPLE], "The assignor of share groups.",
           choices=(SIMPLE,)),
    Config("group.share.max.share.sessions", I, 2_000,
           "The most share sessions of this broker: one for each member of a share group that "
           "fetches from it.", at_least=1),
    Config("group.share.initialize.retry.interval.ms", I, 30_000,
           "When a share group tries again to initialize the state of a partition.", at_least=1),
    Config("errors.deadletterqueue.auto.create.topics.enable", B, False,
           "Whether the topic for the dead letters of a share group is created.", dynamic=True),
    Config("errors.deadletterqueue.topic.name.prefix", S, "dlq.",
           "What the names of topics for dead letters begin with.", dynamic=True),
    Config("share.coordinator.state.topic.num.partitions", I, 50,
           "Partitions of __share_group_state; not to be changed once it is there. Each is a log "
           "with a coordinator in memory.", at_least=1, at_most=10_000),
    Config("share.coordinator.state.topic.replication.factor", ConfigType.SHORT, 1,
           "Replicas of __share_group_state: at most the number of brokers (Kafka's default is 3). "
           "The setting durability decides how many copies there are.", at_least=1),
    Config("share.coordinator.state.topic.segment.bytes", I, 100 * MIB,
           "segment.bytes of __share_group_state, never below the least that topics may have.",
           at_least=1, effect=NO),
    Config("share.coordinator.snapshot.update.records.per.snapshot", I, 500,
           "After so many changes of a share partition its whole state is written.",
           at_least=0, at_most=500),
    Config("share.coordinator.state.topic.prune.interval.ms", I, 300_000,
           "How often what is not needed any more is deleted from __share_group_state.",
           at_least=1),
    Config("share.coordinator.cold.partition.snapshot.interval.ms", I, 300_000,
           "When the state of a share partition that does not change is written again, so that "
           "what is before it in __share_group_state can be deleted.", at_least=1),
)
# fmt: on
