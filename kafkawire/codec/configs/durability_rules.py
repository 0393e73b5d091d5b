"""Rules of the setting `durability` of topics and brokers.

The durability of a topic is fixed when it is created. `durability=s3` and `durability=replicated`
need a remote tier, and segments that are uploaded to it: log objects, and journals of which
followers have copies, are deleted only when their records are in segments there. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.codec.configs.parse import ConfigError
from kafkawire.codec.configs.row import Value
from kafkawire.codec.configs.tier_rules import COPY_DISABLE, ENABLE

DURABILITY = "durability"
FLUSH, COMMIT = "flush", "commit"
LOCAL = "local"
S3 = "s3"
REPLICATED = "replicated"
BEYOND_FOLDER = frozenset({S3, REPLICATED})
"""The durabilities whose acknowledged records are not only in one data folder."""


def new_topic_durability(overrides: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, str]:
    """Return the override that a new topic gets from the broker's default; empty where the topic
    has its own, or the default is `local`, which is that of topics without the override."""
    default = broker.get(DURABILITY, LOCAL).strip()
    return {} if DURABILITY in overrides or default == LOCAL else {DURABILITY: default}


def check_durability(
    values: Mapping[str, Value], broker: Mapping[str, str], has_tier: bool, before: str | None
) -> None:
    """Raise ConfigError unless a topic may have these values (by topic name) at a broker with these
    settings; `before`: the durability of an existing topic, None for a new one."""
    wanted = str(values[DURABILITY])
    if before is not None and wanted != before:
        raise ConfigError(
            DURABILITY,
            wanted,
            f"the durability of a topic is fixed when it is created, and this one has {before}; "
            f"create another topic with {DURABILITY}={wanted} and copy the records",
        )
    if wanted not in BEYOND_FOLDER:
        return
    if before is None and not has_tier:
        raise _needs_tier(wanted)
    if before is None and wanted == REPLICATED:
        _check_flush(broker.get(FLUSH, COMMIT).strip())
    if has_tier and (not values[ENABLE] or values[COPY_DISABLE]):
        name, value = (COPY_DISABLE, "true") if values[ENABLE] else (ENABLE, "false")
        raise ConfigError(
            name,
            value,
            f"a topic with {DURABILITY}={wanted} must be copied to the remote tier, since its "
            f"{'log objects' if wanted == S3 else 'journals'} are deleted only after that",
        )


def check_broker_durability(values: Mapping[str, Value], has_tier: bool) -> None:
    """Raise ConfigError unless a broker may have these values (by broker name)."""
    if values[DURABILITY] in BEYOND_FOLDER and not has_tier:
        raise _needs_tier(str(values[DURABILITY]))
    if values[DURABILITY] == REPLICATED:
        _check_flush(str(values[FLUSH]))


def _check_flush(flush: str) -> None:
    if flush != COMMIT:
        why = f"it needs {FLUSH}={COMMIT}, since acknowledged records are on disks"
        raise ConfigError(DURABILITY, REPLICATED, why)


def _needs_tier(wanted: str) -> ConfigError:
    why = "it needs a remote tier: start the broker with --tier URL"
    return ConfigError(DURABILITY, wanted, why)
