"""The settings of one group: whether it may have them, and its effective values.

A group without a setting of its own has the broker's. A value that was stored while the broker had
other bounds is moved to the nearest bound when it is read (Kafka: GroupConfig). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kafkawire.codec.configs.group_rows import (
    ASSIGNMENT_INTERVAL,
    GROUP_ROWS,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    bound_names,
    broker_name,
)
from kafkawire.codec.configs.offset_reset import OffsetReset, ResetKind, parse_offset_reset
from kafkawire.codec.configs.parse import ConfigError, validate, whole_number
from kafkawire.codec.configs.row import INT64_MAX, LIST, Config, Value
from kafkawire.codec.configs.share_rows import (
    AUTO_OFFSET_RESET,
    DEAD_LETTER_COPY,
    DEAD_LETTER_TOPIC,
    DEFAULT_RETRY_DELAY_MAX_MS,
    DELIVERY_COUNT_LIMIT,
    ISOLATION_LEVEL,
    MAX_RECORD_LOCKS,
    READ_COMMITTED,
    RECORD_LOCK_DURATION,
    RENEW_ENABLE,
    RETRY_DELAY,
    RETRY_DELAY_MAX,
    SHARE_ASSIGNMENT_INTERVAL,
    SHARE_GROUP_ROWS,
    SHARE_HEARTBEAT_INTERVAL,
    SHARE_SESSION_TIMEOUT,
)
from kafkawire.codec.configs.streams_rows import (
    INITIAL_DELAY,
    ODD_BOUNDS,
    RACK_TAGS,
    RECOVERY_LAG,
    STANDBY_REPLICAS,
    STREAMS_ASSIGNMENT_INTERVAL,
    STREAMS_GROUP_ROWS,
    STREAMS_HEARTBEAT_INTERVAL,
    STREAMS_SESSION_TIMEOUT,
    TASK_OFFSET_INTERVAL,
    WARMUP_REPLICAS,
)

GROUP_CONFIGS: dict[str, Config] = {
    row.name: row for row in (*GROUP_ROWS, *SHARE_GROUP_ROWS, *STREAMS_GROUP_ROWS)
}
"""Settings of groups by name."""
_NUMBERS = [row.name for row in GROUP_CONFIGS.values() if row.broker_name and row.type is not LIST]
_TIMEOUTS = (
    (SESSION_TIMEOUT, HEARTBEAT_INTERVAL),
    (SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL),
    (STREAMS_SESSION_TIMEOUT, STREAMS_HEARTBEAT_INTERVAL),
)
_LATEST = OffsetReset(ResetKind.LATEST)


class ConsumerGroupSettings(NamedTuple):
    """The effective settings of one group of KIP-848, in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


class ShareGroupSettings(NamedTuple):
    """The effective settings of one share group, in ms. `dead_letter_topic`: empty: it has none;
    `retry_delay_ms`: 0: a released record is available at once."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    record_lock_duration_ms: int
    delivery_count_limit: int
    max_record_locks: int
    offset_reset: OffsetReset = _LATEST
    read_committed: bool = False
    renew_enabled: bool = True
    dead_letter_topic: str = ""
    copy_dead_letters: bool = False
    retry_delay_ms: int = 0
    retry_delay_max_ms: int = DEFAULT_RETRY_DELAY_MAX_MS


class StreamsGroupSettings(NamedTuple):
    """The effective settings of one streams group, in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    standby_replicas: int
    initial_rebalance_delay_ms: int
    task_offset_interval_ms: int
    warmup_replicas: int
    acceptable_recovery_lag: int
    rack_tags: Sequence[str]


BrokerNumber = Callable[[str], int]
"""Returns the broker's value of a setting that is a whole number."""


def bounds_of(name: str) -> tuple[str | None, str | None]:
    """Return the broker's settings that bound a setting of groups; None: there is none."""
    return ODD_BOUNDS.get(name) or bound_names(name)


def _limits(name: str, broker: BrokerNumber) -> tuple[int, int]:
    """Return the least and the greatest value of a setting of groups."""
    least, greatest = bounds_of(name)
    return (
        int(GROUP_CONFIGS[name].at_least or 0) if least is None else broker(least),
        INT64_MAX if greatest is None else broker(greatest),
    )


def consumer_group_settings(
    overrides: Mapping[str, str], broker: BrokerNumber
) -> ConsumerGroupSettings:
    """Return the effective settings of a group with these settings of its own. Hot."""
    names = (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNMENT_INTERVAL)
    return ConsumerGroupSettings(*(_effective(name, overrides, broker) for name in names))


def share_group_settings(overrides: Mapping[str, str], broker: BrokerNumber) -> ShareGroupSettings:
    """Return the effective settings of a share group with these settings of its own. Hot."""
    reset = overrides.get(AUTO_OFFSET_RESET)
    return ShareGroupSettings(
        session_timeout_ms=_effective(SHARE_SESSION_TIMEOUT, overrides, broker),
        heartbeat_interval_ms=_effective(SHARE_HEARTBEAT_INTERVAL, overrides, broker),
        assignment_interval_ms=_effective(SHARE_ASSIGNMENT_INTERVAL, overrides, broker),
        record_lock_duration_ms=_effective(RECORD_LOCK_DURATION, overrides, broker),
        delivery_count_limit=_effective(DELIVERY_COUNT_LIMIT, overrides, broker),
        max_record_locks=_effective(MAX_RECORD_LOCKS, overrides, broker),
        offset_reset=_LATEST if reset is None else parse_offset_reset(reset.strip()),
        read_committed=overrides.get(ISOLATION_LEVEL, "").strip() == READ_COMMITTED,
        renew_enabled=overrides.get(RENEW_ENABLE, "true").strip().lower() == "true",
        dead_letter_topic=overrides.get(DEAD_LETTER_TOPIC, "").strip(),
        copy_dead_letters=overrides.get(DEAD_LETTER_COPY, "").strip().lower() == "true",
        retry_delay_ms=int(overrides.get(RETRY_DELAY, 0)),
        retry_delay_max_ms=int(overrides.get(RETRY_DELAY_MAX, DEFAULT_RETRY_DELAY_MAX_MS)),
    )


def streams_group_settings(
    overrides: Mapping[str, str], broker: BrokerNumber, rack_tags: Sequence[str]
) -> StreamsGroupSettings:
    """Return the effective settings of a streams group with these settings of its own. `rack_tags`:
    those of the broker. Hot."""
    tags = overrides.get(RACK_TAGS)
    return StreamsGroupSettings(
        session_timeout_ms=_effective(STREAMS_SESSION_TIMEOUT, overrides, broker),
        heartbeat_interval_ms=_effective(STREAMS_HEARTBEAT_INTERVAL, overrides, broker),
        assignment_interval_ms=_effective(STREAMS_ASSIGNMENT_INTERVAL, overrides, broker),
        standby_replicas=_effective(STANDBY_REPLICAS, overrides, broker),
        initial_rebalance_delay_ms=_effective(INITIAL_DELAY, overrides, broker),
        task_offset_interval_ms=_effective(TASK_OFFSET_INTERVAL, overrides, broker),
        warmup_replicas=_effective(WARMUP_REPLICAS, overrides, broker),
        acceptable_recovery_lag=_effective(RECOVERY_LAG, overrides, broker),
        rack_tags=rack_tags if tags is None else _split(tags),
    )


def _split(tags: str) -> list[str]:
    return [tag.strip() for tag in tags.split(",")] if tags.strip() else []


def _effective(name: str, overrides: Mapping[str, str], broker: BrokerNumber) -> int:
    text = overrides.get(name)
    if text is None:
        return broker(broker_name(name))
    least, greatest = _limits(name, broker)
    return min(max(int(text), least), greatest)  # a number: checked before it was stored


def list_beyond(overrides: Mapping[str, str], broker: BrokerNumber) -> list[tuple[str, int]]:
    """Return the stored settings of a group that are beyond the broker's bounds, with their
    effective values."""
    found = []
    for name in sorted(overrides.keys() & set(_NUMBERS)):
        value = _effective(name, overrides, broker)
        if int(overrides[name]) != value:
            found.append((name, value))
    return found


def check_group(overrides: Mapping[str, str], broker: BrokerNumber) -> None:
    """Raise ConfigError unless a group may have these settings, whose names are known."""
    values: dict[str, int] = {}
    for name, text in overrides.items():
        row = GROUP_CONFIGS[name]
        if name not in _NUMBERS:
            _check_text(name, text, validate(row, text))
            continue
        least, greatest = _limits(name, broker)
        value = values[name] = whole_number(validate(row, text))
        if not least <= value <= greatest:
            bounds = " and ".join(filter(None, bounds_of(name)))
            why = f"it must be in the range {least} to {greatest} inclusive, of {bounds}"
            raise ConfigError(name, value, why)
    for timeout, heartbeat in _TIMEOUTS:
        if not values.keys() & {timeout, heartbeat}:
            continue
        session = values.get(timeout, broker(broker_name(timeout)))
        interval = values.get(heartbeat, broker(broker_name(heartbeat)))
        if session <= interval:
            why = f"it must be greater than {heartbeat}, which is {interval}"
            raise ConfigError(timeout, session, why)


def _check_text(name: str, text: str, value: Value) -> None:
    """Raise ConfigError unless a setting that is no number may have this value."""
    if name == AUTO_OFFSET_RESET:
        parse_offset_reset(str(value))
    elif name == DEAD_LETTER_TOPIC and str(value).startswith("__"):
        raise ConfigError(name, str(value), "it must not begin with two underscores")
    elif name == RACK_TAGS and len(set(tags := _split(text))) < len(tags):
        raise ConfigError(name, text, "it must not contain duplicate tag keys")


def check_group_defaults(values: Mapping[str, Value]) -> None:
    """Raise ConfigError unless the broker's settings about groups fit together, as in Kafka
    (GroupCoordinatorConfig). `values`: the broker's settings by name."""
    for name in _NUMBERS:
        own, (least, greatest) = broker_name(name), bounds_of(name)
        for low, high in ((least, greatest), (least, own), (own, greatest)):
            if low is not None and high is not None:
                check_not_above(values, low, high)
    for timeout, heartbeat in _TIMEOUTS:
        session, interval = broker_name(timeout), broker_name(heartbeat)
        if whole_number(values[interval]) >= whole_number(values[session]):
            why = f"it must be less than {session}, which is {values[session]}"
            raise ConfigError(interval, whole_number(values[interval]), why)
    for kind in ("consumer", "share", "streams"):
        assignors = f"group.{kind}.assignors"
        if not values[assignors]:
            raise ConfigError(assignors, "", "it must name an assignor")
    # Otherwise the members of one group could not all fetch (Kafka: ShareGroupConfig).
    check_not_above(values, "group.share.max.size", "group.share.max.share.sessions")


def check_not_above(values: Mapping[str, Value], low: str, high: str) -> None:
    """Raise ConfigError if the number `low` is greater than `high`."""
    least, most = whole_number(values[low]), whole_number(values[high])
    if least > most:
        raise ConfigError(low, least, f"it must not be above {high}, which is {most}")
