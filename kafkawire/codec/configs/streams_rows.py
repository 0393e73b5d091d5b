"""The rows of the table of settings that are about streams groups (KIP-1071); data only.

The names of settings of groups and their defaults and bounds follow the rule of `group_rows`, but
for the number of standby replicas, which has only a greatest value with a name of its own, and the
delay of the first assignment, which has no bounds.
"""

from __future__ import annotations

from kafkawire.codec.configs.group_rows import of_broker, of_group
from kafkawire.codec.configs.row import INT32_MAX, LIST, Config, I, S

STICKY = "sticky"

STREAMS_SESSION_TIMEOUT = "streams.session.timeout.ms"
STREAMS_HEARTBEAT_INTERVAL = "streams.heartbeat.interval.ms"
STREAMS_ASSIGNMENT_INTERVAL = "streams.assignment.interval.ms"
STANDBY_REPLICAS = "streams.num.standby.replicas"
INITIAL_DELAY = "streams.initial.rebalance.delay.ms"
ASSIGNOR_NAME = "streams.assignor.name"
MAX_STANDBY_REPLICAS = "group.streams.max.standby.replicas"

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

STREAMS_GROUP_ROWS = (
    *_BOUNDED_ROWS,
    _STANDBY_ROW,
    _DELAY_ROW,
    Config(ASSIGNOR_NAME, S, STICKY, "The assignor of a streams group (KIP-1357).",
           choices=(STICKY,), dynamic=True),
)
"""Settings of single streams groups: of the resource type GROUP."""

_BOUNDS = {STREAMS_SESSION_TIMEOUT: (45_000, 60_000), STREAMS_HEARTBEAT_INTERVAL: (5_000, 15_000),
           STREAMS_ASSIGNMENT_INTERVAL: (0, 15_000)}

STREAMS_BROKER_ROWS = (
    *(side for row in _BOUNDED_ROWS for side in of_broker(row, *_BOUNDS[row.name])),
    *(Config(row.broker_name, I, row.default, f"{row.about} Groups can have their own.",
             at_least=row.at_least) for row in (_STANDBY_ROW, _DELAY_ROW)),
    Config(MAX_STANDBY_REPLICAS, I, 2, f"The greatest `{STANDBY_REPLICAS}` that a group can have.",
           at_least=0),
    Config("group.streams.max.size", I, INT32_MAX, "The most members of one streams group.",
           at_least=1),
    Config("group.streams.assignors", LIST, [STICKY], "The assignors of streams groups.",
           choices=(STICKY,)),
)
# fmt: on
