"""Open the provider of a tier's URL: the one place that knows which kinds there are."""

from __future__ import annotations

from kafkawire.objectstore.folder import FolderProvider
from kafkawire.objectstore.port import Provider
from kafkawire.objectstore.url import TierUrl


def make_provider(
    tier: TierUrl,
    part_bytes: int,
    calls: int,
    transfers: int,
    seen: bool = False,
    storage_class: str = "",
    storage_class_prefix: str = "",
) -> Provider:
    """Return the provider of a tier's URL, for so many calls at a time, and so many of those
    transfers of whole objects. `seen`: see Provider; `storage_class` of the objects whose keys
    begin with `storage_class_prefix`. Raises Refused."""
    provider: Provider
    if tier.is_s3:
        from kafkawire.objectstore.s3 import (
            S3Provider,  # boto3 takes a while, and a folder needs none
        )

        provider = S3Provider(
            tier, part_bytes, calls, transfers, storage_class, storage_class_prefix
        )
    else:
        provider = FolderProvider(tier.folder, tier.create)
    provider.seen = seen
    return provider
