"""Parsing of setting values, with errors that say what is allowed.

`parse` turns the text of one setting into its value or raises `ConfigError`, one sentence that
names the setting, the value and what is allowed. Also the list operations of
IncrementalAlterConfigs. Not here: the rows (`table.py`), settings that depend on each other and the
typed objects (`settings.py`, which re-exports this module).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from kafkawire.codec.configs.row import (
    DOUBLE_MAX,
    INT32_MAX,
    INT64_MAX,
    Config,
    ConfigType,
    Value,
)
from kafkawire.codec.configs.table import BROKER_CONFIGS, TOPIC_CONFIGS

_LIMITS = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-INT32_MAX - 1, INT32_MAX),
    ConfigType.LONG: (-INT64_MAX - 1, INT64_MAX),
}
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")  # what Java's parseLong takes; int() takes more
_USER = re.compile(r"(?!/|file:)([a-z][a-z0-9+.-]*:)?/*[^/]*@", re.IGNORECASE)  # not in a path
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")


class ConfigError(ValueError):
    """Invalid value of a setting: one sentence with name, value and allowed values."""

    def __init__(self, name: str, value: str | int | None, allowed: str) -> None:
        super().__init__(f"{name}: {allowed}" if value is None else f"{name}={value}: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


@lru_cache(4)
def address_limits(text: str) -> Mapping[str, int]:
    """Return the value of max.connections.per.ip.overrides by address in its shortest form.
    ConfigError unless it is a list of ADDRESS:COUNT."""
    limits: dict[str, int] = {}
    if not text:
        return limits
    from ipaddress import ip_address  # few brokers need it

    for item in filter(None, (item.strip() for item in text.split(","))):
        address, _, number = item.rpartition(":")
        try:
            limits[str(ip_address(address.strip("[] ")))] = _count(number)
        except ValueError:
            raise ConfigError(
                "max.connections.per.ip.overrides", text,
                f"it must be a list of ADDRESS:COUNT with literal addresses, which {item} is not",
            ) from None  # fmt: skip
    return limits


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def find(name: str, table: Mapping[str, Config]) -> Config:
    """Return the row of a setting in TOPIC_CONFIGS or BROKER_CONFIGS; ConfigError if unknown."""
    row = table.get(name)
    if row is not None:
        return row
    from difflib import get_close_matches  # only after a typing error

    close = get_close_matches(name, table, 1)
    hint = f", did you mean {close[0]}?" if close else ""
    raise ConfigError(name, None, f"unknown setting{hint}")


def describe_allowed(row: Config) -> str:
    """Allowed values of a setting, as text."""
    if row.type is ConfigType.LIST:
        if row.choices:
            return f"a list of {' and '.join(row.choices)}"
        return "* or a list of PARTITION:BROKER" if row.item_pattern else "a list"
    if row.choices:
        *most, last = (choice or "empty" for choice in row.choices)
        return f"{', '.join(most)} or {last}" if most else last
    if row.type is ConfigType.BOOLEAN:
        return "true or false"
    if row.type in (ConfigType.STRING, ConfigType.CLASS, ConfigType.PASSWORD):
        return "a text"
    kind = "a number" if row.type is ConfigType.DOUBLE else "a whole number"
    low, high = _bounds(row)
    if row.at_most is None and row.at_least is not None and row.type is not ConfigType.INT:
        words = f"{kind} of at least {low}"
    else:
        words = f"{kind} from {low} to {high}"
    return words if row.also is None else f"{words}, or {row.also}"


def _bounds(row: Config) -> tuple[float, float]:
    low, high = _LIMITS.get(row.type, (-DOUBLE_MAX, DOUBLE_MAX))
    return (
        low if row.at_least is None else row.at_least,
        high if row.at_most is None else row.at_most,
    )


def parse(name: str, text: str) -> Value:
    """Parse the value of a topic or broker setting; surrounding spaces are dropped, as in Kafka."""
    row = TOPIC_CONFIGS.get(name)
    return validate(row if row is not None else find(name, BROKER_CONFIGS), text)


def validate(row: Config, text: str) -> Value:
    """Parse `text` as a value of the type of `row`; ConfigError if it is not allowed."""
    if row.url and _USER.match(text.strip()):
        raise ConfigError(
            row.name,
            None,
            "there must be no user or password in the URL, which is logged",
        )
    value = _convert(row, text.strip())
    if value is None or not _is_permitted(row, value):
        raise ConfigError(row.name, text, f"it must be {describe_allowed(row)}")
    return value


def _convert(row: Config, text: str) -> Value:
    """Return the value, or None if the text is not of this type."""
    if row.type is ConfigType.BOOLEAN:
        return {"true": True, "false": False}.get(text.lower())
    if row.type is ConfigType.LIST:
        # An item twice is there once, as in Kafka's LogConfig.
        return list(dict.fromkeys(item.strip() for item in text.split(","))) if text else []
    if row.type is ConfigType.DOUBLE:
        return float(text) if _NUMBER.fullmatch(text) else None
    if row.type in _LIMITS:
        return int(text) if _WHOLE.fullmatch(text) else None
    if row.loose:
        return next((name for name in row.choices if _plain(name) == _plain(text)), text)
    return text


def _plain(text: str) -> str:
    return text.lower().replace("-", "").replace("_", "")


def _is_permitted(row: Config, value: Value) -> bool:
    if isinstance(value, bool):
        return not row.choices or str(value).lower() in row.choices
    if isinstance(value, (int, float)):
        low, high = _bounds(row)
        return low <= value <= high or value == row.also
    if isinstance(value, list):
        if row.choices:
            return set(value) <= set(row.choices)
        if not row.item_pattern:
            return all(value)
        # "*" only by itself, as Kafka's ThrottledReplicaListValidator has it.
        return value == ["*"] or all(re.fullmatch(row.item_pattern, item) for item in value)
    return not row.choices or value in row.choices


def whole_number(value: Value) -> int:
    """Return the value of a setting whose row says that it is a whole number."""
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def items_of(value: Value) -> list[str]:
    """Return the value of a setting whose row says that it is a list."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def text_of(value: Value) -> str | None:
    """Return a value as text, as DescribeConfigs shows it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list) else str(value)


def append_items(row: Config, current: str, text: str) -> str:
    """Return the list `current` with the missing items of `text` (IncrementalAlterConfigs
    APPEND)."""
    items = _list_items(row, current)
    return ",".join(items + [item for item in _list_items(row, text) if item not in items])


def subtract_items(row: Config, current: str, text: str) -> str:
    """Return the list `current` without the items of `text` (IncrementalAlterConfigs SUBTRACT)."""
    gone = _list_items(row, text)
    return ",".join(item for item in _list_items(row, current) if item not in gone)


def _list_items(row: Config, text: str) -> list[str]:
    if row.type is not ConfigType.LIST:
        raise ConfigError(row.name, text, "only lists can be appended to or subtracted from")
    return [item.strip() for item in text.split(",") if item.strip()]
