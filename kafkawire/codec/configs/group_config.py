"""The settings of one group: whether it may have them, and its effective values.

A group without a setting of its own has the broker's. A value that was stored while the broker had
other bounds is moved to the nearest bound when it is read (Kafka: GroupConfig). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kafkawire.codec.configs.group_rows import (
    ASSIGNMENT_INTERVAL,
    GROUP_ROWS,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    bound_names,
    broker_name,
)
from kafkawire.codec.configs.parse import ConfigError, validate, whole_number
from kafkawire.codec.configs.row import Config, Value

GROUP_CONFIGS: dict[str, Config] = {row.name: row for row in GROUP_ROWS}
"""Settings of groups by name."""


class ConsumerGroupSettings(NamedTuple):
    """The effective settings of one group of KIP-848, in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


BrokerNumber = Callable[[str], int]
"""Returns the broker's value of a setting that is a whole number."""


class _Limits(NamedTuple):
    """The broker's value of a setting of groups, and its bounds."""

    default: int
    least: int
    greatest: int


def _limits(name: str, broker: BrokerNumber) -> _Limits:
    return _Limits(*map(broker, (broker_name(name), *bound_names(name))))


def consumer_group_settings(
    overrides: Mapping[str, str], broker: BrokerNumber
) -> ConsumerGroupSettings:
    """Return the effective settings of a group with these settings of its own. Hot."""
    names = (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNMENT_INTERVAL)
    return ConsumerGroupSettings(*(_effective(name, overrides, broker) for name in names))


def _effective(name: str, overrides: Mapping[str, str], broker: BrokerNumber) -> int:
    text = overrides.get(name)
    if text is None:
        return broker(broker_name(name))
    _, least, greatest = _limits(name, broker)
    return min(max(int(text), least), greatest)  # a number: checked before it was stored


def list_beyond(overrides: Mapping[str, str], broker: BrokerNumber) -> list[tuple[str, int]]:
    """Return the stored settings of a group that are beyond the broker's bounds, with their
    effective values."""
    found = []
    for name in sorted(GROUP_CONFIGS.keys() & overrides.keys()):
        value = _effective(name, overrides, broker)
        if int(overrides[name]) != value:
            found.append((name, value))
    return found


def check_group(overrides: Mapping[str, str], broker: BrokerNumber) -> None:
    """Raise ConfigError unless a group may have these settings, whose names are known."""
    values: dict[str, int] = {}
    for name, text in overrides.items():
        _, least, greatest = _limits(name, broker)
        value = values[name] = whole_number(validate(GROUP_CONFIGS[name], text))
        if not least <= value <= greatest:
            low, high = bound_names(name)
            why = f"it must be in the range {least} to {greatest} inclusive, of {low} and {high}"
            raise ConfigError(name, value, why)
    if values.keys() & {SESSION_TIMEOUT, HEARTBEAT_INTERVAL}:
        session = values.get(SESSION_TIMEOUT, broker(broker_name(SESSION_TIMEOUT)))
        interval = values.get(HEARTBEAT_INTERVAL, broker(broker_name(HEARTBEAT_INTERVAL)))
        if session <= interval:
            why = f"it must be greater than {HEARTBEAT_INTERVAL}, which is {interval}"
            raise ConfigError(SESSION_TIMEOUT, session, why)


def check_group_defaults(values: Mapping[str, Value]) -> None:
    """Raise ConfigError unless the broker's settings about groups fit together, as in Kafka
    (GroupCoordinatorConfig). `values`: the broker's settings by name."""
    for name in GROUP_CONFIGS:
        own, (least, greatest) = broker_name(name), bound_names(name)
        for low, high in ((least, greatest), (least, own), (own, greatest)):
            check_not_above(values, low, high)
    session, interval = broker_name(SESSION_TIMEOUT), broker_name(HEARTBEAT_INTERVAL)
    if whole_number(values[interval]) >= whole_number(values[session]):
        why = f"it must be less than {session}, which is {values[session]}"
        raise ConfigError(interval, whole_number(values[interval]), why)
    if not values["group.consumer.assignors"]:
        raise ConfigError("group.consumer.assignors", "", "it must name an assignor")


def check_not_above(values: Mapping[str, Value], low: str, high: str) -> None:
    """Raise ConfigError if the number `low` is greater than `high`."""
    least, most = whole_number(values[low]), whole_number(values[high])
    if least > most:
        raise ConfigError(low, least, f"it must not be above {high}, which is {most}")
