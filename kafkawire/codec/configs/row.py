"""The class of a row in the table of settings.

Used by the modules with rows (`table.py`, `tier_rows.py`) and by those that
read them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum, IntEnum

Value = bool | int | float | str | list[str] | None

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DOUBLE_MAX = sys.float_info.max
MIB = 1 << 20
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class ConfigType(IntEnum):
    """Types as numbered by DescribeConfigs v3+ (`DescribeConfigsResponse.ConfigType`)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Scope(Enum):
    """Scope of a setting. BOTH: on a topic, with its default on the broker (`broker_name`)."""

    TOPIC = "topic"
    BROKER = "broker"
    BOTH = "both"


class Effect(Enum):
    """Effect of a setting in this broker."""

    FULL = "yes"
    NONE = "no effect"


@dataclass(frozen=True, slots=True)
class Config:
    """One setting. `at_least`/`at_most` bound numbers, `also` is one more number allowed."""

    name: str
    type: ConfigType
    default: Value
    about: str
    scope: Scope = Scope.BROKER
    at_least: float | None = None
    at_most: float | None = None
    also: int | None = None
    choices: tuple[str, ...] = ()
    loose: bool = False  # a choice is known whatever its case, and without its _ and -
    item_pattern: str = ""  # what each item of a list looks like, as a regular expression
    dynamic: bool = False  # may be altered while the broker runs, or of an existing topic
    broker_name: str = ""
    units: tuple[tuple[str, int, int | None], ...] = ()
    # other broker names of the same setting: (name, milliseconds in one, default)
    effect: Effect = Effect.FULL
    of_topic: bool = False  # a broker setting that is only the default of a topic setting
    url: bool = False  # a URL without a user or password

    @property
    def attribute(self) -> str:
        """Name as a Python attribute: `node.id` is `node_id`."""
        return self.name.replace(".", "_")


B, S, I, L, D, LIST = (  # noqa: E741 - one letter keeps a row of the table on one line
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)
NO = Effect.NONE


def of_topic(
    name: str,
    kind: ConfigType,
    default: Value,
    broker_name: str,
    about: str,
    at_least: float | None = None,
    at_most: float | None = None,
    also: int | None = None,
    choices: tuple[str, ...] = (),
    item_pattern: str = "",
    units: tuple[tuple[str, int, int | None], ...] = (),
    effect: Effect = Effect.FULL,
    loose: bool = False,
    dynamic: bool = True,
) -> Config:
    """A setting of topics; its default is the broker's setting `broker_name`, if it has one.
    `dynamic` False: it is fixed when the topic is created."""
    scope = Scope.BOTH if broker_name else Scope.TOPIC
    return Config(
        name, kind, default, about, scope, at_least, at_most, also, choices, loose, item_pattern,
        dynamic, broker_name, units, effect,
    )  # fmt: skip
