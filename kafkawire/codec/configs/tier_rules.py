"""Settings of the remote tier that depend on each other, with Kafka's rules (LogConfig, KIP-950).

Where Kafka differs: compacted topics are tiered too, and a topic without `remote.storage.enable` is
tiered where the broker has a tier.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from kafkawire.codec.configs.parse import ConfigError, whole_number
from kafkawire.codec.configs.row import INT64_MAX, Value
from kafkawire.codec.configs.tier_rows import LEVELS

ENABLE = "remote.storage.enable"
COPY_DISABLE = "remote.log.copy.disable"
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
COPY_LAG_MS, COPY_LAG_BYTES = "remote.copy.lag.ms", "remote.copy.lag.bytes"
AS_RETENTION = -2
"""local.retention.*: as long, or as much, as the records are kept at all."""
FOR_EVER = -1


class TierLevel(IntEnum):
    """Conditions under which uploaded offsets are read from the remote tier; each level includes
    those before it."""

    DISABLE = 0
    NOT_IN_DISK = 1
    NOT_IN_MEM = 2
    FORCE = 3

    @classmethod
    def from_name(cls, name: str) -> TierLevel:
        """Return the level of a valid text of `tieredStorageLevel`."""
        return cls(LEVELS.index(name))


def tiered_by_default(broker: Mapping[str, str]) -> bool:
    """Return True if the broker (settings as texts) has a tier, and so tiers topics by default."""
    return bool(broker.get("tier.url", "").strip())


def local_retention(local: int, total: int) -> int:
    """Effective `local.retention.*`, given `retention.*`; -1: no bound."""
    if local < 0:  # as long as retention.*, which may be unlimited
        return total
    return local if total < 0 else min(local, total)


def upload_limits(
    lag_ms: int, min_bytes: int, copy_lag: tuple[int, int], local_retention: tuple[int, int]
) -> tuple[int, int]:
    """Return the upload lag and the least bytes of an object that need not wait, given those of
    tiering.*, remote.copy.lag.ms and .bytes, and the effective local.retention.ms and .bytes."""
    if 0 in copy_lag:  # what either of them allows is uploaded
        return lag_ms, min_bytes
    # -1: as local.retention.*, whose -1 is no condition.
    wait_ms, wait_bytes = (
        local if lag < 0 else lag for lag, local in zip(copy_lag, local_retention, strict=True)
    )
    if wait_ms > 0:
        lag_ms = max(lag_ms, wait_ms)
        min_bytes = max(min_bytes, wait_bytes) if wait_bytes > 0 else INT64_MAX
    return lag_ms, min_bytes


def check_tiering(values: Mapping[str, Value], has_tier: bool, enabled: bool) -> None:
    """Raise ConfigError unless a topic may have these values (by topic name). `enabled`: the topic
    exists and has remote.storage.enable=true."""
    if not values[ENABLE]:
        if enabled and has_tier and not values[DELETE_ON_DISABLE]:
            raise ConfigError(
                ENABLE,
                "false",
                f"what is only in the remote tier goes with it: set {DELETE_ON_DISABLE}=true too, "
                f"or keep {ENABLE} and set {COPY_DISABLE}=true to copy no more",
            )
        return
    if not has_tier and not enabled:
        raise ConfigError(
            ENABLE, "true", "the broker has no remote tier (kafkawire serve --tier URL)"
        )
    for unit in ("ms", "bytes"):
        local, total = f"local.retention.{unit}", f"retention.{unit}"
        _check_local(values, local, total)
        _check_copy_lag(values, f"remote.copy.lag.{unit}", local, total)


def _check_local(values: Mapping[str, Value], local_name: str, total_name: str) -> None:
    local, total = whole_number(values[local_name]), whole_number(values[total_name])
    if local == AS_RETENTION:
        return
    if total > FOR_EVER and (local == FOR_EVER or local > total):
        raise ConfigError(local_name, local, f"it must not be above {total_name}, which is {total}")
    if values[COPY_DISABLE] and local != total:
        raise ConfigError(
            local_name,
            local,
            f"with {COPY_DISABLE}=true nothing more is copied, so it must be as {total_name}, "
            f"which is {total}, or {AS_RETENTION}",
        )


def _check_copy_lag(values: Mapping[str, Value], name: str, local: str, total: str) -> None:
    lag, limit = whole_number(values[name]), whole_number(values[local])
    if limit == AS_RETENTION:
        limit = whole_number(values[total])
    if 0 <= limit < lag:
        raise ConfigError(name, lag, f"it must not exceed {local} (effective value: {limit})")
