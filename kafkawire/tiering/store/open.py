"""Opens the store of a tier by its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkawire.objectstore.url import parse_tier

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.tiering.store.process import StoreProcess


def open_store(url: str, config: BrokerConfig, *, seen: bool = False) -> StoreProcess:
    """Open the store of a tier with the broker's settings; nothing is started before its first use.
    `seen`: it has objects of this broker, so it is not created again if it is gone.

    Raises ValueError like `parse_tier`.
    """
    # not imported by brokers without a tier
    from kafkawire.tiering.store.process import StoreProcess

    return StoreProcess(
        parse_tier(url),
        memory_bytes=config.tier_cache_bytes,
        part_bytes=config.tier_part_bytes,
        upload_threads=config.tier_upload_threads,
        read_threads=config.tier_read_threads,
        storage_class=config.tier_s3_storage_class,
        seen=seen,
    )
