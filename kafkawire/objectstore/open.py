"""Open the provider of a tier's URL, the only module that knows all kinds of providers."""

from __future__ import annotations

from kafkawire.objectstore.folder import FolderProvider
from kafkawire.objectstore.port import Provider
from kafkawire.objectstore.staging import OwnStaging
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
    """Return the provider of a tier's URL, for this many concurrent calls, of which `transfers` may
    move whole objects. `seen`: its bucket or folder existed before, so it is not created again;
    `storage_class`: of objects whose keys begin with `storage_class_prefix`. Raises Refused."""
    if tier.is_s3:
        # importing boto3 takes long; a folder does not need it
        from kafkawire.objectstore.s3 import S3Provider

        return S3Provider(
            tier, part_bytes, calls, transfers, storage_class, storage_class_prefix, seen
        )
    return FolderProvider(tier.folder, OwnStaging(tier.folder, tier.create, seen))
