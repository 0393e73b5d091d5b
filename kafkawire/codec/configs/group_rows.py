"""The rows of the table of settings that are about groups of KIP-848; data only. Those of share
and streams groups are in `share_rows` and `streams_rows`.

The settings of single groups have the names that Kafka's GroupConfig gives them. `X` of a group has
its default in the broker's setting `group.X`; `group.KIND.min.REST` and `group.KIND.max.REST`
bound it.
"""

from __future__ import annotations

from kafkawire.codec.configs.row import INT32_MAX, LIST, Config, I, S

UNIFORM, RANGE = "uniform", "range"
BIDIRECTIONAL, UPGRADE, DOWNGRADE, DISABLED = "bidirectional", "upgrade", "downgrade", "disabled"

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"


def broker_name(name: str) -> str:
    """Return the broker's setting that is the default of a setting of groups."""
    return f"group.{name}"


def bound_names(name: str) -> tuple[str, str]:
    """Return the broker's settings that are the least and the greatest value of a setting of
    groups."""
    kind, _, rest = name.partition(".")
    return f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"


def of_group(name: str, default: int, about: str, at_least: int) -> Config:
    return Config(
        name, I, default, about, at_least=at_least, dynamic=True, broker_name=broker_name(name)
    )


# fmt: off
GROUP_ROWS = (
    of_group(SESSION_TIMEOUT, 45_000,
              "A member of a consumer group that sends no heartbeat for this time is removed.", 1),
    of_group(HEARTBEAT_INTERVAL, 5_000,
              "The interval of heartbeats that the members of a consumer group are given.", 1),
    of_group(ASSIGNMENT_INTERVAL, 1_000,
              "The least time between two assignments of a consumer group (KIP-1263).", 0),
)
"""Settings of single groups: of the resource type GROUP."""

BOUNDS = {SESSION_TIMEOUT: (45_000, 60_000), HEARTBEAT_INTERVAL: (5_000, 15_000),
          ASSIGNMENT_INTERVAL: (0, 15_000)}


def of_broker(row: Config, low: int, high: int) -> tuple[Config, Config, Config]:
    """Return the broker's default of a setting of groups, and the bounds of it, which are `low` and
    `high` by default."""
    least, greatest = bound_names(row.name)
    # Of these only the assignment intervals are dynamic (GroupCoordinatorConfig.
    # RECONFIGURABLE_CONFIGS).
    dynamic = row.name.endswith(".assignment.interval.ms")
    return (
        Config(row.broker_name, I, row.default, f"{row.about} Groups can have their own.",
               at_least=row.at_least, dynamic=dynamic),
        Config(least, I, low, f"The least `{row.name}` that a group can have.",
               at_least=row.at_least),
        Config(greatest, I, high, f"The greatest `{row.name}` that a group can have.",
               at_least=row.at_least),
    )


GROUP_BROKER_ROWS = (
    *(side for row in GROUP_ROWS for side in of_broker(row, *BOUNDS[row.name])),
    Config("group.consumer.max.size", I, INT32_MAX, "The most members of one consumer group.",
           at_least=1),
    Config("group.consumer.assignors", LIST, [UNIFORM, RANGE],
           "The assignors that members of consumer groups can name; the first one is used for "
           "groups whose members name none.", choices=(UNIFORM, RANGE)),
    Config("group.consumer.migration.policy", S, BIDIRECTIONAL,
           "Which groups with members change their protocol online: classic ones that a member of "
           "the consumer protocol joins (upgrade), consumer groups whose last such member leaves "
           "(downgrade), both, or none.",
           choices=(BIDIRECTIONAL, UPGRADE, DOWNGRADE, DISABLED), loose=True),
    Config("group.consumer.regex.refresh.interval.ms", I, 600_000,
           "How often the patterns that consumer groups subscribe to are matched with the names of "
           "topics although no topic was created.", at_least=10_000),
)
# fmt: on
