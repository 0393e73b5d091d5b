"""The settings of a share group, as the leader of its share partitions uses them. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol

LATEST, EARLIEST = -1, -2
"""Values of `reset_ms`, besides an age in milliseconds (by_duration)."""


class ShareSettings(NamedTuple):
    """Settings of one group. `lock_ms`: how long an acquired record is locked; `delivery_limit`:
    how often a record is delivered at most; `max_locks`: offsets between the start and the end of
    a share partition; `committed`: members read committed records only; `reset_ms`: where a group
    begins; `dead_letter_topic`: empty if the group has none, or the cluster no dead letters."""

    lock_ms: int = 30_000
    delivery_limit: int = 5
    max_locks: int = 2_000
    committed: bool = False
    renew: bool = True
    reset_ms: int = LATEST
    retry_delay_ms: int = 0
    retry_delay_max_ms: int = 300_000
    dead_letter_topic: str = ""
    copy_record: bool = False

    def retry_delay(self, delivery_count: int) -> int:
        """Return for how many milliseconds a record is unavailable that was released after so many
        deliveries: the delay doubles with each."""
        if not self.retry_delay_ms or delivery_count < 1:
            return 0
        # The exponent is limited, as the product is to the maximum: both are from outside.
        delay = self.retry_delay_ms << min(delivery_count - 1, 32)
        return min(delay, self.retry_delay_max_ms)

    @property
    def isolate_from(self) -> int:
        """The delivery count from which on a record is delivered with fewer others, so that one
        that members fail on does not take others to the limit (Kafka:
        SharePartition.throttleRecordsDeliveryLimit)."""
        return max(2, -(-self.delivery_limit // 2))


class GroupSettings(Protocol):
    """Where the settings of groups are."""

    def share_settings(self, group_id: str) -> ShareSettings:
        """Return the present settings of a group, which need not exist."""
        ...
