"""Rules of the setting `durability` of topics and brokers.

The durability of a topic is fixed when it is created. `durability=s3` needs a remote tier, and
segments that are uploaded to it: log objects are deleted only when their records are in segments
there. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.codec.configs.parse import ConfigError
from kafkawire.codec.configs.row import Value
from kafkawire.codec.configs.tier_rules import COPY_DISABLE, ENABLE

DURABILITY = "durability"
LOCAL = "local"
S3 = "s3"


def new_topic_durability(overrides: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, str]:
    """Return the override that a new topic gets from the broker's default; empty where the topic
    has its own, or the default is `local`, which is that of topics without the override."""
    default = broker.get(DURABILITY, LOCAL).strip()
    return {} if DURABILITY in overrides or default == LOCAL else {DURABILITY: default}


def check_durability(values: Mapping[str, Value], has_tier: bool, before: str | None) -> None:
    """Raise ConfigError unless a topic may have these values (by topic name); `before`: the
    durability of an existing topic, None for a new one."""
    wanted = str(values[DURABILITY])
    if before is not None and wanted != before:
        raise ConfigError(
            DURABILITY,
            wanted,
            f"the durability of a topic is fixed when it is created, and this one has {before}; "
            f"create another topic with {DURABILITY}={wanted} and copy the records",
        )
    if wanted != S3:
        return
    if before is None and not has_tier:
        raise _needs_tier()
    if has_tier and (not values[ENABLE] or values[COPY_DISABLE]):
        name, value = (COPY_DISABLE, "true") if values[ENABLE] else (ENABLE, "false")
        raise ConfigError(
            name,
            value,
            f"a topic with {DURABILITY}={S3} must be copied to the remote tier, since its log "
            "objects are deleted only after that",
        )


def check_broker_durability(values: Mapping[str, Value], has_tier: bool) -> None:
    """Raise ConfigError unless a broker may have these values (by broker name)."""
    if values[DURABILITY] == S3 and not has_tier:
        raise _needs_tier()


def _needs_tier() -> ConfigError:
    return ConfigError(DURABILITY, S3, "it needs a remote tier: start the broker with --tier URL")
