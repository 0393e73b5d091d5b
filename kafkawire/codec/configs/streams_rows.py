"""The rows of the table of settings that are about streams groups (KIP-1071); data only.

The names of settings of groups and their defaults and bounds follow the rule of `group_rows`, but
for those of `ODD_BOUNDS`. In Kafka 4.4 the three settings of warm-up tasks are internal: clients
get the lag and the interval, but no task is warmed up (see kafkawire.groups.streams.refine).
"""

from __future__ import annotations

from kafkawire.codec.configs.group_rows import broker_name, of_broker, of_group
from kafkawire.codec.configs.row import INT32_MAX, LIST, Config, I, L, S

STICKY = "sticky"

STREAMS_SESSION_TIMEOUT = "streams.session.timeout.ms"
STREAMS_HEARTBEAT_INTERVAL = "streams.heartbeat.interval.ms"
STREAMS_ASSIGNMENT_INTERVAL = "streams.assignment.interval.ms"
STANDBY_REPLICAS = "streams.num.standby.replicas"
INITIAL_DELAY = "streams.initial.rebalance.delay.ms"
ASSIGNOR_NAME = "streams.assignor.name"
TASK_OFFSET_INTERVAL = "streams.task.offset.interval.ms"
WARMUP_REPLICAS = "streams.num.warmup.replicas"
RECOVERY_LAG = "streams.acceptable.recovery.lag"
RACK_TAGS = "streams.rack.aware.assignment.tags"
MAX_STANDBY_REPLICAS = "group.streams.max.standby.replicas"
MAX_WARMUP_REPLICAS = "group.streams.max.warmup.replicas"
MIN_TASK_OFFSET_INTERVAL = "group.streams.min.task.offset.interval.ms"

ODD_BOUNDS: dict[str, tuple[str | None, str | None]] = {
    STANDBY_REPLICAS: (None, MAX_STANDBY_REPLICAS),
    WARMUP_REPLICAS: (None, MAX_WARMUP_REPLICAS),
    TASK_OFFSET_INTERVAL: (MIN_TASK_OFFSET_INTERVAL, None),
    INITIAL_DELAY: (None, None),
    RECOVERY_LAG: (None, None),
    RACK_TAGS: (None, None),
}
"""The broker's settings that bound a setting of groups from below and above; None: there is none.
"""

# fmt: off
_BOUNDED_ROWS = (
    of_group(STREAMS_SESSION_TIMEOUT, 45_000,
             "A member of a streams group that sends no heartbeat for this time is removed.", 1),
    of_group(STREAMS_HEARTBEAT_INTERVAL, 5_000,
             "The interval of heartbeats that the members of a streams group are given.", 1),
    of_group(STREAMS_ASSIGNMENT_INTERVAL, 1_000,
             "The least time between two assignments of a streams group (KIP-1263).", 0),
)
_STANDBY_ROW = of_group(STANDBY_REPLICAS, 0, "The number of standby copies of each task with state "
                        "in a streams group.", 0)
_DELAY_ROW = of_group(INITIAL_DELAY, 3_000,
                      "How long a streams group without members waits for more members after the "
                      "first one has joined, before it assigns tasks.", 0)
_OFFSET_INTERVAL_ROW = of_group(TASK_OFFSET_INTERVAL, 60_000,
                                "How often members of a streams group report how far their copies "
                                "of tasks are.", 1)
_WARMUP_ROW = of_group(WARMUP_REPLICAS, 2, "The most tasks of a streams group whose state is "
                       "restored by their next owners while their present ones still run them; "
                       "without this, tasks move immediately.", 0)
_LAG_ROW = Config(RECOVERY_LAG, L, 10_000, "The most records that the state of a task may lack at "
                  "the next owner when the task moves to it.", at_least=0, dynamic=True,
                  broker_name=broker_name(RECOVERY_LAG))
_TAGS_ROW = Config(RACK_TAGS, LIST, [], "The keys of client tags that members of a streams group "
                   "must have. The assignor does not consider them, as in Kafka 4.4.", dynamic=True,
                   broker_name=broker_name(RACK_TAGS))
_UNBOUNDED_ROWS = (_STANDBY_ROW, _DELAY_ROW, _OFFSET_INTERVAL_ROW, _WARMUP_ROW, _LAG_ROW, _TAGS_ROW)

STREAMS_GROUP_ROWS = (
    *_BOUNDED_ROWS,
    *_UNBOUNDED_ROWS,
    Config(ASSIGNOR_NAME, S, STICKY, "The assignor of a streams group (KIP-1357).",
           choices=(STICKY,), dynamic=True),
)
"""Settings of single streams groups: of the resource type GROUP."""

_BOUNDS = {STREAMS_SESSION_TIMEOUT: (45_000, 60_000), STREAMS_HEARTBEAT_INTERVAL: (5_000, 15_000),
           STREAMS_ASSIGNMENT_INTERVAL: (0, 15_000)}

STREAMS_BROKER_ROWS = (
    *(side for row in _BOUNDED_ROWS for side in of_broker(row, *_BOUNDS[row.name])),
    *(Config(row.broker_name, row.type, row.default, f"{row.about} Groups can have their own.",
             at_least=row.at_least) for row in _UNBOUNDED_ROWS),
    Config(MAX_STANDBY_REPLICAS, I, 2, f"The greatest `{STANDBY_REPLICAS}` that a group can have.",
           at_least=0),
    Config(MAX_WARMUP_REPLICAS, I, 20, f"The greatest `{WARMUP_REPLICAS}` that a group can have.",
           at_least=0),
    Config(MIN_TASK_OFFSET_INTERVAL, I, 15_000, f"The least `{TASK_OFFSET_INTERVAL}` that a group "
           "can have.", at_least=1),
    Config("group.streams.max.size", I, INT32_MAX, "The most members of one streams group.",
           at_least=1),
    Config("group.streams.assignors", LIST, [STICKY], "The assignors of streams groups.",
           choices=(STICKY,)),
)
# fmt: on
